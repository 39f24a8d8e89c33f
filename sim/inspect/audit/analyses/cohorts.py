"""Can sums of one analysis be subtracted from each other?"""

from collections.abc import Iterator
from typing import Final

from deltafl.sim.analyse.plan import FIRST_QUERY
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.differencing import Difference, DifferenceKind, Differencing
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A13, Rule, Rules
from deltafl.sim.inspect.audit.views import place_of

RULES: Final = Rules(
    {
        "analysis.same-sum": Rule(
            Severity.HIGH,
            "one number was summed twice, over devices that differ by few",
            "The difference of the sums is about those few devices.",
            "Sum each number once and over one cohort. Keep whole slots.",
            A13,
        ),
        "analysis.fewer-devices": Rule(
            Severity.LOW,
            "a later sum of an analysis is over a few devices less",
            "Numbers of one sum that follow from those of the other, such as the number of devices "
            "with rows from the number of rows, tell something of the devices that are missing.",
            "This is part of the design. It is rarer if fewer devices drop out.",
            A13,
        ),
    }
)

_SHOWN: Final = 5


class AnalysisCohorts(Check):
    """Compares the devices of the sums with each other, number by number."""

    name = "differences of sums"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._differencing = Differencing(premises.expected.min_difference)

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the sums in their order."""
        for released in over.view.sums:
            ids, place = released.contributors.tolist(), place_of(released)
            # the queries of a search all count the same values
            asked = b"ranks" if released.slot >= FIRST_QUERY else b"slot %d" % released.slot
            for close in self._differencing.add(asked, b"tables", ids, place):
                yield _difference(close)

    def coverage(self, tally: Tally) -> Coverage:
        """Every sum is recorded with its devices."""
        fewest = self._premises.expected.min_difference
        return Coverage(tally.told, f"sums over sets that differ by fewer than {fewest} devices")


def _difference(found: Difference) -> Finding:
    devices = ", ".join(map(str, found.devices[:_SHOWN]))
    same = found.kind is DifferenceKind.SAME_QUESTION
    rule = "analysis.same-sum" if same else "analysis.fewer-devices"
    return RULES.found(rule, f"without devices {devices}", [found.second, found.first])
