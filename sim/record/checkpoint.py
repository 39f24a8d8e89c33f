"""The server's state after a round, and how far the files of the run go with it."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Final

import numpy as np

from deltafl.fl.strategies.base import TrainingState
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.chain import Mark

_MEMORY: Final = "memory."  # before the names of what the strategy remembers
_ANSWERED: Final = "answered."  # before the numbers of levels
_UNREADABLE: Final = (
    OSError,
    EOFError,
    KeyError,
    MemoryError,  # an array promises more than there is
    RuntimeError,
    SyntaxError,  # numpy reads the head of an array as a literal of Python
    TokenError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)
"""All that numpy raises over the bytes of a damaged archive."""

_KEPT: Final = 2  # the last, and the one before in case a disk damages the last


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
    """

    state: TrainingState
    events_size: int
    transcript: Mark
    truth: Mark
    answered: tuple[frozenset[int], ...] = ()


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to `folder`, atomically, and drop all but the last two."""
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
        **answered,  # type: ignore[arg-type]
        **{_MEMORY + name: array for name, array in state.memory.items()},  # type: ignore[arg-type]
    )
    write_file(folder / f"round-{state.round:06}.npz", buffer.getvalue())
    for old in _files(folder)[:-_KEPT]:
        old.unlink()


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
        except _UNREADABLE as error:
            problem = error
    if files:
        raise RunDirectoryError(
            f"none of the {len(files)} checkpoints in {folder} can be read ({problem}): restore "
            f"one, or start again in another --out"
        )
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    try:
        return _read(path)
    except _UNREADABLE as error:
        raise damaged(path, error) from error


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.npz"))


def _read(path: Path) -> Checkpoint:
    # from memory, for numpy leaves a file that it cannot read open
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
        eta = float(file["eta"])
        return Checkpoint(
            state=TrainingState(
                model=file["model"],
                round=int(file["round"]),
                eta=None if np.isnan(eta) else eta,
                memory={
                    name.removeprefix(_MEMORY): file[name]
                    for name in file.files
                    if name.startswith(_MEMORY)
                },
            ),
            events_size=int(file["events_size"]),
            transcript=_read_mark(file, "transcript"),
            truth=_read_mark(file, "truth"),
            answered=tuple(
                frozenset(file[f"{_ANSWERED}{level}"].tolist())
                for level in range(sum(name.startswith(_ANSWERED) for name in file.files))
            ),
        )


def _mark_fields(name: str, mark: Mark) -> dict[str, np.ndarray]:
    return {
        f"{name}_size": np.array(mark.size, dtype=np.int64),
        f"{name}_frames": np.array(mark.num_frames, dtype=np.int64),
        f"{name}_digest": np.frombuffer(mark.digest, dtype=np.uint8),
    }


def _read_mark(file: Mapping[str, np.ndarray], name: str) -> Mark:
    return Mark(
        size=int(file[f"{name}_size"]),
        num_frames=int(file[f"{name}_frames"]),
        digest=file[f"{name}_digest"].tobytes(),
    )
