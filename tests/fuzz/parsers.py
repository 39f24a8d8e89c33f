"""Every parser of the program, as a target: what it reads, what it may raise, and valid inputs.

A target reads one file. Whatever the bytes are, it accepts them or raises one of the errors that it
promises; anything else is a finding. `test_parsers.py` holds that every module that reads is here.
"""

import gzip
import io
import json
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import targets
from cryptography.hazmat.primitives.asymmetric import ec
from PIL import Image

from deltafl.fl.bundle import Architecture, Bundle
from deltafl.fl.data.federated import Scale, Split
from deltafl.fl.data.femnist import load_femnist
from deltafl.fl.data.image_folder import read_image_folder
from deltafl.fl.data.leaf import load_leaf
from deltafl.fl.data.qmnist import load_qmnist
from deltafl.fl.data.registry import Download
from deltafl.fl.data.shakespeare import load_shakespeare
from deltafl.fl.errors import DataError
from deltafl.fl.parameters import num_parameters
from deltafl.fl.read.exact import exact_number
from deltafl.secagg import ClientId, DecodeError, TrustedKeys
from deltafl.secagg.errors import LedgerError
from deltafl.secagg.identity import IdentityKey, identity
from deltafl.secagg.ledger import SqliteLedger
from deltafl.sim.data.fetch import fetch
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.net import frames
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.own_work import settings_of
from deltafl.sim.net.supernodes import SuperNodes, signed_line
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.evaluations import read_best, read_evaluations
from deltafl.sim.record.events import read_events
from deltafl.sim.record.labels import read_comparison
from deltafl.sim.record.record import open_record, read_measured
from deltafl.sim.record.transcript import read_transcript
from deltafl.sim.record.truth import read_with_marks
from deltafl.sim.run.simulated import training_in
from deltafl.sim.settings.config_io import (
    assignment,
    build_config,
    preset_names,
    preset_text,
    read_config_file,
    read_table,
    to_toml,
)

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("audit/injected", "common")]

ANY = Split()


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        name: of the target.
        modules: that parse, as paths in the repository.
        place: the name of the file that is written.
        read: reads it, at a path.
        raises: what the parser promises to raise.
        valid: makes inputs that are accepted.
        is_file: whether it opens the path; else it is handed the bytes.
    """

    name: str
    modules: tuple[str, ...]
    place: str
    read: Callable[[Path], object]
    raises: tuple[type[Exception], ...]
    valid: Callable[[], Sequence[bytes]]
    is_file: bool = True


def one_input(target: Target, data: bytes) -> bool:
    """Read some bytes as a target does; whether they are accepted."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / target.place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return accepts(target, path)


class Hangs(BaseException):
    """A target reads for too long. It is none of the errors that a reader may catch."""


def accepts(target: Target, path: Path) -> bool:
    """Let a target read a path; whether it is accepted."""
    try:
        target.read(path)
    except target.raises as error:
        said = str(error)
        assert said, f"{target.name} says nothing"
        assert len(said) < 5000, f"{target.name} says {len(said)} characters"
        return False
    return True


@cache
def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


# --- bytes ------------------------------------------------------------------------------------


def _wire(number: int) -> Target:
    reader = targets.READERS[number]

    def read(path: Path) -> None:
        if not reader(path.read_bytes()):
            raise ValueError("refused")

    modules = {
        "read_envelope": ("protocol/wire.py", "secagg/codec.py"),
        "read_directory": ("secagg/directory.py",),
    }
    return Target(
        reader.__name__.removeprefix("read_"),
        modules.get(
            reader.__name__,
            ("secagg/wire.py", "secagg/codec.py", "secagg/ring.py"),
        ),
        "message.bin",
        read,
        (ValueError,),
        lambda: [data[1:] for data in targets.corpus() if data[0] == number],
        is_file=False,
    )


def _number(path: Path) -> None:
    number = exact_number(path.read_bytes().decode("latin-1"))
    assert abs(number.numerator) < 10**500
    assert number.denominator < 10**500


def _option(path: Path) -> None:
    config = build_config([assignment(path.read_bytes().decode("utf-8", "surrogateescape"))])
    _written_again(config)


def _settings(path: Path) -> None:
    _written_again(build_config([read_config_file(path)]))


