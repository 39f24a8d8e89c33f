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
            "Devices were made to work on a model that the server made up, unless the server "
            "uses an optimiser that the audit was not told about.",
            "If the run has a `strategy.server_optimizer`, audit the run directory: its settings "
            "name the optimiser, so that the audit can compute the step as well. Otherwise stop "
            "using this server.",
            A8,
        ),
    }
)


class Models(Check):
    """Compares the announced models with those that follow from the sums."""

    name = "models from sums"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._rounds = 0  # of which all models are known; the first ones are given

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the models that were announced for a round."""
        self._rounds += over.view.is_whole and all(
            over.is_first or one.has_known_model for one in over.played
        )
        for one in over.played:
            if (seen := one.other_model) is not None:
                yield RULES.found("model.unfounded", seen.detail, [seen.place])

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain models and the sums of updates."""
        models = f"{self._rounds} of {tally.rounds}; the first is given"
        if self._premises.optimizer != PLAIN_STEP:
            models += "; stepped by the optimiser of the run's settings"
        return Coverage(self._rounds, models)
