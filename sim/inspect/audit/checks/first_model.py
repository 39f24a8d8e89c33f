"""Did the run start from the model that its settings say?

Whoever chooses the first model chooses what all devices train on: a model that was trained
elsewhere, or one that was made so that updates say more than they should. The first model follows
from the seed of the settings. So it is built again, and compared to the bit.
"""

from collections.abc import Iterator
from typing import Final

from deltafl.protocol.levels import Levels
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.initial import initial_of
from deltafl.sim.inspect.audit.rules import A8, Rule, Rules
from deltafl.sim.inspect.audit.views import SessionView

RULES: Final = Rules(
    {
        "model.first-differs": Rule(
            Severity.HIGH,
            "the first model is not the one that the settings lead to",
            "The server chose the model from which training started. It may have been trained on "
            "other data, or made so that updates reveal more.",
            "Ask where the first model came from, and stop using this server until that is known.",
            A8,
        ),
    }
)


class FirstModel(Check):
    """Builds the first model again, and compares it with the first announcement."""

    name = "first model"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._is_done = False
        self._why = "no model was announced"

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the first announcement of all, before which nothing was learnt."""
        for session in over.view.sessions.values():
            if self._is_done or session.levels is None or not session.announcements:
                continue
            self._is_done = True
            for detail in self._compare(session, session.levels):
                yield RULES.found("model.first-differs", detail, [session.announcements[0].place])

    def coverage(self, tally: Tally) -> Coverage:
        """There is one first model, in whichever round it is."""
        if self._why:
            return Coverage(0, self._why)
        return Coverage(tally.rounds, "built again from the seed")

    def _compare(self, session: SessionView, levels: Levels) -> Iterator[str]:
        initial = initial_of(
            self._premises.source, levels.common.update_length * len(levels.rounds)
        )
        self._why = initial.why
        if initial.problem:
            yield initial.problem
        if initial.model is None:
            return
        built = initial.model.astype("<f4").tobytes()
        announced = b"" if session.announce is None else session.announce.models
        if announced and announced != built:
            yield "another model was announced than follows from the seed of the settings"
        elif levels.context(built) != session.params.context:
            yield (
                "the first session is bound to another model than the one that follows from the "
                "seed of the settings"
            )
