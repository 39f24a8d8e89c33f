"""Can sums of the same inputs be subtracted? Was a round repeated to get more of them?

Two sums of the same values, one over a cohort A and one over B, differ by the values of the devices
in A but not in B, less those in B but not in A. If the values are not the same but related, such as
two queries of one search for the threshold, the difference still tells something about those
devices: on which side of the pivots they lie, as far as the others' answers are known.

Only pairs are compared. `participation` handles combinations of many sums of updates.
"""

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.session_log import Level, Question
from deltafl.sim.inspect.audit.views import place_of
from deltafl.sim.record.transcript import Record, Resumed, Sum

_SHOWN = 5


class Answered(NamedTuple):
    """A round over a model in which devices have answered.

    Attributes:
        settings: What it announced with the model, but for the round's number.
        devices: The devices that have answered.
        searched: The devices of the search that others may go on with; None if nothing was asked.
        is_summed: Whether a sum of updates was released, or shares were asked for that give it.
    """

    settings: RoundConfig
    devices: frozenset[int]
    searched: frozenset[int] | None
    is_summed: bool

    @classmethod
    def of(cls, level: Level) -> "Answered":
        """What a level's messages say."""
        s, slots = level.session, level.slots
        queries = [slot for slot in slots if isinstance(s.question(slot), Query)]
        sums = [learnt for _, asked, learnt in level.answered() if isinstance(asked, Query)]
        cohorts = [frozenset(learnt.contributors.tolist()) for learnt in sums]
        cohorts = cohorts or [frozenset(s.first(Kind.SLOT, slot)) for slot in queries[:1]]
        searched = cohorts[-1] if cohorts else None
        others = set(slots) - set(queries)
        is_summed = any(s.sum_of(slot) or s.of(Kind.REQUEST, slot) for slot in others)
        answers = (device for slot in slots for device in s.first(Kind.MASKED, slot))
        return cls(_settings(level), frozenset(answers), searched, is_summed)


def before(past: list[Answered], devices: Set[int]) -> list[Answered]:
    """The rounds over a model that some devices were in, or others who were in one with them."""
    found: list[Answered] = []
    for one in past:
        if one.devices & frozenset(devices).union(*(other.devices for other in found)):
            found.append(one)
    return found


def may_answer(past: list[Answered], level: Level, devices: Set[int], most: int) -> bool:
    """Whether devices that have answered for a model may do so again: their rounds were lost.

    Args:
        past: The rounds that they were in.
        level: The level.
        devices: Those who are asked.
        most: In how many rounds devices answer for a model.
    """
    times = Counter(device for one in past for device in one.devices)
    left = all(times[device] < most for device in devices)
    return left and all(
        one.settings == _settings(level)
        and (one.searched is None or devices <= one.searched)
        and not one.is_summed
        for one in past
    )


@dataclass(slots=True)
class PastModel:
    """A model: where it was announced first, whether that round changed it, and all its rounds."""

    place: Evidence
    changed: bool
    rounds: list[Answered] = field(default_factory=list)


