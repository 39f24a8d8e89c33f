"""Did the server go on with exactly the devices that answered in time?"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A1, A4, A5, Rule, Rules
from deltafl.sim.inspect.audit.steps import (
    SessionStep,
    at_fault,
    has_complaints,
    isolated,
    steps_of,
)
from deltafl.sim.inspect.audit.views import SessionView, SlotView, place_of
from deltafl.sim.record.transcript import Message, Record

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
        self._said: dict[int, set[bytes]] = {}  # by device, since it was last asked
        self._doubtful: set[int] = set()  # devices of the round that may have been dropped rightly

    def on_record(self, record: Record, digest: bytes) -> Iterable[Finding]:
        """Note the devices that say two things at once."""
        del digest
        if isinstance(record, Message):
            if record.sent:
                self._said.pop(record.peer, None)
            else:
                said = self._said.setdefault(record.peer, set())
                said.add(record.sha256)
                if len(said) > 1:
                    self._doubtful.add(record.peer)
        return ()

    def on_sum(self, released: ReleasedSum) -> Iterable[Finding]:
        """Note the devices whose shares were false."""
        if released.replayed is not None:
            self._doubtful |= released.replayed.wrong
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions, step by step."""
        doubtful = self._doubtful | {seen.record.peer for seen in over.view.strange}
        self._doubtful, self._said = set(), {}
        for session in over.view.sessions.values():
            steps = steps_of(session)
            yield from _uninvited(session, steps)
            for step, following in pairwise(steps):
                yield from _grown(step, following)
                yield from _ignored(session, step, following, doubtful)
            is_cut = over.view.breaks_off  # then the last step need not have gone to all
            yield from _lists(steps[:-1] if is_cut else steps, doubtful)
            for slot in session.slots.values():
                if slot.index < len(session.params.slots):
                    yield from _summed(session, slot)

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        return Coverage(tally.told, "who was asked, who answered in time, and who was asked next")


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


def _ignored(
    session: SessionView, step: SessionStep, following: SessionStep, doubtful: set[int]
) -> Iterator[Finding]:
    """Devices that answered and were left out, and devices that did not and were kept."""
    came = frozenset(step.heard(following.begins))
    heard = step.in_time(following.begins, following.asked)
    silent = (following.asked & step.asked) - came - doubtful
    if silent:
        detail = f"{_some(silent)} sent no {step.asks}, and was asked for {following.asks} next"
        places = [seen.place for seen in following.sent if seen.record.peer in silent]
        yield RULES.found("answers.invented", detail, places)
    left_out = heard.keys() - following.asked - doubtful
    if not left_out or (step.asks not in ("keys", "sealed shares") and has_complaints(session)):
        return
    if following.asks in ("receipts", "vectors", "signatures"):
        left_out -= isolated(session, frozenset(heard))
    is_proved = step.slot is not None and session.params.slots[step.slot.index].verified
    if step.asks == "vectors" and is_proved:
        return  # a commitment may have been wrong; of whole slots, see `sums.unrecorded`
    places = [
        heard[device].place
        for device in sorted(left_out)
        if not at_fault(session, step, heard[device])
    ]
    if places:
        detail = (
            f"{_some(left_out)} answered in time with {step.asks}, and was not asked for "
            f"{following.asks}"
        )
        severity = None if step.asks == "vectors" else Severity.MEDIUM
        yield RULES.found("answers.ignored", detail, places, severity)


def _lists(steps: list[SessionStep], doubtful: set[int]) -> Iterator[Finding]:
    """Lists that are not of the devices that were asked, or whose vectors came."""
    opened: SessionStep | None = None
    for step in steps:
        if step.asks == "vectors":
            opened = step
        if step.listed is None:
            continue
        is_of_survivors = opened is not None and opened.slot is step.slot and step is not opened
        if not is_of_survivors or opened is None:
            yield from _unlike(step, doubtful)
            continue
        came = frozenset(opened.heard(step.begins))
        heard = opened.in_time(step.begins, step.listed)
        if missing := heard.keys() - step.listed - doubtful:
            detail = f"the vector of {_some(missing)} came in time, and its list has it as lost"
            places = [heard[device].place for device in sorted(missing)]
            yield RULES.found("answers.ignored", detail, places)
        if more := step.listed - came - doubtful:
            detail = f"{_some(more)} is in the list of survivors, and no vector of it came"
            rule = "answers.invented" if more <= opened.asked else "cohort.grown"
            yield RULES.found(rule, detail, [step.sent[0].place])
        if back := step.asked - step.listed:
            detail = f"{_some(back)} was asked for {step.asks}, and is not in the list of survivors"
            places = [seen.place for seen in step.sent if seen.record.peer in back]
            yield RULES.found("cohort.grown", detail, places)


def _unlike(step: SessionStep, doubtful: set[int]) -> Iterator[Finding]:
    """A list of other devices than those that were sent it."""
    if step.listed is None:
        return
    if more := step.listed - step.asked - doubtful:
        detail = f"the list for {step.asks} has {_some(more)}, to which nothing was sent"
        yield RULES.found("cohort.grown", detail, [seen.place for seen in step.sent])
    if fewer := step.asked - step.listed - doubtful:
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
