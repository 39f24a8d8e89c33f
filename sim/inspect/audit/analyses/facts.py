"""What a report says of an analysis, so that it can be compared with others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SumFacts:
    """One sum that an analysis released.

    Attributes:
        names: of the numbers in it.
        terms: for each name, what else of the question the number depends on.
        devices: whose numbers, ascending.
    """

    names: tuple[str, ...]
    terms: tuple[str, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnalysisFacts:
    """An analysis.

    Attributes:
        statistic: that was asked for.
        user: the column that names devices; "" if it is not recorded.
        column: of which column; "" if it is not recorded.
        where: of which rows, as NAME=VALUE; "" of all.
        seed: the public seed of its session, in hex; "" without a session.
        sums: that were released.
        holders: devices that have a row that counts; an estimate with noise; None without
            their sum.
        rho: ρ of its sums, in zero-concentrated differential privacy; None without noise.
        epsilon: ε of its answer; None without noise or answer.
    """

    statistic: str
    user: str
    column: str
    where: str
    seed: str
    sums: tuple[SumFacts, ...]
    holders: float | None
    rho: float | None
    epsilon: float | None
