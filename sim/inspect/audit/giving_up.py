"""Why an honest server gives a round up: its own rules, applied to the record of the last step.

A server ends a session early only for one of a few reasons (`SENTENCES`), whose numbers follow from
who answered. The record has no mark where the last step was closed. So the rules are applied for
every place where it may have been.

Spec: §10.11.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np

from deltafl.protocol.levels import LevelRounds
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.round import LostSearch
from deltafl.secagg import SlotSum, survival
from deltafl.secagg.errors import SessionAborted
from deltafl.secagg.graph import Members
from deltafl.secagg.params import ClientId
from deltafl.secagg.ring import Vector
from deltafl.secagg.survival import require_cohort, require_recoverable, require_roster, settle
from deltafl.sim.inspect.audit.dismissals import closings, refusals_of
from deltafl.sim.inspect.audit.round_replay import words_of
from deltafl.sim.inspect.audit.steps import SessionStep
from deltafl.sim.inspect.audit.views import SessionView, SlotView, contributors

_N: Final = "[0-9]{1,10}"
_LOST: Final = "this slot's sum is lost"
UNPROVED: Final = (
    "a device has committed to another answer than it sent, so the sum of a query cannot be "
    "proved; nobody can tell which device it was"
)
OF_COUNTS: Final = (
    f"{_N} devices came and min_roster is {_N}: over fewer the sparse graph is not safe; take the "
    "complete graph or expect more drop-outs",
    f"{_N} devices are left and min_cohort is {_N}: invite more devices or expect more drop-outs "
    "when choosing the parameters",
    f"only {_N} devices are left to help unmask one of the cohort, and the threshold is {_N}: "
    f"{_LOST}",
)
OF_LIMITS: Final = (
    f"{_N} devices are left to be searched over and min_search_cohort is {_N}: invite more devices "
    "or lower it",
    f"the tail may have as few as {_N} devices, and min_tail is {_N}: invite more devices, raise "
    "theta or expect fewer colluding devices",
    f"the tails of two levels may differ by {_N} devices, and min_tail is {_N}: take levels that "
    "are farther apart, or expect fewer colluding devices",
    f"{_N} devices are left of the {_N} of the first level, and devices that expect an active "
    "server do not go on without one of them",
    f"{_N} devices are left of the {_N} that this query was asked of in a round that was lost, and "
    "a sum over fewer would tell about the others",
)
OF_SHARES: Final = (
    f"the device at position {_N} had shared another seed than the one it committed to, and nobody "
    f"can tell which it used: {_LOST}",
    f"the device at position {_N}, which is gone, had shared another key than the one it "
    f"advertised: {_LOST}",
    f"the shares that came for position {_N} do not fit together, and too few are left over to "
    f"tell which are wrong: {_LOST}",
    f"{_N} shares came for position {_N}, and the threshold is {_N}: {_LOST}",
    f"the device at position {_N} had shared something that is no secret: {_LOST}",
)
OF_SUMS: Final = (
    re.escape(UNPROVED),
    "field '[a-z_]{1,20}': sums in \\[-?[0-9]{1,20}, -?[0-9]{1,20}\\] leave "
    "\\[-?[0-9]{1,20}, -?[0-9]{1,20}\\]: some device did not encode by this layout",
)
GOES_ON: Final = "it goes on"
BY_SHARES: Final = "it depends on the shares"
Refusals = Mapping[int, frozenset[int]]
"""Whose boxes each device refused, by roster position."""


class _NotKnownError(Exception):
    """What a server does next depends on something else than who answered."""


SENTENCES: Final = (*OF_COUNTS, *OF_LIMITS, *OF_SHARES, *OF_SUMS)
"""Patterns of all reasons that a server can have."""


def is_one_of(reason: str, patterns: tuple[str, ...] = SENTENCES) -> bool:
    """Whether a text is one of some reasons, with any numbers."""
    return any(re.fullmatch(pattern, reason, re.ASCII) for pattern in patterns)


@dataclass(frozen=True, slots=True, eq=False)
class LastStep:
    """The last step of a session, and what came.

    Attributes:
        session: The session.
        step: The step.
        taken: Number of the record and device of every answer that the server takes.
        out: The devices that it drops for what they said.
        totals: Sums that were replayed, by session's tag and slot.
        policy: What the run's devices insist on; None where it is not known.
        lost: What a lost round has revealed, with which the round goes on, level by level.
    """

    session: SessionView
    step: SessionStep
    taken: tuple[tuple[int, int], ...]
    out: frozenset[int]
    totals: Mapping[tuple[bytes, int], Vector]
    policy: RoundPolicy | None
    lost: tuple[LostSearch, ...] = ()


def reasons(last: LastStep) -> Iterator[str]:
    """Why an honest server gives the round up after the last step, wherever it was closed.

    Yields:
        A sentence; "" where the round is over; `GOES_ON`, or `BY_SHARES` where that depends on
        the shares that came. First what a server comes to that waited for every answer in the
        record. Nothing where the server's way to this step is not known.
    """
    rounds, refusals = _rounds_before(last), refusals_of(last.session)
    if rounds is None or refusals is None:
        return
    counted = frozenset(_summed(last.step)) & {device for _, device in last.taken}
    for heard in reversed(list(closings(last.taken, counted))):
        yield _reason(last, deepcopy(rounds), refusals, heard)


def _summed(step: SessionStep) -> set[int]:
    sums = step.slot.sums if step.slot is not None and step.asks == "vectors" else []
    return {device for one in sums for device in one.contributors.tolist()}


def _reason(last: LastStep, rounds: LevelRounds, refusals: Refusals, heard: frozenset[int]) -> str:
    try:
        way, reason = _closed(last, rounds, refusals, heard), None
    except SessionAborted as error:
        way, reason = "", str(error)
    except _NotKnownError:
        return BY_SHARES
    levels = (one.aborted for one in rounds.outcomes({}, reason))
    return next((one for one in levels if one), way)


def _closed(last: LastStep, rounds: LevelRounds, refusals: Refusals, heard: frozenset[int]) -> str:
    """Close the step as a server does: "" if the round is over, else `GOES_ON`.

    Raises:
        SessionAborted: the server gives up.
        _NotKnownError: it depends on the shares that came, or on a sum that is not recorded.
    """
    session, step, params = last.session, last.step, last.session.params
    if step.asks == "keys":
        require_roster(params, len(heard - last.out))
        return GOES_ON
    left, came = _mask(session, heard - last.out), _mask(session, heard)
    if step.asks == "sealed shares":
        _settled(session, left, {})
        return GOES_ON
    if step.asks == "receipts":
        left[list(survival.judge(session.graph, left, refusals, params.threshold))] = False
        return _ask(last, rounds, left, refusals)
    slot = step.slot
    members = None if slot is None else _members(slot)
    if slot is None or members is None or len(members) != len(left):
        raise _NotKnownError
    if not slot.sums and not session.is_whole_slot(slot):
        if step.asks == "vectors":
            require_cohort(params, int(came.sum()))
        require_recoverable(session.graph, params, members, came)
        if step.asks == "shares":
            raise _NotKnownError
        if step.asks == "vectors":
            rounds.check_tail(int(came.sum()))
        return GOES_ON
    if slot.sums:
        rounds.take(_sum_of(last, slot, left))
    elif np.array_equal(left if step.asks == "signatures" else came, members):
        return GOES_ON
    else:
        rounds.lose()
    return _ask(last, rounds, left, refusals)


def _ask(last: LastStep, rounds: LevelRounds, left: Members, refusals: Refusals) -> str:
    """Open the next slot, as a server does: "" if there is none, else `GOES_ON`.

    Raises:
        SessionAborted: the server gives up.
    """
    session = last.session
    rounds.assemble(int(left.sum()))
    agreed = _agreed(session)
    is_whole = rounds.question is not None and session.params.slots[rounds.slot].whole
    is_gone = agreed is not None and len(agreed) == len(left) and not left[agreed].all()
    if is_whole and is_gone:
        rounds.lose()
    if rounds.question is None:
        return ""
    if agreed is None or not session.params.slots[rounds.slot].whole:
        left = _settled(session, left, refusals)
    rounds.check_opened(contributors(session, left))
    return GOES_ON


def _settled(session: SessionView, left: Members, refusals: Refusals) -> Members:
    """The devices that stay when a new list is made.

    Raises:
        SessionAborted: too few.
    """
    while True:
        before, left = left, settle(session.graph, session.params, left)
        if left.sum() < before.sum():
            continue
        blamed = survival.judge(session.graph, left, refusals, session.params.threshold)
        if not blamed:
            return left
        left[list(blamed)] = False


def _agreed(session: SessionView) -> Members | None:
    """The list that was agreed on last; None if there is none."""
    agreed: Members | None = None
    for _, slot in sorted(session.slots.items()):
        if session.is_whole_slot(slot):
            agreed = _members(slot) if agreed is None else agreed
        elif slot.sums:
            agreed = slot.survivors
    return agreed


def _members(slot: SlotView) -> Members | None:
    """The devices that a slot was to be opened with."""
    listed = (seen.content.members for seen in slot.checks)
    return slot.members if slot.opened else next((m for m in listed if m is not None), None)


def _rounds_before(last: LastStep) -> LevelRounds | None:
    """The server's rounds when the last step was closed; None where its way is not known."""
    session, levels = last.session, last.session.levels
    if levels is None:
        return None
    policy = last.policy
    keeps_cohort = policy is not None and policy.expects_active
    rounds = LevelRounds(levels, keeps_cohort=keeps_cohort, lost=last.lost)
    slots = [one for _, one in sorted(session.slots.items()) if one.opened or one.checks]
    try:
        for slot, later in zip_longest(slots, slots[1:]):
            members = _members(slot)
            if members is None or not _is_at(rounds, slot, contributors(session, members)):
                return None
            if slot is last.step.slot:
                return rounds
            if not session.is_whole_slot(slot) and slot.survivors is not None:
                rounds.check_tail(int(slot.survivors.sum()))
            following = None if later is None else _members(later)
            if slot.sums and following is not None and len(following) <= len(session.ids):
                rounds.take(_sum_of(last, slot, following))
            else:
                rounds.lose()
    except (SessionAborted, _NotKnownError):
        return None
    return rounds


