"""Cuts published test vectors down to what the tests read: `python cut.py FOLDER`.

FOLDER holds the originals under the names in `ORIGINALS`; README.md says where they are from. What
is left is written beside this script. An original with another digest is refused.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent

Json = dict[str, Any]

THINNED: Final = {
    "x25519.json": ("EdgeCaseMultiplication", 10),
    "xchacha20_poly1305.json": ("Pseudorandom", 6),
}
"""Files of which every n-th of the cases with one flag is kept: they differ little."""


def _cases(name: str, content: Json, *fields: str) -> Iterator[tuple[Json, Json]]:
    flag, every = THINNED.get(name, ("", 1))
    seen = 0
    for group in content["testGroups"]:
        for case in group["tests"]:
            seen += flag in case["flags"]
            # A case that shows more than this is kept.
            if case["flags"] != [flag] or seen % every == 1:
                yield group, {field: case[field] for field in ("tcId", "result", *fields)}


def _x25519(name: str, content: Json) -> list[Json]:
    return [case for _, case in _cases(name, content, "flags", "public", "private", "shared")]


def _aead(name: str, content: Json) -> list[Json]:
    fields = ("key", "iv", "aad", "msg", "ct", "tag")
    return [case for _, case in _cases(name, content, *fields)]


def _ed25519(name: str, content: Json) -> list[Json]:
    return [
        case | {"pk": group["publicKey"]["pk"]}
        for group, case in _cases(name, content, "msg", "sig")
    ]


def _hkdf(name: str, content: Json) -> list[Json]:
    """The valid ones, with the first 32 bytes of each output: no longer one is ever derived."""
    return [
        case | {"okm": case["okm"][:64]}
        for _, case in _cases(name, content, "ikm", "salt", "info", "size", "okm")
        if case["result"] == "valid"
    ]


def _frost(_: str, content: Json) -> list[Json]:
    inputs = content["inputs"]
    fields = ("participant_list", "group_secret_key", "share_polynomial_coefficients")
    shares = [
        {field: share[field] for field in ("identifier", "participant_share")}
        for share in inputs["participant_shares"]
    ]
    return [
        {"MIN_PARTICIPANTS": content["config"]["MIN_PARTICIPANTS"]}
        | {field: inputs[field] for field in fields}
        | {"participant_shares": shares}
    ]


Cut = Callable[[str, Json], list[Json]]

ORIGINALS: Final[Mapping[str, tuple[str, str, Cut]]] = {
    "x25519.json": (
        "x25519_test.json",
        "35c3f5231cf25cc640b524d403461deee9e49441d5d915a3a25b2c8ff5adbe7d",
        _x25519,
    ),
    "xchacha20_poly1305.json": (
        "xchacha20_poly1305_test.json",
        "a79de072571b90eb40c3a63ce0c7f75dcb4b62323c8870228e1f61dcc61d63a9",
        _aead,
    ),
    "ed25519.json": (
        "ed25519_test.json",
        "752d2ea7d7c6cf4736381b6cbacb61f8182b126ab7cd9b058f00c50084975536",
        _ed25519,
    ),
    "hkdf_sha256.json": (
        "hkdf_sha256_test.json",
        "bb2b462a38b251cb52a2aede706d6d4b62b26864f4e80c95497507ddb07c5f1e",
        _hkdf,
    ),
    "frost_p256.json": (
        "vectors.json",
        "b650091162c9e59aa417412e1b53d0c58cc19478a949e7317644cb70c3078fcc",
        _frost,
    ),
    "frost_p256_big_identifier.json": (
        "vectors-big-identifier.json",
        "e978a83a62288ca74e8e4b0230f35992de4d97e00d309c1157b2efca6b441c86",
        _frost,
    ),
}
"""By the name of what is cut: the name and the SHA-256 of the original, and how it is cut."""


def cut(name: str, original: bytes) -> str:
    """What is kept of an original, one case a line.

    Raises:
        ValueError: it is another file.
    """
    _, digest, of = ORIGINALS[name]
    if sha256(original).hexdigest() != digest:
        raise ValueError(f"{name}: the original's SHA-256 is not {digest}")
    lines = [json.dumps(case, separators=(",", ":")) for case in of(name, json.loads(original))]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    for name, (original, _, _) in ORIGINALS.items():
        kept = cut(name, (Path(sys.argv[1]) / original).read_bytes())
        (HERE / name).write_text(kept, encoding="utf-8")