def _written_again(config) -> None:
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        again = Path(folder) / "again.toml"
        again.write_text(to_toml(config), encoding="utf-8")
        assert build_config([read_config_file(again)]) == config
    assert len(config.arms()) <= 10_000 * 20


# --- files of a run -----------------------------------------------------------------------------


@cache
def _run() -> tuple[bytes, bytes]:
    """The record and the truth of a small run."""
    from audited_run import files  # loads much

    return files()


def _record(path: Path) -> None:
    """Read all that readers take from a record."""
    with open_record(path) as record:
        record.config(checked=False)
        for name in ("versions", "summary", "round"):
            record.json(name)
        read_events(record)
        for one in read_evaluations(record):
            assert one.round >= 0
        kept = load_checkpoint(record)
        assert kept is None or (kept.state.model.ndim == 1 and kept.state.round >= 0)
        best = read_best(record, Fraction(1, 2))
        assert best is None or best.model.ndim == 1
        list(read_measured(record))
        if record.db.execute("SELECT 1 FROM attackers").fetchone():
            read_attacked(record)
    for _ in read_transcript(path):
        pass


def _truth(path: Path) -> None:
    from audited_run import run_id

    for _ in read_with_marks(path, run_id()):
        pass


def _row(path: Path) -> None:
    """Put a value in a column of a record, mend its chain, read it, and audit the run."""
    from audited_run import with_value

    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        table, _, rest = path.read_bytes().partition(b"\0")
        column, _, value = rest.partition(b"\0")
        if with_value(Path(folder), table.decode("latin-1"), column.decode("latin-1"), value):
            _record(Path(folder) / "record.sqlite")
            audit(Path(folder), Options(truth=Path(folder) / "truth.sqlite"))


def _rows() -> list[bytes]:
    return [b"rounds\0what\0", b"evaluations\0loss\0" + b"0.5", b"nothing\0at\0all"]


# --- models and data ------------------------------------------------------------------------------


def _bundles() -> list[bytes]:
    architecture = Architecture("linear", (2, 2), 3)
    size = num_parameters(architecture.build())
    models = {Fraction(1): np.zeros(size, np.float32), Fraction(1, 3): np.ones(size, np.float32)}
    scale = Scale(np.zeros((2, 2)), np.ones((2, 2)))
    return [
        Bundle(architecture, models).to_bytes(),
        Bundle(architecture, models, scale, {"algorithm": "delta-fl"}).to_bytes(),
    ]


def _leaf() -> bytes:
    users = ["u1", "u2", "u3"]
    samples = {"x": [[0.5, 1], [1e-3, -2]], "y": [0, 1]}
    return json.dumps(
        {"users": users, "num_samples": [2] * 3, "user_data": dict.fromkeys(users, samples)}
    ).encode()


def _png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(784, dtype=np.uint8).reshape(28, 28)).save(file, "PNG")
    return file.getvalue()


def _images(path: Path) -> None:
    """An image among others that are as they should be."""
    folder = path.parents[2]
    for name in ("ann/dog/2.png", "bob/cat/3.png"):
        other = folder / name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(_png())
    read_image_folder(folder)


def _nist(path: Path) -> None:
    """A class's image, which is also a writer's: three times."""
    data, root = path.read_bytes(), path.parent
    for part in ("by_class/30/hsf_0", *(f"by_write/hsf_0/f{n}/c" for n in range(3))):
        folder = root / part
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(data)
    load_femnist(root, ANY)


def _qmnist(path: Path) -> None:
    """Its images, beside labels that fit three of them."""
    folder = path.parent
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(_idx(np.zeros((3, 28, 28), np.uint8)))
    for part, theirs in (("train", "train"), ("t10k", "test")):
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(_idx(np.zeros(3, np.uint8)))
        rows = np.repeat(np.arange(3, dtype=">i4")[:, None], 8, axis=1)
        rows[:, 0] = 0
        (folder / f"qmnist-{theirs}-labels-idx2-int.gz").write_bytes(_idx(rows))
    load_qmnist(folder, ANY)


def _idx(array: np.ndarray) -> bytes:
    code = 0x08 if array.dtype == np.uint8 else 0x0C
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes((0, 0, code, array.ndim)) + sizes + array.tobytes(), mtime=0)


