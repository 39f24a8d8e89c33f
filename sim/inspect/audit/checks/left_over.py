"""Do the masks that devices share hide them, once the server has removed all others?"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from deltafl.secagg.keys import KeyPair
from deltafl.sim.inspect.audit.check import Check, MaskedVector, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.left_over import (
    LEFT,
    LeftOver,
    Sample,
    unmask_late,
    unmask_what_is_known,
)
from deltafl.sim.inspect.audit.replay import Replayed
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView, SlotView, place_of

RULES: Final = Rules.read(
    """\
masks.missing critical device A7: vectors lack the masks that devices share with one another
    The server removes all other masks when it computes the sum. It reads these vectors, or the
    sum of a few of them.
"""
)


class SharedMasks(Check):
    """Hands what is left of vectors, without the masks that the server can remove, to the tests."""

    name = "masks between devices"
    rules = RULES
    tests = MappingProxyType({LEFT: "masks.missing"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._tests = LeftOver(premises.budget)
        self._samples: dict[int, Sample] = {}  # of the slot that is being read
        self._places: dict[int, Evidence] = {}
        self._rebuilt: dict[tuple[bytes, int], Mapping[int, KeyPair]] = {}  # of the round's slots

    def on_vector(self, vector: MaskedVector) -> None:
        """Keep a sample of a vector until the sum of its slot; of each device the first."""
        device, own = vector.seen.record.peer, Sample.of(vector.words)
        rebuilt = self._rebuilt.get((vector.session.params.tag, vector.slot.index))
        if rebuilt is None:
            self._samples.setdefault(device, own)
            self._places.setdefault(device, vector.seen.place)
        elif device in rebuilt:
            self._late(device, own, vector.session, vector.slot, rebuilt[device], vector.seen.place)

    def on_sum(self, released: ReleasedSum) -> tuple[Finding, ...]:
        """Remove the masks that the server can remove, and test what is left."""
        samples, self._samples = self._samples, {}
        places, self._places = self._places, {}
        if released.slot is None or released.replayed is None:
            return ()
        session, slot = released.slot
        rebuilt = released.replayed.keys
        self._rebuilt[session.params.tag, slot.index] = rebuilt
        for device in rebuilt.keys() & samples.keys():
            self._late(device, samples[device], session, slot, rebuilt[device], places[device])
        if released.replayed.total is None:
            return ()
        summed = set(released.record.contributors.tolist())
        left = {device: sample for device, sample in samples.items() if device in summed}
        if len(left) > 1 and self._unmask(left, session, slot, released.replayed):
            bits, where = session.params.slots[slot.index].ring_bits, f"slot {slot.index}"
            self._tests.add(session.params.tag, bits, left, where, place_of(released.record))
        return ()

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Test what came in the round."""
        del over
        self._samples.clear()
        self._places.clear()
        self._rebuilt.clear()
        self._tests.end_round()
        return ()

    def on_end(self) -> tuple[Finding, ...]:
        """Make the last tests; the alarms come when all tests are made."""
        self._tests.finish()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain vectors."""
        number = self._tests.num_vectors
        return Coverage(tally.whole, f"what is left of {number} vectors", number)

    def _late(
        self,
        device: int,
        sample: Sample,
        session: SessionView,
        slot: SlotView,
        pair: KeyPair,
        place: Evidence,
    ) -> None:
        """Remove all masks but its own from the vector of a device that was called lost."""
        context = session.slot_context(slot)
        if context is None or session.is_whole_slot(slot):
            return
        if not unmask_late(sample, device, session, slot, context, pair):
            return
        bits, where = session.params.slots[slot.index].ring_bits, f"device {device}'s late vector"
        self._tests.add_late(bits, sample, where, place)

    def _unmask(
        self, left: dict[int, Sample], session: SessionView, slot: SlotView, replayed: Replayed
    ) -> bool:
        """Whether the masks that the server can remove are known, and gone."""
        if session.is_whole_slot(slot):
            return True
        context = session.slot_context(slot)
        if context is None or not left.keys() <= replayed.secrets.keys():
            return False
        unmask_what_is_known(left, session, slot, context, replayed)
        return True
