"""Computes every sum again from the transcript alone: adds up vectors, rebuilds secrets, unmasks.

In a whole slot nothing is rebuilt: the masks cancel when all its vectors are added up.

This uses the server's primitives but not its state machine. The messages show what the server
decided, and what it computed is computed again. This finds a server that reports sums other than
those of its messages, or that got them from elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from deltafl.secagg import DecodeError, SessionAborted, prg, ring
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import KeyPair, PublicKey
from deltafl.secagg.messages import MaskedInput, ShareKind, ShareReceipt, UnmaskShares
from deltafl.secagg.ring import Vector
from deltafl.secagg.unmasking import Promises, Recovered, SlotSecrets, remove_masks
from deltafl.sim.inspect.audit.seen import Decoder, Seen
from deltafl.sim.inspect.audit.views import SessionView, SlotView
from deltafl.sim.record.transcript import Reader


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """What follows from the messages of a slot.

    Attributes:
        total: The sum, unsigned words; None where it cannot be computed.
        problem: Why not; "" where it can.
        packed: Of a verified slot, the sum with its blinding, as `ring.pack` has it; else empty.
        secrets: Rebuilt self-mask seeds, by device.
        keys: Rebuilt mask keys of devices that were lost, by device.
        wrong: Devices that dealt or returned false shares.
        blamed: Those of them that a server drops.
    """

    total: Vector | None
    problem: str = ""
    packed: bytes = b""
    secrets: Mapping[int, bytes] = field(default_factory=dict)
    keys: Mapping[int, KeyPair] = field(default_factory=dict)
    wrong: frozenset[int] = frozenset()
    blamed: frozenset[int] = frozenset()

    def rebuilt(self) -> Iterator[tuple[int, bytes]]:
        """Every secret that was rebuilt, with its device."""
        yield from self.secrets.items()
        yield from ((device, pair.secret) for device, pair in self.keys.items())


def masked_vectors(
    reader: Reader, session: SessionView, slot: SlotView, after: int = -1
) -> Iterator[tuple[Seen, Vector]]:
    """Every masked vector of a slot, read again from the file: its place, and its words.

    One that was sent again is left out: it is no other vector.

    Args:
        reader: Of the file.
        session: Its session.
        slot: Its slot.
        after: Vectors are left out up to the record of this number.
    """
    spec = session.params.slots[slot.index]
    decoder = Decoder()
    decoder.params[session.params.tag] = session.params
    known = set[tuple[int, bytes]]()
    for seen in slot.inputs:
        own = seen.record.peer, seen.record.sha256
        if own in known:
            continue
        known.add(own)
        if seen.record.number <= after:
            continue
        message = decoder.decode(reader.message_at(seen.record.number)).content.message
        if isinstance(message, MaskedInput):
            yield seen, ring.unpack(message.packed, spec.wire_length, spec.ring_bits)


class SlotReplay:
    """Replays one slot: give it the masked vectors, then ask for the sum.

    Args:
        session: The session, with the shares of the slot.
        slot: The slot.
    """

    def __init__(self, session: SessionView, slot: SlotView) -> None:
        spec = session.params.slots[slot.index]
        self._session, self._slot, self._spec = session, slot, spec
        self._survivors = session.summed(slot)
        self._sum: Vector | None = None  # as large as the slot; no vector may ever come
        self._missing = set() if self._survivors is None else self._devices(self._survivors)

    def add(self, seen: Seen, vector: Vector) -> None:
        """Add a masked vector, if its device is among the survivors and it is its first."""
        if seen.record.peer in self._missing:
            self._missing.discard(seen.record.peer)
            np.add(self._total, vector, out=self._total)

    @property
    def _total(self) -> Vector:
        if self._sum is None:
            self._sum = ring.zeros(self._spec.wire_length, self._spec.ring_bits)
        return self._sum

    def finish(self) -> Replayed:
        """Remove the masks."""
        session, slot, spec = self._session, self._slot, self._spec
        members, context = slot.members, session.slot_context(slot)
        if self._survivors is None or members is None or context is None:
            return Replayed(None, "it was not opened" if spec.whole else "no shares were asked for")
        if self._missing:
            return Replayed(None, f"no vector came from {len(self._missing)} of its contributors")
        if not len(members) == len(self._survivors) == len(session.ids):
            return Replayed(None, "its lists are not those of the session's roster")
        if not self._survivors.any():
            return Replayed(None, "it covers no device")
        if spec.whole:
            return self._unmasked()
        try:
            recovered = self._recover(members, self._survivors)
        except SessionAborted as error:
            return Replayed(None, str(error))
        except (DecodeError, KeyError, ValueError) as error:
            return Replayed(None, f"its messages do not fit together: {error}")
        remove_masks(
            self._total,
            recovered,
            context,
            session.graph,
            self._survivors,
            self._mask_keys(),
            prg.add_masks,
        )
        ids = session.ids.tolist()
        blamed = frozenset(ids[p] for p in recovered.blame.faults)
        wrong = blamed | {ids[position] for pair in recovered.blame.disputes for position in pair}
        return replace(
            self._unmasked(),
            secrets={ids[p]: seed for p, seed in recovered.seeds.items()},
            keys={ids[p]: pair for p, pair in recovered.mask_keys.items()},
            wrong=wrong,
            blamed=blamed,
        )

    def _unmasked(self) -> Replayed:
        """The sum from which all masks are gone, without its blinding."""
        total, spec = self._total, self._spec
        ring.reduce(total, spec.ring_bits)
        packed = ring.pack(total, spec.ring_bits) if spec.verified else b""
        return Replayed(total[: spec.length], "", packed)

    def _recover(self, members: Members, survivors: Members) -> Recovered:
        session, slot = self._session, self._slot
        collected = SlotSecrets(session.graph, session.params.threshold, members, survivors)
        refused = {
            seen.record.peer: frozenset(seen.content.message.refused)
            for seen in session.receipts
            if isinstance(seen.content.message, ShareReceipt)
        }
        wanted = np.where(survivors, ShareKind.SEED, ShareKind.KEY)
        heard = set[int]()
        for seen in slot.shares:
            message, device = seen.content.message, seen.record.peer
            if not isinstance(message, UnmaskShares) or device in heard:
                continue
            if (message.positions >= len(wanted)).any():
                continue
            if (message.kinds != wanted[message.positions]).any():
                continue  # not what was asked for; the check of shares has its say on it
            heard.add(device)
            refusals = refused.get(device, frozenset())
            collected.take(session.positions[device], message, refusals)
        context = session.slot_context(slot)
        if context is None:
            raise ValueError("what its masks are bound to is not known")
        commitments = {
            session.positions[device]: own[self._column]
            for device, own in session.commitments.items()
            if device in session.positions
        }
        promises = Promises(context, slot.index, commitments, self._mask_keys())
        return collected.recover(promises)

    @property
    def _column(self) -> int:
        """The slot's number among those that have keys and seeds."""
        return self._session.params.columns[self._slot.index]

    def _mask_keys(self) -> dict[int, PublicKey]:
        session = self._session
        return {
            session.positions[device]: message.mask_keys[self._column]
            for device, message, _ in session.advertised()
            if device in session.positions
        }

    def _devices(self, members: Members) -> set[int]:
        return set(self._session.ids[: len(members)][members[: len(self._session.ids)]].tolist())