def _nist_image() -> list[bytes]:
    file = io.BytesIO()
    Image.fromarray(np.full((128, 128), 200, np.uint8)).save(file, "PNG")
    return [file.getvalue()]


_PLAY = (
    b"by William Shakespeare\n\nHAMLET\n\nby William Shakespeare\n"
    + b"  Ham. To be.\n    Or not.\n    It is.\n  Oph. My lord.\n    So.\n    No.\n" * 8
)


def _zip(path: Path) -> None:
    download = Download(f"file://{path}", 1 << 20, ("a.txt",))
    fetch(download, path.parent / "fetched", mirror=None, tell=lambda _: None)


def _zips() -> list[bytes]:
    packed = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("folder/a.txt", b"text " * 9)
        packed.append(buffer.getvalue())
    return packed


def _ledger(path: Path) -> None:
    with SqliteLedger(path, capacity=100) as ledger:
        ledger.admit([bytes(32)])
        assert not ledger.admit([bytes(32)]), "a ledger that forgets at once"


def _ledgers() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with SqliteLedger(path) as ledger:
            ledger.admit([bytes([n]) * 32 for n in range(1, 9)])
        return [path.read_bytes()]


def _frame(path: Path) -> None:
    data = path.read_bytes()
    assert frames.encode(frames.decode(data)) == data


def _frames() -> list[bytes]:
    each = [
        frames.Challenge(bytes(32)),
        frames.Hello(ClientId(7), IdentityKey(bytes(32)), bytes(64)),
        frames.Welcome(3, 30),
        frames.Welcome(30, 30, is_over=True),
        frames.Task(bytes(16), 3, -2, b"[federation]\ntheta = 0.5\n"),
        frames.Task(bytes(16), 3, 0, b"[federation]\ntheta = 0.5\n", measures=True),
        frames.Task(bytes(16), 3, 0, b"[federation]\ntheta = 0.5\n", beside=bytes(32)),
        frames.Carry(bytes(16), 4, b"message"),
        frames.Decline(bytes(16), frames.Reason.REFUSED),
        frames.Over(bytes(16), 4),
    ]
    return [frames.encode(one) for one in each]


def _identity(path: Path) -> None:
    if path.is_file():
        path.chmod(0o600)
    own = OwnIdentity.read(path)
    assert TrustedKeys.parse(own.entry).keys == {own.client: own.identity.public}


def _identities() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "device.identity"
        OwnIdentity.create(path, ClientId(7), lambda size: bytes(range(size)))
        return [path.read_bytes(), path.read_bytes().partition(b"\n")[2]]


_SUPERNODE: Final = ec.derive_private_key(7, ec.SECP384R1())


def _enrolled() -> OwnIdentity:
    return OwnIdentity(ClientId(7), identity(bytes(32)))


def _supernodes(path: Path) -> None:
    own = _enrolled()
    read = SuperNodes.read(path, TrustedKeys({own.client: own.identity.public}))
    assert list(read.keys) == [7]


def _supernode_lists() -> list[bytes]:
    line = signed_line(_enrolled(), _SUPERNODE)
    return [f"{line}\n".encode(), f"# who is who\n\n{line} # the old one".encode()]


def _task(path: Path) -> None:
    config = settings_of(frames.Task(bytes(16), 7, 0, path.read_bytes()))
    training = training_in(config.training, 7)
    assert training.epochs >= 1
    assert training.learning_rate > 0


def _tasks() -> list[bytes]:
    private = [name for name in preset_names() if build_config([_preset(name)]).has_masked_sums]
    return [to_toml(build_config([_preset(name)])).encode() for name in private]


def _preset(name: str):
    return read_table(preset_text(name), name)


DATA = (DataError,)
RUN = (UserError,)
OF_FILES = ("fl/read/regular.py",)
OF_NPZ = (*OF_FILES, "fl/read/npz.py", "fl/read/zipped.py")
OF_JSON = (*OF_FILES, "fl/read/strict_json.py")


