"""What the specification demands of the messages of one session, as small functions.

They read what passed and play no machine, so that they do not repeat the faults of one. The tables
`ARRIVING` and `INVARIANTS` have all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ring
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.links import TAG_SIZE
from deltafl.secagg.messages import (
    OpenSlot,
    RosterMessage,
    ShareDelivery,
    ShareKind,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import ANSWERS, Question, Session, digests
from deltafl.sim.record.transcript import Sum, sum_sha256

_SHOWN: Final = 5


class Breach(NamedTuple):
    """Something that a demand forbids.

    Attributes:
        detail: What was seen, one sentence without the full stop.
        places: Where.
        severity: How bad it is, if that is not as with the rule in general.
    """

    detail: str
    places: Sequence[Evidence]
    severity: Severity | None = None


def _about(slot: int | None) -> str:
    return "" if slot is None else f" about slot {slot}"


# What is looked at when a message comes, as its long parts are not kept.


def _as_sent(
    s: Session, one: Seen, what: str, shown: Mapping[int, object], sent: Iterable[object]
) -> Iterator[Breach]:
    """The first of some things, by roster position, that is not what its device sent."""
    for device, own, said in zip(s.at(shown), shown.values(), sent, strict=True):
        if said != own:
            detail = f"device {one.peer} was sent another {what} than came from device {device}"
            yield Breach(detail, [one.place])
            return


def exchanged_keys(s: Session, message: RosterMessage, one: Seen) -> Iterator[Breach]:
    """Keys that did not arrive as they were sent."""
    sent = (s.said(device, Kind.ADVERTISE) for device in s.at(message.keys))
    return _as_sent(s, one, "key", message.keys, sent)


def exchanged_boxes(s: Session, message: ShareDelivery, one: Seen) -> Iterator[Breach]:
    """Boxes that did not arrive as they were sealed."""
    own = s.positions.get(one.peer, -1)
    said = (s.said(device, Kind.SHARE_KEYS) for device in s.at(message.boxes))
    sealed = (getattr(every, "boxes", {}).get(own) for every in said)
    return _as_sent(s, one, "box", digests(message.boxes), sealed)


def exchanged_tags(s: Session, message: OpenSlot, one: Seen) -> Iterator[Breach]:
    """Tags that did not arrive as they were sent."""
    own = s.positions.get(one.peer, -1)
    said = (s.said(device, Kind.RECEIPT) for device in s.at(message.tags))
    sent = (getattr(every, "links", {}).get(own, b"")[:TAG_SIZE] for every in said)
    return _as_sent(s, one, "tag", message.tags, sent)


def strange_signers(s: Session, message: UnmaskRequest, one: Seen) -> Iterator[Breach]:
    """A list for which too few devices speak, or others than those that it is made of."""
    slot, members, shown = message.slot, message.survivors, message.signatures
    listed = [p for p in shown if p < len(members) and members[p]]
    signers = zip(s.at(listed), listed, strict=True)
    signed = ((s.said(device, Kind.SIGNATURE, slot), shown[p]) for device, p in signers)
    good = sum(getattr(own, "signature", None) == signature for own, signature in signed)
    if good < max(s.params.threshold, len(shown)):
        detail = f"device {one.peer} was shown {len(shown)} signatures of the list of slot {slot}, "
        detail += f"of which {good} came from devices of that list; {s.params.threshold} must"
        yield Breach(detail, [one.place])


def false_proof(s: Session, proof: SumOpening, one: Seen) -> Iterator[Breach]:
    """A proof of another sum, or of other devices, or of what they did not send; each once."""
    slot, spec = proof.slot, s.params.slots[proof.slot]
    key = (proof.packed, *proof.committed.items())
    if key in s.proofs:
        return
    s.proofs.add(key)
    packed = proof.packed[: ring.packed_size(spec.length, spec.ring_bits)]
    total = ring.unpack(packed, spec.length, spec.ring_bits)
    if {sum_sha256(total)} != {learnt.sha256 for learnt in s.sums if learnt.slot == slot}:
        yield Breach(f"the proof of slot {slot} is not of the sum in the record", [one.place])
    size = len(next(iter(proof.committed.values()), b""))
    said = (s.said(device, Kind.MASKED, slot) for device in s.at(proof.committed))
    sent = (getattr(masked, "committed", b"")[:size] for masked in said)
    yield from _as_sent(s, one, "commitment", proof.committed, sent)
    if set(s.at(proof.committed)) != s.listed(slot):
        yield Breach(f"the proof of slot {slot} is over other devices", [one.place])


def unfitting_shares(s: Session, message: UnmaskShares, one: Seen) -> Iterator[Breach]:
    """Shares of others than those that were asked for, or of another kind."""
    asked = [ask for ask in s.of(Kind.REQUEST, message.slot) if ask.peer == one.peer]
    survivors = asked[-1].content.members if asked else None  # else this is found by itself
    members = s.members(message.slot)
    if survivors is None or members is None or len(survivors) != len(members):
        return
    positions, kinds = message.positions, np.where(survivors, ShareKind.SEED, ShareKind.RECOVERY)
    fits = (positions < len(members)).all() and members[positions].all()
    if not fits or (kinds[positions] != message.kinds).any():
        yield Breach(f"device {one.peer} gave shares that it was not asked for", [one.place])


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
        first = s.first(kind, slot)
        if again := [one for one in group if one.record.sent and one is not first[one.peer]]:
            times = len({one.peer for one in again})
            detail = f"{times} devices were sent {kind.name}{_about(slot)} more than once"
            yield Breach(detail, [one.place for one in again])
    opened = [slot for kind, slot in s.by if kind is Kind.SLOT and slot is not None]
    for before, slot in pairwise(opened):
        if slot < before:
            place = s.of(Kind.SLOT, before)[0].place
            yield Breach(f"slot {before} was opened before an earlier one", [place])


def answers(s: Session) -> Iterator[Breach]:
    """Answers to nothing, and different ones to one question, as two vectors under one mask."""
    for (kind, slot), group in s.by.items():
        if kind < Kind.ADVERTISE:
            continue
        first, asked = s.first(kind, slot), s.first(Kind(kind - ANSWERS), slot)
        for one in group:
            said = f"device {one.peer} sent {kind.name}{_about(slot)}"
            if asked.get(one.peer, one).record.number >= one.record.number:
                yield Breach(f"{said}, and was not asked", [one.place], Severity.HIGH)
            if one.record.sha256 != first[one.peer].record.sha256:
                severity = Severity.HIGH if kind is Kind.MASKED else None
                yield Breach(f"{said} in two ways", [one.place], severity)


def missing_links(s: Session) -> Iterator[Breach]:
    """Boxes that came and that a device could not read, and links of which two ends disagree."""
    receipts = s.first(Kind.RECEIPT)
    said = {d: getattr(one.content.message, "links", {}) for d, one in receipts.items()}
    for device, seen in receipts.items():
        told, boxes = s.first(Kind.DELIVERY).get(device), s.said(device, Kind.SHARE_KEYS)
        own, members = s.positions.get(device), None if told is None else told.content.members
        if own is None or members is None or len(members) != len(s.ids):
            continue
        near = [p for p in getattr(boxes, "boxes", ()) if p < len(members) and members[p]]
        unread = s.at(p for p in near if p not in said[device])
        apart = [
            peer
            for peer, link in zip(s.at(said[device]), said[device].values(), strict=True)
            if said.get(peer, {}).get(own, link)[TAG_SIZE:] != link[TAG_SIZE:]
        ]
        for what, peers in (("could not read the boxes", unread), ("has other keys", apart)):
            if peers:
                some = ", ".join(map(str, peers[:_SHOWN]))
                detail = f"device {device} {what} of {len(peers)} devices, such as {some}"
                yield Breach(detail, [seen.place])


def roster_of_the_invited(s: Session) -> Iterator[Breach]:
    """A roster of others than those that were invited and sent keys, or of too few."""
    for one in s.of(Kind.ROSTER)[:1]:
        known = s.first(Kind.OPEN).keys() & s.first(Kind.ADVERTISE).keys()
        if strange := set(s.ids) - known:
            detail = f"device {min(strange)} is in the roster without an invitation or keys"
            yield Breach(detail, [one.place])
        if len(s.ids) < max(s.params.min_cohort, s.params.min_roster):
            yield Breach(f"the roster has {len(s.ids)} devices", [one.place])


def lists_shrink(s: Session) -> Iterator[Breach]:
    """Lists that grow, or are too short, or are sent to a device that is not on them."""
    before = np.ones(len(s.ids), np.bool_)
    every = (one for group in s.by.values() for one in group if one.content.members is not None)
    for one in sorted(every, key=lambda one: one.record.number):
        members = one.content.members
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
        end = learnt.number if whole else min((one.record.number for one in agreed), default=0)
        late = summed - {one.peer for one in s.of(Kind.MASKED, slot) if one.record.number < end}
        helpers = len(s.first(Kind.SHARES, slot))
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
    threshold = s.params.threshold
    for slot in s.slots:
        counts = _holders(s, slot)
        for owner in np.flatnonzero(counts.all(axis=1)).tolist():
            seeds, keys = counts[owner].tolist()
            detail = f"for device {s.ids[owner]}, slot {slot}: {seeds} shares of its seed, {keys} "
            detail += f"of its key; {threshold} rebuild either"
            severity = None if min(seeds, keys) >= threshold else Severity.HIGH
            places = [one.place for one in s.of(Kind.REQUEST, slot)][:2]
            yield Breach(detail, places, severity)
    for index, spec in enumerate(s.params.slots):
        if spec.whole and (asked := s.of(Kind.REQUEST, index)):
            yield Breach(f"shares were asked for of whole slot {index}", [asked[0].place])


def _holders(s: Session, slot: int) -> npt.NDArray[np.int64]:
    """From how many devices shares came, by owner's position and `ShareKind`, shape (n, 2)."""
    size, given = len(s.ids), [np.zeros(0, np.int64)]
    for one in s.of(Kind.SHARES, slot):
        if isinstance(message := one.content.message, UnmaskShares):
            kept = message.positions < size
            owners = message.positions[kept].astype(np.int64) + one.peer * size
            given.append(2 * owners + message.kinds[kept])
    shares = np.unique(np.concatenate(given))  # of one holder, owner and kind one
    return np.bincount(shares % (2 * size), minlength=2 * size).reshape(size, 2)


