"""What a device that departs from the protocol may say in place of its honest message."""

from dataclasses import replace

import numpy as np

from deltafl.secagg import shamir, wire
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    Credential,
    MaskedInput,
    ShareKeys,
    ShareReceipt,
    UnmaskShares,
)
from deltafl.secagg.pedersen import COMMITMENT_SIZE

SIGNED_AT = 8 * COMMITMENT_SIZE
"""The bit at which the signature of a commitment begins."""


def flip(data, at):
    """The bytes with one bit the other way."""
    changed = bytearray(data)
    changed[at // 8 % len(data)] ^= 1 << at % 8
    return bytes(changed)


def structured(message, machine, pick):
    """Another message of the same kind, well-formed, and false.

    Args:
        message: The honest one.
        machine: The device that says it.
        pick: A number that decides which falsehood, and where.
    """
    way, at = pick % 4, pick // 4
    match message:
        case AdvertiseKeys():
            return false_keys(message, way, at)
        case ShareKeys():
            return false_boxes(message, machine, way, at)
        case ShareReceipt():
            near = sorted(machine._cohort.neighbours)
            bits = at % 2 ** len(near)
            refused = [p for i, p in enumerate(near) if bits >> i & 1]
            return ShareReceipt(tuple([*refused, 2**32 - 1] if way == 0 else refused))
        case MaskedInput(slot, packed, committed):
            other = (slot + 1) % len(machine.params.slots)
            if way == 0:
                spec = machine.params.slots[other]
                unsigned = bytes(96 if spec.verified else 0)
                return MaskedInput(other, bytes(spec.packed_size), unsigned)
            if way == 1 and committed:
                return MaskedInput(slot, packed, flip(committed, SIGNED_AT + at))
            if way == 2 and committed:
                return MaskedInput(slot, packed, flip(committed, at))
            return MaskedInput(slot, flip(packed, at), committed)
        case ConsistencySignature(slot, signature):
            other = (slot + 1) % len(machine.params.slots)
            return ConsistencySignature(other if way == 0 else slot, flip(signature, at))
        case UnmaskShares():
            return false_shares(message, way, at)
    raise TypeError(type(message).__name__)


def false_keys(message, way, at):
    if way == 0:
        return replace(message, mask_keys=(message.sealing_key, *message.mask_keys[1:]))
    if way == 1:
        return replace(message, sealing_key=bytes(32))
    if way == 2 and message.credential is not None:
        signature = flip(message.credential.signature, at)
        return replace(message, credential=Credential(message.credential.identity, signature))
    return replace(message, mask_keys=(*message.mask_keys[:-1], flip(message.mask_keys[-1], at)))


def false_boxes(message, machine, way, at):
    boxes = dict(message.boxes.items())
    chosen = sorted(boxes)[at % len(boxes)]
    if way == 0:
        boxes.pop(chosen)
    elif way == 1:
        boxes[chosen] = flip(boxes[chosen], at)
    elif way == 2:  # well sealed, and no share of the secret that the others have
        limbs = np.full(wire.plaintext_size(machine.params) // 4, at % shamir.PRIME, dtype="<u4")
        channel = machine._cohort.neighbours[chosen].channel
        boxes[chosen] = channel.seal(limbs.tobytes(), machine._randomness)
    else:
        first, *others = message.commitments
        return replace(message, commitments=(flip(first, at), *others))
    return replace(message, boxes=boxes)


def false_shares(message, way, at):
    row = at % len(message.positions)
    shares, kinds = message.shares.copy(), message.kinds.copy()
    if way == 0:
        kinds[row] ^= 1
    elif way == 1:
        return replace(
            message,
            positions=np.delete(message.positions, row),
            kinds=np.delete(kinds, row),
            shares=np.delete(shares, row, axis=0),
        )
    else:
        limb = at // 7 % shamir.NUM_LIMBS
        shares[row, limb] = (int(shares[row, limb]) + 1 + at) % shamir.PRIME
    return replace(message, kinds=kinds, shares=shares)
