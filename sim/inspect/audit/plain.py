"""The specification in plain Python, without a line of `secagg` or `protocol`: slow and short.

The second opinion of an audit and the test vectors are computed with it. Sessions' parameters are
dictionaries with the names of docs/spec.md, section 3; sets of devices are lists of booleans.
Where `secagg` uses OpenSSL for agreements, this uses libsodium.
"""

import hmac
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base

PREFIX: Final = b"deltafl/secagg/v3/"
ROUND_PREFIX: Final = b"deltafl/protocol/v3/"
PRIME: Final = 2**31 - 1
LIMBS: Final = 9

Params = Mapping[str, Any]


def pack(*parts: bytes | int) -> bytes:
    """Strings and integers as one string (1.4)."""
    joined = b""
    for part in parts:
        data = struct.pack("<Q", part) if isinstance(part, int) else part
        joined += struct.pack("<I", len(data)) + data
    return joined


def digest(label: bytes, *parts: bytes | int) -> bytes:
    """SHA-256 of a label of sessions and of parts (1.4)."""
    return sha256(pack(PREFIX + label, *parts)).digest()


def extract(material: bytes, salt: bytes) -> bytes:
    """The first half of HKDF-SHA256 (2.2)."""
    return hmac.digest(salt, material, "sha256")


