"""An analysis played again from its sums: what must be asked, and what the answer must be."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deltafl.protocol.errors import ProtocolError
from deltafl.secagg import SecAggError
from deltafl.secagg.ring import Vector
from deltafl.sim.analyse.deduction import Answer, Deduction, Taken, TooFewError
from deltafl.sim.analyse.plan import FIRST_QUERY, Plan, What, told
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.views import SessionView
from deltafl.sim.record.transcript import Asked, Sum


@dataclass(slots=True, eq=False)
class Told:
    """What a record says of an analysis.

    Attributes:
        asked: what devices were told, in order.
        sums: what the server says that it learnt, in order.
        totals: sums that were computed again, by slot.
    """

    asked: list[Asked] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    totals: dict[int, Vector] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Outcome:
    """What an analysis comes to.

    Attributes:
        answer: the answer; None if there is none.
        holders: devices that have a row that counts; None without their sum.
        reason: why there is no answer, as the server must say it; "" if anything may be the reason.
        problem: why it is not known whether there is one; "" if it is known.
        asked: what was asked and should not have been, or the other way round; where, and how bad
            it is, if that is not as usual.
        extra: sums that the question does not need.
        out_of_range: why a sum is not one that devices can give, and where; None if all are.
        names: the names of the numbers of each slot that was needed.
    """

    answer: Answer | None = None
    holders: int | float | None = None
    reason: str = ""
    problem: str = ""
    asked: list[tuple[str, Evidence, Severity | None]] = field(default_factory=list)
    extra: list[Sum] = field(default_factory=list)
    out_of_range: tuple[str, Evidence] | None = None
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)


class _MissingError(Exception):
    """A sum that the server needs for its answer is not in the record."""


def played(plan: Plan, said: Told, session: SessionView | None) -> Outcome:
    """Play an analysis again.

    Args:
        plan: of its question.
        said: what the record says.
        session: as the server saw it; None if there is none.
    """
    return _Played(plan, said, session).outcome


class _Played:
    def __init__(self, plan: Plan, said: Told, session: SessionView | None) -> None:
        self.outcome = Outcome()
        self._said, self._session, self._last = said, session, Evidence(1)
        self._asked: dict[int, Asked] = {}
        for one in said.asked:
            if one.slot in self._asked:
                self._note(f"devices were told of slot {one.slot} twice", one)
            self._asked.setdefault(one.slot, one)
        self._sums: dict[int, Sum] = {}
        for total in said.sums:
            if total.slot in self._sums:
                self.outcome.extra.append(total)
            self._sums.setdefault(total.slot, total)
        self._play(plan)
        self._compare_order()

    def _note(self, detail: str, at: Asked | Sum, severity: Severity | None = None) -> None:
        place = Evidence(at.round, at.number, at.offset)
        self.outcome.asked.append((detail, place, severity))

    def _play(self, plan: Plan) -> None:
        outcome, deduction = self.outcome, Deduction(plan, self._ask)
        try:
            outcome.answer = deduction.answer()
        except TooFewError as error:
            outcome.reason = str(error)
        except _MissingError as error:
            outcome.problem = str(error)
        except (SecAggError, ProtocolError) as error:
            outcome.problem = str(error)
            outcome.out_of_range = str(error), self._last
        outcome.holders = deduction.holders
        for slot, one in self._asked.items():
            if slot not in outcome.names:
                self._note(f"slot {slot} was asked for, and the question does not need it", one)
        outcome.extra += [one for slot, one in self._sums.items() if slot not in outcome.names]

    def _ask(self, slot: int, what: What) -> Taken | None:
        one, total = self._asked.get(slot), self._sums.get(slot)
        if one is None:
            if total is None and slot >= FIRST_QUERY:
                self._check_end(slot)
                return None
            if total is None:
                raise _MissingError(f"slot {slot} was never asked for")
            self._note(f"what devices were told of slot {slot} is not recorded", total)
        elif one.question != told(what):
            self._note(f"slot {slot}: {_shown(one.question)} in place of {_shown(told(what))}", one)
        self.outcome.names[slot] = names_of(what)
        if total is None:
            if slot >= FIRST_QUERY:
                return None  # a device is gone; `Sums` says whether all vectors came
            raise _MissingError(f"there is no sum of slot {slot}")
        self._last = Evidence(total.round, total.number, total.offset)
        words = self._said.totals.get(slot)
        if words is None:
            if len(total.words) < total.length:
                raise _MissingError(f"the sum of slot {slot} was not computed again")
            words = total.words
        return Taken(words, len(total.contributors))

    def _check_end(self, slot: int) -> None:
        """A search ends before its next query only if a device is gone.

        LOW after a slot with shares: the last of these may have come too late.
        """
        before = self._sums.get(slot - 1)
        if before is None or self._session is None:
            return
        view = self._session.slots.get(slot - 1)
        helped = set() if view is None else {seen.record.peer for seen in view.helped}
        is_whole = slot - 1 >= FIRST_QUERY
        if is_whole or set(before.contributors.tolist()) <= helped:
            detail = f"the search ended before slot {slot}, and no device was gone"
            self._note(detail, before, None if is_whole else Severity.LOW)

    def _compare_order(self) -> None:
        """Devices are told of a slot after the sum before it, and before it opens."""
        before: Mapping[int, Sum] = self._sums
        for slot, one in self._asked.items():
            view = None if self._session is None else self._session.slots.get(slot)
            opened = [] if view is None else [seen.record.number for seen in view.opened]
            if opened and min(opened) < one.number:
                self._note(f"devices were told of slot {slot} after it had opened", one)
            if slot - 1 in before and one.number < before[slot - 1].number:
                self._note(f"devices were told of slot {slot} before the sum that it follows", one)


def names_of(what: What) -> tuple[str, ...]:
    """The names of the numbers that are summed."""
    asked = told(what)
    return (
        (asked.decode("utf-8", "replace"),) if asked.startswith(b"ranks ") else tuple(_names(what))
    )


def _names(what: What) -> Iterator[str]:
    yield from told(what).decode().split(",")


def _shown(asked: bytes) -> str:
    if asked.startswith(b"ranks "):
        return "a query"
    return f"{asked[:40].decode('ascii', 'replace')!a}"
