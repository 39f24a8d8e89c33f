"""X-Wing and HPKE a second time, for boxes whose randomness is stated.

ML-KEM-768 (FIPS 203) is written out, in Python integers; it is not constant-time. `deltafl.secagg`
takes it from a library, which draws its own randomness.
"""

import hmac
import struct
from functools import lru_cache
from hashlib import sha3_256, sha3_512, shake_128, shake_256

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base

Q, N, RANK = 3329, 256, 3
_BITS_U, _BITS_V = 10, 4
_KEM_SIZE = 384 * RANK + 32
_ZETAS = [pow(17, int(f"{i:07b}"[::-1], 2), Q) for i in range(128)]
_XWING = b"\\.//^\\"
_SUITE = b"HPKE" + struct.pack(">3H", 0x647A, 0x0001, 0x0003)
"""X-Wing, HKDF-SHA256, ChaCha20-Poly1305."""


# Polynomials over Z_3329.


def _ntt(f):
    f, i, length = list(f), 1, 128
    while length >= 2:
        for start in range(0, N, 2 * length):
            zeta, i = _ZETAS[i], i + 1
            for j in range(start, start + length):
                t = zeta * f[j + length] % Q
                f[j + length], f[j] = (f[j] - t) % Q, (f[j] + t) % Q
        length //= 2
    return f


def _inverse_ntt(f):
    f, i, length = list(f), 127, 2
    while length <= 128:
        for start in range(0, N, 2 * length):
            zeta, i = _ZETAS[i], i - 1
            for j in range(start, start + length):
                t = f[j]
                f[j], f[j + length] = (t + f[j + length]) % Q, zeta * (f[j + length] - t) % Q
        length *= 2
    return [x * 3303 % Q for x in f]


_GAMMAS = [pow(17, 2 * int(f"{i:07b}"[::-1], 2) + 1, Q) for i in range(128)]