PARSERS: tuple[Target, ...] = (
    *map(_wire, range(len(targets.READERS))),
    Target(
        "number",
        ("fl/read/exact.py", "sim/inspect/leakage/cli.py", "sim/reproduce/cli.py"),
        "number.txt",
        _number,
        (ValueError,),
        lambda: [b"0.8", b"1/3", b"-25e-2", b"+.5"],
        is_file=False,
    ),
    Target(
        "option",
        ("sim/settings/config_io.py", "sim/settings/config_io.py"),
        "option.txt",
        _option,
        RUN,
        lambda: [
            b"federation.theta=1/3",
            b"policy.min_noise=0.5",
            b'federation.levels=["0.8", "1/3"]',
            b"training.learning_rate=.5",
        ],
        is_file=False,
    ),
    Target(
        "settings",
        (*OF_FILES, "sim/settings/config_io.py", "sim/settings/config_io.py"),
        "config.toml",
        _settings,
        RUN,
        lambda: [preset_text(name).encode() for name in preset_names()],
    ),
    Target(
        "frame",
        ("sim/net/frames.py",),
        "frame.bin",
        _frame,
        (DecodeError,),
        _frames,
        is_file=False,
    ),
    Target(
        "identity",
        (*OF_FILES, "sim/net/identities.py"),
        "device.identity",
        _identity,
        RUN,
        _identities,
    ),
    Target(
        "supernodes",
        (*OF_FILES, "sim/net/supernodes.py"),
        "supernodes.txt",
        _supernodes,
        RUN,
        _supernode_lists,
    ),
    Target(
        "task",
        ("sim/net/own_work.py", "sim/settings/config_io.py", "sim/settings/config_io.py"),
        "task.toml",
        _task,
        RUN,
        _tasks,
        is_file=False,
    ),
    Target("comparison", (*OF_JSON, "sim/record/labels.py"), "comparison.json",
           lambda path: read_comparison(path.parent), RUN, lambda: [b'{"0-fedavg": "FedAvg"}']),
    Target("record", (*OF_FILES, *(f"sim/record/{name}.py" for name in (
               "chain", "checkpoint", "database", "record", "transcript"))), "record.sqlite",
           _record, (UserError, OSError), lambda: [_run()[0]]),
    Target("truth", ("sim/record/truth.py",), "truth.sqlite", _truth, (UserError, OSError),
           lambda: [_run()[1]]),
    Target("row", ("sim/record/attacked.py", "sim/record/evaluations.py", "sim/record/events.py",
                   "sim/net/trips.py", "sim/inspect/audit/seen.py",
                   *(f"sim/inspect/audit/{name}.py" for name in (
                   "device_replay", "invariants", "over_sessions", "randomness/fields",
                   "randomness/strings", "replayed_devices", "rounds_again", "run_replay",
                   "server_replay", "session_log"))),
           "row", _row, (UserError,), _rows, is_file=False),
    Target("bundle", (*OF_NPZ, "fl/bundle.py"), "bundle.npz", Bundle.load, DATA, _bundles),
    Target("leaf", (*OF_JSON, "fl/data/leaf.py"), "data/all_data/a.json",
           lambda path: load_leaf(path.parent.parent, ANY), DATA, lambda: [_leaf()]),
    Target("leaf packed", (*OF_JSON, "fl/data/leaf.py"), "all_data/a.json.gz",
           lambda path: load_leaf(path.parent, ANY), DATA,
           lambda: [gzip.compress(_leaf(), mtime=0)]),
    Target("images", (*OF_FILES, "fl/data/image_folder.py"),
           "photos/ann/cat/1.png", _images, DATA, lambda: [_png()]),
    Target("femnist", (*OF_FILES, "fl/data/femnist.py", "fl/data/image_folder.py"), "image", _nist,
           DATA, _nist_image, is_file=False),
    Target("qmnist", (*OF_FILES, "fl/data/qmnist.py"), "train-images-idx3-ubyte.gz", _qmnist, DATA,
           lambda: [_idx(np.full((3, 28, 28), 7, np.uint8))]),
    Target("plays", (*OF_FILES, "fl/data/shakespeare.py"), "100.txt",
           lambda path: load_shakespeare(path.parent, ANY), DATA, lambda: [_PLAY]),
    Target("download", (*OF_FILES, "fl/read/zipped.py", "sim/data/fetch.py"), "a.zip", _zip, RUN,
           _zips, is_file=False),
    Target("ledger", ("secagg/ledger.py",), "ledger.db", _ledger, (LedgerError,), _ledgers),
)  # fmt: skip

NAMES = {target.name: target for target in PARSERS}
"""The targets by name."""
