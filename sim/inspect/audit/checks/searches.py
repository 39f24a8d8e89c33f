"""What did the searches for the threshold give away? Did they reveal the losses themselves?"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from deltafl.protocol.noise import Noise
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts, SearchFacts
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.searches import ATTACKED, Attacked, attack

RULES: Final = Rules.read(
    """\
search.losses-found high settings A14: the losses of a cohort follow from the sums of its search
    The server knows the losses. If it knows the weights, it also knows whose losses they are.
search.narrow info design A14: what the searches gave away
    The server knows the threshold, and the ranks of the losses at every query.
"""
)


class Searches(Check):
    """Plays the server in every search, and says how much it learnt."""

    name = "leakage of the searches"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._searches: list[SearchFacts] = []
        self._noisy: Counter[Noise] = Counter()
        self._hidden: Counter[UpdateNoise] = Counter()
        self._without_weights, self._not_attacked = 0, 0

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's searches, level by level."""
        for session in over.view.sessions.values():
            for level in session.by_level():
                if level.config is not None and level.config.noise is not None:
                    self._noisy[level.config.noise] += 1
                if level.config is not None and level.config.update.noise is not None:
                    self._hidden[level.config.update.noise] += 1
                attacked = attack(over.view, level, over.totals, over.truth or {})
                if attacked is not None:
                    self._searches.append(attacked.facts)
                    self._without_weights += attacked.lacks_weights and not attacked.found
                    is_large = attacked.facts.devices > ATTACKED
                    self._not_attacked += is_large and attacked.facts.method == "mm"
                    if attacked.found:
                        yield _losses_found(attacked, level.announcements[0].place)

    def on_end(self) -> Iterator[Finding]:
        """Say that there were searches, because each of them reveals something."""
        if self._searches:
            queries = sum(facts.queries for facts in self._searches)
            detail = f"{len(self._searches)} searches, {queries} queries; see the table of searches"
            rounds = [Evidence(facts.round) for facts in self._searches]
            yield RULES.found("search.narrow", detail, rounds)

    def coverage(self, tally: Tally) -> Coverage:
        """All transcripts keep every word of a query's sum."""
        exact, noisy = len(self._searches), self._noisy.total()
        detail = f"{exact} searches by exact sums, {noisy} by noisy ones"
        return Coverage(tally.whole, detail, exact + noisy)

    def unchecked(self) -> Iterator[str]:
        """Attacks that were not made."""
        if self._without_weights:
            yield (
                f"whether the losses of {self._without_weights} searches follow for a server that "
                "knows the devices' weights: no truth file says what they are"
            )
        if self._not_attacked:
            yield (
                f"whether the sums of {self._not_attacked} searches by mm can be solved for the "
                f"losses: that is tried for cohorts of at most {ATTACKED} devices"
            )

    def facts(self) -> CheckFacts:
        """The searches, and the noise; the summary of the run says what that is worth."""
        none = "" if self._hidden else "; the sums of updates have none"
        searches = [
            (
                "noise of the search",
                f"variance {noise.variance}, due from {noise.num_devices} devices, in {rounds} "
                f"rounds{none}",
            )
            for noise, rounds in self._noisy.items()
        ]
        updates = [
            (
                "noise of the updates",
                f"{noise.deviation} steps a device, due from {noise.num_devices} devices, at a "
                f"norm of {noise.norm:g}, in {rounds} rounds",
            )
            for noise, rounds in self._hidden.items()
        ]
        return {"searches": tuple(self._searches), "noise": (*searches, *updates)}


def _losses_found(attacked: Attacked, place: Evidence) -> Finding:
    facts = attacked.facts
    how = "to the tick" if attacked.within < 2**-30 else f"to within {attacked.within:.1g} nats"
    detail = (
        f"all {facts.devices} losses, {how}, {attacked.found}, from {facts.queries} queries by "
        f"{facts.method}"
    )
    return RULES.found("search.losses-found", detail, [place])
