"""Ed25519 as the specification has it, in Python integers: every signature, honest or not.

Points are pairs on −x² + y² = 1 + d·x²·y² over the field of 2^255 − 19 (RFC 8032).
"""

from hashlib import sha512

FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, FIELD) % FIELD
_ROOT = pow(2, (FIELD - 1) // 4, FIELD)
NEUTRAL = (0, 1)


def add(left, right):
    (x1, y1), (x2, y2) = left, right
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, FIELD) % FIELD
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, FIELD) % FIELD
    return x, y


def times(scalar, point):
    # Fractions (x / z, y / z), so that a division is needed at the end only.
    x, y, z = 0, 1, 1
    for bit in bin(scalar)[2:]:
        x, y, z = _sum((x, y, z), (x, y, z))
        if bit == "1":
            x, y, z = _sum((x, y, z), (*point, 1))
    inverse = pow(z, -1, FIELD)
    return x * inverse % FIELD, y * inverse % FIELD


def _sum(left, right):
    (x1, y1, z1), (x2, y2, z2) = left, right
    z = z1 * z2 % FIELD
    square, product = z * z, D * x1 * x2 * y1 * y2 % FIELD
    first, second = (square - product) % FIELD, (square + product) % FIELD
    x = z * first * (x1 * y2 + x2 * y1) % FIELD
    y = z * second * (y1 * y2 + x1 * x2) % FIELD
    return x, y, first * second % FIELD


def encode(point):
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(data):
    """The point, or None where the encoding is not canonical or none of a point."""
    number = int.from_bytes(data, "little")
    y, odd = number % 2**255, number >> 255
    if y >= FIELD:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if (x * x - square) % FIELD:
        x = x * _ROOT % FIELD
    if (x * x - square) % FIELD or (x == 0 and odd):
        return None
    return (-x % FIELD if x & 1 != odd else x), y


BASE = decode((4 * pow(5, -1, FIELD) % FIELD).to_bytes(32, "little"))


def has_small_order(point):
    return times(8, point) == NEUTRAL


def secret_scalar(seed):
    half = int.from_bytes(sha512(seed).digest()[:32], "little")
    return (half & ((1 << 254) - 8)) | 1 << 254


def challenge(r, public, message):
    return int.from_bytes(sha512(r + public + message).digest(), "little") % ORDER


def verify(public, message, signature):
    """By section 2.6 of the specification: canonical, of no small order, and no cofactor."""
    if len(public) != 32 or len(signature) != 64:
        return False
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    key, nonce = decode(public), decode(r)
    if s >= ORDER or key is None or nonce is None or has_small_order(key) or has_small_order(nonce):
        return False
    return times(s, BASE) == add(nonce, times(challenge(r, public, message), key))
