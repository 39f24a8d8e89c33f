"""What a device that departs from the protocol may say in place of its honest message."""

from dataclasses import replace

import numpy as np

from deltafl.secagg import keys, links, shamir, wire
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
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
            told = {p: bytes(row) for p, row in message.links.items()}
            near = sorted(told)
            if way == 0:  # of a stranger
                return ShareReceipt({**told, 2**32 - 1: told[near[0]]})
            if way == 1:  # with a wrong digest or key: the tag comes first
                chosen = near[at % len(near)]
                return ShareReceipt(
                    {**told, chosen: told[chosen][:16] + flip(told[chosen][16:], at)}
                )
            return ShareReceipt({p: row for i, (p, row) in enumerate(told.items()) if at >> i & 1})
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
        return replace(message, key=message.key[:-32] + bytes(32))
    if way == 1:
        return replace(message, key=flip(message.key, at))
    credential = message.credential
    if way == 2:
        return replace(
            message, credential=replace(credential, identity=flip(credential.identity, at))
        )
    return replace(
        message, credential=replace(credential, signature=flip(credential.signature, at))
    )


def false_boxes(message, machine, way, at):
    boxes = dict(message.boxes.items())
    chosen = sorted(boxes)[at % len(boxes)]
    if way == 0:
        boxes.pop(chosen)
    elif way == 1:
        boxes[chosen] = flip(boxes[chosen], at)
    elif way == 2:  # well sealed, and no share of the secret that the others have
        limbs = np.full(wire.plaintext_size(machine.params) // 4, at % shamir.PRIME, dtype="<u4")
        cohort = machine._phase.cohort
        info = links.info(cohort.session_id, cohort.end(cohort.position), cohort.end(chosen))
        boxes[chosen] = keys.seal(limbs.tobytes(), cohort.end(chosen).key, info)
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
