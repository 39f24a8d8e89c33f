"""Can sums of the same inputs be subtracted? Was a round repeated to get more of them?"""

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.differencing import Difference, DifferenceKind, Differencing
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView, place_of
from deltafl.sim.record.transcript import Record, Resumed

_SHOWN = 5


@dataclass(slots=True)
class Chain:
    """Rounds over one model with the same devices, each but the last of which was lost.

    Attributes:
        settings: What the first announced with the model, but for the round's number.
        answered: The devices that have answered, and in how many rounds.
        searched: The devices of the search that others go on with; None if nothing was asked.
        is_summed: Whether a sum of updates was released, or shares were asked for that give it.
    """

    settings: RoundConfig | None
    answered: Counter[int] = field(default_factory=Counter)
    searched: set[int] | None = None
    is_summed: bool = False

    def may_answer(self, level: SessionView, devices: Set[int], most: int) -> bool:
        """Whether devices that have answered may do so again: their round was lost.

        Args:
            level: The level's view of the session.
            devices: Those who are asked.
            most: In how many rounds devices answer for a model.
        """
        is_same = _settings(level) == self.settings
        is_within = self.searched is None or devices <= self.searched
        left = all(self.answered[device] < most for device in devices)
        return is_same and is_within and left and not self.is_summed

    def note(self, level: SessionView) -> None:
        """Note who has answered, and over whom sums were released."""
        self.answered.update(_answering(level))
        for slot in level.slots.values():
            if isinstance(slot.question, Query):
                asked = {seen.record.peer for seen in slot.opened}
                for released in slot.sums:
                    asked = set(released.contributors.tolist())
                if slot.sums or self.searched is None:
                    self.searched = asked
            else:
                self.is_summed |= bool(slot.sums or slot.requests)


@dataclass(slots=True)
class PastModel:
    """A model that was announced.

    Attributes:
        place: Where it was first.
        changed: Whether its round changed it.
        chains: The rounds over it in which devices have answered.
    """

    place: Evidence
    changed: bool
    chains: list[Chain] = field(default_factory=list)

    def of(self, devices: Set[int]) -> list[Chain]:
        """The rounds in which some of these devices have answered."""
        return [chain for chain in self.chains if chain.answered.keys() & devices]

    def note(self, level: SessionView) -> None:
        """Note a round in which devices have answered."""
        answering = _answering(level)
        if answering and not self.of(answering):
            self.chains.append(Chain(_settings(level)))
            self.chains[-1].note(level)
        else:
            for chain in self.of(answering):
                chain.note(level)


PastModels = dict[bytes, PastModel]
"""The models that were announced."""

RULES: Final = Rules.read(
    """\
sums.differ-by-few high server A13: two released sums of the same question differ by few devices
    Their difference is the sum of the answers of those few devices.
sums.search-and-update low design A13: the update was summed over fewer devices than the search
    The difference tells whether the missing devices passed the filter, and their weight.
retry.same-model medium server A20: a model was announced again after its sums were released
    Sums of the same losses over different devices can be subtracted.
retry.one-model high server A20: a model was announced again to devices that had answered for it
    Two sums over the same losses reveal, by subtraction, the devices that are in only one of
    them. Only a round that was lost may be repeated, with its settings, among the devices of its
    search.
retry.aborted low design A20: a round was aborted after sums were released
    A server that aborts at will gets the earlier sums for nothing.
"""
)


class Differences(Check):
    """Compares released sums with one another and with earlier ones."""

    name = "differences of cohorts"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._differencing = Differencing(premises.expected.min_difference)
        self._models: PastModels = {}

    def on_record(self, record: Record, digest: bytes) -> tuple[Finding, ...]:
        """After an interruption, the models of the rounds that it lost are announced again."""
        del digest
        if isinstance(record, Resumed):
            for past in self._models.values():
                past.changed = past.changed and (past.place.round or 0) <= record.kept
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sums, level by level."""
        round_ = over.view
        kept = self._premises.rounds.kept.get(round_.number)
        outcomes = () if kept is None else kept.outcomes or ()
        changed = {level for level, one in enumerate(outcomes) if one.update is not None}
        for session in round_.sessions.values():
            for level in session.by_level():
                model = _model_key(level)
                if model is not None:
                    is_changed = level.level in changed
                    yield from _announced_again(level, self._models, model, changed=is_changed)
                    yield from self._answered_again(session, level, self._models[model])
                    yield from self._sums(level, model)
        if round_.end is not None and round_.end.aborted and round_.sums:
            detail = f"{len(round_.sums)} sums were released, then: {round_.end.aborted}"
            yield RULES.found("retry.aborted", detail, [place_of(round_.end)])

    def _answered_again(
        self, session: SessionView, level: SessionView, past: PastModel
    ) -> Iterator[Finding]:
        """Devices that had answered for a model that they were shown; LOW if all refused."""
        most = self._premises.expected.policy.rounds_per_model
        shown = {seen.record.peer for seen in session.announcements}
        before = {device for chain in past.of(shown) for device in chain.answered}
        known, again = before & shown, before & _answering(level)
        allowed = all(chain.may_answer(level, shown, most) for chain in past.of(shown))
        if known and not (most > 1 and allowed):
            detail = f"{len(known)} devices had answered in round {past.place.round}"
            detail += f", and {len(again)} answered again" if again else "; none answered again"
            places = [session.announcements[0].place, past.place]
            yield RULES.found("retry.one-model", detail, places, None if again else Severity.LOW)
        past.note(level)

    def _sums(self, level: SessionView, model: bytes) -> Iterator[Finding]:
        for _, slot in sorted(level.slots.items()):
            question = slot.question
            if question is None:
                continue
            asked = type(question).__name__.encode() + question.canonical()
            for released in slot.sums:
                ids = released.contributors.tolist()
                for close in self._differencing.add(asked, model, ids, place_of(released)):
                    yield _difference(close, is_update=isinstance(question, Threshold))

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        fewest = self._premises.expected.min_difference
        return Coverage(tally.whole, f"sums of the same inputs, by fewer than {fewest} devices")


def _announced_again(
    session: SessionView, past: PastModels, model: bytes, *, changed: bool
) -> Iterator[Finding]:
    place = session.announcements[0].place
    if model not in past:
        past[model] = PastModel(place, changed)
        return
    before = past[model].place
    if past[model].changed:
        detail = f"the model of round {before.round}, which released an update"
        yield RULES.found("retry.same-model", detail, [place, before])
    else:
        detail = f"the model of round {before.round}, which released no update"
        yield RULES.found("retry.same-model", detail, [place, before], Severity.INFO)


def _answering(level: SessionView) -> set[int]:
    return {seen.record.peer for slot in level.slots.values() for seen in slot.inputs}


def _settings(level: SessionView) -> RoundConfig | None:
    """What a level announces, but for the round's number."""
    return None if level.config is None else replace(level.config, round_index=0)


def _difference(difference: Difference, *, is_update: bool) -> Finding:
    devices = ", ".join(map(str, difference.devices[:_SHOWN]))
    places = [difference.second, difference.first]
    if difference.kind is DifferenceKind.SAME_QUESTION or not is_update:
        detail = f"{difference.kind.value}; they differ by {difference.size}: devices {devices}"
        return RULES.found("sums.differ-by-few", detail, places)
    return RULES.found("sums.search-and-update", f"without devices {devices}", places)


def _model_key(session: SessionView) -> bytes | None:
    """What stands for the model: its digest."""
    return None if session.model is None else sha256(session.model).digest()
