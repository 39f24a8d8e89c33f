"""Geometric medians by the settings: in clear, and never by secure sums."""

import pytest

from deltafl.fl.strategies.geometric_median import Robustly
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.settings.config_io import build_config


def config_of(algorithm, **sections):
    sections = {"federation": {"algorithm": algorithm}, **sections}
    sections.setdefault("strategy", {}).setdefault("aggregation", "rfa")
    return build_config([sections])


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "delta-fl"])
def test_the_settings_make_the_strategy(name):
    own = {"aggregation": "rfa", "rfa_passes": 5, "rfa_smoothing": 0.25}
    clear = build_strategy(config_of(name, strategy=own)).strategy
    assert clear.robustly == Robustly(5, 0.25)
    assert build_strategy(config_of(name)).strategy.robustly == Robustly()


@pytest.mark.parametrize("name", ["private-fedavg", "private-fedprox", "private-delta-fl"])
@pytest.mark.parametrize("sums", ["masked", "ideal"])
def test_devices_give_one_sum_of_their_updates(name, sums):
    wanted = r"'rfa': must not be 'rfa' with .*'clipped' takes one sum"
    with pytest.raises(ConfigError, match=wanted):
        config_of(name, privacy={"sums": sums})


@pytest.mark.parametrize("name", ["q-ffl", "private-tilted-erm", "afl", "propfair", "fedmgda"])
def test_other_algorithms_have_no_median(name):
    with pytest.raises(
        ConfigError, match=r"strategy.aggregation = 'rfa': must (be 'mean'|not be 'rfa') with"
    ):
        build_strategy(config_of(name))