def _is_at(rounds: LevelRounds, slot: SlotView, devices: Sequence[ClientId]) -> bool:
    """Whether a slot is the one that comes next, with its question.

    Raises:
        SessionAborted: an honest server does not ask it.
    """
    rounds.assemble(len(devices))
    if rounds.question is not None and rounds.slot != slot.index:
        rounds.lose()  # a whole slot that could not be opened, because a device was gone
    if rounds.question is None or rounds.slot != slot.index:
        return False
    if slot.opened and slot.question != rounds.question:
        return False
    rounds.check_opened(devices)
    return True


def _sum_of(last: LastStep, slot: SlotView, left: Members) -> SlotSum:
    """The recorded sum of a slot, after which some devices were left.

    Raises:
        _NotKnownError: not all of it is known.
    """
    released, session = slot.sums[0], last.session
    replayed = last.totals.get((session.params.tag, slot.index))
    is_known = replayed is not None or len(released.words) == released.length
    if not is_known or released.length != session.params.slots[slot.index].length:
        raise _NotKnownError
    summed = tuple(ClientId(device) for device in released.contributors.tolist())
    return SlotSum(slot.index, words_of(released, replayed), summed, contributors(session, left))


def _mask(session: SessionView, devices: frozenset[int]) -> Members:
    """The devices of the roster that are in a set."""
    return np.isin(session.ids, sorted(devices))