def hkdf(material: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256, 32 bytes (2.2)."""
    return hmac.digest(extract(material, salt), info + b"\x01", "sha256")


def stream(key: bytes, size: int) -> bytes:
    """The ChaCha20 keystream of a key of 32 bytes (2.4)."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def public_key(secret: bytes) -> bytes:
    """The X25519 key of a secret of 32 bytes (2.3)."""
    return crypto_scalarmult_base(secret)


def agree(secret: bytes, public: bytes) -> bytes:
    """What X25519 makes of a secret and somebody's key (2.3)."""
    return crypto_scalarmult(secret, public)


# Shamir's shares.


def from_limbs(row: Sequence[int]) -> bytes | None:
    """The secret of nine limbs of 30 bits; None where they are none (2.7)."""
    number = sum(limb << (30 * i) for i, limb in enumerate(row))
    fits = all(limb < 2**30 for limb in row) and number < 2**256
    return number.to_bytes(32, "little") if fits else None


@lru_cache(maxsize=1 << 10)
def lagrange(points: tuple[int, ...], at: int = 0) -> tuple[int, ...]:
    """Weights by which values at points give the value of their polynomial elsewhere (2.7)."""
    weights = []
    for own in points:
        weight = 1
        for other in points:
            if other != own:
                weight = weight * (at - other) * pow(own - other, -1, PRIME) % PRIME
        weights.append(weight)
    return tuple(weights)


def value_at(points: Sequence[int], values: Sequence[int], at: int) -> int:
    """The value at `at` of the polynomial through some points."""
    terms = zip(lagrange(tuple(points), at), values, strict=True)
    return sum(weight * value for weight, value in terms) % PRIME


# Vectors and masks.


def unpacked(data: bytes, length: int, bits: int) -> list[int]:
    """The elements of a packed vector (5.1)."""
    elements: list[int] = []
    for start in range(0, len(data), bits):  # eight elements have as many bytes as one has bits
        number = int.from_bytes(data[start : start + bits], "little")
        elements += [(number >> (i * bits)) % 2**bits for i in range(8)]
    return elements[:length]


def mask(key: bytes, length: int, bits: int) -> list[int]:
    """The words of a mask: 32 bits wide for rings up to 2^32, else 64 (5.1)."""
    size = 4 if bits <= 32 else 8
    words = key[: length * size] if length * size <= 32 else stream(key, length * size)
    return list(struct.unpack(f"<{length}{'I' if size == 4 else 'Q'}", words))


def neighbours(num: int, degree: int, seed: bytes, position: int) -> list[int]:
    """With whom a device shares masks, ascending (4.2)."""
    if degree >= num - 1:
        return [p for p in range(num) if p != position]
    order = ring_of(num, degree, seed)
    place = order.index(position)
    steps = [s for s in range(-(degree // 2), degree // 2 + 1) if s]
    return sorted(order[(place + step) % num] for step in steps)


@lru_cache(maxsize=1 << 4)
def ring_of(num: int, degree: int, seed: bytes) -> tuple[int, ...]:
    """The positions in the order of the ring (4.2)."""
    words = stream(digest(b"graph permutation", seed, num, degree), 8 * num)
    numbers = struct.unpack(f"<{num}Q", words)
    return tuple(sorted(range(num), key=numbers.__getitem__))


def bits(members: Sequence[bool]) -> tuple[int, bytes]:
    """A set of devices, as its number and bits (1.3)."""
    number = sum(1 << i for i, there in enumerate(members) if there)
    return len(members), number.to_bytes((len(members) + 7) // 8, "little")


def slot_fields(slot: Params) -> tuple[bytes, int, int, int, int]:
    """What a slot is described by (3.3)."""
    assurance = int(slot["verified"]) + slot.get("proof_size", 0)
    return slot["label"].encode(), slot["length"], slot["ring_bits"], int(slot["whole"]), assurance


def canonical(params: Params) -> bytes:
    """What parameters are described by (3.3)."""
    slots = [pack(*slot_fields(slot)) for slot in params["slots"]]
    names = ("num_invited", "degree", "threshold", "min_cohort", "min_roster", "signed")
    numbers = [int(params[name]) for name in names]
    seed, context = bytes.fromhex(params["graph_seed"]), bytes.fromhex(params["context"])
    return pack(pack(*slots), *numbers, seed, context)


def session_id(params: Params, ids: Sequence[int]) -> bytes:
    """The id of a session with a roster (3.3)."""
    return digest(b"session id", canonical(params), struct.pack(f"<{len(ids)}I", *ids))


def slot_info(params: Params, slot: int, binding: bytes) -> bytes:
    """What the masks of a slot are bound to (5.2)."""
    return pack(slot, pack(*slot_fields(params["slots"][slot])), binding)


def self_mask_key(session: bytes, info: bytes, seed: bytes) -> bytes:
    """The key of a self mask (5.3)."""
    return hkdf(seed, session, pack(PREFIX + b"self mask", info))


def tolerant_slot_info(info: bytes) -> bytes:
    """What the masks of two devices in a tolerant slot are bound to (5.4)."""
    return pack(PREFIX + b"pairwise mask", info)


def whole_slot_info(info: bytes, members: Sequence[bool]) -> bytes:
    """What the masks of a whole slot are bound to (5.7)."""
    return pack(PREFIX + b"pairwise mask of a whole slot", info, *bits(members))


def pairwise_mask_key(session: bytes, info: bytes, secret: bytes, own: bytes, peer: bytes) -> bytes:
    """The key of the mask of two devices, by what it is bound to in their slot (5.4, 5.7)."""
    both = b"".join(sorted((own, peer)))
    return hkdf(agree(secret, peer), session, info + both)


def seed_commitment(session: bytes, slot: int, position: int, seed: bytes) -> bytes:
    """What a device promises of its seed of a slot (5.6)."""
    return digest(b"self-mask seed commitment", session, slot, position, seed)


# What is signed.


def advertisement_statement(
    params: Params, client: int, sealing_key: bytes, mask_keys: Sequence[bytes]
) -> bytes:
    """What a device signs of its keys (6.3)."""
    number = digest(b"session parameters", canonical(params))
    label = PREFIX + b"key advertisement"
    return pack(label, number, client, sealing_key, b"".join(mask_keys))


def survivors_statement(
    session: bytes, info: bytes, members: Sequence[bool], sealing_key: bytes
) -> bytes:
    """What a device signs of the survivors of a slot (6.4)."""
    return pack(PREFIX + b"survivors of a slot", session, info, *bits(members), sealing_key)


def members_statement(
    session: bytes, slot: int, members: Sequence[bool], sealing_key: bytes
) -> bytes:
    """What a device signs of the members of a whole slot (6.4)."""
    return pack(PREFIX + b"members of a whole slot", session, slot, *bits(members), sealing_key)


# Rounds.


def query_bytes(method: bytes, pivots: Sequence[int]) -> bytes:
    """A query, as masks are bound to it (12.6)."""
    return struct.pack(f">{2 + len(pivots)}Q", len(method), len(pivots), *pivots) + method


def threshold_bytes(eta: int, delta: int) -> bytes:
    """A threshold, as masks are bound to it (12.6)."""
    return struct.pack(">2q", eta, delta)


def binding(round_context: bytes, what: str, question: bytes) -> bytes:
    """What a slot is bound to: a `Query` or a `Threshold` (12.6)."""
    bound = pack(ROUND_PREFIX + b"slot binding", round_context, what.encode(), question)
    return sha256(bound).digest()
