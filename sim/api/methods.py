"""By what a model is trained: an algorithm, and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.weighted_mean import WeightedMean
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.own_code import checked_strategy
from deltafl.sim.settings.config import OWN_STRATEGIES, PRIVATE, Aggregation

Settings: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Settings by section and name, as in a settings file."""


@dataclass(frozen=True)
class Method:
    """An algorithm of `deltafl run --help`, with settings of its own.

    Attributes:
        algorithm: its name, such as "fedavg" or "private-q-ffl".
        settings: those in which it differs from others that it is compared with.
        label: what to call it in tables; by default, the name.
        strategy: of an `OwnMethod`.
    """

    algorithm: str
    settings: Settings = field(default_factory=dict)
    label: str = ""
    strategy: Strategy | None = field(default=None, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        """What to call it."""
        return self.label or self.algorithm


class DeltaFL(Method):
    """Δ-FL in clear (Algorithm 2): the server sees every loss.

    Args:
        theta: the conformity level, in (0, 1]: the share of the data, with the worst losses, that
            is trained for.
        aggregation: "mean"; "clipped" for the mean of updates that are scaled down to a radius; or
            "rfa" for their geometric median. Devices that train falsely move the last two less.
    """

    def __init__(self, theta: float | str = 0.5, aggregation: str = Aggregation.MEAN) -> None:
        settings = {"federation": {"theta": theta}, **_aggregated(aggregation)}
        super().__init__("delta-fl", settings, _label(f"delta-fl, θ = {theta}", aggregation))


class PrivateDeltaFL(Method):
    """Private Δ-FL (Algorithm 3): the server sees nothing but sums.

    Args:
        theta: as of `DeltaFL`.
        aggregation: likewise, but not "rfa", which takes several sums of the same updates.
    """

    def __init__(self, theta: float | str = 0.5, aggregation: str = Aggregation.MEAN) -> None:
        settings = {"federation": {"theta": theta}, **_aggregated(aggregation)}
        label = _label(f"private-delta-fl, θ = {theta}", aggregation)
        super().__init__("private-delta-fl", settings, label)


class FedAvg(Method):
    """Federated averaging, which minimises the mean loss.

    Args:
        private: by secure sums.
        aggregation: as of `DeltaFL`, or of `PrivateDeltaFL` if it is private.
    """

    def __init__(self, *, private: bool = False, aggregation: str = Aggregation.MEAN) -> None:
        name = "private-fedavg" if private else "fedavg"
        super().__init__(name, _aggregated(aggregation), _label(name, aggregation))


class OwnMethod(Method):
    """A strategy of your own.

    Args:
        strategy: an object of a class of your own: a `deltafl.WeightedMean`, or any other
            `deltafl.fl.strategies.base.Strategy`.
        private: by secure sums, which only a `WeightedMean` can be.
        label: what to call it; by default, the strategy's name.

    Raises:
        ConfigError: it is no strategy, or one that cannot be private.
    """

    def __init__(self, strategy: Strategy, *, private: bool = False, label: str = "") -> None:
        checked_strategy(strategy)
        if private and not isinstance(strategy, WeightedMean):
            raise ConfigError(
                f"strategy: {type(strategy).__name__} is no WeightedMean, and only these can be "
                "private: each device must be able to say by itself what it contributes to a mean"
            )
        super().__init__(
            OWN_STRATEGIES[private],
            label=label or (f"{PRIVATE}{strategy.name}" if private else strategy.name),
        )
        object.__setattr__(self, "strategy", strategy)


def _aggregated(aggregation: str) -> dict[str, dict[str, Any]]:
    return {} if aggregation == Aggregation.MEAN else {"strategy": {"aggregation": aggregation}}


def _label(name: str, aggregation: str) -> str:
    return name if aggregation == Aggregation.MEAN else f"{name}, {aggregation}"


def method_of(one: Method | str | Strategy) -> Method:
    """A method, by itself, by the name of its algorithm, or by a strategy of one's own.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(one, Method):
        return one
    return Method(one) if isinstance(one, str) else OwnMethod(one)
