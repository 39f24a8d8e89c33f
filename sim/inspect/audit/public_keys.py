"""Points that honest devices never show: no multiples of the base point.

The X25519 half of a key is a multiple of the base point of Curve25519, so the curve's equation has
a solution for it. Of other 32 bytes, half have none: they are points of the twist, or bytes that
are no key. Of the points that are on the curve, one in eight is a multiple of the base point. To
any of these, a device can add one of seven points of small order, and boxes open as before: three
bits that everybody can read. So are the bits of an encoding that readers ignore.
"""

from typing import Final

from nacl.bindings import crypto_core_ed25519_is_valid_point

_PRIME: Final = 2**255 - 19
_SIZE: Final = 32


def coordinate(public: bytes) -> int:
    """The u that 32 bytes encode, as X25519 reads them; several encodings may share one."""
    return (int.from_bytes(public, "little") & ((1 << 255) - 1)) % _PRIME


def of_edwards(identity: bytes) -> bytes:
    """The X25519 key of the same secret scalar as an Ed25519 key: u = (1 + y) / (1 − y).

    Args:
        identity: 32 bytes: y and the sign of x.
    """
    y = coordinate(identity)
    u = (1 + y) * pow(1 - y, -1, _PRIME) % _PRIME if y != 1 else 0
    return u.to_bytes(_SIZE, "little")


def is_in_group(point: bytes) -> bool:
    """Whether these are the canonical encoding of a multiple of Ed25519's base point, but zero.

    Args:
        point: 32 bytes: y and the sign of x.
    """
    return bool(crypto_core_ed25519_is_valid_point(point))


def is_multiple_of_base(public: bytes) -> bool:
    """Whether these are the canonical encoding of a multiple of Curve25519's base point, but zero.

    Args:
        public: 32 bytes that encode u.
    """
    u = coordinate(public)
    if u.to_bytes(_SIZE, "little") != public or u == _PRIME - 1:
        return False
    y = (u - 1) * pow(u + 1, -1, _PRIME) % _PRIME  # the inverse of `of_edwards`
    return is_in_group(y.to_bytes(_SIZE, "little"))
