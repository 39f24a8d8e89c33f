"""Settings, data and a model that do not fit together are told before anything is written."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from deltafl.fl.criterion import criterion_of
from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import Split, federate
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.fitting import check_fit
from deltafl.sim.run.simulated import spec_of
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config


def dataset(scale):
    """Targets that the first model, which says 0, misses by `scale`."""
    made = [
        checked_device("d", f"{k:02}", np.ones((3, 2)), np.full(3, scale), numbers=True)
        for k in range(24)
    ]
    return federate("d", made, Split())


def silent():
    module = nn.Linear(2, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module


def check(scale, loss="mae", algorithm="private-delta-fl", **quantile):
    config = build_config(
        [
            {
                "federation": {"algorithm": algorithm, "cohort_size": 10},
                "quantile": quantile,
                "experiment": {"baselines": []},
                "model": {"name": "own"},
                "data": {"format": "own"},
            }
        ]
    )
    data = dataset(scale)
    check_fit(config, data, spec_of(config, data, silent, criterion_of(loss, of_numbers=True)))


@pytest.mark.parametrize("scale", [2**-10, 1.0, 32.0])
def test_losses_that_the_search_can_tell_apart_are_as_they_should_be(scale):
    check(scale)


@pytest.mark.parametrize(
    ("scale", "complaint", "remedy"),
    [
        (33.0, "loss_bound = 32: .* go up to 33:", {"loss_bound": 128, "resolution_bits": 14}),
        (5e5, "loss_bound = 32: .* go up to 5e.05:", {"loss_bound": 2**20, "resolution_bits": 1}),
        (1e-4, "resolution_bits = 16: .*go up to 0.0001:", {"resolution_bits": 33}),
    ],
)
def test_losses_of_another_scale_are_refused_with_settings_that_are_right(scale, complaint, remedy):
    with pytest.raises(ConfigError, match=complaint) as caught:
        check(scale)
    for name, value in remedy.items():
        assert f"'{name}': {value}" in str(caught.value)
    check(scale, **remedy)


@pytest.mark.parametrize("algorithm", ["delta-fl", "private-fedavg"])
def test_who_does_not_search_in_private_may_have_any_losses(algorithm):
    check(5e5, algorithm=algorithm)


def test_a_perfect_first_model_is_no_mistake():
    check(0.0)


def test_a_cohort_larger_than_the_population_is_refused():
    config = RunConfig()
    config = replace(config, federation=replace(config.federation, cohort_size=13))
    data = dataset(1.0)
    with pytest.raises(ConfigError, match="cohort_size = 13 is more than the 12 training"):
        check_fit(config, data, spec_of(config, data, silent))


@pytest.mark.parametrize(("most", "is_enough"), [(0, True), (4, False), (5, True)])
def test_devices_that_would_leave_a_run_are_noticed(most, is_enough):
    """Cohorts without an account are drawn, so that a device may be in all of them."""
    given = {
        "federation": {"algorithm": "private-delta-fl", "cohort_size": 10, "rounds": 5},
        "policy": {"max_participations": most},
        "experiment": {"baselines": []},
        "model": {"name": "own"},
        "data": {"format": "own"},
    }
    config, data = build_config([given]), dataset(1.0)
    spec = spec_of(config, data, silent, criterion_of("mae", of_numbers=True))
    if is_enough:
        check_fit(config, data, spec)
    else:
        with pytest.raises(ConfigError, match="in 5 rounds, a device is invited up to"):
            check_fit(config, data, spec)
