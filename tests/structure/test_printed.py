"""What is about a single device, or a key, is not printed: one line in a log would be enough."""

import importlib
import pkgutil
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache

import pytest

PACKAGES = ("secagg", "protocol", "fl", "sim.cohort", "sim.net")

SECRET = {
    *("tick", "weight", "loss", "num_samples", "num_clipped", "log_scale"),  # of one device
    *("secret", "secrets", "seed", "key", "token", "shares", "blinding", "blindings", "chosen"),
}
"""Names of fields under which code has such values."""

PUBLIC = {
    "fl.criterion.Criterion.loss": "the name of a loss",
    "fl.data.federated.Split.seed": "of the split of data into devices, in the settings",
    "fl.data.registry.Published.num_samples": "of a public data set",
    "protocol.quantile.bracket.Rank.weight": "a sum over devices",
    "protocol.update_noise.NoisyUpdates.seed": "of the rotation, which all devices know",
    "sim.cohort.attackers.Attack.tick": "the step of the losses' grid",
    "sim.cohort.seeds.Seeds.seed": "of a simulation, in the settings",
    "sim.net.certificates.Tls.key": "the path of a file",
    "sim.net.frames.Hello.key": "a public key",
    "sim.net.own_work.SummedMetrics.loss": "a mean over devices",
    "secagg.summing.Summing.secrets": "the server's, an object that prints nothing",
}
"""Fields of such names that are no secret, and why."""


def dataclasses_of(module):
    classes = [c for c in vars(module).values() if isinstance(c, type) and is_dataclass(c)]
    return [c for c in classes if c.__module__ == module.__name__]


def printed(classes):
    """The fields of secret names that the classes print, as "module.Class.field"."""
    return {
        f"{c.__module__.removeprefix('deltafl.')}.{c.__qualname__}.{each.name}"
        for c in classes
        if c.__dataclass_params__.repr
        for each in fields(c)
        if each.repr and each.name in SECRET
    }


@cache
def every_dataclass():
    found = []
    for name in PACKAGES:
        package = importlib.import_module(f"deltafl.{name}")
        names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        for module in [package, *map(importlib.import_module, names)]:
            found += dataclasses_of(module)
    return found


@pytest.mark.slow
def test_no_dataclass_prints_what_is_about_one_device():
    assert len(every_dataclass()) > 100
    assert printed(every_dataclass()) == set(PUBLIC)


def test_a_device_of_a_flower_app_prints_no_token():
    module = importlib.import_module("deltafl.sim.net.flower.messages")
    assert any(each.name == "token" for c in dataclasses_of(module) for each in fields(c))
    assert not printed(dataclasses_of(module))


def test_a_dataclass_that_prints_a_loss_is_found():
    @dataclass
    class Told:
        tick: int
        weight: int = field(repr=False)
        harmless: int = 0

    assert {name.rpartition(".")[2] for name in printed([Told])} == {"tick"}
