"""Can sums of the same inputs be subtracted? Was a round repeated to get more of them?"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from deltafl.protocol.quantile.search import Query
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.differencing import Difference, DifferenceKind, Differencing
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import A13, A20, Rule, Rules
from deltafl.sim.inspect.audit.views import SessionView, place_of

_SHOWN = 5

PastModels = dict[bytes, tuple[Evidence, bool]]
"""Where each model was announced first, and whether its round changed it."""

RULES: Final = Rules(
    {
        "sums.differ-by-few": Rule(
            Severity.HIGH,
            "two released sums of the same question differ by few devices",
            "Their difference is the sum of the answers of those few devices.",
            "Sum each question only once and over one cohort. Keep whole slots and ledgers.",
            A13,
        ),
        "sums.search-and-update": Rule(
            Severity.LOW,
            "the update was summed over fewer devices than the search",
            "The difference tells whether the missing devices passed the filter, and their weight.",
            "This is part of the design (docs/limitations.md). It is rarer if fewer devices drop "
            "out after the search.",
            A13,
        ),
        "retry.same-model": Rule(
            Severity.MEDIUM,
            "a model was announced again after its sums were released",
            "Sums of the same losses over different devices can be subtracted.",
            "Announce a model once. After a failed round, draw the same cohort again.",
            A20,
        ),
        "retry.aborted": Rule(
            Severity.LOW,
            "a round was aborted after sums were released",
            "A server that aborts at will gets the earlier sums for nothing.",
            "Watch how often this happens. The run's settings for drop-outs should make it rare.",
            A20,
        ),
    }
)


class Differences(Check):
    """Compares released sums with one another and with earlier ones."""

    name = "differences of cohorts"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._differencing = Differencing(premises.expected.min_difference)
        self._models: PastModels = {}

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sums, level by level."""
        round_ = over.view
        changed = {
            one.level
            for one in over.played
            if one.outcome is not None and one.outcome.update is not None
        }
        for session in round_.sessions.values():
            for level in session.by_level():
                model = _model_key(level)
                if model is not None:
                    is_changed = level.level in changed
                    yield from _announced_again(level, self._models, model, changed=is_changed)
                    yield from self._sums(level, model)
        if round_.end is not None and round_.end.aborted and round_.sums:
            detail = f"{len(round_.sums)} sums were released, then: {round_.end.aborted}"
            yield RULES.found("retry.aborted", detail, [place_of(round_.end)])

    def _sums(self, level: SessionView, model: bytes) -> Iterator[Finding]:
        for _, slot in sorted(level.slots.items()):
            question = slot.question
            if question is None:
                continue
            asked = type(question).__name__.encode() + question.canonical()
            for released in slot.sums:
                ids = released.contributors.tolist()
                for close in self._differencing.add(asked, model, ids, place_of(released)):
                    yield _difference(close, is_query=isinstance(question, Query))

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        fewest = self._premises.expected.min_difference
        return Coverage(tally.told, f"sums of the same inputs, by fewer than {fewest} devices")


def _announced_again(
    session: SessionView, past: PastModels, model: bytes, *, changed: bool
) -> Iterator[Finding]:
    place = session.announcements[0].place
    if model not in past:
        past[model] = place, changed
        return
    before, had_changed = past[model]
    if had_changed:
        detail = f"the model of round {before.round}, whose sums led to another model"
        yield RULES.found("retry.same-model", detail, [place, before])
    else:
        detail = f"the model of round {before.round}, which did not change it"
        yield RULES.found("retry.same-model", detail, [place, before], Severity.INFO)


def _difference(difference: Difference, *, is_query: bool) -> Finding:
    devices = ", ".join(map(str, difference.devices[:_SHOWN]))
    places = [difference.second, difference.first]
    if difference.kind is DifferenceKind.SAME_QUESTION or is_query:
        detail = f"{difference.kind.value}; they differ by {difference.size}: devices {devices}"
        return RULES.found("sums.differ-by-few", detail, places)
    return RULES.found("sums.search-and-update", f"without devices {devices}", places)


def _model_key(session: SessionView) -> bytes | None:
    """What stands for the model: its digest, or that of the announcement where it is not kept."""
    if session.announce is None:
        return None
    if session.is_whole:
        return sha256(session.announce.model).digest()
    return session.model_sha256
