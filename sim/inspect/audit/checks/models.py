"""Does every model follow from the round before?"""

from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A8, Rule, Rules
from deltafl.sim.inspect.audit.server_step import PLAIN_STEP

RULES: Final = Rules(
    {
        "model.unfounded": Rule(
            Severity.HIGH,
            "a model does not follow from the round before",
            "Devices were made to work on a model of the server's own making, unless the server "
            "steps "
            "by an optimiser that the audit was not told of.",
            "Of a run with `strategy.server_optimizer`, audit the run directory, whose settings "
            "name "
            "it: the step is then computed as well. Else stop using this server.",
            A8,
        ),
    }
)


class Models(Check):
    """Compares models with those that the sums lead to."""

    name = "models from sums"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._rounds = 0  # of which all models are known; the first ones are given

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the models that a round was announced with."""
        self._rounds += over.view.is_whole and all(
            over.is_first or one.has_known_model for one in over.played
        )
        for one in over.played:
            if (seen := one.other_model) is not None:
                yield RULES.found("model.unfounded", seen.detail, [seen.place])

    def coverage(self, tally: Tally) -> Coverage:
        """Models, and the sums of updates, are in whole messages only."""
        models = f"{self._rounds} of {tally.rounds}; the first is given"
        if self._premises.optimizer != PLAIN_STEP:
            models += "; stepped by the optimiser of the run's settings"
        return Coverage(self._rounds, models)