def _product(rows, vector):
    """The inner product of two vectors of transformed polynomials."""
    total = [0] * N
    for f, g in zip(rows, vector, strict=True):
        for i in range(0, N, 2):
            a, b, c, d = f[i], f[i + 1], g[i], g[i + 1]
            total[i] += a * c + b * d * _GAMMAS[i // 2]
            total[i + 1] += a * d + b * c
    return [x % Q for x in total]


def _added(*polynomials):
    return [sum(column) % Q for column in zip(*polynomials, strict=True)]


def _uniform(seed, row, column):
    data, found, at = shake_128(seed + bytes([column, row])).digest(1008), [], 0
    while len(found) < N:
        low, mid, high = data[at : at + 3]
        found += [x for x in (low + 256 * (mid % 16), mid // 16 + 16 * high) if x < Q]
        at += 3
    return found[:N]


def _small(seed, nonce):
    """A polynomial of the centred binomial distribution with η = 2."""
    number = int.from_bytes(shake_256(seed + bytes([nonce])).digest(128), "little")
    signs = (0, 1, 1, 2)
    return [(signs[number >> 4 * i & 3] - signs[number >> 4 * i + 2 & 3]) % Q for i in range(N)]


def _packed(f, bits):
    return sum(x << bits * i for i, x in enumerate(f)).to_bytes(N * bits // 8, "little")


def _unpacked(data, bits):
    size, number = N * bits // 8, int.from_bytes(data, "little")
    numbers = [(number >> bits * i) % 2**bits for i in range(8 * len(data) // bits)]
    assert len(data) % size == 0
    return [numbers[i : i + N] for i in range(0, len(numbers), N)]


def _compressed(f, bits):
    return [((x << bits) + Q // 2) // Q % 2**bits for x in f]


def _decompressed(f, bits):
    return [(x * Q + 2 ** (bits - 1)) >> bits for x in f]


# ML-KEM-768.


@lru_cache(maxsize=1 << 8)
def _matrix(seed):
    return [[_uniform(seed, row, column) for column in range(RANK)] for row in range(RANK)]


@lru_cache(maxsize=1 << 8)
def _kem_keys(seed):
    """The public key of a seed of 64 bytes, and the secret vector."""
    expanded = sha3_512(seed[:32] + bytes([RANK])).digest()
    matrix, noise = _matrix(expanded[:32]), expanded[32:]
    secret = [_ntt(_small(noise, i)) for i in range(RANK)]
    errors = [_ntt(_small(noise, RANK + i)) for i in range(RANK)]
    public = [
        _added(_product(row, secret), error) for row, error in zip(matrix, errors, strict=True)
    ]
    return b"".join(_packed(f, 12) for f in public) + expanded[:32], secret


@lru_cache(maxsize=1 << 8)
def _read(public):
    """The vector of a public key, the matrix's columns, the key's hash."""
    matrix = _matrix(public[-32:])
    columns = [[row[i] for row in matrix] for i in range(RANK)]
    return _unpacked(public[:-32], 12), columns, sha3_256(public).digest()


def _encrypted(public, message, noise):
    vector, columns, _ = _read(public)
    r = [_ntt(_small(noise, i)) for i in range(RANK)]
    u = [
        _added(_inverse_ntt(_product(column, r)), _small(noise, RANK + i))
        for i, column in enumerate(columns)
    ]
    bits = _decompressed(_unpacked(message, 1)[0], 1)
    v = _added(_inverse_ntt(_product(vector, r)), _small(noise, 2 * RANK), bits)
    packed = [_packed(_compressed(f, _BITS_U), _BITS_U) for f in u]
    return b"".join(packed) + _packed(_compressed(v, _BITS_V), _BITS_V)


def _kem_encapsulated(public, message):
    key = sha3_512(message + _read(public)[2]).digest()
    return key[:32], _encrypted(public, message, key[32:])


def _kem_decapsulated(seed, text):
    public, secret = _kem_keys(seed)
    split = N * _BITS_U // 8 * RANK
    u = [_ntt(_decompressed(f, _BITS_U)) for f in _unpacked(text[:split], _BITS_U)]
    (v,) = (_decompressed(f, _BITS_V) for f in _unpacked(text[split:], _BITS_V))
    noisy = _inverse_ntt(_product(secret, u))
    message = _packed(_compressed([(a - b) % Q for a, b in zip(v, noisy, strict=True)], 1), 1)
    key, again = _kem_encapsulated(public, message)
    return key if again == text else shake_256(seed[32:] + text).digest(32)


# X-Wing (draft-connolly-cfrg-xwing-kem).


def _expanded(secret):
    expanded = shake_256(secret).digest(96)
    return expanded[:64], expanded[64:]


@lru_cache(maxsize=1 << 8)
def public_key(secret):
    """The public key of a secret of 32 bytes; 1,216 bytes."""
    seed, scalar = _expanded(secret)
    return _kem_keys(seed)[0] + crypto_scalarmult_base(scalar)


def _combined(kem, curve, text, public):
    return sha3_256(kem + curve + text + public + _XWING).digest()


def encapsulate(public, drawn):
    """A shared secret and what it is encapsulated in, by 64 bytes that are drawn."""
    kem, text = _kem_encapsulated(public[:_KEM_SIZE], drawn[:32])
    curve = public[_KEM_SIZE:]
    point = crypto_scalarmult_base(drawn[32:])
    shared = crypto_scalarmult(drawn[32:], curve)
    return _combined(kem, shared, point, curve), text + point


def _decapsulate(secret, text):
    seed, scalar = _expanded(secret)
    point = text[-32:]
    shared = crypto_scalarmult(scalar, point)
    kem = _kem_decapsulated(seed, text[:-32])
    return _combined(kem, shared, point, crypto_scalarmult_base(scalar))


# HPKE in base mode (RFC 9180), one message.


def _extract(salt, label, material):
    return hmac.digest(salt, b"HPKE-v1" + _SUITE + label + material, "sha256")


def _expand(key, label, info, size):
    labelled = struct.pack(">H", size) + b"HPKE-v1" + _SUITE + label + info
    return hmac.digest(key, labelled + b"\x01", "sha256")[:size]


def _cipher(shared, info):
    context = b"\x00" + _extract(b"", b"psk_id_hash", b"") + _extract(b"", b"info_hash", info)
    secret = _extract(shared, b"secret", b"")
    key = _expand(secret, b"key", context, 32)
    return ChaCha20Poly1305(key), _expand(secret, b"base_nonce", context, 12)


def encapsulation(content, public, info):
    """The 64 bytes that a vector's box is made with: a rule of the vectors, not of the protocol."""
    parts = b"".join(struct.pack("<I", len(part)) + part for part in (content, public, info))
    return shake_256(b"deltafl test vectors: encapsulation" + parts).digest(64)


@lru_cache(maxsize=1 << 12)
def seal(content, public, info):
    """A box for the owner of a public key."""
    shared, text = encapsulate(public, encapsulation(content, public, info))
    cipher, nonce = _cipher(shared, info)
    return text + cipher.encrypt(nonce, content, b"")


def unseal(secret, box, info):
    """What is in a box."""
    size = 1120
    cipher, nonce = _cipher(_decapsulate(secret, box[:size]), info)
    return cipher.decrypt(nonce, box[size:], b"")
