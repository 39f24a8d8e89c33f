"""What the specification demands of the messages of one session, as small functions.

They read what passed and play no machine, so that they do not repeat the faults of one. The tables
`ARRIVING` and `INVARIANTS` have all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ring
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import (
    OpenSlot,
    RosterMessage,
    ShareDelivery,
    ShareKind,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.session_log import Breach, Passed, Session, digests
from deltafl.sim.record.transcript import Sum, sum_sha256

# An answer's kind is that of what it answers, plus this.
_ANSWERS: Final = Kind.ADVERTISE - Kind.OPEN


_SHOWN: Final = 5


def _about(slot: int | None) -> str:
    return "" if slot is None else f" about slot {slot}"


# What is looked at when a message comes, as its long parts are not kept.


def _as_sent(
    s: Session, one: Passed, what: str, shown: Mapping[int, object], sent: Callable[[int], object]
) -> Iterator[Breach]:
    """The first of some things that is not what its device sent, by roster position."""
    for device, own in zip(s.at(shown), shown.values(), strict=True):
        if sent(device) != own:
            detail = f"device {one.peer} was sent another {what} than came from device {device}"
            yield Breach(detail, [one.place])
            return


def exchanged_keys(s: Session, message: RosterMessage, one: Passed) -> Iterator[Breach]:
    """Keys that did not arrive as they were sent."""
    return _as_sent(s, one, "key", message.keys, lambda d: s.keys.get(d, (None,))[0])


def exchanged_boxes(s: Session, message: ShareDelivery, one: Passed) -> Iterator[Breach]:
    """Boxes that did not arrive as they were sealed."""
    own = s.ids.index(one.peer) if one.peer in s.ids else -1
    shown = digests(message.boxes)
    return _as_sent(s, one, "box", shown, lambda d: s.sealed.get(d, {}).get(own))


def strange_signers(s: Session, message: OpenSlot | UnmaskRequest, one: Passed) -> Iterator[Breach]:
    """A list for which too few devices speak, or others than those that it is made of."""
    slot, members, shown = message.slot, one.members, message.signatures
    if not s.params.signed or members is None or _is_agreed(s, message):
        return
    listed = [p for p in shown if p < len(members) and members[p]]
    signers = zip(s.at(listed), listed, strict=True)
    good = sum((device, slot, bytes(shown[p])) in s.signed for device, p in signers)
    if good < max(s.params.threshold, len(shown)):
        detail = f"device {one.peer} was shown {len(shown)} signatures of the list of slot {slot}, "
        detail += f"of which {good} came from devices of that list; {s.params.threshold} must"
        yield Breach(detail, [one.place])


def _is_agreed(s: Session, message: OpenSlot | UnmaskRequest) -> bool:
    """Whether a slot is opened over a list that needs no signatures, or none any more."""
    *earlier, own = s.params.slots[: message.slot + 1]
    lists = [Kind.SLOT if spec.whole else Kind.REQUEST for spec in earlier]
    was_listed = any(s.of(kind, slot) for slot, kind in enumerate(lists))
    return isinstance(message, OpenSlot) and (was_listed or not own.whole)


def false_proof(s: Session, proof: SumOpening, one: Passed) -> Iterator[Breach]:
    """A proof of another sum, or of other devices, or of what they did not send; each once."""
    slot, spec = proof.slot, s.params.slots[proof.slot]
    key = (proof.packed, *proof.committed.items())
    if key in s.proofs:
        return
    s.proofs.add(key)
    total = ring.unpack(proof.packed, spec.wire_length, spec.ring_bits)[: spec.length]
    if {sum_sha256(total)} != {learnt.sha256 for learnt in s.sums if learnt.slot == slot}:
        yield Breach(f"the proof of slot {slot} is not of the sum in the record", [one.place])
    size = len(next(iter(proof.committed.values()), b""))
    sent = {device: own[:size] for (of, device), own in s.committed.items() if of == slot}
    yield from _as_sent(s, one, "commitment", proof.committed, sent.get)
    if set(s.at(proof.committed)) != s.listed(slot):
        yield Breach(f"the proof of slot {slot} is over other devices", [one.place])


def unfitting_shares(s: Session, message: UnmaskShares, one: Passed) -> Iterator[Breach]:
    """Shares of others than those that were asked for, or of another kind."""
    requests = [ask for ask in s.of(Kind.REQUEST, message.slot) if ask.peer == one.peer]
    opened = s.of(Kind.SLOT, message.slot)
    if not requests or not opened:
        return  # nobody asked for them; this is found by itself
    survivors, members = requests[-1].members, opened[0].members
    if survivors is None or members is None or len(survivors) != len(members):
        return
    positions, kinds = message.positions, np.where(survivors, ShareKind.SEED, ShareKind.KEY)
    fits = (positions < len(members)).all() and members[positions].all()
    if not fits or (kinds[positions] != message.kinds).any():
        yield Breach(f"device {one.peer} gave shares that it was not asked for", [one.place])


def complaint(s: Session, message: ShareReceipt, one: Passed) -> Iterator[Breach]:
    """Boxes that a device refused."""
    if message.refused:
        some = ", ".join(map(str, s.at(message.refused[:_SHOWN])))
        detail = f"device {one.peer} refused {len(message.refused)} boxes, of devices {some}"
        yield Breach(detail, [one.place])


# What is looked at when the round is over.


def told_apart(s: Session) -> Iterator[Breach]:
    """Devices that were told different things."""
    for (kind, slot), first in s.told.items():
        if len(first) > 1:
            detail = f"devices were sent {len(first)} different {kind.name} messages{_about(slot)}"
            yield Breach(detail, list(first.values()))


def asked_again(s: Session) -> Iterator[Breach]:
    """Messages that a device was sent more than once, or in the wrong order."""
    for (kind, slot), group in s.by.items():
        often = Counter(one.peer for one in group if one.sent)
        if again := sorted(peer for peer, times in often.items() if times > 1):
            places = [one.place for one in group if one.peer == again[0]]
            detail = f"{len(again)} devices were sent {kind.name}{_about(slot)} more than once"
            yield Breach(detail, places[1:])
    opened = [slot for kind, slot in s.by if kind is Kind.SLOT and slot is not None]
    for before, slot in pairwise(opened):
        if slot < before:
            place = s.of(Kind.SLOT, before)[0].place
            yield Breach(f"slot {before} was opened before an earlier one", [place])


def unasked(s: Session) -> Iterator[Breach]:
    """Devices that answered without being asked."""
    for (kind, slot), group in s.by.items():
        asking = s.of(Kind(kind - _ANSWERS), slot) if kind >= Kind.ADVERTISE else ()
        asked = {one.peer: one.number for one in reversed(asking)}
        for one in group:
            if not one.sent and one.number < asked.get(one.peer, one.number + 1):
                detail = f"device {one.peer} sent {kind.name}{_about(slot)}, and was not asked"
                yield Breach(detail, [one.place])


def answered_again(s: Session, *, by_vectors: bool) -> Iterator[Breach]:
    """Devices that answered in two ways: with two vectors under one mask, or otherwise."""
    for (kind, slot), group in s.by.items():
        digests: dict[int, bytes] = {}
        for one in group if (kind is Kind.MASKED) is by_vectors else ():
            if not one.sent and digests.setdefault(one.peer, one.digest) != one.digest:
                detail = f"device {one.peer} sent {kind.name}{_about(slot)} in two ways"
                yield Breach(detail, [one.place])


def roster_of_the_invited(s: Session) -> Iterator[Breach]:
    """A roster of others than those that were invited and sent keys, or of too few."""
    for one in s.of(Kind.ROSTER)[:1]:
        invited = {announced.peer for announced in s.of(Kind.OPEN)}
        if strange := set(s.ids) - (invited & s.keys.keys()):
            detail = f"device {min(strange)} is in the roster without an invitation or keys"
            yield Breach(detail, [one.place])
        if len(s.ids) < max(s.params.min_cohort, s.params.min_roster):
            yield Breach(f"the roster has {len(s.ids)} devices", [one.place])


def lists_shrink(s: Session) -> Iterator[Breach]:
    """Lists that grow, or are too short, or are sent to a device that is not on them."""
    before = np.ones(len(s.ids), np.bool_)
    every = (one for group in s.by.values() for one in group if one.members is not None)
    for one in sorted(every, key=lambda one: one.number):
        members = one.members
        if members is None or len(members) != len(before):
            yield Breach("a list is not over the roster", [one.place])
            continue
        listed, grown = s.at(np.flatnonzero(members)), s.at(np.flatnonzero(members & ~before))
        if grown:
            yield Breach(f"device {grown[0]} is on a list, and was on none before", [one.place])
        elif one.peer not in listed:
            yield Breach(f"device {one.peer} was sent a list that it is not on", [one.place])
        elif len(listed) < s.params.min_cohort:
            yield Breach(f"a list has {len(listed)} devices", [one.place])
        before &= members


def sums_over_the_listed(s: Session) -> Iterator[Breach]:
    """Sums over few devices, over others than devices were told, or with a late vector."""
    often = Counter(learnt.slot for learnt in s.sums)
    for learnt in s.sums:
        slot, summed = learnt.slot, frozenset(learnt.contributors.tolist())
        whole, listed = s.params.slots[slot].whole, s.listed(slot)
        agreed = (*s.of(Kind.CHECK, slot), *s.of(Kind.REQUEST, slot))
        end = learnt.number if whole else min((one.number for one in agreed), default=0)
        late = summed - {one.peer for one in s.of(Kind.MASKED, slot) if one.number < end}
        helpers = len({one.peer for one in s.of(Kind.SHARES, slot)})
        has_few = not whole and helpers < s.params.threshold
        wrong = {
            f"is over {len(summed)} devices": len(summed) < s.params.min_cohort,
            f"is over {len(summed)} devices, not those of its list": summed != listed,
            f"has vectors that were not there when its list was made: {len(late)}": late,
            f"was made by shares of {helpers} devices": has_few,
            f"is there {often[slot]} times": often[slot] > 1,
        }
        place = Evidence(learnt.round, learnt.number)
        for what in (what for what, is_so in wrong.items() if is_so):
            yield Breach(f"the sum of slot {slot} {what}", [place])


def late_vectors(s: Session) -> Iterator[Breach]:
    """Vectors of devices that are not among the survivors."""
    for slot in range(len(s.params.slots)):
        lost = set(s.ids) - s.listed(slot)
        for one in s.of(Kind.MASKED, slot) if s.of(Kind.REQUEST, slot) else ():
            if one.peer in lost:
                detail = f"the vector of device {one.peer} for slot {slot} came, but was not summed"
                yield Breach(detail, [one.place])


def both_kinds(s: Session) -> Iterator[Breach]:
    """Devices of which shares of both secrets came, or were asked for."""
    size, threshold = len(s.ids), s.params.threshold
    for slot, given in s.given.items():
        shares = np.unique(np.concatenate(given))  # of one holder, owner and kind one
        counts = np.bincount(shares % (2 * size), minlength=2 * size).reshape(size, 2)
        for owner in np.flatnonzero(counts.all(axis=1)):
            seeds, keys = counts[owner].tolist()
            detail = f"for device {s.ids[owner]}, slot {slot}: {seeds} shares of its seed, {keys} "
            detail += f"of its key; {threshold} rebuild either"
            severity = None if min(seeds, keys) >= threshold else Severity.HIGH
            places = [one.place for one in s.of(Kind.REQUEST, slot)][:2]
            yield Breach(detail, places, severity)
    for index, spec in enumerate(s.params.slots):
        if spec.whole and (asked := s.of(Kind.REQUEST, index)):
            yield Breach(f"shares were asked for of whole slot {index}", [asked[0].place])


def withstands(s: Session) -> Iterator[Breach]:
    """A threshold that an active server gets round with the devices that collude with it."""
    params, asked = s.params, s.of(Kind.OPEN)
    if s.colluding is None or not asked:
        return
    holders = min(params.num_invited, params.degree + (params.degree >= params.num_invited - 1))
    most = int((s.colluding + 1e-14) * holders)
    if 2 * params.threshold <= holders + most:
        detail = f"{params.threshold} of {holders} holders sign a list, of whom {most} may collude"
        yield Breach(f"{detail}: two lists can have enough", [asked[0].place])


def questions_follow(s: Session) -> Iterator[Breach]:
    """Questions in slots that are not theirs, or that the sums before do not allow."""
    for level, config in enumerate(s.levels.rounds):
        bracket, first = Bracket(config, config.search.grid.top_pivot), s.levels.first_slot(level)
        for slot in range(first, s.levels.first_slot(level + 1)):
            asked = [(one.place, one.question) for one in s.of(Kind.SLOT, slot) if one.question]
            sums = [learnt for learnt in s.sums if learnt.slot == slot]
            for place, question in asked[:1]:
                is_query = slot < first + config.num_query_slots
                if why := bracket.denies(question, is_query=is_query):
                    yield Breach(f"the question of slot {slot} {why}", [place])
                if isinstance(question, Query) and sums:
                    bracket.take(question.pivots, sums[0])


@dataclass(slots=True, eq=False)
class Bracket:
    """Where a quantile is, as the sums of a search say (section 12.9).

    Attributes:
        config: The round.
        high: The lowest pivot that is known not to be safe, at first the one above all ticks.
        low: The highest that is known to be safe.
        counted: Devices of weight at or above each pivot of which that is known; empty before the
            first sum.
    """

    config: RoundConfig
    high: int
    low: int = 0
    counted: dict[int, int] = field(default_factory=dict)
    _devices: bytes = b""

    def take(self, pivots: Sequence[int], learnt: Sum) -> None:
        """Go on with the sum of a query; one that no honest cohort gives is passed over."""
        layout, devices = self.config.search_layout, learnt.contributors.tobytes()
        if self.config.noise is not None:
            return
        try:
            sums = {name: part.tolist() for name, part in layout.decode(learnt.words).items()}
        except EncodingError:
            return
        (weight,), (count,) = sums["weight"], sums["count"]
        if not self.counted:
            self.counted, self._devices = {0: count}, devices
        if devices != self._devices or count != self.counted[0]:
            return
        below = sums.get("weight_below") or [(weight - sums["signed_weight"][0]) // 2]
        target, least = (1 - Fraction(self.config.theta)) * weight, max(self.config.min_tail, 1)
        for pivot, lighter, fewer in zip(pivots, below, sums["count_below"], strict=True):
            self.counted[pivot] = count - fewer
            if lighter < target and count - fewer >= least:
                self.low = max(self.low, pivot)
            else:
                self.high = min(self.high, pivot)

    def denies(self, question: Query | Threshold, *, is_query: bool) -> str:
        """Why a question is not one that may come now, in words; "" if it is.

        Args:
            question: The question.
            is_query: Whether its slot is one for queries.
        """
        if isinstance(question, Query) is not is_query:
            return f"is not for it: {question}"
        if isinstance(question, Query):
            return self._denies_query(question)
        return self._denies_threshold(question) if self.counted else ""

    def _denies_query(self, query: Query) -> str:
        bounded = [0, *query.pivots, self.config.search.grid.top_pivot]
        if query.method != self.config.method or bounded != sorted(bounded):
            return f"is none of the method: {query}"
        outside = [p for p in query.pivots if not self.low < p < self.high]
        if outside and self.counted:
            return f"asks at {outside[0]}, and the quantile is in [{self.low}, {self.high})"
        return ""

    def _denies_threshold(self, threshold: Threshold) -> str:
        eta, width = threshold.eta_half_ticks, threshold.half_width_half_ticks
        lowest, odd = divmod(eta - width, 2)
        if odd or lowest not in self.counted:
            return f"keeps losses from {(eta - width) / 2} ticks on, which is no pivot of a sum"
        if lowest > self.high or (width and (eta + width) // 2 + 1 != self.high):
            return f"is at {lowest}, and the quantile is in [{self.low}, {self.high})"
        if lowest and self.counted[lowest] < self.config.min_tail:
            return f"keeps {self.counted[lowest]} devices, and {self.config.min_tail} must be kept"
        return ""


_Arriving = Callable[[Session, Any, Passed], Iterator[Breach]]

ARRIVING: Final[tuple[tuple[str, str, Any, _Arriving], ...]] = (
    ("9.9, 10.4", "spec.relayed", RosterMessage, exchanged_keys),
    ("10.5", "spec.relayed", ShareDelivery, exchanged_boxes),
    ("10.8", "spec.relayed", OpenSlot | UnmaskRequest, strange_signers),
    ("10.8", "spec.relayed", SumOpening, false_proof),
    ("9.9, 10.9", "spec.answers", UnmaskShares, unfitting_shares),
    ("10.6", "boxes.complaint", ShareReceipt, complaint),
)
"""As `INVARIANTS`, with the messages that are looked at when they come."""

INVARIANTS: Final[tuple[tuple[str, str, Callable[[Session], Iterator[Breach]]], ...]] = (
    ("10.12", "spec.told-apart", told_apart),
    ("9.7, 10.7", "spec.asked-again", asked_again),
    ("9.9, 10.9", "spec.answers", unasked),
    ("9.9, 10.9", "spec.answers", partial(answered_again, by_vectors=False)),
    ("9.7", "input.twice", partial(answered_again, by_vectors=True)),
    ("10.4", "spec.membership", roster_of_the_invited),
    ("9.4, 9.10", "spec.membership", lists_shrink),
    ("3.2, 10.8, 10.10", "spec.membership", sums_over_the_listed),
    ("10.12", "input.late", late_vectors),
    ("8.6, 9.9", "shares.both-kinds", both_kinds),
    ("3.7, 14.2", "spec.threshold", withstands),
    ("12.4, 12.9", "spec.questions", questions_follow),
)
"""Where in docs/spec.md it stands, the rule of a breach, and what looks for breaches."""