def questions_follow(s: Session) -> Iterator[Breach]:
    """Questions in slots that are not theirs, or that the sums before do not allow."""
    for level in s.by_level():
        bracket = Bracket(level.config, level.config.search.grid.top_pivot)
        for slot in level.slots:
            question, learnt = s.question(slot), s.sum_of(slot)
            if question is None:
                continue
            if why := bracket.denies(question, is_query=slot < level.update_slot):
                place = s.of(Kind.SLOT, slot)[0].place
                yield Breach(f"the question of slot {slot} {why}", [place])
            if isinstance(question, Query) and learnt is not None:
                bracket.take(question.pivots, learnt)


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

    def denies(self, question: Question, *, is_query: bool) -> str:
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


_Arriving = Callable[[Session, Any, Seen], Iterator[Breach]]

ARRIVING: Final[tuple[tuple[str, str, Any, _Arriving], ...]] = (
    ("9.9, 10.4", "spec.relayed", RosterMessage, exchanged_keys),
    ("10.5", "spec.relayed", ShareDelivery, exchanged_boxes),
    ("10.7", "spec.relayed", OpenSlot, exchanged_tags),
    ("10.8", "spec.relayed", UnmaskRequest, strange_signers),
    ("10.8", "spec.relayed", SumOpening, false_proof),
    ("9.9, 10.9", "spec.answers", UnmaskShares, unfitting_shares),
)
"""As `INVARIANTS`, with the messages that are looked at when they come."""

INVARIANTS: Final[tuple[tuple[str, str, Callable[[Session], Iterator[Breach]]], ...]] = (
    ("10.12", "spec.told-apart", told_apart),
    ("9.7, 10.7", "spec.asked-again", asked_again),
    ("9.7, 9.9, 10.9", "spec.answers", answers),
    ("10.4", "spec.membership", roster_of_the_invited),
    ("9.4, 9.10", "spec.membership", lists_shrink),
    ("3.2, 10.8, 10.10", "spec.membership", sums_over_the_listed),
    ("9.6, 10.6", "links.missing", missing_links),
    ("10.12", "input.late", late_vectors),
    ("8.6, 9.9", "shares.both-kinds", both_kinds),
    ("12.4, 12.9", "spec.questions", questions_follow),
)
"""Where in docs/spec.md it stands, the rule of a breach, and what looks for breaches."""
