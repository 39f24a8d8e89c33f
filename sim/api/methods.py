"""By what a model is trained: an algorithm, and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Settings: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Settings by section and name, as in a settings file."""


@dataclass(frozen=True)
class Method:
    """An algorithm of `deltafl run --help`, with settings of its own.

    Attributes:
        algorithm: its name, such as "fedavg" or "private-q-ffl".
        settings: those in which it differs from others that it is compared with.
        label: what to call it in tables; by default, the name.
    """

    algorithm: str
    settings: Settings = field(default_factory=dict)
    label: str = ""

    def __str__(self) -> str:
        """What to call it."""
        return self.label or self.algorithm


class DeltaFL(Method):
    """Δ-FL in clear (Algorithm 2): the server sees every loss.

    Args:
        theta: the conformity level, in (0, 1]: the share of the data, with the worst losses, that
            is trained for.
    """

    def __init__(self, theta: float | str = 0.5) -> None:
        settings = {"federation": {"theta": theta}}
        super().__init__("delta-fl", settings, f"delta-fl, θ = {theta}")


class PrivateDeltaFL(Method):
    """Private Δ-FL (Algorithm 3): the server sees nothing but sums.

    Args:
        theta: as of `DeltaFL`.
    """

    def __init__(self, theta: float | str = 0.5) -> None:
        settings = {"federation": {"theta": theta}}
        super().__init__("private-delta-fl", settings, f"private-delta-fl, θ = {theta}")


class FedAvg(Method):
    """Federated averaging, which minimises the mean loss.

    Args:
        private: by secure sums.
    """

    def __init__(self, *, private: bool = False) -> None:
        super().__init__("private-fedavg" if private else "fedavg")


def method_of(one: Method | str) -> Method:
    """A method, by itself or by the name of its algorithm."""
    return Method(one) if isinstance(one, str) else one