class Differences(Check):
    """Compares released sums with one another and with earlier ones."""

    name = "differences of cohorts"
    table = """\
sums.differ-by-few high server A13: two released sums of the same question differ by few devices
    Their difference is the sum of the answers of those few devices.
sums.search-and-update low design A13: the update was summed over fewer devices than the search
    The difference tells whether the missing devices passed the filter, and their weight.
retry.same-model medium server A20: a model was announced again after its sums were released
    Sums of the same losses over different devices can be subtracted.
retry.one-model high server A20: a model was announced again to devices that had answered for it
    Two sums over the same losses reveal, by subtraction, the devices in only one of them. Only a
    lost round may be repeated, with its settings, among the devices of its search.
retry.aborted low design A20: a round was aborted after sums were released
    A server that aborts at will gets the earlier sums for nothing.
"""

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        # by model and cohort: where it was asked each question first
        self._asked: dict[bytes, dict[bytes, dict[Question, Evidence]]] = {}
        self._models: dict[bytes, PastModel] = {}

    def on_record(self, record: Record, digest: bytes) -> tuple[Finding, ...]:
        """After an interruption, the models of the rounds that it lost are announced again."""
        del digest
        if isinstance(record, Resumed):
            for past in self._models.values():
                past.changed = past.changed and (past.place.round or 0) <= record.round
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sums, level by level."""
        round_ = over.view
        kept = self._premises.rounds.kept.get(round_.number)
        outcomes = () if kept is None else kept.outcomes
        changed = {level for level, one in enumerate(outcomes) if one().update is not None}
        for session in round_.sessions.values():
            for level in session.by_level():
                model = sha256(level.model).digest()
                yield from self._announced(level, model, level.index in changed)
                yield from self._sums(level, model)
        if round_.end is not None and round_.end.aborted and round_.sums:
            detail = f"{len(round_.sums)} sums were released, then: {round_.end.aborted}"
            yield self.rules.found("retry.aborted", detail, [place_of(round_.end)])

    def _announced(self, level: Level, model: bytes, changed: bool) -> Iterator[Finding]:
        """A model that was announced before; worse if devices answered for it again."""
        place = level.session.place
        past = self._models.get(model)
        if past is None:
            past = self._models[model] = PastModel(place, changed)
        else:
            what = "released an update" if past.changed else "released no update"
            severity = None if past.changed else Severity.INFO
            detail = f"the model of round {past.place.round}, which {what}"
            yield self.rules.found("retry.same-model", detail, [place, past.place], severity)
        most, now = self._premises.expected.policy.rounds_per_model, Answered.of(level)
        shown = level.session.first(Kind.OPEN).keys()
        earlier = before(past.rounds, shown)
        answered = frozenset[int]().union(*(one.devices for one in earlier))
        known, again = answered & shown, answered & now.devices
        if known and not (most > 1 and may_answer(earlier, level, shown, most)):
            detail = f"{len(known)} devices had answered in round {past.place.round}, "
            detail += f"and {len(again)} answered again"
            severity = None if again else Severity.LOW
            yield self.rules.found("retry.one-model", detail, [place, past.place], severity)
        if now.devices:
            past.rounds.append(now)

    def _sums(self, level: Level, model: bytes) -> Iterator[Finding]:
        """The sums over a model, with their questions in order."""
        for _, question, released in level.answered():
            yield from self._compared(question, model, released)

    def _compared(self, question: Question, model: bytes, released: Sum) -> Iterator[Finding]:
        """Compare a released sum with all earlier ones over its model.

        A cohort that was asked the same question before says nothing new. Two cohorts are reported
        once for each question that both were asked, and otherwise once, at the first places.
        """
        devices, place = np.unique(released.contributors), place_of(released)
        if not devices.size:
            return
        related = self._asked.setdefault(model, {})
        own = related.setdefault(devices.tobytes(), {})
        if question in own:
            return
        is_new, own[question] = not own, place
        for other, asked in related.items():
            apart = np.setxor1d(np.frombuffer(other, devices.dtype), devices, assume_unique=True)
            is_same = question in asked
            if (is_same or is_new) and 0 < len(apart) < self._premises.expected.min_difference:
                is_alike = is_same or isinstance(question, Query)
                rule = "sums.differ-by-few" if is_alike else "sums.search-and-update"
                related_by = "question" if is_same else "model"
                some = ", ".join(map(str, apart[:_SHOWN].tolist()))
                detail = f"same {related_by}; they differ by {len(apart)}: devices {some}"
                first = asked[question] if is_same else next(iter(asked.values()))
                yield self.rules.found(rule, detail, [place, first])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that have messages."""
        fewest = self._premises.expected.min_difference
        return Coverage(tally.whole, f"sums of the same inputs, by fewer than {fewest} devices")


def _settings(level: Level) -> RoundConfig:
    """What a level announces, but for the round's number."""
    return replace(level.config, round_index=0)
