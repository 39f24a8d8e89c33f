"""Sums that devices can check: what a device commits to, and what makes a sum believable.

In a verified slot, every device sends a signed Pedersen commitment to its vector with its masked
vector. The blinding of the commitment is summed beside the vector, modulo the group's order and
under masks of its own. The server forwards sum and commitments. The product of the commitments
opens to the true sum only, so a server that announces another one is found out.

A device that masks another vector than the one it committed to spoils the sum: it opens to nothing.
Nobody can tell which device it was, because that would take somebody's vector.

Spec: §2.9, §5.8, §9.13, §14.11.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltafl.secagg import labels, pedersen, ring
from deltafl.secagg.errors import DecodeError, Refusal
from deltafl.secagg.identity import SIGNATURE_SIZE, Identity, verify
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.params import SlotSpec
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.signing import Signer

COMMITTED_SIZE = pedersen.COMMITMENT_SIZE + SIGNATURE_SIZE
"""Bytes of a commitment and its signature."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A sum, and the commitments that it must open; a value that can be looked up.

    Attributes:
        context: The slot, as this device knows it.
        spec: Its description.
        packed: The packed sum, blinding included (see `pack`).
        signers: The devices that the sum is over, in the order of their positions.
        committed: What each of them sent, in the same order: commitment and signature.
    """

    context: SlotContext
    spec: SlotSpec
    packed: bytes
    signers: tuple[Signer, ...]
    committed: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProvedSum:
    """A sum that the device has checked against what its devices committed to.

    Attributes:
        slot: Index into the session's slots.
        vector: The sum in Z_2^b, shape (length,), unsigned words in [0, 2^b), to be read as two's
            complement.
    """

    slot: int
    vector: Vector


@dataclass(frozen=True, slots=True)
class Commitment:
    """A device's commitment to its vector, in its place: what a proof of validity is about.

    Attributes:
        context: The slot.
        position: The device's, in the roster.
        signer: The device.
        point: 32 bytes, of any source.
    """

    context: SlotContext
    position: int
    signer: Signer
    point: bytes

    def described(self) -> bytes:
        """Everything of it, in bytes; different commitments give different bytes. Spec: §12.17."""
        return labels.pack(
            self.context.session_id,
            self.context.info,
            self.position,
            self.signer.identity,
            self.signer.key,
            self.point,
        )


Prove = Callable[[Commitment, int], bytes]
"""Makes a proof that what was committed to is valid, from the commitment and its blinding."""

Check = Callable[[Commitment, bytes], bool]
"""Whether such a proof holds; never raises."""


def statement(context: SlotContext, commitment: bytes, key: bytes) -> bytes:
    """What a device signs with its commitment: session, slot, binding, commitment, its key.

    Spec: §6.5.
    """
    return labels.pack(Label.COMMITTED, context.session_id, context.info, commitment, key)


def commit(
    context: SlotContext,
    spec: SlotSpec,
    vector: Vector,
    identity: Identity,
    key: bytes,
    randomness: Randomness,
) -> tuple[int, bytes]:
    """Commit to a vector.

    Spec: §5.8.

    Args:
        context: The slot.
        spec: Its description.
        vector: Unsigned words in [0, 2^b), shape (length,), read as two's complement.
        identity: Signs the commitment.
        key: The device's own, of the session.
        randomness: Source of the blinding.

    Returns:
        The blinding, in [0, ORDER), and commitment ‖ signature.
    """
    blinding = pedersen.draw_blinding(randomness)
    commitment = pedersen.commit(signed(vector, spec.ring_bits), blinding)
    signature = identity.sign(statement(context, commitment, key))
    return blinding, commitment + signature


def pack(spec: SlotSpec, vector: Vector, blinding: int) -> bytes:
    """A masked vector or a sum as on the wire, with its blinding if the slot is verified.

    Spec: §5.8, §7.4.

    Args:
        spec: The slot.
        vector: Unsigned words in [0, 2^b), shape (length,).
        blinding: Any integer; its remainder modulo the order is written.
    """
    tail = (blinding % pedersen.ORDER).to_bytes(pedersen.BLINDING_SIZE, "little")
    return ring.pack(vector, spec.ring_bits) + (tail if spec.verified else b"")


def check_packed(spec: SlotSpec, data: bytes) -> None:
    """Check that `pack` could have written this.

    Raises:
        DecodeError: wrong size, padding bits that are not zero, or a blinding of the order or more.
    """
    size = ring.packed_size(spec.length, spec.ring_bits)
    ring.check_packed(data[:size], spec.length, spec.ring_bits)
    if len(data) != spec.packed_size:
        raise DecodeError(f"{len(data)} bytes; vector and blinding take {spec.packed_size}")
    if int.from_bytes(data[size:], "little") >= pedersen.ORDER:
        raise DecodeError("a blinding is not below the order of the group")


def unpack(spec: SlotSpec, data: bytes) -> tuple[Vector, int]:
    """Read what `pack` wrote: the vector, as `ring.unpack` gives it, and the blinding, or 0.

    Raises:
        DecodeError: as `check_packed`.
    """
    check_packed(spec, data)
    size = ring.packed_size(spec.length, spec.ring_bits)
    vector = ring.unpack(data[:size], spec.length, spec.ring_bits)
    return vector, int.from_bytes(data[size:], "little")


def is_signed(context: SlotContext, signer: Signer, committed: bytes) -> bool:
    """Whether a device signed this commitment in this slot."""
    commitment, signature = _parts(committed)
    return verify(signer.identity, statement(context, commitment, signer.key), signature)


def is_point(committed: bytes) -> bool:
    """Whether the commitment is a point of the curve; else no sum with it ever opens."""
    return pedersen.add([_parts(committed)[0]]) is not None


def opens(spec: SlotSpec, total: Vector, blinding: int, committed: Sequence[bytes]) -> bool:
    """Whether commitments open to a sum.

    Args:
        spec: The slot.
        total: Unsigned words in [0, 2^b), shape (length,).
        blinding: The sum of the blindings; any integer.
        committed: What the devices sent.
    """
    values = signed(total, spec.ring_bits)
    return pedersen.opens([_parts(each)[0] for each in committed], values, blinding)


def examine(opening: Opening) -> tuple[Refusal, str] | None:
    """What is wrong with a sum and its commitments; None if the sum is the true one.

    Spec: §9.13.
    """
    signed_by = zip(opening.signers, opening.committed, strict=True)
    for index, (signer, committed) in enumerate(signed_by):
        if not is_signed(opening.context, signer, committed):
            return Refusal.BAD_SIGNATURE, f"the commitment of member {index}"
    spec = opening.spec
    if not opens(spec, *unpack(spec, opening.packed), opening.committed):
        return Refusal.BAD_OPENING, "the commitments open to another sum"
    return None


def signed(vector: Vector, bits: int) -> list[int]:
    """Words of b bits read as two's complement."""
    half, whole = 1 << (bits - 1), 1 << bits
    return [value - whole if value >= half else value for value in vector.tolist()]


def _parts(committed: bytes) -> tuple[bytes, bytes]:
    size = pedersen.COMMITMENT_SIZE
    return committed[:size], committed[size:]
