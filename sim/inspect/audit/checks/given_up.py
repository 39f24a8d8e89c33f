"""Were rounds given up for one of the reasons that a server can have, and did they end by one?"""

from collections.abc import Iterable, Iterator
from typing import Final

from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.dismissals import are_as_asked, said_at
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.giving_up import (
    OF_LIMITS,
    OF_SHARES,
    UNPROVED,
    LastStep,
    is_one_of,
    reasons,
)
from deltafl.sim.inspect.audit.proved import opens, summed_devices
from deltafl.sim.inspect.audit.rules import A20, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.steps import SessionStep, steps_of
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView, place_of
from deltafl.sim.record.transcript import INTERRUPTED, Record, RoundEnd
from deltafl.sim.run.algorithms import policy_of

RULES: Final = Rules(
    {
        "round.given-up": Rule(
            Severity.HIGH,
            "a round was given up for a reason that does not follow from its messages",
            "A server that gives rounds up at will gets the earlier sums for nothing, and the "
            "reason may hold a message.",
            "Find out why the server gave the round up. Until then, do not use it.",
            A20,
        ),
    }
)

_SHOWN: Final = 80  # characters of a text that somebody else wrote


class RoundsGivenUp(Check):
    """Closes the last step of each round again, as a server does."""

    name = "ends of rounds"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        config = premises.source.config
        self._policy = None if config is None else policy_of(config)
        self._unfitting: set[tuple[bytes, int, int]] = set()  # shares, by tag, slot and device
        self._blamed: set[tuple[bytes, int, int]] = set()
        self._packed: dict[tuple[bytes, int], bytes] = {}

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """A round that was interrupted has no end of its own."""
        del digest
        if isinstance(record, RoundEnd) and record.aborted == INTERRUPTED:
            detail = "it was ended by a server that says that it did not come to its end"
            yield RULES.found("round.given-up", detail, [place_of(record)])

    def on_message(self, seen: Seen, round_: RoundView) -> Iterable[Finding]:
        """Note the devices whose shares are not those that they were asked for."""
        content = seen.content
        is_known = content.kind is Kind.SHARES and content.message is not None
        if is_known and not are_as_asked(round_.sessions[content.tag], seen):
            self._unfitting.add((content.tag, content.slot or 0, seen.record.peer))
        return ()

    def on_sum(self, released: ReleasedSum) -> Iterable[Finding]:
        """Note whom a server drops for false shares, and what a proof is about."""
        if released.replayed is not None and released.slot is not None:
            session, slot = released.slot
            place = session.params.tag, slot.index
            self._blamed |= {(*place, device) for device in released.replayed.blamed}
            self._packed[place] = released.replayed.packed
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the end of a round."""
        end, sessions = over.view.end, list(over.view.sessions.values())
        if end is not None and end.aborted != INTERRUPTED:
            if end.aborted and not is_one_of(end.aborted):
                detail = f"no server gives this reason: {_short(end.aborted)}"
                yield RULES.found("round.given-up", detail, [place_of(end)])
            elif len(sessions) == 1 and sessions[0].is_whole:
                yield from self._judged(over, end, sessions[0])
        self._unfitting, self._blamed, self._packed = set(), set(), {}

    def coverage(self, tally: Tally) -> Coverage:
        """Of rounds that are kept by headers, only the wording of the reason is checked."""
        return Coverage(tally.whole, f"{tally.whole} of {tally.rounds} rounds are recorded whole")

    def _judged(self, over: RoundOver, end: RoundEnd, session: SessionView) -> Iterator[Finding]:
        steps, reason, place = steps_of(session), end.aborted, place_of(end)
        if not steps or (self._policy is None and is_one_of(reason, OF_LIMITS)):
            return
        step = steps[-1]
        if reason == UNPROVED and self._has_no_proof(session, step.slot):
            return
        if step.asks == "shares" and step.slot is not None and is_one_of(reason, OF_SHARES):
            problem = over.lost.get((session.params.tag, step.slot.index))
            if problem is not None and problem != reason:
                yield _only_if_late(reason, place)
            if problem is not None:
                return
        found = reasons(self._last(over, end, session, step))
        at_once = next(found, None)
        if at_once is None or reason == at_once:
            return
        if reason in found:
            yield _only_if_late(reason, place)
            return
        said = f"was given up because {_short(reason)}" if reason else "ended without a reason"
        why = f"a server that has these answers does otherwise: {at_once or 'the round is over'}"
        yield RULES.found("round.given-up", f"it {said}; {why}", [place])

    def _last(
        self, over: RoundOver, end: RoundEnd, session: SessionView, step: SessionStep
    ) -> LastStep:
        said = said_at(session, over.view.strange, step, end.number)
        place = session.params.tag, 0 if step.slot is None else step.slot.index
        is_about_shares = step.asks == "shares"
        taken = tuple(
            (one.taken.record.number, device)
            for device, one in said.items()
            if one.taken is not None
            and device in step.asked
            and not (is_about_shares and (*place, device) in self._unfitting)
        )
        out = {device for device, one in said.items() if one.is_out}
        out |= {device for *where, device in self._blamed if is_about_shares and (*where,) == place}
        lost = tuple(one.lost for one in over.played)
        return LastStep(session, step, taken, frozenset(out), over.totals, self._policy, lost)

    def _has_no_proof(self, session: SessionView, slot: SlotView | None) -> bool:
        """Whether there is a sum that cannot be proved, as far as that is known."""
        if slot is None or not slot.sums or not session.params.slots[slot.index].verified:
            return False
        packed = self._packed.get((session.params.tag, slot.index))
        devices = summed_devices(session, slot)
        if packed is None or not all(device in slot.committed for device in devices):
            return True
        return not opens(session, slot, packed, devices)


def _only_if_late(reason: str, place: Evidence) -> Finding:
    said = f"given up because {_short(reason)}" if reason else "over"
    detail = f"it was {said}; that is right only if some of the recorded answers came too late"
    return RULES.found("round.given-up", detail, [place], Severity.LOW)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
