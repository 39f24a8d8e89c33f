"""What devices have sent in the current round, by which another process of the server goes on.

The machine of a round's server has no randomness and no clock: what it sends follows from what it
was handed. So each message of a device is written down before the machine gets it, and the end of
each trip is on the disk before anything is sent that follows from it. A process that is started
after another has ended hands the same messages to a new machine, which comes to the same place, and
asks nobody anything else than what was asked before.

Records, each a frame of `deltafl.sim.record.chain`:

    0 opening   round (from 0), level that is measured or −1, devices, of whom, program, task's name
    1 answer    device, trip, message
    2 closed    trip

There is one file. Each round replaces that of the round before.
"""

import os
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, cast

import numpy as np

from deltafl.fl.read.regular import open_regular
from deltafl.secagg import ClientId
from deltafl.secagg.randomness import Randomness
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.net.frames import TASK_SIZE
from deltafl.sim.net.post import Answer
from deltafl.sim.record.chain import DIGEST_BYTES, ChainWriter, Format, Link, Mark, read_chain

ROUND: Final = Format("round", 1)
TRAINS: Final = -1
"""In place of a level, of a round in which devices train."""

_OPENING, _ANSWER, _CLOSED = range(3)


@dataclass(frozen=True, slots=True)
class About:
    """What a round is about: another one is not gone on with.

    Attributes:
        round_index: the round, counted from 0.
        cohort: its devices, ascending.
        listed: the fingerprint of the federation's list.
        program: the version of this program, whose messages may be others in another.
        level: the conformity level whose model is measured; `TRAINS` where devices train.
    """

    round_index: int
    cohort: tuple[int, ...]
    listed: str
    program: str
    level: int = TRAINS

    @property
    def fields(self) -> list[int | bytes | str]:
        """As it stands in the opening."""
        devices = np.array(self.cohort, dtype="<u4").tobytes()
        return [self.round_index, self.level, devices, self.listed, self.program]


@dataclass(slots=True)
class _Kept:
    """What a file holds.

    Attributes:
        task: the name of the round's task.
        mark: how far the file goes.
        closed: how many trips have ended.
        answered: who has answered the next.
    """

    task: bytes
    mark: Mark
    closed: int = 0
    answered: set[ClientId] = field(default_factory=set)

    def take(self, link: Link, cohort: Set[int]) -> bool:
        """Go on by a record; whether it is one of a round of this cohort."""
        kinds = list(map(type, link.fields))
        if link.kind == _CLOSED and link.fields == [self.closed]:
            self.closed, self.answered = self.closed + 1, set()
        elif link.kind == _ANSWER and kinds == [int, int, bytes]:
            client, trip, _ = cast("tuple[ClientId, int, bytes]", link.fields)
            if client not in cohort:
                return False
            if trip == self.closed:
                self.answered.add(client)
        else:
            return False
        self.mark = link.mark
        return True


class Journal:
    """The file of one round: that of an earlier process, if it is about this round, or a new one.

    Args:
        path: where; None to write nothing.
        about: the round.
        randomness: where the name of a new task comes from.

    Attributes:
        task: the name of the round's task, `TASK_SIZE` bytes.
        closed: how many trips an earlier process has closed.
        answered: who had answered the one that was open.
    """

    def __init__(self, path: Path | None, about: About, randomness: Randomness) -> None:
        kept = None if path is None else _read(path, about)
        self.task = randomness(TASK_SIZE) if kept is None else kept.task
        self.closed = 0 if kept is None else kept.closed
        self.answered: Set[ClientId] = frozenset() if kept is None else kept.answered
        self._known: Iterator[Link] = iter(())
        self._file: ChainWriter | None = None
        if path is None:
            return
        if kept is None:
            self._file = ChainWriter(path, ROUND, ROUND.start)
            self._file.append(_OPENING, *about.fields, self.task)
            self._file.flush()
        else:
            self._file = ChainWriter(path, ROUND, kept.mark)
            self._known = islice(read_chain(path, ROUND), 1, kept.mark.num_frames)

    def again(self) -> Iterator[Answer]:
        """What an earlier process has received in the next trip, in its order."""
        for link in self._known:
            if link.kind == _CLOSED:
                return
            client, answered, data = link.fields
            yield Answer(ClientId(cast(int, client)), cast(bytes, data), trip=cast(int, answered))

    def received(self, answer: Answer) -> None:
        """Write down a message of a device, before anything is made of it."""
        if self._file is not None:
            self._file.append(_ANSWER, answer.client, answer.trip, answer.data)

    def close_trip(self, trip: int) -> None:
        """Bring to the disk that a trip has ended with what was received."""
        if self._file is not None:
            self._file.append(_CLOSED, trip)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def is_kept(path: Path, about: About) -> bool:
    """Whether a file has all that was received in a round, so that it can be gone on with."""
    return _read(path, about) is not None


def _read(path: Path, about: About) -> _Kept | None:
    """What a file holds; None if it is not of this round, or damaged.

    What was not on the disk when the machine stopped is no damage: no trip ends with it.
    """
    kept: _Kept | None = None
    cohort = frozenset(about.cohort)
    try:
        for link in read_chain(path, ROUND):
            if kept is None:
                kept = _opened(link, about)
            elif not kept.take(link, cohort):
                return None
            if kept is None:
                return None
    except OSError:
        return None
    except ChainError as error:
        is_torn = error.damage is Damage.CUT or _ends_in_zeros(path)
        if kept is None or error.offset != kept.mark.size or not is_torn:
            return None
    return kept


def _opened(link: Link, about: About) -> _Kept | None:
    *fields, task = link.fields or [None]
    if link.kind != _OPENING or fields != about.fields:
        return None
    return _Kept(task, link.mark) if isinstance(task, bytes) and len(task) == TASK_SIZE else None


def _ends_in_zeros(path: Path) -> bool:
    """Whether the end of a file was never written, as after a power cut."""
    with open_regular(path) as file:
        file.seek(-DIGEST_BYTES, os.SEEK_END)
        return not any(file.read())
