"""What only a simulation knows: every device's loss, weight and update, and a seed of its secrets.

A file of its own beside the record, for audits that compare what the server saw with what was there
to hide. Nothing of it passes the server, and the record, which is read without it, has of it a
digest after each round. A salt, which is in this file alone, keeps whoever has the digests from
trying out what they are of.
"""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.vectors import Vector
from deltafl.secagg.params import TAG_SIZE
from deltafl.secagg.prg import SEED_SIZE
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import Chain, Link, Mark
from deltafl.sim.record.database import Form, reading, writing
from deltafl.sim.record.transcript import RUN_ID_BYTES

TRUE: Final = {
    "run": "id BLOB, salt BLOB",
    "devices": "round INTEGER, device INTEGER, level INTEGER, loss REAL NULL, weight INTEGER,"
    " passed INTEGER, delta BLOB NULL",
    "seeds": "round INTEGER, device INTEGER, tag BLOB, seed BLOB, identity BLOB",
}
"""The tables of the truth's chain."""

TRUTH: Final = Form("truth", 0x64464C54, 1, TRUE, {})
_FLOAT: Final = np.dtype("<f4")
_SALT: Final = 32  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTruth:
    """What a device had to hide in a round, of one conformity level.

    Attributes:
        round: the round, counted from 1.
        device: its id.
        level: counted from 0.
        loss: F_k of the announced model, in nats; NaN or infinite where it diverged.
        weight: n_k, or what the device worked out.
        passed: whether it passed the filter and trained.
        update: Δ_k as the device contributed it, float32 of shape (d,); None where it did not train
            or is not kept.
    """

    round: int
    device: int
    level: int
    loss: float
    weight: int
    passed: bool
    update: Vector | None


@dataclass(frozen=True, slots=True)
class DeviceSeed:
    """What all that a device draws in a session follows from.

    Attributes:
        round: the round, counted from 1.
        device: its id.
        tag: the session's tag, 16 bytes.
        seed: see `sources_of`; 32 bytes.
        identity: of its identity key, 32 bytes.
    """

    round: int
    device: int
    tag: bytes
    seed: bytes = field(repr=False)
    identity: bytes = field(repr=False)


def sources_of(seed: bytes) -> tuple[Randomness, Randomness]:
    """Where a device of a simulation takes its secrets from, and its noise.

    Args:
        seed: 32 bytes.
    """
    draw = SeededRandomness(seed)
    return SeededRandomness(draw(SEED_SIZE)), SeededRandomness(draw(SEED_SIZE))


@dataclass(slots=True, eq=False)
class Told:
    """What devices have told the protocol and drawn for it, for the file of truth.

    Attributes:
        measured: F_k and weight of those that were asked, by device and level.
        updates: Δ_k of those that trained, likewise.
        seeds: of what each device draws and of its identity, by session's tag and device.
    """

    measured: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    updates: dict[tuple[int, int], Vector] = field(default_factory=dict)
    seeds: dict[tuple[bytes, int], tuple[bytes, bytes]] = field(default_factory=dict)


class TruthWriter:
    """Writes what devices noted.

    Args:
        path: the file.
        run_id: that of the record, 16 bytes.
        last_round: what follows it is dropped.
        digest: what the record says of the truth after that round; b"" of no round.
        keeps_updates: whether updates are written.

    Raises:
        ChainError: it is the truth of another run, or damaged.
    """

    def __init__(
        self, path: Path, run_id: bytes, last_round: int, digest: bytes, *, keeps_updates: bool
    ) -> None:
        self._keeps_updates = keeps_updates
        with ExitStack() as opened:
            self._db = opened.enter_context(writing(path, TRUTH))
            for table in ("devices", "seeds"):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (last_round,))
            self._chain = Chain(path, self._db, TRUTH)
            if self._chain.mark == self._chain.start:
                self._chain.append("run", run_id, os.urandom(_SALT))
            _check_opening(path, next(self._chain.read()), run_id)
            if digest and self._chain.mark.digest != digest:
                problem = f"by the record, it goes on otherwise up to round {last_round}"
                raise ChainError(path, self._chain.mark.num_frames, Damage.CUT, problem)
            self._db.commit()
            self._opened = opened.pop_all()

    def add(self, round_number: int, told: Told) -> None:
        """Append what the devices of a round have told, each that was asked anything.

        Args:
            round_number: the round, counted from 1.
            told: what they told.
        """
        for (device, level), (measured, weight) in sorted(told.measured.items()):
            update, delta = told.updates.get((device, level)), None
            if update is not None and self._keeps_updates:
                delta = update.astype(_FLOAT).tobytes()
            loss = None if math.isnan(measured) else float(measured)  # SQLite has no NaN
            row = round_number, device, level, loss, weight, int(update is not None), delta
            self._chain.append("devices", *row)
        for (tag, device), (seed, identity) in told.seeds.items():
            self._chain.append("seeds", round_number, device, tag, seed, identity)

    def flush(self) -> bytes:
        """Bring everything to the disk; the digest of all that is there."""
        self._db.commit()
        return self._chain.mark.digest

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


def read_with_marks(
    path: Path, run_id: bytes
) -> Iterator[tuple[DeviceTruth | DeviceSeed | None, Mark]]:
    """Read and verify a truth file, each row with how far the file goes with it.

    Args:
        path: the file.
        run_id: that of the record that it is to be compared with.

    Returns:
        The opening, which is None, and then what devices had to hide.

    Raises:
        ChainError: the file is no truth file of this version, damaged, or of another run.
        OSError: the file cannot be read.
    """
    with reading(path, TRUTH) as db:
        for link in Chain(path, db, TRUTH).read():
            if link.number:
                yield _row_of(path, link), link.mark
            else:
                _check_opening(path, link, run_id)
                yield None, link.mark


def _check_opening(path: Path, link: Link, run_id: bytes) -> None:
    if link.table != "run":
        raise ChainError(path, link.number, Damage.MALFORMED, "it has no opening")
    found: bytes = link.fields[0]
    if found != run_id:
        problem = f"it is the truth of run {found[:RUN_ID_BYTES].hex()}, and the record is of run"
        mend = "give the truth file of the same run directory"
        raise ChainError(path, link.number, Damage.FOREIGN, f"{problem} {run_id.hex()}: {mend}")


def _row_of(path: Path, link: Link) -> DeviceTruth | DeviceSeed:
    """What devices had to hide; the types of the fields are those of the tables."""
    if link.table == "devices":
        number, device, level, loss, weight, passed, packed = link.fields
        if passed <= 1 and not len(packed or b"") % _FLOAT.itemsize:
            update = None if packed is None else np.frombuffer(packed, _FLOAT).astype(np.float32)
            loss = math.nan if loss is None else loss
            return DeviceTruth(number, device, level, loss, weight, bool(passed), update)
    elif link.table == "seeds":
        sizes = [len(one) for one in link.fields[2:]]
        if sizes == [TAG_SIZE, SEED_SIZE, SEED_SIZE]:
            return DeviceSeed(*link.fields)
    raise ChainError(path, link.number, Damage.MALFORMED, "it is no row of a truth")
