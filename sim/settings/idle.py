"""Settings that would do nothing: whoever gives one expects something of it, so it is refused.

What counts is a value other than the default. A setting of an experiment has to do something in one
of its runs. Where nobody lies, what liars would do may be set: a share of 0 is a point of a sweep.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from deltafl.fl.registry import DELTA_FL, OTHER_STRATEGIES, SERVER_OPTIMIZERS, WEIGHTED_MEANS
from deltafl.protocol.registry import Entry
from deltafl.sim.settings.attackers import Kind
from deltafl.sim.settings.config import ALGORITHMS, PRIVATE, RunConfig

_CHOICES: Final = {
    "strategy": frozenset({"aggregation", "server_optimizer"}),
    "attackers": frozenset({"share", "kind", "loss", "weight"}),
}
"""The sections that are looked at, and what in them chooses the rest."""

_OF_AGGREGATION: Final[Mapping[str, frozenset[str]]] = {
    "rfa": frozenset({"rfa_passes", "rfa_smoothing"}),
    "clipped": frozenset({"clipped_quantile", "clipped_rate", "clipped_radius"}),
}
_ALGORITHMS: Final[Mapping[str, Entry[object]]] = {**WEIGHTED_MEANS, **OTHER_STRATEGIES}

_SCALED: Final = (
    Kind.BACKDOOR,
    Kind.SCALED,
    Kind.SIGN_FLIPPED,
    Kind.INNER_PRODUCT,
    Kind.GAUSSIAN,
    Kind.NOISE,
)
_OF_KIND: Final[Mapping[str, frozenset[Kind]]] = {
    "scale": frozenset(_SCALED),
    "deviations": frozenset({Kind.LITTLE}),
    "from_class": frozenset({Kind.FLIPPED_LABELS}),
    "to_class": frozenset({Kind.FLIPPED_LABELS, Kind.BACKDOOR}),
    "poisoned": frozenset({Kind.BACKDOOR}),
    "trigger_size": frozenset({Kind.BACKDOOR}),
    "trigger_value": frozenset({Kind.BACKDOOR}),
}


class Idle(NamedTuple):
    """A setting that is given and does nothing.

    Attributes:
        setting: its name.
        value: what it is set to.
        because: what it would need, for the end of a sentence.
    """

    setting: str
    value: object
    because: str


def idle(config: RunConfig) -> Iterator[Idle]:
    """The settings that do nothing in any run of an experiment."""
    arms = config.arms()
    used = {
        "strategy": frozenset().union(*map(_of_strategy, arms)),
        "attackers": _of_attackers(config),
    }
    for section, choices in _CHOICES.items():
        given: Any = getattr(config, section)
        for one in fields(given):
            value = getattr(given, one.name)
            if one.name not in choices | used[section] and value != one.default:
                yield Idle(f"{section}.{one.name}", value, _because(section, one.name))


def _of_strategy(arm: RunConfig) -> frozenset[str]:
    """The constants that the algorithm of a run reads, its server and its aggregation."""
    algorithm, strategy = arm.federation.algorithm, arm.strategy
    server = frozenset(SERVER_OPTIMIZERS[strategy.server_optimizer].arguments)
    by_mean = _OF_AGGREGATION.get(strategy.aggregation, frozenset())
    return _of_algorithm(algorithm) | server | by_mean


def _of_algorithm(name: str) -> frozenset[str]:
    entry = None if name == PRIVATE + DELTA_FL else _ALGORITHMS.get(name.removeprefix(PRIVATE))
    return frozenset(() if entry is None else entry.arguments)


def _of_attackers(config: RunConfig) -> frozenset[str]:
    lies, kind = config.attackers.lie, config.attackers.kind
    return frozenset(name for name, kinds in _OF_KIND.items() if kind in kinds or not lies)


def _because(section: str, name: str) -> str:
    """Who reads a setting."""
    if section == "attackers":
        return f"only attackers.kind = {_or(sorted(_OF_KIND[name]))} reads it"
    algorithms = [one for one in ALGORITHMS if name in _of_algorithm(one)]
    servers = [one for one, entry in SERVER_OPTIMIZERS.items() if name in entry.arguments]
    means = [one for one, names in _OF_AGGREGATION.items() if name in names]
    for readers, by in (
        (algorithms, "federation.algorithm"),
        (servers, "strategy.server_optimizer"),
        (means, "strategy.aggregation"),
    ):
        if readers:
            return f"only {by} = {_or(readers)} reads it"
    return "nothing reads it"


def _or(names: Sequence[str]) -> str:
    return " or ".join(map(repr, map(str, names)))
