"""What the specification demands of the messages of one session, as small functions.

They read what passed and play no machine, so that they do not repeat the faults of one. The table
`INVARIANTS` has all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import ShareKind
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.session_log import Breach, Passed, Session
from deltafl.sim.record.transcript import Sum

_ANSWERS: Final = (
    Kind.ADVERTISE - Kind.OPEN
)  # an answer's kind is that of what it answers, plus this


def _about(slot: int | None) -> str:
    return "" if slot is None else f" about slot {slot}"


def told_apart(s: Session) -> Iterator[Breach]:
    """Devices that were told different things."""
    for (kind, slot), group in s.by.items():
        first: dict[bytes, Evidence] = {}
        for one in group:
            first.setdefault(one.told, one.place)
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
    first = {one.slot or 0: one for (kind, _), (one, *_) in s.by.items() if kind is Kind.SLOT}
    latest = -1
    for slot, one in sorted(first.items()):
        if one.number < latest:
            yield Breach(f"slot {slot} was opened before an earlier one", [one.place])
        latest = max(latest, one.number)


def answered_again(s: Session) -> Iterator[Breach]:
    """Devices that answered a question in two ways, but by vectors; or without being asked."""
    for (kind, slot), group in s.by.items():
        if group[0].sent:
            continue
        asked = {one.peer: one.number for one in reversed(s.of(Kind(kind - _ANSWERS), slot))}
        digests: dict[int, bytes] = {}
        for one in group:
            if one.number < asked.get(one.peer, one.number + 1):
                detail = f"device {one.peer} sent {kind.name}{_about(slot)}, and was not asked"
                yield Breach(detail, [one.place])
            if digests.setdefault(one.peer, one.digest) != one.digest and kind is not Kind.MASKED:
                yield Breach(f"device {one.peer} sent {kind.name} in two ways", [one.place])
    yield from s.amiss["answers"]


def vectors_again(s: Session) -> Iterator[Breach]:
    """Devices that sent two vectors under one mask."""
    for (kind, slot), group in s.by.items():
        digests: dict[int, bytes] = {}
        for one in group if kind is Kind.MASKED else ():
            if digests.setdefault(one.peer, one.digest) != one.digest:
                detail = f"device {one.peer} sent two different vectors for slot {slot}"
                yield Breach(detail, [one.place])


def relayed(s: Session) -> Iterator[Breach]:
    """Keys, boxes, signatures and proofs that did not arrive as they were sent."""
    yield from s.amiss["relayed"]


def complaints(s: Session) -> Iterator[Breach]:
    """Boxes that devices refused."""
    yield from s.amiss["complaints"]


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
    for one in s.lists():
        members = one.members
        if members is None or len(members) != len(before):
            yield Breach("a list is not over the roster", [one.place])
            continue
        if (grown := members & ~before).any():
            (device, *_) = s.at(np.flatnonzero(grown))
            yield Breach(f"device {device} is on a list, and was on none before", [one.place])
        elif one.peer not in s.at(np.flatnonzero(members)):
            yield Breach(f"device {one.peer} was sent a list that it is not on", [one.place])
        elif np.count_nonzero(members) < s.params.min_cohort:
            yield Breach(f"a list has {np.count_nonzero(members)} devices", [one.place])
        before &= members


def sums_over_the_listed(s: Session) -> Iterator[Breach]:
    """Sums over few devices, over others than devices were told, or with a late vector."""
    for learnt in s.sums:
        place, slot = Evidence(learnt.round, learnt.number), learnt.slot
        summed = frozenset(learnt.contributors.tolist())
        if len(summed) < s.params.min_cohort:
            yield Breach(f"the sum of slot {slot} is over {len(summed)} devices", [place])
        if summed != s.listed(slot):
            detail = f"the sum of slot {slot} is over {len(summed)} devices, not those of its list"
            yield Breach(detail, [place])
        agreed = (*s.of(Kind.CHECK, slot), *s.of(Kind.REQUEST, slot))
        whole = s.params.slots[slot].whole
        end = learnt.number if whole else min((one.number for one in agreed), default=0)
        came = {one.peer for one in s.of(Kind.MASKED, slot) if one.number < end}
        if late := summed - came:
            detail = f"the vector of device {min(late)} is in the sum of slot {slot}, and was not "
            yield Breach(f"{detail}there when its list was made", [place])
        helpers = {holder for holder, _, _ in s.given.get(slot, ())}
        if not whole and len(helpers) < s.params.threshold:
            detail = f"{len(helpers)} devices gave shares for the sum of slot {slot}"
            yield Breach(f"{detail}, and {s.params.threshold} rebuild a secret", [place])
    often = Counter(learnt.slot for learnt in s.sums)
    for slot, times in often.items():
        if times > 1:
            yield Breach(f"slot {slot} has {times} sums", [Evidence(s.sums[0].round)])


def late_vectors(s: Session) -> Iterator[Breach]:
    """Vectors of devices that are not among the survivors."""
    for (kind, slot), group in s.by.items():
        if kind is not Kind.MASKED or slot is None or not s.of(Kind.REQUEST, slot):
            continue
        survivors = s.listed(slot)
        for one in group:
            if one.peer in s.ids and one.peer not in survivors:
                detail = f"the vector of device {one.peer} for slot {slot} came, but was not summed"
                yield Breach(detail, [one.place])


def both_kinds(s: Session) -> Iterator[Breach]:
    """Devices of which shares of both secrets came, or were asked for."""
    size, threshold = len(s.ids), s.params.threshold
    for slot, given in s.given.items():
        counts = []
        for kind in (ShareKind.SEED, ShareKind.KEY):
            pairs = [
                positions[(kinds == kind) & (positions < size)] + holder * size
                for holder, positions, kinds in given
            ]
            owners = np.unique(np.concatenate([np.zeros(0, np.int64), *pairs])) % max(size, 1)
            counts.append(np.bincount(owners, minlength=size))
        for owner in ((counts[0] > 0) & (counts[1] > 0)).nonzero()[0].tolist():
            seeds, keys = int(counts[0][owner]), int(counts[1][owner])
            known = min(seeds, keys) >= threshold
            yield Breach(
                f"for device {s.ids[owner]}, slot {slot}: {seeds} shares of its seed, {keys} of "
                f"its key; {threshold} rebuild either",
                [one.place for one in s.of(Kind.REQUEST, slot)][:2],
                Severity.CRITICAL if known else Severity.HIGH,
            )
    for index, spec in enumerate(s.params.slots):
        asked = s.of(Kind.REQUEST, index)
        if asked and spec.whole:
            yield Breach(f"shares were asked for of whole slot {index}", [asked[0].place])


def withstands(s: Session) -> Iterator[Breach]:
    """A threshold that an active server gets round with the devices that collude with it."""
    params, colluding = s.params, s.colluding
    if colluding is None or not s.of(Kind.OPEN):
        return
    holders = min(params.num_invited, params.degree + (params.degree >= params.num_invited - 1))
    most = int((colluding + 1e-14) * holders)
    if 2 * params.threshold <= holders + most:
        detail = f"{params.threshold} of {holders} holders sign a list, of whom {most} may collude"
        yield Breach(f"{detail}: two lists can have enough", [s.of(Kind.OPEN)[0].place])


def questions_fit(s: Session) -> Iterator[Breach]:
    """Questions in slots that are not theirs, or not of the method, or off the grid."""
    for level, config in enumerate(s.levels.rounds):
        for slot, (one, *_) in _questions(s, level):
            question, top = one.question, config.search.grid.top_pivot
            is_query = slot < s.levels.first_slot(level) + config.num_query_slots
            if isinstance(question, Query) and is_query:
                bounded = (0, *question.pivots, top)
                fits = question.method == config.method and list(bounded) == sorted(bounded)
            else:
                fits = isinstance(question, Threshold) and not is_query
            if not fits:
                yield Breach(f"slot {slot} was opened with {question}", [one.place])


def searches_narrow(s: Session) -> Iterator[Breach]:
    """Pivots outside of what the sums leave open, and thresholds that no sum supports."""
    for level, config in enumerate(s.levels.rounds):
        bracket = Bracket(config)
        for slot, (one, *_) in _questions(s, level):
            if isinstance(one.question, Query):
                if outside := [p for p in one.question.pivots if not bracket.leaves_open(p)]:
                    detail = f"slot {slot} asks at {outside[0]}, and the quantile is in "
                    yield Breach(f"{detail}[{bracket.low}, {bracket.high})", [one.place])
                learnt = next((total for total in s.sums if total.slot == slot), None)
                if learnt is not None:
                    bracket.take(one.question.pivots, learnt)
            elif isinstance(one.question, Threshold) and (why := bracket.denies(one.question)):
                yield Breach(f"the threshold of slot {slot} {why}", [one.place])


def _questions(s: Session, level: int) -> Iterator[tuple[int, list[Passed]]]:
    """The slots of a level in which something was asked, with the messages that did."""
    for slot in range(s.levels.first_slot(level), s.levels.first_slot(level + 1)):
        if asked := [one for one in s.of(Kind.SLOT, slot) if one.question is not None]:
            yield slot, asked


@dataclass(slots=True, eq=False)
class Bracket:
    """Where a quantile is, as the sums of a search say (section 12.9).

    Attributes:
        config: The round.
        low: The highest pivot that is known to be safe.
        high: The lowest that is known not to be.
        counted: Devices of weight at or above each pivot of which that is known; None before the
            first sum.
    """

    config: RoundConfig
    low: int = 0
    high: int = 0
    counted: dict[int, int] | None = None
    _devices: bytes = b""

    def __post_init__(self) -> None:
        self.high = self.config.search.grid.top_pivot

    def leaves_open(self, pivot: int) -> bool:
        """Whether a sum at a pivot tells something new, as far as ranks are exact."""
        is_exact = self.counted is not None and self.config.noise is None
        return not is_exact or self.low < pivot < self.high

    def take(self, pivots: Sequence[int], learnt: Sum) -> None:
        """Go on with the sum of a query; one that no honest cohort gives is passed over."""
        layout, devices = self.config.search_layout, learnt.contributors.tobytes()
        if self.config.noise is not None or len(learnt.words) != layout.length:
            return
        try:
            sums = {name: part.tolist() for name, part in layout.decode(learnt.words).items()}
        except EncodingError:
            return
        (weight,), (count,) = sums["weight"], sums["count"]
        if self.counted is None:
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

    def denies(self, threshold: Threshold) -> str:
        """Why no search ends at a threshold, in words; "" if one does."""
        counted = self.counted
        if counted is None:
            return ""
        eta, width = threshold.eta_half_ticks, threshold.half_width_half_ticks
        lowest, odd = divmod(eta - width, 2)
        if odd or lowest not in counted:
            return f"keeps losses from {(eta - width) / 2} ticks on, which is no pivot of a sum"
        if lowest > self.high or (width and (eta + width) // 2 + 1 != self.high):
            return f"is at {lowest}, and the quantile is in [{self.low}, {self.high})"
        if lowest and counted[lowest] < self.config.min_tail:
            return f"keeps {counted[lowest]} devices, and {self.config.min_tail} must be kept"
        return ""


INVARIANTS: Final[tuple[tuple[str, str, Callable[[Session], Iterator[Breach]]], ...]] = (
    ("10.12", "spec.told-apart", told_apart),
    ("9.7, 10.7", "spec.asked-again", asked_again),
    ("9.9, 10.9", "spec.answers", answered_again),
    ("9.7", "input.twice", vectors_again),
    ("9.9, 10.4, 10.5, 10.8", "spec.relayed", relayed),
    ("10.6", "boxes.complaint", complaints),
    ("10.4", "spec.membership", roster_of_the_invited),
    ("9.4, 9.10", "spec.membership", lists_shrink),
    ("3.2, 10.8, 10.10", "spec.membership", sums_over_the_listed),
    ("10.12", "input.late", late_vectors),
    ("8.6, 9.9", "shares.both-kinds", both_kinds),
    ("3.7, 14.2", "spec.threshold", withstands),
    ("12.4, 12.9", "spec.questions", questions_fit),
    ("12.9", "spec.questions", searches_narrow),
)
"""Where in docs/spec.md it stands, the rule of a breach, and what looks for breaches."""
