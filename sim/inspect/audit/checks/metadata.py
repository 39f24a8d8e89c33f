"""Do sizes, order or missing answers tell which devices passed the filter?

Sizes need no truth file: within a slot they must all be the same. Order and answers are compared
with which devices passed. A device's place in the order of the update's answers is compared with
its place in the order of the slot before. An order by id, which says nothing, then raises no alarm.
The order of the answers of every step is also compared with losses, weights and who passed.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SessionParams, ring, wire
from deltafl.secagg.codec import header_size
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.openings import COMMITTED_SIZE
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.arrival import Orders
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.prefixes import scan
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.steps import steps_of
from deltafl.sim.inspect.audit.tails import Floats, PValue
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound, passes
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView, contributors

_ORDER = "order of answers and filter"
_ANSWERS = "missing answers and filter"
_VALUES = "order of answers and values"
_AT_SLOT = 3  # field of a masked input: version, kind, tag, slot, …

RULES: Final = Rules.read(
    """\
metadata.size high device A16: the size of devices' messages varies within a slot
    The size may tell which devices passed the filter.
metadata.order medium device A16: the order of answers depends on which devices passed the filter
    A device that answers late has trained, and so has passed.
metadata.order-of-values medium device A16: answers come in the order of devices' losses or weights
    The server reads the order, and so much of what it should only learn as sums.
metadata.answers medium device A16: which devices answer depends on which devices passed the filter
    A missing answer tells whether the device passed.
"""
)


@dataclass(slots=True)
class PastAnswers:
    """Which devices answered and when, over the rounds so far.

    Each test keeps a distribution under the null hypothesis and what was seen. For missing answers,
    that is how many of the missing devices had passed. For the order, it is how much later the
    devices that passed came than before.
    """

    missing_passed: int = 0
    missing_null: np.ndarray = field(default_factory=lambda: np.ones(1))
    later: float = 0.0
    later_variance: float = 0.0
    rounds: list[Evidence] = field(default_factory=list)
    orders: dict[tuple[str, int | None, str], tuple[Orders, Evidence]] = field(default_factory=dict)

    def into(self, budget: FalseAlarmBudget) -> None:
        """Test the collected answers."""
        for (asks, slot, name), (orders, seen) in self.orders.items():
            what = asks if slot is None else f"{asks} of slot {slot}"
            detail = (
                f"{what}: of {orders.num_pairs} pairs of devices, the one with the larger {name} "
                f"answered first in {orders.num_reversed}, and was asked first in "
                f"{orders.num_reversed_if_asked}"
            )
            budget.add(PValue(_VALUES, orders.p_value(), detail), seen)
        if not self.rounds:
            return
        place = self.rounds[-1]
        counts = np.arange(len(self.missing_null))
        mean = float((counts * self.missing_null).sum())
        far = abs(counts - mean) >= abs(self.missing_passed - mean) - 1e-9
        value = min(float(self.missing_null[far].sum()), 1.0)
        detail = f"{self.missing_passed} of the missing devices had passed, {mean:.2f} expected"
        budget.add(PValue(_ANSWERS, value, detail), place)
        if self.later_variance > 0:
            score = self.later / self.later_variance**0.5
            detail = (
                f"those who passed came later than in the slot before, by {score:.1f} deviations"
            )
            budget.add(PValue(_ORDER, float(2 * special.ndtr(-abs(score))), detail), place)


class Metadata(Check):
    """Compares sizes and, with a truth file, order and presence with which devices passed."""

    name = "metadata"
    rules = RULES
    tests = MappingProxyType(
        {
            _ORDER: "metadata.order",
            _ANSWERS: "metadata.answers",
            _VALUES: "metadata.order-of-values",
        }
    )

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._past = PastAnswers()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the sizes of a round's vectors; note who answered, and when."""
        if over.truth is not None:
            _compare(over.view, over.truth, self._past)
        by_slot, due = _vectors(over.view)
        for at, inputs in by_slot.items():
            yield from _odd_sizes(at[1], inputs, due.get(at))

    def on_end(self) -> tuple[Finding, ...]:
        """Test what was collected; the alarms come when all tests are made."""
        self._past.into(self._premises.budget)
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough; order and answers also need the truth."""
        return Coverage(tally.whole, "sizes, order, answers" if tally.has_truth else "sizes")


_At = tuple[bytes, int]
"""Where a vector belongs: its session's tag, and its slot."""


def _vectors(round_: RoundView) -> tuple[dict[_At, list[Seen]], dict[_At, int]]:
    """The masked vectors of every slot, including strange ones, and the size that they must have.

    The size is not known if the session does not have the slot.
    """
    by_slot: dict[_At, list[Seen]] = {}
    due: dict[_At, int] = {}
    for tag, view in round_.sessions.items():
        for slot in view.slots.values():
            by_slot.setdefault((tag, slot.index), []).extend(slot.inputs)
            if slot.index < len(view.params.slots):
                due[tag, slot.index] = masked_size(view.params, slot.index)
    for seen in round_.strange:
        at = _strange_at(seen)
        if at is not None:
            by_slot.setdefault(at, []).append(seen)
    return by_slot, due


def _strange_at(seen: Seen) -> _At | None:
    """Where a strange message belongs if it begins as a masked vector does; else None."""
    prefix = scan(seen.content.data)
    fields = prefix.fields if prefix is not None else ()
    if seen.record.sent or len(fields) <= _AT_SLOT or fields[1] != Kind.MASKED:
        return None
    session, at = fields[2], fields[_AT_SLOT]
    return (session, at) if isinstance(session, bytes) and isinstance(at, int) else None


