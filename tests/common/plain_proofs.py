"""A verifier of proofs of choices in plain integers, from the equations of docs/spec.md, 12.17."""

from hashlib import sha256

from edwards import (
    BASE_Y,
    NEUTRAL,
    ORDER,
    P,
    affine_sum,
    compressed,
    decoded,
    encoded,
    times,
)

BASE = decoded(encoded(BASE_Y))
PROOF_LABEL = b"deltafl/secagg/v3/proof of one of several cases"


def negative(point):
    x, y = point
    return -x % P, y


def in_group(data):
    """The point, if these are its only encoding and its order is the prime; else None."""
    if len(data) != 32:
        return None
    point = decoded(data)
    if point is None or compressed(point) != data or point == NEUTRAL:
        return None
    return point if times(ORDER, point) == NEUTRAL else None


def pack(*parts):
    strings = [part.to_bytes(8, "little") if isinstance(part, int) else part for part in parts]
    return b"".join(len(part).to_bytes(4, "little") + part for part in strings)


def hashed(label, *parts):
    return int.from_bytes(sha256(pack(label, *parts)).digest(), "little") % 2**252


def holds_plain(about, choices, proof):
    """Whether a proof holds of choices, which are lists of (target, [bases]), all affine points."""
    if len(proof) % 32:
        return False
    numbers = [int.from_bytes(proof[i : i + 32], "little") for i in range(0, len(proof), 32)]
    wanted = 1 + sum(len(choice) - 1 + sum(len(b) for _, b in choice) for choice in choices)
    if len(numbers) != wanted or any(number >= ORDER for number in numbers):
        return False
    whole, *rest = numbers
    parts = [about, len(choices)]
    for choice in choices:
        others, rest = rest[: len(choice) - 1], rest[len(choice) - 1 :]
        parts.append(len(choice))
        for (target, bases), e in zip(
            choice, [(whole - sum(others)) % ORDER, *others], strict=True
        ):
            own, rest = rest[: len(bases)], rest[len(bases) :]
            terms = [times(z, base) for z, base in zip(own, bases, strict=True)]
            announced = affine_sum([*terms, negative(times(e, target))])
            parts += [
                compressed(target),
                b"".join(compressed(base) for base in bases),
                compressed(announced),
            ]
    return whole == hashed(PROOF_LABEL, *parts)
