"""Files that were made to harm a parser, by target: each is refused, and takes little memory."""

import gzip
import io
import struct
import zipfile
import zlib

import numpy as np

DEEP = 100_000


def at_all(valid):
    """What is in place of any file, and what can be wrong with any."""
    return [
        b"",
        b"\0" * 1000,
        b"\xff" * 1000,
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"9" * DEEP,
        b"\xef\xbb\xbf" + valid,
        valid.decode("latin-1").encode("utf-16"),
        valid + b"\0",
        valid + valid,
        b"\n" * 1000 + valid,
        valid[:-1],
        valid[: len(valid) // 2],
        b"PK\5\6" + bytes(18),
        b"PAR1" + b"\xff" * 8 + b"PAR1",
        b"SQLite format 3\0" + bytes(1000),
        b"\x89PNG\r\n\x1a\n" + bytes(50),
        gzip.compress(b"[" * DEEP, mtime=0),
    ]


def head(dtype="<f4", shape="(3,)", order="False"):
    """The head of an array, padded as numpy does."""
    text = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


def archive(method=zipfile.ZIP_STORED, **entries):
    """An archive of arrays, given as bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for key, data in entries.items():
            file.writestr(f"{key}.npy", data)
    return buffer.getvalue()


def saved(**arrays):
    """An archive of arrays, as numpy saves it, with what it should not have."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def lying(data):
    """An archive whose directory states sizes of a terabyte."""
    at = data.index(b"PK\1\2")
    sizes = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    return data[: at + 20] + sizes + data[at + 28 :]


HEADS = [
    head(shape="(1099511627776,)"),
    head(shape="(0, 999999999999999999, 999999999999999999, 9)"),
    head(shape="(" + "1, " * 40 + "1)"),
    head(shape="(4294967296, 4294967296)"),
    head(shape="(-1,)") + bytes(12),
    head(shape="(3.0,)") + bytes(12),
    head(shape="(True,)") + bytes(4),
    head(shape="((((3))))") + bytes(12),
    head(dtype="|O") + bytes(24),
    head(dtype="<c8") + bytes(24),
    head(dtype="<f3") + bytes(9),
    head(dtype="<U0", shape="(99999999999,)"),
    head(order="1") + bytes(12),
    head(dtype="<U1", shape="(1,)") + b"\xff\xff\xff\x7f",
    head(dtype="|b1") + b"\0\1\2",
    head() + bytes(11),
    head() + bytes(13),
    head()[:9],
    b"\x93NUMPY\2\0" + struct.pack("<I", 0xFFFFFFFF) + b"{" * 100,
    b"\x93NUMPY\1\0" + struct.pack("<H", 5000) + b"(" * 5000,
    b"\x93NUMPY\1\0" + struct.pack("<H", 60000) + b"{" + b" " * 59998 + b"\n",
    b"\x93NUMPY\3\0" + bytes(100),
]
"""Arrays that are none."""


def arrays(**entries):
    """Archives with one hostile entry each."""
    first = next(iter(entries))
    return [archive(**{**entries, first: data}) for data in HEADS]


OK_X = head("|u1", "(2, 1)") + b"\1\2"
OK_Y = head("<i8", "(2,)") + bytes(16)

NUMBERS = [
    b"1e99999999",
    b"1e-99999999",
    b"1e5000",
    b"9" * 65,
    b"9" * DEEP,
    b"1/" + b"9" * 65,
    b"1/0",
    b"1/3/3",
    b"nan",
    b"inf",
    b"-inf",
    b"Infinity",
    b"1_0",
    b" 1",
    b"1\n",
    b"0x10",
    "٣".encode(),
    b".",
    b"e5",
    b"",
    b"1e",
    b"True",
]
OPTIONS = [
    *(b"federation.theta=" + n for n in NUMBERS if n.strip() not in (b"", b"1", b"0x10")),
    *(b'federation.theta="' + number + b'"' for number in NUMBERS if b"\n" not in number),
    *(b"quantile.noise=" + number for number in NUMBERS[:7]),
    b'federation.levels=["1e99999999"]',
    b"federation.levels=" + b"[" * DEEP,
    b"federation.rounds=" + b"9" * 5000,
    b"federation.rounds=0x" + b"f" * 5000,
    b"federation.rounds=true",
    b"federation.rounds=1.0",
    b"federation.rounds=99999999999999999999",
    b"federation.rounds=1\n[experiment]\nseed=2",
    b"federation.rounds={" + b"a." * 5000 + b"b=1}",
    b"experiment.num_seeds=9007199254740992",
    b"training.learning_rate=nan",
    b"training.learning_rate=inf",
    b"training.learning_rate=1e999",
    b"training.learning_rate=1_0_",
    b"training.learning_rate=" + b"9" * 400,
    b"data.source=\xff",
    b"data.source=[1, 2]",
    b"x" * DEEP + b".a=1",
    b"federation." + b"x" * DEEP + b"=1",
    b"federation",
]
SETTINGS = [
    *(b"[federation]\ntheta = " + n + b"\n" for n in NUMBERS if n.strip() not in (b"1", b"0x10")),
    *(b'[federation]\ntheta = "' + n + b'"\n' for n in NUMBERS if b"\n" not in n),
    b'[quantile]\nnoise = "1e5000"\n',
    b"[federation]\n" + b"a." * 30_000 + b"b = 1\n",
    b"[" + b"a." * 30_000 + b"b]\n",
    b"[federation]\nrounds = " + b"[" * DEEP,
    b"[federation]\nrounds = 0x" + b"f" * 100_000,
    b"[federation]\nrounds = 1\nrounds = 2\n",
    b"[federation]\nrounds = 1\n[federation]\n",
    b"[federation]\nrounds = true\n",
    b"[federation]\nrounds = 1979-05-27\n",
    b"[federation]\nrounds = 9223372036854775808\n",
    b"[experiment]\nnum_seeds = 9007199254740992\n",
    b"[training]\nlearning_rate = nan\n",
    b"[training]\nlearning_rate = inf\n",
    b'[data]\nsource = "\\ud800"\n',
    b"federation = 1\n",
    b"[[federation]]\n",
    b'[federation]\nalgorithm = """' + b"x" * 200_000 + b'"""\n',
    b"#" * (1 << 18) + b"\n",
    b"[federation]\r",
]
JSON = [
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": ' + b"9" * 21 + b"}",
    b'{"a": NaN}',
    b'{"a": -Infinity}',
    b'{"a": 1, "a": 2}',
    b'{"a": "\\ud800"}',
    b'{"\\udc00": 1}',
    b'\xef\xbb\xbf{"a": 1}',
    '{"a": 1}'.encode("utf-16"),
    '{"a": 1}'.encode("utf-32"),
    b'{"a": "\xff"}',
    b'{"a": "\x00"}',
    b'{"a": 1}{"b": 2}',
    b'{"a": 1_0}',
    b'{"a": 01}',
    b"[]",
    b"null",
    b"true",
    b"1",
    b"",
]
EVENTS_OF_A_ROW = [
    *(line for line in JSON if line),
    b'{"round": "1"}\n',
    b'{"round": true}\n',
    b'{"round": 1, "eta": 1e999}\n',
    b'{"round": 1, "secure_sums": "3"}\n',
    b'{"round": 1, "dropped_by_stage": [1]}\n',
    b'{"round": 1, "dropped_by_stage": {"a": "b"}}\n',
    b'{"round": 1, "stage_s": [1]}\n',
    b'{"round": 1, "stage_s": {"mask": "b"}}\n',
    b'{"round": 1, "stage_s": {"mask": -1}}\n',
    b'{"round": 1, "levels": [1]}\n',
    b'{"round": 1, "levels": {"0.5": 1}}\n',
    b'{"round": 1, "levels": {"0.5": {"eta": "x"}}}\n',
    b'{"round": 1, "levels": {"a": {"levels": {"b": {}}}}}\n',
    b"\n",
    b'{"round": 1}\r\x00\n',
]


