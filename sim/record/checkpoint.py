"""The server's state after a round: named arrays in the table `arrays` of a record.

The last two are kept. They are written in the transaction in which their round ends, so one is
always of the round with which the record ends.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.strict_json import parse_json
from deltafl.fl.strategies.base import TrainingState
from deltafl.protocol.round import LostSearch, limited_to
from deltafl.secagg import ClientId
from deltafl.sim.errors import damaged
from deltafl.sim.record.chain import DIGEST_BYTES, Mark
from deltafl.sim.record.record import MOST_ARRAYS, OF_STATE, Record, saved_rounds

_MOST: Final = 1 << 40
_KEPT: Final = 2  # the last, and the one before: attackers know its model
_DTYPES: Final = ("<f4", "<f8", "<i8", "<u8", "|u1")
_KINDS: Final[Mapping[str, tuple[str, int | None]]] = {
    "model": ("<f4", 1),
    "eta": ("<f8", 0),
    "memory": ("<f8", None),  # by the strategy's names
    "record_digest": ("|u1", 1),
    "lost_sums": ("<u8", 2),
    **dict.fromkeys(("round", "record_rows", "lost_rounds"), ("<i8", 0)),
    **dict.fromkeys(("answered", "lost_searched", "lost_cohort"), ("<i8", 1)),
}
"""What a checkpoint's arrays are, by their names up to a dot: dtype and dimensions, if fixed.

There is one of `answered`, `lost_searched` and `lost_sums` for each level.
"""

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Arrays by their names."""


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
    record.db.execute("DELETE FROM arrays WHERE owner = ?", (owner,))
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        row = owner, name, little.dtype.str, str(list(array.shape)), little.tobytes()
        record.db.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)


def read_arrays(record: Record, owner: str) -> Arrays:
    """The arrays of an owner; empty if it has none.

    Raises:
        ValueError: one is none.
    """
    query = "SELECT name, dtype, shape, data FROM arrays WHERE owner = ? LIMIT ?"
    found: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, written, data in record.db.execute(query, (owner, MOST_ARRAYS)):
        shape: Any = parse_json(written.encode()) if isinstance(written, str) else None
        is_shape = isinstance(shape, list) and all(type(n) is int and 0 <= n < _MOST for n in shape)
        if not is_shape or dtype not in _DTYPES or not isinstance(data, bytes):
            raise ValueError(f"{name!r:.60} is no array")
        found[str(name)] = np.frombuffer(data, dtype).reshape(shape)
    return found


def save_checkpoint(record: Record, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, and drop all but the last two; the record is not kept."""
    arrays = {
        name: np.asarray(one, _KINDS[_kind(name)][0]) for name, one in _parts_of(checkpoint).items()
    }
    write_arrays(record, f"{OF_STATE}{checkpoint.state.round}", arrays)
    for old in saved_rounds(record)[:-_KEPT]:
        write_arrays(record, f"{OF_STATE}{old}", {})


def _parts_of(checkpoint: Checkpoint) -> Mapping[str, npt.ArrayLike]:
    state, lost = checkpoint.state, checkpoint.lost
    parts: dict[str, npt.ArrayLike] = {
        "model": state.model,
        "round": state.round,
        "eta": np.nan if state.eta is None else state.eta,
        "record_rows": checkpoint.mark.num_frames,
        "record_digest": np.frombuffer(checkpoint.mark.digest, np.uint8),
        **{f"memory.{name}": array for name, array in state.memory.items()},
        **{f"answered.{n}": sorted(devices) for n, devices in enumerate(checkpoint.answered)},
    }
    if lost is not None:
        parts |= {"lost_cohort": lost.cohort, "lost_rounds": lost.rounds}
        for n, search in enumerate(lost.searches):
            parts[f"lost_searched.{n}"] = search.devices
            parts[f"lost_sums.{n}"] = np.atleast_2d(search.sums)[: len(search.sums)]
    return parts


def _kind(name: str) -> str:
    return name.partition(".")[0]


def load_checkpoint(record: Record, before: int | None = None) -> Checkpoint | None:
    """Read the newest checkpoint; None if there is none.

    Args:
        record: the run's.
        before: only one of an earlier round.

    Raises:
        RunDirectoryError: it cannot be read. What the run has recorded goes beyond any other.
    """
    rounds = [one for one in saved_rounds(record) if before is None or one < before]
    if not rounds:
        return None
    try:
        return read_checkpoint(record, rounds[-1])
    except (MemoryError, ValueError) as error:
        raise damaged(record.path, f"its last checkpoint: {error}") from error


def read_checkpoint(record: Record, number: int) -> Checkpoint:
    """Read the checkpoint of a round.

    Raises:
        ValueError: it cannot be read.
    """
    parts = _Parts(read_arrays(record, f"{OF_STATE}{number}"))
    for name, array in parts.items():
        _check(name, array)
    digest, eta, lost = parts["record_digest"].tobytes(), float(parts["eta"]), None
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"record_digest has {len(digest)} bytes, not {DIGEST_BYTES}")
    if int(parts["round"]) != number:
        raise ValueError(f"the state of round {number} says that it is of another")
    if "lost_rounds" in parts:
        both = zip(parts.by_level("lost_searched"), parts.by_level("lost_sums"), strict=True)
        searches = [LostSearch(tuple(map(ClientId, d.tolist())), tuple(s.copy())) for d, s in both]
        cohort = tuple(parts["lost_cohort"].tolist())
        lost = LostRound(cohort, int(parts["lost_rounds"]), tuple(searches))
    model, memory = parts["model"].astype(np.float32), parts.of_kind("memory")
    return Checkpoint(
        TrainingState(model, number, None if math.isnan(eta) else eta, memory),
        Mark(int(parts["record_rows"]), digest),
        tuple(frozenset(devices.tolist()) for devices in parts.by_level("answered")),
        lost,
    )


class _Parts(dict[str, npt.NDArray[Any]]):
    """The arrays of a checkpoint by name; one that is missing is a ValueError."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"{name} is missing")

    def of_kind(self, kind: str) -> dict[str, npt.NDArray[Any]]:
        """Copies of those whose names begin so, by the rest of their names."""
        return {
            name.partition(".")[2]: one.copy() for name, one in self.items() if _kind(name) == kind
        }

    def by_level(self, kind: str) -> list[npt.NDArray[Any]]:
        """The same, level by level."""
        return [self[f"{kind}.{level}"] for level in range(len(self.of_kind(kind)))]


def _check(name: str, array: npt.NDArray[Any]) -> None:
    dtype, ndim = _KINDS.get(_kind(name), ("no array of a checkpoint", None))
    if array.dtype.str != dtype or ndim not in (None, array.ndim):
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, not {dtype} of {ndim}")
    if array.dtype.kind == "i" and (array < 0).any():
        raise ValueError(f"{name} = {array.min()} is negative")
