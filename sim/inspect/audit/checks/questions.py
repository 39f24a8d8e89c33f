"""Does every question follow from the sums before it?"""

from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A14, Rule, Rules

RULES: Final = Rules(
    {
        "question.unfounded": Rule(
            Severity.HIGH,
            "a question does not follow from the sums before it",
            "A server that chooses thresholds at will can isolate the device with the largest "
            "loss.",
            "Recompute every question from the sums, and stop using this server.",
            A14,
        ),
    }
)


class Questions(Check):
    """Compares the questions asked with those that follow from the sums."""

    name = "questions from sums"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._rounds = 0  # of which at least one level could be played to its end

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look for questions that do not follow from the sums."""
        self._rounds += any(one.outcome is not None for one in over.played)
        for one in over.played:
            for seen in one.unfounded:
                yield RULES.found("question.unfounded", seen.detail, [seen.place], seen.severity)

    def coverage(self, tally: Tally) -> Coverage:
        """Needs the sums, or at least all words of a query's sum."""
        replays = f"{self._rounds} of {tally.rounds} rounds played again from their sums"
        return Coverage(self._rounds, replays)
