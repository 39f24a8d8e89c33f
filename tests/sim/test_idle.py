"""A setting that would do nothing where it is given is refused, with who reads it."""

from dataclasses import fields

import pytest

from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import StrategyConfig
from deltafl.sim.settings.config_io import build_config

OTHER = {
    "weighting": "uniform",
    "eta_every": 2,
    "response": "weibull",
    "rfa_passes": 4,
}


def other(field):
    """A value of a constant that is not its default."""
    return OTHER[field.name] if field.name in OTHER else field.default / 2


CONSTANTS = [
    one for one in fields(StrategyConfig) if one.name not in ("aggregation", "server_optimizer")
]


@pytest.mark.parametrize("field", CONSTANTS, ids=lambda field: field.name)
def test_every_constant_is_refused_where_nothing_reads_it(field):
    """FedAvg with a mean reads the server's step size, and no other."""
    layer = {"federation": {"algorithm": "fedavg"}, "strategy": {field.name: other(field)}}
    if field.name == "server_learning_rate":
        assert build_config([layer]).strategy.server_learning_rate == 0.5
        return
    with pytest.raises(ConfigError, match=rf"strategy\.{field.name} = .* does nothing here: only"):
        build_config([layer])
    read = {
        "weighting": {"federation": {"algorithm": "delta-fl"}},
        "eta_every": {"federation": {"algorithm": "delta-fl"}},
        "proximal": {"federation": {"algorithm": "private-fedprox"}},
        "q": {"federation": {"algorithm": "q-ffl"}},
        "tilt": {"federation": {"algorithm": "tilted-erm"}},
        "mixture_rate": {"federation": {"algorithm": "afl"}},
        "ceiling": {"federation": {"algorithm": "propfair"}},
        "mgda_epsilon": {"federation": {"algorithm": "fedmgda"}},
        "response": {"federation": {"algorithm": "aaggff-d"}},
    }
    kind = field.name.partition("_")[0]
    by = {"rfa": {"aggregation": "rfa"}, "clipped": {"aggregation": "clipped"}}
    chosen = read.get(field.name) or {"strategy": by.get(kind, {"server_optimizer": "yogi"})}
    built = build_config([layer, chosen])
    assert getattr(built.strategy, field.name) == other(field)


def test_a_constant_of_one_of_the_compared_algorithms_is_read():
    layers = {
        "federation": {"algorithm": "private-delta-fl"},
        "experiment": {"baselines": ["fedavg", "fedprox"]},
        "strategy": {"proximal": 0.01},
    }
    assert build_config([layers]).strategy.proximal == 0.01


def test_all_who_read_a_setting_are_named():
    layers = {"federation": {"algorithm": "fedavg"}, "strategy": {"proximal": 0.01}}
    with pytest.raises(ConfigError, match="algorithm = 'fedprox' or 'private-fedprox' reads it"):
        build_config([layers])


def test_what_lies_do_not_take_is_refused_where_devices_lie():
    lies = {"attackers": {"share": "0.1", "kind": "sign-flipped", "deviations": 2.0}}
    with pytest.raises(ConfigError, match=r"only attackers\.kind = 'little-is-enough' reads it"):
        build_config([lies])
    lies["attackers"]["share"] = "0"  # a point of a sweep
    assert build_config([lies]).attackers.deviations == 2.0
