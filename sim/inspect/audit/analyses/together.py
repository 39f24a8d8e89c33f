"""Several analyses of the same devices: what they give away together.

Devices are taken to be the same where they have the same number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol

from deltafl.sim.analyse.tables import meant
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.analyses.facts import AnalysisFacts, SumFacts
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import A6, A11, A13, Rule, Rules
from deltafl.sim.run.accounting import DELTA, epsilon_of

RULES: Final = Rules(
    {
        "analyses.same-sum": Rule(
            Severity.HIGH,
            "two analyses summed the same numbers over devices that differ by few",
            "The difference of the sums is about those few devices.",
            "Ask each question once, and keep a ledger of what devices have answered.",
            A13,
        ),
        "analyses.same-session": Rule(
            Severity.HIGH,
            "two records are of one session",
            "One of them is a copy, or a session was run twice, so that its masks may repeat.",
            "Get the records from where they were written.",
            A6,
        ),
        "analyses.near-groups": Rule(
            Severity.MEDIUM,
            "two analyses of one column are about groups that may differ by few devices",
            "If one group is in the other, the difference of the answers is about those few.",
            "Ask about groups that differ by many devices, or with noise.",
            A13,
        ),
        "analyses.noise-again": Rule(
            Severity.MEDIUM,
            "a noisy question was asked again",
            "Noise averages out over answers to one question, and ε adds up.",
            "Ask once, with as little noise as the answer can do with.",
            A11,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Together:
    """What several analyses come to.

    Attributes:
        analyses: how many.
        sums: released by all of them.
        epsilon: ε of all noisy sums together, at `delta`; None if none has noise.
        delta: its δ; None without ε.
        exact: how many of them have no noise, so that ε does not cover them.
        not_compared: the names of those whose records do not say enough.
        findings: about pairs of them, worst first.
    """

    analyses: int
    sums: int
    epsilon: float | None
    delta: float | None
    exact: int
    not_compared: tuple[str, ...]
    findings: tuple[Finding, ...]

    def to_json(self, rules: Mapping[str, Rule]) -> dict[str, object]:
        """The same as JSON values; each finding includes the texts of its rule."""
        findings = [
            {
                "rule": one.rule,
                "severity": one.severity.name.lower(),
                "detail": one.detail,
                **rules[one.rule].texts(),
            }
            for one in self.findings
        ]
        return {
            "analyses": self.analyses,
            "sums": self.sums,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "exact": self.exact,
            "not_compared": list(self.not_compared),
            "findings": findings,
        }


class OfAnalysis(Protocol):
    """What is needed of a report."""

    @property
    def source(self) -> str:
        """What was audited."""

    @property
    def run_id(self) -> str:
        """Id of the record."""

    @property
    def is_analysis(self) -> bool:
        """Whether it is of an analysis."""

    @property
    def analysis(self) -> AnalysisFacts | None:
        """The analysis; None where the record does not say enough."""


def together(reports: Sequence[OfAnalysis], min_difference: int) -> Together:
    """Compare analyses with each other, and add up.

    Args:
        reports: on the analyses.
        min_difference: devices by which sums, or groups, must differ at least.

    Raises:
        UserError: one is of a run, or is given twice.
    """
    first: dict[str, str] = {}
    for one in reports:
        if not one.is_analysis:
            raise UserError(f"{one.source} is of a run: only analyses are audited together")
        if one.run_id in first:
            raise UserError(f"{one.source} and {first[one.run_id]} are one record: give it once")
        first[one.run_id] = one.source
    named = [(one.source, one.analysis) for one in reports if one.analysis is not None]
    rhos = [one.rho for _, one in named if one.rho is not None]
    found = [
        finding
        for (a, first), (b, second) in combinations(named, 2)
        for finding in _compare((a, first), (b, second), min_difference)
    ]
    return Together(
        len(reports),
        sum(len(one.sums) for _, one in named),
        epsilon_of(sum(rhos), DELTA) if rhos else None,
        DELTA if rhos else None,
        len(named) - len(rhos),
        tuple(one.source for one in reports if one.analysis is None),
        tuple(sorted(found, key=lambda one: -one.severity)),
    )


_Named = tuple[str, AnalysisFacts]


def _compare(one: _Named, other: _Named, fewest: int) -> Iterator[Finding]:
    (a, first), (b, second) = one, other
    if first.seed and first.seed == second.seed:
        yield RULES.found("analyses.same-session", f"{a} and {b}", [Evidence()])
        return
    if (first.user, first.column) != (second.user, second.column):
        return
    pair, place = f"{a} and {b}", [Evidence()]
    if first.where == second.where or _rows(first.where) == _rows(second.where):
        yield from _same_values(pair, first, second, fewest)
    elif first.holders is not None and second.holders is not None:
        apart = abs(first.holders - second.holders)
        if 0 < apart < fewest and first.rho is None and second.rho is None:
            detail = (
                f"{pair}: {first.holders:g} devices have rows where {first.where or 'all'!r}, and "
                f"{second.holders:g} where {second.where or 'all'!r}"
            )
            yield RULES.found("analyses.near-groups", detail, place)


def _same_values(
    pair: str, first: AnalysisFacts, second: AnalysisFacts, fewest: int
) -> Iterator[Finding]:
    place = [Evidence()]
    if first.rho is not None and second.rho is not None:
        both = {key for one in first.sums for key in _keys(one)} & {
            key for one in second.sums for key in _keys(one)
        }
        if both:
            detail = f"{pair}: both summed {', '.join(name for name, _ in sorted(both))}"
            yield RULES.found("analyses.noise-again", detail, place)
    apart: dict[tuple[int, ...], str] = {}
    for mine in first.sums:
        for other in second.sums:
            same = _keys(mine) & _keys(other)
            devices = tuple(sorted(set(mine.devices) ^ set(other.devices)))
            if same and 0 < len(devices) < fewest:
                apart.setdefault(devices, min(name for name, _ in same))
    for devices, name in apart.items():
        shown = ", ".join(map(str, devices))
        detail = f"{pair}: {name} with and without devices {shown}"
        yield RULES.found("analyses.same-sum", detail, place)


def _keys(one: SumFacts) -> set[tuple[str, str]]:
    """What was summed: names, and what else of the question each number depends on."""
    return set(zip(one.names, one.terms, strict=True))


def _rows(where: str) -> tuple[str, str | float]:
    """Which rows count, however the value is spelled that they must have."""
    name, _, value = where.partition("=")
    return name, meant(value)
