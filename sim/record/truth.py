"""What only a simulation knows: every device's loss, weight, update, and the secrets it drew.

A file of its own beside the transcript, for audits that compare what the server saw with what was
there to hide. Nothing of it passes the server. Frames of `deltafl.sim.record.chain` (kind and
number first):

    0 opening   run id (16 bytes), that of the transcript
    1 device    round, id, loss (nats), weight, whether it passed, update (float32, little-endian,
                in rounds that the transcript keeps whole) or nil
    2 secrets   round, id, session tag, the secrets joined (32 bytes each: of the sealing key, of
                the mask keys, the self-mask seeds); in rounds that the transcript keeps whole
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.vectors import Vector
from deltafl.secagg.messages import SHARES_PER_SLOT
from deltafl.secagg.params import TAG_SIZE, SessionParams
from deltafl.secagg.prg import SEED_SIZE
from deltafl.secagg.randomness import Randomness
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import ChainWriter, Format, Link, Mark, read_chain
from deltafl.sim.record.transcript import RUN_ID_BYTES
from deltafl.sim.settings.constraints import keeps_whole

TRUTH: Final = Format("truth", 2)

_OPENING, _DEVICE, _SECRETS = 0, 1, 2
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
class DeviceSecrets:
    """The secrets that a device drew in a session, in the order in which it drew them.

    Attributes:
        round: the round, counted from 1.
        device: its id.
        tag: the session's tag, 16 bytes.
        secrets: 32 bytes each: of its sealing key, of its mask key of each tolerant slot, and its
            self-mask seed of each tolerant slot; fewer where it was lost before.
    """

    round: int
    device: int
    tag: bytes
    secrets: tuple[bytes, ...] = field(repr=False)


class NotedDraws:
    """A source of secrets that notes what is drawn from it first.

    Args:
        source: where the secrets come from.
        most: how many draws of 32 bytes are noted.

    Attributes:
        drawn: the draws, in their order.
    """

    def __init__(self, source: Randomness, most: int) -> None:
        self.drawn: list[bytes] = []
        self._source = source
        self._most = most

    def __call__(self, size: int) -> bytes:
        """The source's next bytes."""
        drawn = self._source(size)
        if size == SEED_SIZE and len(self.drawn) < self._most:
            self.drawn.append(drawn)
        return drawn


@dataclass(slots=True, eq=False)
class Told:
    """What devices have told the protocol and drawn for it, for the file of truth.

    Attributes:
        losses: F_k of those that were asked.
        updates: Δ_k of those that trained.
        draws: what each device draws, by session's tag and device.
    """

    losses: dict[int, float] = field(default_factory=dict)
    updates: dict[int, Vector] = field(default_factory=dict)
    draws: dict[tuple[bytes, int], NotedDraws] = field(default_factory=dict)

    def note_draws(self, source: Randomness, params: SessionParams, device: int) -> Randomness:
        """The source of a device's secrets in a session, which are noted."""
        most = 1 + SHARES_PER_SLOT * len(params.columns)
        return self.draws.setdefault((params.tag, device), NotedDraws(source, most))


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
            for (tag, device), draws in told.draws.items():
                self.append(_SECRETS, round_number, device, tag, b"".join(draws.drawn))


def read_truth(path: Path, run_id: bytes) -> Iterator[DeviceTruth]:
    """What devices had to hide, of a truth file that is read and verified; see `read_records`."""
    return (one for one in read_records(path, run_id) if isinstance(one, DeviceTruth))


def read_records(path: Path, run_id: bytes) -> Iterator[DeviceTruth | DeviceSecrets]:
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
) -> Iterator[tuple[DeviceTruth | DeviceSecrets | None, Mark]]:
    """The same, each record with how far the file goes with it; the opening, which is None, too.

    Raises:
        ChainError: as `read_records`.
        OSError: likewise.
    """
    for link in read_chain(path, TRUTH):
        if link.number == 0:
            _check_opening(path, link, run_id)
            yield None, link.mark
        elif link.kind == _SECRETS:
            yield _secrets(path, link), link.mark
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


def _secrets(path: Path, link: Link) -> DeviceSecrets:
    if tuple(map(type, link.fields)) != (int, int, bytes, bytes):
        raise ChainError(path, link.number, Damage.MALFORMED, "it is no record of secrets")
    number, device, tag, joined = link.fields
    secrets = DeviceSecrets(number, device, tag, _cut(joined))  # type: ignore[arg-type] # checked
    if min(secrets.round, secrets.device) < 0 or len(secrets.tag) != TAG_SIZE:
        raise ChainError(path, link.number, Damage.MALFORMED, "a number in it is out of its range")
    if any(len(secret) != SEED_SIZE for secret in secrets.secrets):
        raise ChainError(path, link.number, Damage.MALFORMED, "a secret in it is cut")
    return secrets


def _cut(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + SEED_SIZE] for at in range(0, len(joined), SEED_SIZE))
