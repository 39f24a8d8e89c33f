"""The server's state after a round: named arrays in the table `arrays` of a record.

The last two are kept. They are written in the transaction in which their round ends, so one is
always of the round with which the record ends.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.strict_json import parse_json
from deltafl.fl.strategies.base import TrainingState
from deltafl.protocol.round import LostSearch, limited_to
from deltafl.secagg import ClientId
from deltafl.sim.errors import damaged
from deltafl.sim.record.chain import DIGEST_BYTES, Mark
from deltafl.sim.record.record import Record

_MEMORY: Final = "memory."  # before the names of what the strategy remembers
_ANSWERED: Final = "answered."  # before the numbers of levels
_SEARCHED: Final = "lost_searched."  # likewise
_SUMS: Final = "lost_sums."
_OWNER: Final = "round "
_MOST_ARRAYS: Final = 10_000
_MOST_DIMENSIONS: Final = 8
_DTYPES: Final = {np.dtype(one).str: np.dtype(one) for one in ("<f4", "<f8", "<i8", "<u8", "|u1")}
Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
"""Arrays by their names."""

_KEPT: Final = 2  # the last, and the one before: attackers know its model


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
        mark: how far the record goes with it.
        answered: of each level, the devices that may have answered for the model as it is now;
            shorter if nobody has answered for the last levels'.
        lost: the last round, if it was lost and may be repeated.
    """

    state: TrainingState
    mark: Mark
    answered: tuple[frozenset[int], ...] = ()
    lost: LostRound | None = None


def write_arrays(record: Record, owner: str, arrays: Arrays) -> None:
    """Write arrays in place of those that an owner had."""
    drop_arrays(record, owner)
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        shape = str(list(array.shape))
        row = owner, name, little.dtype.str, shape, little.tobytes()
        record.db.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)


def drop_arrays(record: Record, owner: str) -> None:
    """Delete the arrays of an owner."""
    record.db.execute("DELETE FROM arrays WHERE owner = ?", (owner,))


def read_arrays(record: Record, owner: str) -> Arrays:
    """The arrays of an owner; empty if it has none.

    Raises:
        ValueError: one is none.
    """
    query = "SELECT name, dtype, shape, data FROM arrays WHERE owner = ? LIMIT ?"
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name, dtype, written, data in record.db.execute(query, (owner, _MOST_ARRAYS)):
        shape = parse_json(written.encode()) if isinstance(written, str) else None
        if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or dtype not in _DTYPES:
            raise ValueError(f"{name!r:.60} is no array")
        if not isinstance(data, bytes) or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"{name!r:.60} is no array")
        if math.prod(shape) * _DTYPES[dtype].itemsize != len(data):
            raise ValueError(f"{name!r:.60} has {len(data)} bytes for the shape {written:.60}")
        found[str(name)] = np.frombuffer(data, _DTYPES[dtype]).reshape(shape)
    return found


def save_checkpoint(record: Record, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, and drop all but the last two; the record is not kept."""
    write_arrays(record, f"{_OWNER}{checkpoint.state.round}", _arrays_of(checkpoint))
    for old in saved_rounds(record)[:-_KEPT]:
        drop_arrays(record, f"{_OWNER}{old}")


def _arrays_of(checkpoint: Checkpoint) -> Arrays:
    state, mark = checkpoint.state, checkpoint.mark
    answered = {
        f"{_ANSWERED}{level}": np.array(sorted(devices), dtype=np.int64)
        for level, devices in enumerate(checkpoint.answered)
    }
    return {
        "model": state.model,
        "round": np.array(state.round, np.int64),
        "eta": np.array(np.nan if state.eta is None else state.eta, np.float64),
        "record_rows": np.array(mark.num_frames, np.int64),
        "record_digest": np.frombuffer(mark.digest, np.uint8),
        **answered,
        **_lost_fields(checkpoint.lost),
        **{_MEMORY + name: array for name, array in state.memory.items()},
    }


def saved_rounds(record: Record) -> list[int]:
    """The rounds of the checkpoints that there are, ascending."""
    owners = record.db.execute(
        "SELECT DISTINCT owner FROM arrays WHERE owner LIKE 'round %' LIMIT ?", (_MOST_ARRAYS,)
    )
    numbers = (str(owner).removeprefix(_OWNER) for (owner,) in owners)
    return sorted(int(one) for one in numbers if one.isascii() and one.isdigit())


def read_state(record: Record, number: int) -> Arrays:
    """All arrays that are saved of a round, by name.

    Raises:
        ValueError: one is none.
    """
    return read_arrays(record, f"{_OWNER}{number}")


def load_checkpoint(record: Record) -> Checkpoint | None:
    """Read the newest checkpoint; None if there is none at all.

    Raises:
        RunDirectoryError: it cannot be read. What the run has recorded goes beyond any other.
    """
    if not (rounds := saved_rounds(record)):
        return None
    try:
        return read_checkpoint(record, rounds[-1])
    except (MemoryError, ValueError) as error:
        raise damaged(record.path, f"its last checkpoint: {error}") from error


def readable_checkpoints(record: Record) -> Iterator[Checkpoint]:
    """The checkpoints that can be read, the oldest first."""
    for number in saved_rounds(record):
        try:
            yield read_checkpoint(record, number)
        except (MemoryError, ValueError):
            continue


def read_checkpoint(record: Record, number: int) -> Checkpoint:
    """Read the checkpoint of a round.

    Raises:
        ValueError: it cannot be read.
    """
    arrays = read_state(record, number)
    eta = float(_scalar(arrays, "eta", np.float64))
    if _count(arrays, "round") != number:
        raise ValueError(f"the state of round {number} says that it is of another")
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
    digest = _array(arrays, "record_digest", np.uint8, 1).tobytes()
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"record_digest has {len(digest)} bytes, not {DIGEST_BYTES}")
    return Checkpoint(
        state=TrainingState(
            model=_array(arrays, "model", np.float32, 1).astype(np.float32),
            round=number,
            eta=None if np.isnan(eta) else eta,
            memory=memory,
        ),
        mark=Mark(_count(arrays, "record_rows"), digest),
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


def _read_lost(arrays: Arrays) -> LostRound | None:
    if "lost_rounds" not in arrays:
        return None
    searches = []
    for level in range(sum(name.startswith(_SUMS) for name in arrays)):
        devices = _array(arrays, f"{_SEARCHED}{level}", np.int64, 1).tolist()
        sums = _array(arrays, f"{_SUMS}{level}", np.uint64, 2).astype(np.uint64)
        searches.append(LostSearch(tuple(map(ClientId, devices)), tuple(sums)))
    cohort = _array(arrays, "lost_cohort", np.int64, 1).tolist()
    return LostRound(tuple(cohort), _count(arrays, "lost_rounds"), tuple(searches))


def _array(arrays: Arrays, name: str, dtype: type, ndim: int) -> npt.NDArray[np.generic]:
    array = arrays.get(name)
    if array is None or array.dtype != dtype or array.ndim != ndim:
        found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{name} is {found}, not {np.dtype(dtype)} of {ndim} dimensions")
    return array


def _scalar(arrays: Arrays, name: str, dtype: type) -> float:
    value: float = _array(arrays, name, dtype, 0).item()
    return value


def _count(arrays: Arrays, name: str) -> int:
    value = int(_scalar(arrays, name, np.int64))
    if value < 0:
        raise ValueError(f"{name} = {value} is negative")
    return value
