"""The server's state after a round, and how far the files of the run go with it."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.npz import MAX_ARRAY_BYTES, open_npz
from deltafl.fl.strategies.base import TrainingState
from deltafl.protocol.round import LostSearch, limited_to
from deltafl.secagg import ClientId
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.chain import DIGEST_BYTES, Mark

_MEMORY: Final = "memory."  # before the names of what the strategy remembers
_ANSWERED: Final = "answered."  # before the numbers of levels
_SEARCHED: Final = "lost_searched."  # likewise
_SUMS: Final = "lost_sums."
_Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]

_KEPT: Final = 2  # the last, and the one before in case a disk damages the last


@dataclass(frozen=True, slots=True, eq=False)
class LostRound:
    """A round that was lost, and that may be repeated.

    Attributes:
        cohort: its devices, ascending.
        rounds: how many rounds with this cohort were lost one after the other, but for those in
            which nobody was asked.
        searches: for each level, what the next one goes on with.
    """

    cohort: tuple[int, ...]
    rounds: int
    searches: tuple[LostSearch, ...]

    @property
    def devices(self) -> frozenset[ClientId]:
        """Those of the cohort who may take part once more."""
        return limited_to(self.searches, map(ClientId, self.cohort))


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Everything that a run needs to continue as if it had never stopped.

    Attributes:
        state: model, number of rounds played, last threshold, the strategy's memory.
        events_size: length of the event log in bytes.
        transcript: how far the transcript goes.
        truth: how far the truth file goes.
        answered: of each level, the devices that may have answered for the model as it is now;
            shorter if nobody has answered for the last levels'.
        lost: the last round, if it was lost and may be repeated.
    """

    state: TrainingState
    events_size: int
    transcript: Mark
    truth: Mark
    answered: tuple[frozenset[int], ...] = ()
    lost: LostRound | None = None


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to `folder`, atomically, and drop all but the last two."""
    write_file(folder / _name(checkpoint.state.round), checkpoint_bytes(checkpoint))
    for old in _files(folder)[:-_KEPT]:
        old.unlink()


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    """The file of a checkpoint."""
    state = checkpoint.state
    buffer = io.BytesIO()
    marks = _mark_fields("transcript", checkpoint.transcript)
    marks |= _mark_fields("truth", checkpoint.truth)
    answered = {
        f"{_ANSWERED}{level}": np.array(sorted(devices), dtype=np.int64)
        for level, devices in enumerate(checkpoint.answered)
    }
    np.savez(
        buffer,
        model=state.model,
        round=np.int64(state.round),
        eta=np.float64(np.nan if state.eta is None else state.eta),
        events_size=np.int64(checkpoint.events_size),
        **marks,  # type: ignore[arg-type] # none of them is called allow_pickle
        **(answered | _lost_fields(checkpoint.lost)),
        **{_MEMORY + name: array for name, array in state.memory.items()},  # type: ignore[arg-type]
    )
    return buffer.getvalue()


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint that can be read; None if there is none at all.

    Raises:
        RunDirectoryError: there are checkpoints, but none can be read. Starting again as if there
            were none would destroy what the run has recorded.
    """
    files = _files(folder)
    for path in reversed(files):
        try:
            return _read(path)
        except (OSError, MemoryError, ValueError) as error:
            problem = error
    if files:
        raise RunDirectoryError(
            f"none of the {len(files)} checkpoints in {folder} can be read ({problem}): restore "
            f"one, or start again in another --out"
        )
    return None


def readable_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """The checkpoints of a folder that can be read, the oldest first."""
    for path in _files(folder):
        with contextlib.suppress(OSError, MemoryError, ValueError):
            yield _read(path)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    try:
        return _read(path)
    except (OSError, MemoryError, ValueError) as error:
        raise damaged(path, error) from error


def _name(round_number: int) -> str:
    return f"round-{round_number:06}.npz"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.npz"))


