"""How many devices a round may invite."""

import pytest

from deltafl.sim.inspect.audit.draws import Draws
from deltafl.sim.settings.config_io import build_config


@pytest.mark.parametrize(
    ("devices", "size", "is_told"),
    [
        ("simulated", 5, False),
        ("simulated", 4, True),
        ("simulated", 6, True),
        ("remote", 5, False),
        ("remote", 4, False),  # a device was taken off the list
        ("remote", 6, True),
    ],
)
def test_fewer_than_the_settings_say_are_invited_only_where_there_were_no_more(
    devices, size, is_told
):
    federation = {"devices": devices, "cohort_size": 5, "algorithm": "private-fedavg"}
    privacy = {"min_cohort": 4}
    alone = {"experiment": {"baselines": [], "num_seeds": 1}}
    config = build_config([alone, {"federation": federation, "privacy": privacy}])
    assert bool(list(Draws(config, None)._sizes(3, size))) is is_told
