"""The pseudo-code of docs/spec.md as a namespace, and the primitives that it assumes.

The primitives are not those of `secagg`: where `secagg` uses one library, this uses another, or
plain integers.
"""

import hmac
import math
import re
import struct
from fractions import Fraction
from hashlib import sha256
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
    crypto_sign_open,
)
from nacl.exceptions import BadSignatureError, CryptoError
from spec_tables import SPEC

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = SPEC.read_text(encoding="utf-8")
_PRIME = 2**255 - 19


class RefusedError(Exception):
    """What `refuse` raises; its argument is the name."""


def refuse(name):
    raise RefusedError(name)


def x25519(secret, public):
    """RFC 7748, section 5, by the formulas there."""
    number = int.from_bytes(secret, "little")
    factor = number % 2**254 - number % 8 + 2**254
    start = int.from_bytes(public, "little") % 2**255
    (x2, z2), (x3, z3) = (1, 0), (start, 1)
    for place in reversed(range(255)):
        bit = factor >> place & 1
        if bit:
            (x2, z2), (x3, z3) = (x3, z3), (x2, z2)
        plus, minus = x2 + z2, x2 - z2
        square, other = plus * plus, minus * minus
        cross, back = (x3 - z3) * plus, (x3 + z3) * minus
        x3, z3 = (cross + back) ** 2 % _PRIME, start * (cross - back) ** 2 % _PRIME
        x2, z2 = (
            square * other % _PRIME,
            (square - other) * (square + 121665 * (square - other)) % _PRIME,
        )
        if bit:
            (x2, z2), (x3, z3) = (x3, z3), (x2, z2)
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(32, "little")


def chacha20(key, size):
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def aead_open(key, nonce, ciphertext, data):
    try:
        return crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, data, nonce, key)
    except CryptoError:
        return None


def verify(public, message, signature):
    try:
        return crypto_sign_open(signature + message, public) == message
    except BadSignatureError:
        return False


PRIMITIVES = {
    "sha256": lambda data: sha256(data).digest(),
    "hmac_sha256": lambda key, data: hmac.new(key, data, "sha256").digest(),
    "x25519": x25519,
    "x25519_base": lambda secret: x25519(secret, (9).to_bytes(32, "little")),
    "chacha20": chacha20,
    "aead_seal": lambda key, nonce, plaintext, data: crypto_aead_xchacha20poly1305_ietf_encrypt(
        plaintext, data, nonce, key
    ),
    "aead_open": aead_open,
    "sign": lambda seed, message: Ed25519PrivateKey.from_private_bytes(seed).sign(message),
    "verify": verify,
    "refuse": refuse,
    "Fraction": Fraction,
    "binary64": lambda number: struct.pack("<d", number),
    **{
        name: getattr(math, name) for name in ("ceil", "floor", "isqrt", "comb", "sqrt", "isfinite")
    },
}


def run_page(text=TEXT):
    """Execute the blocks of the page, in order, in one namespace."""
    namespace = dict(PRIMITIVES)
    for block in BLOCK.finditer(text):
        # The lines before it are left empty, so that errors name the page's lines.
        above = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(above + block[1], "docs/spec.md", "exec"), namespace)  # noqa: S102 our own page
    return SimpleNamespace(**{k: v for k, v in namespace.items() if not k.startswith("__")})


def refusal_of(function, *arguments):
    """The name under which pseudo-code refuses; None if it does not."""
    try:
        function(*arguments)
    except RefusedError as refused:
        return refused.args[0]
    return None
