"""What only a simulation knows: every device's loss, weight, update, and the secrets it drew.

A file of its own beside the transcript, for audits that compare what the server saw with what was
there to hide. Nothing of it passes the server. Frames of `deltafl.sim.record.chain` (kind and
number first):

    0 opening   run id (16 bytes), that of the transcript
    1 device    round, id, loss (nats), weight, whether it passed, update (float32, little-endian,
                in rounds that the transcript keeps whole) or nil
    2 seed      round, id, session tag, the seed of all that it draws in the session (32 bytes),
                and of its identity (32 bytes; empty where sessions are not signed); in rounds that
                the transcript keeps whole
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.vectors import Vector
from deltafl.secagg.params import TAG_SIZE
from deltafl.secagg.prg import SEED_SIZE
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import ChainWriter, Format, Link, Mark, read_chain
from deltafl.sim.record.transcript import RUN_ID_BYTES
from deltafl.sim.settings.constraints import keeps_whole

TRUTH: Final = Format("truth", 3)

_OPENING, _DEVICE, _SEED = 0, 1, 2
_FLOAT: Final = np.dtype("<f4")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTruth:
    """What a device had to hide in a round.

    Attributes:
        round: the round, counted from 1.
        device: its id.
        loss: F_k of the announced model, in nats; NaN or infinite where it diverged.
        weight: n_k.
        passed: whether it passed the filter and trained.
        update: Δ_k, float32 of shape (d,); None where it did not train or is not kept.
    """

    round: int
    device: int
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
        identity: of its identity key, 32 bytes; b"" where sessions are not signed.
    """

    round: int
    device: int
    tag: bytes
    seed: bytes = field(repr=False)
    identity: bytes = field(repr=False, default=b"")


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
        losses: F_k of those that were asked.
        updates: Δ_k of those that trained.
        seeds: of what each device draws and of its identity, by session's tag and device.
    """

    losses: dict[int, float] = field(default_factory=dict)
    updates: dict[int, Vector] = field(default_factory=dict)
    seeds: dict[tuple[bytes, int], tuple[bytes, bytes]] = field(default_factory=dict)


class TruthWriter(ChainWriter):
    """Records what devices noted; buffered until `flush`.

    Args:
        path: the file. What lies beyond `mark` is cut off.
        run_id: that of the transcript, 16 bytes.
        mode: the transcript's mode, which decides whether updates are kept.
        mark: where to continue; by default from nothing.

    Raises:
        ChainError: the file is shorter than `mark` says.
    """

    def __init__(self, path: Path, run_id: bytes, mode: str, mark: Mark = TRUTH.start) -> None:
        self._mode = mode
        super().__init__(path, TRUTH, mark)
        if mark == TRUTH.start:
            self.append(_OPENING, run_id)

    def add(self, round_number: int, weights: Mapping[int, int], told: Told) -> None:
        """Append what the devices of a round have told, each that was asked anything.

        Args:
            round_number: the round, counted from 1.
            weights: n_k by device of the cohort.
            told: what they told.
        """
        for device, weight in weights.items():
            if device not in told.losses:
                continue
            update = told.updates.get(device)
            kept = update is not None and keeps_whole(self._mode, round_number)
            self.append(
                _DEVICE,
                round_number,
                device,
                float(told.losses[device]),
                weight,
                update is not None,
                update.astype(_FLOAT).tobytes() if update is not None and kept else None,
            )
        if keeps_whole(self._mode, round_number):
            for (tag, device), (seed, identity) in told.seeds.items():
                self.append(_SEED, round_number, device, tag, seed, identity)


def read_truth(path: Path, run_id: bytes) -> Iterator[DeviceTruth]:
    """What devices had to hide, of a truth file that is read and verified; see `read_records`."""
    return (one for one in read_records(path, run_id) if isinstance(one, DeviceTruth))


def read_records(path: Path, run_id: bytes) -> Iterator[DeviceTruth | DeviceSeed]:
    """Read and verify a truth file, record by record.

    Args:
        path: the file.
        run_id: that of the transcript that it is to be compared with.

    Raises:
        ChainError: the file is no truth file of this version, damaged, or of another run.
        OSError: the file cannot be read.
    """
    return (record for record, _ in read_with_marks(path, run_id) if record is not None)


def read_with_marks(
    path: Path, run_id: bytes
) -> Iterator[tuple[DeviceTruth | DeviceSeed | None, Mark]]:
    """The same, each record with how far the file goes with it; the opening, which is None, too.

    Raises:
        ChainError: as `read_records`.
        OSError: likewise.
    """
    for link in read_chain(path, TRUTH):
        if link.number == 0:
            _check_opening(path, link, run_id)
            yield None, link.mark
        elif link.kind == _SEED:
            yield _seed(path, link), link.mark
        else:
            yield _device(path, link), link.mark


def _check_opening(path: Path, link: Link, run_id: bytes) -> None:
    if link.kind != _OPENING or len(link.fields) != 1 or type(link.fields[0]) is not bytes:
        raise ChainError(path, link.number, Damage.MALFORMED, "it has no opening")
    found = link.fields[0]
    if found != run_id:
        raise ChainError(
            path,
            link.number,
            Damage.FOREIGN,
            f"it is the truth of run {found[:RUN_ID_BYTES].hex()}, and the transcript is of run "
            f"{run_id.hex()}: give the truth file of the same run directory",
        )


def _device(path: Path, link: Link) -> DeviceTruth:
    types = (int, int, float, int, bool)
    if link.kind != _DEVICE or tuple(map(type, link.fields[:5])) != types or len(link.fields) != 6:
        raise ChainError(path, link.number, Damage.MALFORMED, "it is no record of a device")
    number, device, loss, weight, passed, packed = link.fields
    if packed is not None and (type(packed) is not bytes or len(packed) % _FLOAT.itemsize):
        raise ChainError(path, link.number, Damage.MALFORMED, "its update is no vector")
    update = np.frombuffer(packed, dtype=_FLOAT).astype(np.float32) if packed else None
    truth = DeviceTruth(number, device, loss, weight, passed, update)  # type: ignore[arg-type] # checked
    if min(truth.round, truth.device, truth.weight) < 0:
        raise ChainError(path, link.number, Damage.MALFORMED, "a number in it is out of its range")
    return truth


def _seed(path: Path, link: Link) -> DeviceSeed:
    if tuple(map(type, link.fields)) != (int, int, bytes, bytes, bytes):
        raise ChainError(path, link.number, Damage.MALFORMED, "it is no record of a seed")
    one = DeviceSeed(*link.fields)  # type: ignore[arg-type] # checked
    if min(one.round, one.device) < 0 or len(one.tag) != TAG_SIZE:
        raise ChainError(path, link.number, Damage.MALFORMED, "a number in it is out of its range")
    if len(one.seed) != SEED_SIZE or len(one.identity) not in (0, SEED_SIZE):
        raise ChainError(path, link.number, Damage.MALFORMED, "a seed in it is cut")
    return one
