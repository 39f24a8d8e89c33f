"""Files that were made to harm a parser, by target: each is refused, and takes little memory."""

import gzip
import io
import struct
import zipfile
import zlib

import msgpack
import numpy as np
from frames import chained

from deltafl.sim.record.transcript import TRANSCRIPT
from deltafl.sim.record.truth import TRUTH

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
DIGEST = np.zeros(32, np.uint8)
STATE = {
    "model": np.zeros(3, np.float32),
    "round": np.int64(2),
    "eta": np.float64(0.5),
    "events_size": np.int64(0),
    "transcript_size": np.int64(0),
    "transcript_frames": np.int64(0),
    "transcript_digest": DIGEST,
    "truth_size": np.int64(0),
    "truth_frames": np.int64(0),
    "truth_digest": DIGEST,
    "answered.0": np.array([1], np.int64),
}
CHECKPOINTS = [
    saved(**STATE | changes)
    for changes in (
        {"model": np.float32(1)},
        {"model": np.zeros((3, 1), np.float32)},
        {"model": np.zeros(3)},
        {"round": np.int64(-1)},
        {"round": np.float64(2)},
        {"round": np.array([2])},
        {"round": np.True_},
        {"eta": np.array([0.5])},
        {"eta": np.array("a")},
        {"events_size": np.int64(-1)},
        {"transcript_digest": np.zeros(31, np.uint8)},
        {"transcript_digest": np.zeros(32)},
        {"answered.0": np.int64(1)},
        {"answered.0": np.array([-1], np.int64)},
        {"answered.7": np.array([1], np.int64)},
        {"memory.m": np.array(["a"])},
        {"memory.m": np.array([{}], dtype=object)},
    )
]

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
EVENTS = [
    *(line + b"\n" for line in JSON if line),
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


def nested(levels, announced):
    """Arrays in each other that announce many elements each."""
    return (b"\xdd" + struct.pack(">I", announced)) * levels


OPENING = msgpack.packb([0, 0, bytes(16), "full"])
TRANSCRIPTS = [
    TRANSCRIPT.magic + b"\xff\xff\xff\xff" + bytes(100),
    TRANSCRIPT.magic[:-2] + b"9" * 60 + b"\n",
    chained([nested(1000, 1_000_000) + b"\xc0" * 100_000]),
    chained([b"\x91" * 2000]),
    chained([b"\xdf\xff\xff\xff\xff"]),
    chained([b"\xc6\xff\xff\xff\xff"]),
    chained([msgpack.packb([0, 0, bytes(16), "every=" + "9" * 5000])]),
    chained([msgpack.packb([0, 0, bytes(16), "x" * 10**6])]),
    chained([OPENING, msgpack.packb([2, 1, 1, 0, 2**63, bytes(32), b"", b""])]),
    chained([OPENING, msgpack.packb([1, 1, -1, True, 1, 1, bytes(32), b"a"])]),
    chained([OPENING, msgpack.packb([1, 1, 1, 1, 1, 1, bytes(32), b"a"])]),
    chained([OPENING, msgpack.packb([4, 1, True])]),
    chained([OPENING, msgpack.packb([3, 1, 1.5, ""])]),
    chained([msgpack.packb([True, 0])]),
]


def truths():
    """Truth files whose chain is right."""
    return [
        chained([nested(1000, 1_000_000) + b"\xc0" * 100_000], TRUTH),
        chained([msgpack.packb([0, 0, b"another run....."])], TRUTH),
        chained([msgpack.packb([0, 0, bytes(16), 1])], TRUTH),
    ]


HEAD = "round,split,device,num_samples,loss,error"


def evaluations(row="1,train,d1,1,0.5,0.5", count=1, head=HEAD):
    """An evaluation with other rows."""
    return "\r\n".join([head, "1,test,d0,1,0.5,0.5", *[row] * count, ""]).encode()


EVALUATIONS = [
    evaluations("1,dev,d1,1,0.5,0.5"),
    evaluations("1,,d1,1,0.5,0.5"),
    evaluations("1,train," + "x" * 10**6 + ",1,0.5,0.5"),
    evaluations("1,train," + "x" * 5000 + ",1,0.5,0.5"),
    evaluations("2,train,d1,1,0.5,0.5"),
    evaluations("-1,train,d1,1,0.5,0.5"),
    evaluations("x,train,d1,1,0.5,0.5"),
    evaluations("1,train,d1,-1,0.5,0.5"),
    evaluations(f"1,train,d1,{2**40},0.5,0.5"),
    evaluations("1,train,d1," + "9" * 100_000 + ",0.5,0.5"),
    evaluations("1,train,d1,1,a,0.5"),
    evaluations("1,train,d1,1,0.5"),
    evaluations("1,train,d1,1,0.5,0.5,0.5"),
    evaluations('1,train,"d1,1,0.5,0.5'),
    evaluations('1,train,"d"1,1,0.5,0.5'),
    evaluations("", count=2_000_000),
    evaluations(head="round,split,device,num_samples,error,loss"),
    f"{HEAD}\r\n".encode(),
]


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
    "summary": JSON,
    "events": EVENTS,
    "checkpoint": [
        *arrays(model=head("<f4", "(1,)") + bytes(4)),
        *CHECKPOINTS,
        lying(saved(**STATE)),
    ],
    "evaluations": EVALUATIONS,
    "transcript": TRANSCRIPTS,
    "truth": truths(),
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
