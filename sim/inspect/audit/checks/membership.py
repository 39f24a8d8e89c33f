"""Did the server go on with exactly the devices that answered in time?"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.dismissals import (
    Said,
    are_as_asked,
    closings,
    said_at,
    who_leaves,
)
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A1, A4, A5, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.steps import SessionStep, steps_of, used
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView, place_of

RULES: Final = Rules(
    {
        "cohort.grown": Rule(
            Severity.HIGH,
            "a device is back that had been left out before",
            "A server that loses devices and finds them again chooses who is in which sum, and "
            "may know the secrets of those that it called lost.",
            "Keep using devices that refuse lists that grow, and stop using this server.",
            A1,
        ),
        "cohort.uninvited": Rule(
            Severity.HIGH,
            "a device is in the session that was not invited to it",
            "The server may have added devices of its own, of which it knows the inputs.",
            "Stop using this server.",
            A4,
        ),
        "answers.ignored": Rule(
            Severity.HIGH,
            "an answer that came in time was not counted",
            "The server said that the device had dropped out, and holds its message all the same. "
            "With the secrets of a lost device, it can unmask that device's vector.",
            "Find out why the server left the device out. Until then, do not use it.",
            A5,
        ),
        "answers.invented": Rule(
            Severity.MEDIUM,
            "the server went on with a device that had not answered",
            "Either the answer is missing from the record, or the server counts devices that are "
            "not there.",
            "Get the file from where it was written.",
            A4,
        ),
    }
)


class Membership(Check):
    """Follows the devices of every session from step to step."""

    name = "devices from answers"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._blamed: dict[tuple[bytes, int], set[int]] = {}  # for shares, by tag and slot

    def on_message(self, seen: Seen, round_: RoundView) -> Iterable[Finding]:
        """Note the devices whose shares are not those that they were asked for."""
        content = seen.content
        is_known = content.kind is Kind.SHARES and content.message is not None
        if is_known and not are_as_asked(round_.sessions[content.tag], seen):
            place = content.tag, content.slot or 0
            self._blamed.setdefault(place, set()).add(seen.record.peer)
        return ()

    def on_sum(self, released: ReleasedSum) -> Iterable[Finding]:
        """Note the devices that a server drops for false shares."""
        if released.replayed is not None and released.slot is not None:
            session, slot = released.slot
            blamed = self._blamed.setdefault((session.params.tag, slot.index), set())
            blamed |= released.replayed.blamed
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions, step by step."""
        for session in over.view.sessions.values():
            steps = steps_of(session)
            yield from _uninvited(session, steps)
            vectors: _Vectors | None = None
            for step, following in pairwise(steps):
                said = said_at(session, over.view.strange, step, following.begins)
                if step.asks == "vectors":
                    vectors = _Vectors(step, said)
                yield from _grown(step, following)
                yield from _invented(step, following, said)
                is_cut = following is steps[-1] and over.view.breaks_off
                due = max(following.asked) if is_cut else None
                yield from self._ignored(session, step, following, said, due)
                if not is_cut:
                    yield from _lists(following, vectors)
            for slot in session.slots.values():
                if slot.index < len(session.params.slots):
                    yield from _summed(session, slot)
        self._blamed = {}

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        return Coverage(tally.told, "who was asked, who answered in time, and who was asked next")

    def _ignored(
        self,
        session: SessionView,
        step: SessionStep,
        following: SessionStep,
        said: Mapping[int, Said],
        due: int | None,
    ) -> Iterator[Finding]:
        """Devices that answered in time and were left out, although nothing made them leave.

        Args:
            session: The session.
            step: The step that was answered.
            following: The next step.
            said: What devices said at the step.
            due: Where the server stopped while it asked: the last device that it had come to,
                since it asks in the order of ids; else None.
        """
        blamed = set[int]()
        if step.asks == "shares" and step.slot is not None:
            blamed = self._blamed.get((session.params.tag, step.slot.index), blamed)
        answers = {
            device: one.taken
            for device, one in said.items()
            if one.taken is not None and device in step.asked
        }
        staying = [
            (seen.record.number, device)
            for device, seen in answers.items()
            if not said[device].is_out and device not in blamed
        ]
        counted = used(session, step, following) & {device for _, device in staying}
        left_out = min(
            (
                kept - following.asked - who_leaves(session, step, following, kept)
                for kept in closings(staying, counted)
            ),
            key=len,
        )
        left_out = frozenset(one for one in left_out if due is None or one < due)
        if left_out:
            detail = (
                f"{_some(left_out)} answered in time with {step.asks}, and was not asked for "
                f"{following.asks}"
            )
            severity = None if step.asks == "vectors" else Severity.MEDIUM
            places = [answers[device].place for device in sorted(left_out)]
            yield RULES.found("answers.ignored", detail, places, severity)