def leaf(text):
    """A LEAF file with some text in the place of x."""
    return (
        b'{"users": ["a", "b", "c"], "num_samples": [1, 1, 1], "user_data": {'
        + b", ".join(b'"%s": {"x": %s, "y": [0]}' % (name, text) for name in (b"a", b"b", b"c"))
        + b"}}"
    )


LEAF = [
    *JSON,
    leaf(b"[" * 40 + b"1" + b"]" * 40),
    leaf(b"[[1e999]]"),
    leaf(b"[[NaN]]"),
    leaf(b"[[true, null]]"),
    leaf(b'[["9e99"]]'),
    leaf(b"[[" + b"9" * 30 + b"]]"),
    leaf(b"[]"),
    leaf(b"5"),
    leaf(b"[[1]]").replace(b'"users": ["a"', b'"users": ["a", "a"'),
    leaf(b"[[1]]").replace(b"[1, 1, 1]", b"[1, true, null]"),
    leaf(b"[[1]]").replace(b'"y": [0]', b'"y": [1e300]'),
    leaf(b"[[1]]").replace(b'"a"', b'"\\ud800"'),
    leaf(b"[[1]]").replace(b'["a", "b", "c"]', b"[{}, [], null]"),
]


FILES = [b"SQLite format 3\0" + bytes(84), b"SQLite format 3\0" + b"\xff" * 5000, b"nothing"]
"""What is no record, and no truth."""

