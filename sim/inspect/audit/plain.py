"""The specification in plain Python, without a line of `secagg` or `protocol`: slow and short.

The second opinion of an audit and the test vectors are computed with it. Sessions' parameters are
dictionaries with the names of docs/spec.md, section 3; sets of devices are lists of booleans.
Where `secagg` has boxes opened by a library, this puts X-Wing and HPKE together from their parts:
ML-KEM of OpenSSL, X25519 of libsodium.
"""

import hmac
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha3_256, sha256, shake_256
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base

PREFIX: Final = b"deltafl/secagg/v4/"
ROUND_PREFIX: Final = b"deltafl/protocol/v3/"
PRIME: Final = 2**31 - 1
LIMBS: Final = 9
HALF: Final = 32
TAG: Final = 16
_KEM: Final = 1088  # bytes that ML-KEM encapsulates
_SUITE: Final = b"HPKE" + struct.pack(">3H", 0x647A, 1, 3)

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
    return expand(extract(material, salt), info)


def expand(secret: bytes, info: bytes) -> bytes:
    """The second half of HKDF-SHA256, 32 bytes (2.2)."""
    return hmac.digest(secret, info + b"\x01", "sha256")


def stream(key: bytes, size: int) -> bytes:
    """The ChaCha20 keystream of a key of 32 bytes (2.4)."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


# Boxes: X-Wing and HPKE.


@lru_cache(maxsize=1 << 10)
def key_pair(secret: bytes) -> tuple[MLKEM768PrivateKey, bytes]:
    """The ML-KEM-768 and X25519 secrets of an X-Wing secret of 32 bytes (2.3)."""
    expanded = shake_256(secret).digest(96)
    return MLKEM768PrivateKey.from_seed_bytes(expanded[:64]), expanded[64:]


def public_key(secret: bytes) -> bytes:
    """The public key of an X-Wing secret, 1,216 bytes (2.3)."""
    lattice, curve = key_pair(secret)
    return lattice.public_key().public_bytes_raw() + crypto_scalarmult_base(curve)


def opened(secret: bytes, box: bytes, info: bytes) -> bytes | None:
    """What is in a box; None if it does not open (2.5; RFC 9180, 5.1)."""
    lattice, curve = key_pair(secret)
    point = box[_KEM : _KEM + 32]
    ends = point + crypto_scalarmult_base(curve) + b"\\.//^\\"
    try:
        agreed = lattice.decapsulate(box[:_KEM]) + crypto_scalarmult(curve, point)
    except RuntimeError:  # a point of low order
        return None
    context = b"\0" + _hpke_extract(b"", b"psk_id_hash", b"")
    context += _hpke_extract(b"", b"info_hash", info)
    shared = _hpke_extract(sha3_256(agreed + ends).digest(), b"secret", b"")
    key, nonce = (
        _hpke_expand(shared, *what, context) for what in ((b"key", 32), (b"base_nonce", 12))
    )
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, box[_KEM + 32 :], b"")
    except InvalidTag:
        return None


def _hpke_extract(salt: bytes, label: bytes, material: bytes) -> bytes:
    return extract(b"HPKE-v1" + _SUITE + label + material, salt)


def _hpke_expand(secret: bytes, label: bytes, size: int, info: bytes) -> bytes:
    return expand(secret, struct.pack(">H", size) + b"HPKE-v1" + _SUITE + label + info)[:size]


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
    names = ("num_invited", "degree", "threshold", "min_cohort", "min_roster")
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


def seed_commitment(session: bytes, slot: int, position: int, seed: bytes) -> bytes:
    """What a device promises of its seed of a slot (5.6)."""
    return digest(b"self-mask seed commitment", session, slot, position, seed)


def recovery_commitment(session: bytes, slot: int, position: int, key: bytes) -> bytes:
    """What a device promises of its recovery key of a slot (5.6)."""
    return digest(b"recovery key commitment", session, slot, position, key)


# Links. An end is described by position, identity and key.

End = tuple[int, bytes, bytes]


def box_info(session: bytes, sender: End, receiver: End) -> bytes:
    """What a box is bound to (2.5)."""
    return pack(PREFIX + b"box of shares", session, *sender, *receiver)


def link_secret(
    session: bytes, ends: Sequence[End], halves: Sequence[bytes], boxes: Sequence[bytes]
) -> bytes:
    """What two devices derive all of their link from; the lower end first (5.4).

    Args:
        session: The session's id.
        ends: Of the link.
        halves: What each has sealed to the other.
        boxes: SHA-256 of the boxes that these were in.
    """
    described = [part for end, box in zip(ends, boxes, strict=True) for part in (*end, box)]
    return extract(b"".join(halves), digest(b"link", session, *described))


def link_tag(secret: bytes, position: int) -> bytes:
    """What the end at a position shows the other (5.4)."""
    return expand(secret, pack(PREFIX + b"link tag", position))[:TAG]


def link_key(secret: bytes, slot: int) -> bytes:
    """The key of a link for a slot (5.4)."""
    return expand(secret, pack(PREFIX + b"link key", slot))


def key_digest(key: bytes) -> bytes:
    """What both ends say of a key of their link (5.9)."""
    return digest(b"link key digest", key)[:TAG]


def hidden(recovery: bytes, own: int, peer: int, key: bytes) -> bytes:
    """A key of a link under a recovery key, or the other way round (5.9)."""
    pad = expand(recovery, pack(PREFIX + b"deposited key", own, peer))
    return bytes(x ^ y for x, y in zip(key, pad, strict=True))


# What is signed.


def advertisement_statement(params: Params, client: int, key: bytes) -> bytes:
    """What a device signs of its key (6.3)."""
    number = digest(b"session parameters", canonical(params))
    return pack(PREFIX + b"key advertisement", number, client, key)


def survivors_statement(session: bytes, info: bytes, members: Sequence[bool], key: bytes) -> bytes:
    """What a device signs of the survivors of a slot (6.4)."""
    return pack(PREFIX + b"survivors of a slot", session, info, *bits(members), key)


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