def _uninvited(session: SessionView, steps: list[SessionStep]) -> Iterator[Finding]:
    """Devices that were never sent the announcement."""
    invited = frozenset(seen.record.peer for seen in session.announcements)
    for step in steps:
        strangers = (step.asked | (step.listed or frozenset())) - invited
        if strangers:
            detail = f"{_some(strangers)} was not invited, and was in the step for {step.asks}"
            places = [seen.place for seen in step.sent if seen.record.peer in strangers]
            yield RULES.found("cohort.uninvited", detail, places or [step.sent[0].place])
            return


def _grown(step: SessionStep, following: SessionStep) -> Iterator[Finding]:
    """Devices that were left out of a step, and are in the next."""
    if back := following.asked - step.asked:
        detail = f"{_some(back)} was asked for {following.asks}, after it had been left out"
        places = [seen.place for seen in following.sent if seen.record.peer in back]
        yield RULES.found("cohort.grown", detail, places)


def _invented(
    step: SessionStep, following: SessionStep, said: Mapping[int, Said]
) -> Iterator[Finding]:
    """Devices that did not answer and were kept."""
    came = step.heard(following.begins)
    if silent := (following.asked & step.asked) - came.keys() - _strange(said):
        detail = f"{_some(silent)} sent no {step.asks}, and was asked for {following.asks} next"
        places = [seen.place for seen in following.sent if seen.record.peer in silent]
        yield RULES.found("answers.invented", detail, places)


def _strange(said: Mapping[int, Said]) -> set[int]:
    """The devices that sent something in place of a message; see the check of values in clear."""
    return {device for device, one in said.items() if one.is_strange}


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The last step in which vectors were asked for, and what devices said."""

    step: SessionStep
    said: Mapping[int, Said]


def _lists(step: SessionStep, vectors: _Vectors | None) -> Iterator[Finding]:
    """A list that is not of the devices that were asked, or whose vectors came."""
    if step.listed is None:
        return
    if vectors is None or step.slot is not vectors.step.slot or step.asks == "vectors":
        yield from _unlike(step)
        return
    came = frozenset(vectors.step.heard(step.begins))
    heard = vectors.step.in_time(step.begins, step.listed)
    taken = {device for device, one in vectors.said.items() if one.taken is not None}
    if missing := (heard.keys() & taken) - step.listed:
        detail = f"the vector of {_some(missing)} came in time, and its list has it as lost"
        places = [heard[device].place for device in sorted(missing)]
        yield RULES.found("answers.ignored", detail, places)
    if more := step.listed - came - _strange(vectors.said):
        detail = f"{_some(more)} is in the list of survivors, and no vector of it came"
        rule = "answers.invented" if more <= vectors.step.asked else "cohort.grown"
        yield RULES.found(rule, detail, [step.sent[0].place])
    if back := step.asked - step.listed:
        detail = f"{_some(back)} was asked for {step.asks}, and is not in the list of survivors"
        places = [seen.place for seen in step.sent if seen.record.peer in back]
        yield RULES.found("cohort.grown", detail, places)


def _unlike(step: SessionStep) -> Iterator[Finding]:
    """A list of other devices than those that were sent it."""
    if step.listed is None:
        return
    if more := step.listed - step.asked:
        detail = f"the list for {step.asks} has {_some(more)}, to which nothing was sent"
        yield RULES.found("cohort.grown", detail, [seen.place for seen in step.sent])
    if fewer := step.asked - step.listed:
        detail = f"{_some(fewer)} was asked for {step.asks}, and is not in the list"
        yield RULES.found("cohort.grown", detail, [seen.place for seen in step.sent])


def _summed(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    """Sums over devices that the last list of the slot does not have."""
    listed = session.summed(slot)
    if listed is None:
        return
    known = frozenset(
        device
        for device, is_in in zip(session.ids.tolist(), listed.tolist(), strict=False)
        if is_in
    )
    for released in slot.sums:
        if more := frozenset(released.contributors.tolist()) - known:
            detail = f"the sum of slot {slot.index} has {_some(more)}, and its list has not"
            yield RULES.found("cohort.grown", detail, [place_of(released)])


def _some(devices: Iterable[int]) -> str:
    every = sorted(devices)
    shown = ", ".join(map(str, every[:5])) + (f" and {len(every) - 5} more" if every[5:] else "")
    return f"device {shown}" if len(every) == 1 else f"each of devices {shown}"