def _odd_sizes(index: int, inputs: Sequence[Seen], due: int | None) -> Iterator[Finding]:
    """Vectors that do not have their slot's size or, if that is unknown, the most common size."""
    counts = Counter(seen.record.size for seen in inputs)
    usual = due or max(counts, key=lambda size: counts[size], default=0)
    odd = [seen for seen in inputs if seen.record.size != usual]
    if odd:
        detail = (
            f"slot {index}: {len(odd)} of {len(inputs)} vectors are not of {usual} bytes, such "
            f"as device {odd[0].record.peer}'s of {odd[0].record.size}"
        )
        yield RULES.found("metadata.size", detail, [seen.place for seen in odd])


def masked_size(params: SessionParams, slot: int) -> int:
    """Bytes of a masked vector's message. Spec: §8.10."""
    spec = params.slots[slot]
    packed = ring.packed_size(spec.wire_length, spec.ring_bits)
    committed = bytes(COMMITTED_SIZE) if spec.verified else b""
    empty = wire.encode(MaskedInput(slot, b"", committed, bytes(spec.proof_size)), params)
    return len(empty) - header_size(0) + header_size(packed) + packed


def _compare(round_: RoundView, truth: TruthOfRound, past: PastAnswers) -> None:
    """Collect which devices answered to the update and in which order, and which passed."""
    for session in round_.sessions.values():
        config = session.config
        if config is not None:
            _compare_orders(session, config, truth, past)
        if config is None or config.update_slot not in session.slots:
            continue
        slot = session.slots[config.update_slot]
        threshold = slot.question
        if not isinstance(threshold, Threshold) or slot.members is None:
            continue
        asked: list[int] = [d for d in contributors(session, slot.members) if d in truth]
        passed = {d for d in asked if passes(truth[d], config, threshold)}
        _answers(slot, asked, passed, past)
        _order(session, slot, passed, past)
        past.rounds.append(slot.opened[0].place)


def _compare_orders(
    session: SessionView, config: RoundConfig, truth: TruthOfRound, past: PastAnswers
) -> None:
    """Collect the order of the answers of every step, with the values of their devices."""
    update = session.slots.get(config.update_slot)
    threshold = update.question if update is not None else None
    losses = {d: one.loss if math.isfinite(one.loss) else math.inf for d, one in truth.items()}
    values = {"loss": losses, "weight": {d: float(one.weight) for d, one in truth.items()}}
    if isinstance(threshold, Threshold):
        values["failure to pass"] = {
            d: float(not passes(one, config, threshold)) for d, one in truth.items()
        }
    for step in steps_of(session):
        came = list(dict.fromkeys(one.record.peer for one in step.came if one.record.peer in truth))
        known = set(came)
        asked = list(dict.fromkeys(s.record.peer for s in step.sent if s.record.peer in known))
        if len(asked) < len(came):
            continue  # somebody answered who was not asked; see the order of messages
        for name, of in values.items():
            key = step.asks, step.slot.index if step.slot is not None else None, name
            orders, _ = past.orders.get(key, (Orders(), None))
            orders.add([of[d] for d in came], [of[d] for d in asked])
            past.orders[key] = orders, step.sent[0].place


def _answers(slot: SlotView, asked: Sequence[int], passed: set[int], past: PastAnswers) -> None:
    answered = {seen.record.peer for seen in slot.inputs}
    missing = [device for device in asked if device not in answered]
    past.missing_passed += sum(device in passed for device in missing)
    null = hypergeometric(len(asked), len(passed), len(missing))
    past.missing_null = np.convolve(past.missing_null, null)


def _order(session: SessionView, slot: SlotView, passed: set[int], past: PastAnswers) -> None:
    before = max((index for index in session.slots if index < slot.index), default=None)
    if before is None:
        return
    earlier, now = _places(session.slots[before]), _places(slot)
    both = [device for device in now if device in earlier]
    if not 0 < sum(device in passed for device in both) < len(both):
        return
    moved = ranks(np.array([now[device] - earlier[device] for device in both]))
    flags = np.array([device in passed for device in both])
    count, size = int(flags.sum()), len(both)
    past.later += float(moved[flags].sum() - count * (size + 1) / 2)
    past.later_variance += count * (size - count) / size * float(moved.var(ddof=1))


def hypergeometric(total: int, marked: int, drawn: int) -> Floats:
    """The probabilities that 0 to `drawn` of `drawn` out of `total` are among the `marked` ones.

    >>> hypergeometric(4, 2, 2).tolist()
    [0.16666666666666666, 0.6666666666666666, 0.16666666666666666]
    """
    ways = [math.comb(marked, k) * math.comb(total - marked, drawn - k) for k in range(drawn + 1)]
    return np.array([count / math.comb(total, drawn) for count in ways])


def ranks(values: npt.NDArray[np.int64]) -> Floats:
    """Ranks from 1, those that are equal sharing the mean of theirs.

    >>> ranks(np.array([30, 10, 30])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[group]
    return shared


def _places(slot: SlotView) -> Mapping[int, int]:
    """Each device's place in the order of the first vectors of a slot."""
    places: dict[int, int] = {}
    for place, seen in enumerate(slot.inputs):
        places.setdefault(seen.record.peer, place)
    return places
