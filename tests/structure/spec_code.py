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

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError
from spec_tables import SPEC
from spec_trace import plain_kem

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = SPEC.read_text(encoding="utf-8")


class RefusedError(Exception):
    """What `refuse` raises; its argument is the name."""


def refuse(name):
    raise RefusedError(name)


def chacha20(key, size):
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def hpke_open(secret, info, box):
    try:
        return plain_kem.unseal(secret, box, info)
    except InvalidTag:
        return None


def verify(public, message, signature):
    try:
        return crypto_sign_open(signature + message, public) == message
    except BadSignatureError:
        return False


PRIMITIVES = {
    "sha256": lambda data: sha256(data).digest(),
    "hmac_sha256": lambda key, data: hmac.new(key, data, "sha256").digest(),
    "xwing_key": plain_kem.public_key,
    "chacha20": chacha20,
    "hpke_seal": lambda public, info, content: plain_kem.seal(content, public, info),
    "hpke_open": hpke_open,
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