ROWS = [
    *(b"events\0event\0" + text for text in EVENTS_OF_A_ROW),
    *(b"about\0value\0" + text for text in JSON if text),
    *(b"arrays\0shape\0" + text for text in (b"[-1]", b"[1e9]", b"[" * DEEP, b"[99999999999]")),
    *(b"arrays\0dtype\0" + text for text in (b"|O", b"<U9", b"f4")),
    b"arrays\0data\0\xff",
    b"evaluations\0split\0dev",
    b"evaluations\0device\0" + b"x" * 10_000,
    b"evaluations\0error\0a",
    b"evaluations\0num_samples\0-1",
    b"messages\0peer\0" + str(2**40).encode(),
    b"messages\0sha256\0\xff",
    b"messages\0body\0-1",
    b"rounds\0what\0more",
    b"rounds\0round\0-1",
    b"sums\0length\0" + str(2**62).encode(),
    b"sums\0words\0\xff",
]
"""Of a record: a table, a column, and what stands in it in all rows, under a right chain."""


def png(width=1, height=1, data=b"", kind=0):
    """A PNG image with a head of its own."""

    def chunk(name, content):
        crc = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + crc

    ihdr = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


PNGS = [
    png(60_000, 60_000),
    png(2**31 - 1, 2**31 - 1),
    png(0, 0),
    png(128, 128, b"\0" * 9),
    png(128, 128, zlib.compress(b"")),
    png(128, 128, zlib.compress(bytes(128 * 129)), kind=9),
]


def bomb(size=1 << 26):
    """A zip archive of a kilobyte per megabyte that comes of it."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("a.txt", "w") as entry,
    ):
        for _ in range(size >> 20):
            entry.write(bytes(1 << 20))
    return buffer.getvalue()


def renamed(*names):
    """A zip archive with files of these names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return buffer.getvalue()


HOSTILE = {
    "number": NUMBERS,
    "option": OPTIONS,
    "settings": SETTINGS,
    "comparison": JSON,
    "record": FILES,
    "row": ROWS,
    "truth": FILES,
    "bundle": [*arrays(header=head(), models=head()), saved(header=np.zeros(3, np.uint8))],
    "leaf": LEAF,
    "leaf packed": [gzip.compress(data, mtime=0) for data in LEAF] + [leaf(b"[[1]]")],
    "images": PNGS,
    "femnist": PNGS,
    "plays": [b"by William Shakespeare\n" * 1000, b"\n" * 100_000],
    "download": [
        bomb(),
        renamed("a.txt", "b/a.txt"),
        renamed("b.txt"),
        renamed("../a.txt", "a.txt"),
    ],
    "ledger": [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000],
}
"""Inputs by the target that refuses them."""