def _read(path: Path) -> Checkpoint:
    with open_npz(path) as archive:
        arrays = {name: archive.read(name, MAX_ARRAY_BYTES) for name in archive.entries}
    eta = float(_scalar(arrays, "eta", np.float64))
    model = _array(arrays, "model", np.float32, 1)
    round_number = _count(arrays, "round")
    if path.name != _name(round_number):
        raise ValueError(f"round = {round_number} belongs to the name {_name(round_number)}")
    memory = {
        name.removeprefix(_MEMORY): _array(arrays, name, np.float64, array.ndim).astype(np.float64)
        for name, array in arrays.items()
        if name.startswith(_MEMORY)
    }
    num_levels = sum(name.startswith(_ANSWERED) for name in arrays)
    answered = [
        _array(arrays, f"{_ANSWERED}{level}", np.int64, 1).tolist() for level in range(num_levels)
    ]
    if any(device < 0 for devices in answered for device in devices):
        raise ValueError("the number of a device is negative")
    return Checkpoint(
        state=TrainingState(
            model=model.astype(np.float32, copy=False),
            round=round_number,
            eta=None if np.isnan(eta) else eta,
            memory=memory,
        ),
        events_size=_count(arrays, "events_size"),
        transcript=_read_mark(arrays, "transcript"),
        truth=_read_mark(arrays, "truth"),
        answered=tuple(map(frozenset, answered)),
        lost=_read_lost(arrays),
    )


def _lost_fields(lost: LostRound | None) -> dict[str, np.ndarray]:
    if lost is None:
        return {}
    fields: dict[str, np.ndarray] = {
        "lost_cohort": np.array(lost.cohort, dtype=np.int64),
        "lost_rounds": np.array(lost.rounds, dtype=np.int64),
    }
    for level, search in enumerate(lost.searches):
        shape = len(search.sums), len(search.sums[0]) if search.sums else 0
        fields[f"{_SEARCHED}{level}"] = np.array(search.devices, dtype=np.int64)
        fields[f"{_SUMS}{level}"] = np.array(search.sums, dtype=np.uint64).reshape(shape)
    return fields


def _read_lost(arrays: _Arrays) -> LostRound | None:
    if "lost_rounds" not in arrays:
        return None
    searches = []
    for level in range(sum(name.startswith(_SUMS) for name in arrays)):
        devices = _array(arrays, f"{_SEARCHED}{level}", np.int64, 1).tolist()
        sums = _array(arrays, f"{_SUMS}{level}", np.uint64, 2).astype(np.uint64)
        searches.append(LostSearch(tuple(map(ClientId, devices)), tuple(sums)))
    cohort = _array(arrays, "lost_cohort", np.int64, 1).tolist()
    return LostRound(tuple(cohort), _count(arrays, "lost_rounds"), tuple(searches))


def _array(arrays: _Arrays, name: str, dtype: type, ndim: int) -> npt.NDArray[np.generic]:
    array = arrays.get(name)
    if array is None or array.dtype != dtype or array.ndim != ndim:
        found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{name} is {found}, not {np.dtype(dtype)} of {ndim} dimensions")
    return array


def _scalar(arrays: _Arrays, name: str, dtype: type) -> float:
    value: float = _array(arrays, name, dtype, 0).item()
    return value


def _count(arrays: _Arrays, name: str) -> int:
    value = int(_scalar(arrays, name, np.int64))
    if value < 0:
        raise ValueError(f"{name} = {value} is negative")
    return value


def _mark_fields(name: str, mark: Mark) -> dict[str, np.ndarray]:
    return {
        f"{name}_size": np.array(mark.size, dtype=np.int64),
        f"{name}_frames": np.array(mark.num_frames, dtype=np.int64),
        f"{name}_digest": np.frombuffer(mark.digest, dtype=np.uint8),
    }


def _read_mark(arrays: _Arrays, name: str) -> Mark:
    digest = _array(arrays, f"{name}_digest", np.uint8, 1).tobytes()
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"{name}_digest has {len(digest)} bytes, not {DIGEST_BYTES}")
    return Mark(_count(arrays, f"{name}_size"), _count(arrays, f"{name}_frames"), digest)
