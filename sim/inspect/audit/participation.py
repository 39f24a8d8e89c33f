"""What of single devices follows from sums over many cohorts, if their terms stay the same?

A released sum over a cohort is a linear equation: its value is Σ x_k over the cohort's devices k.
If every device's term x_k is the same in all sums, x_k follows if and only if the unit vector e_k
lies in the row space of the 0/1 participation matrix (rows: sums, columns: devices). Source: So et
al., AAAI 2023; Lam et al., ICML 2021.

A device's weight is such a term: it is the number of its samples. Its update is none: it changes
from round to round, and so does who passes the filter. For updates, the assumption is in the
attacker's favour.

A coalition knows its own terms, so its columns fall away, and more may follow of the others.
Devices that were in the same sums are a batch. Every combination of sums weighs the devices of a
batch alike, so none isolates fewer devices than the smallest batch has (So et al.).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.sim.inspect.audit.facts import SolvableFacts

MAX_ENTRIES: Final = 1 << 24
"""Entries of the participation matrix (sums times all devices) up to which sums are taken in."""
COALITIONS: Final = 200
"""Coalitions up to which all of a size are tried."""

Cohorts = Sequence[tuple[int, Sequence[int] | npt.NDArray[np.uint32]]]
"""Released sums in their order: the round of each, and the ids of its devices."""

_Flags = npt.NDArray[np.bool_]
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Solved:
    """What follows from the sums.

    Attributes:
        devices: The devices in at least one sum, ascending.
        rank: Rank of the participation matrix.
        rounds: Solvable devices in the order in which they became so, each with the rounds of one
            combination of sums that yields its term.
        groups: The devices of each combination that was seen: sums, the difference of the two sums
            that are closest, and the rows of the reduced matrix. None is empty.
    """

    devices: tuple[int, ...] = ()
    rank: int = 0
    rounds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    groups: tuple[frozenset[int], ...] = ()


def solve(cohorts: Cohorts, without: Collection[int] = ()) -> Solved:
    """Solve for the terms of single devices.

    The matrix has a column per batch. It is kept in reduced row echelon form modulo a prime, beside
    the combination of sums that each row is. A device is solvable if and only if it is alone in its
    batch, and its unit vector is a row.

    A rank modulo a prime is at most the one over the rationals, and less only if the prime divides
    a certain minor. The prime is drawn by a digest of the cohorts, so that whoever chooses them
    cannot aim at it except by trial. Time grows with the cube of the rank: half a minute for a
    thousand sums over a thousand batches.

    Args:
        cohorts: The sums.
        without: Devices whose terms are known, and that fall away.
    """
    members = [np.setdiff1d(np.asarray(ids, np.int64), list(without)) for _, ids in cohorts]
    devices = np.unique(np.concatenate([np.zeros(0, np.int64), *members]))
    if not devices.size:
        return Solved()
    matrix = np.array([np.isin(devices, ids) for ids in members])
    columns, batch_of = np.unique(matrix, axis=1, return_inverse=True)
    batch_of = batch_of.ravel()  # numpy 2.0 gave it a second axis
    sizes = np.bincount(batch_of)
    pivots, rows, solved_by = _reduced(columns, sizes, _prime(columns.tobytes()))
    rounds = {
        int(devices[np.argmax(batch_of == batch)]): tuple(sorted({cohorts[i][0] for i in used}))
        for batch, used in solved_by.items()
    }
    apart = _closest(columns, sizes)
    supports = np.unique(np.vstack([columns, apart, rows]), axis=0)
    groups = (frozenset(devices[row[batch_of]].tolist()) for row in supports if row.any())
    return Solved(tuple(devices.tolist()), len(pivots), rounds, tuple(groups))


def _reduced(
    columns: _Flags, sizes: _Integers, prime: int
) -> tuple[list[int], _Flags, dict[int, list[int]]]:
    """Eliminate sum by sum.

    Args:
        columns: Which sum holds which batch, shape (sums, batches).
        sizes: Devices of each batch, shape (batches,).
        prime: The modulus.

    Returns:
        The pivot of each row of the reduced matrix; where the rows are not zero, shape (rank,
        batches); and the batches that are one solvable device, each with the sums that are
        combined to it, as they were when it first was.
    """
    number, width = columns.shape
    work = np.zeros((min(number, width), width + number), dtype=np.int64)  # batches, then sums
    pivots: list[int] = []
    solved_by: dict[int, list[int]] = {}
    for index, column in enumerate(columns):
        rows = work[: len(pivots)]
        row = np.concatenate([column, np.arange(number) == index]).astype(np.int64)
        row = (row - row[pivots] @ rows) % prime  # these entries are 0 or 1: nothing overflows
        if not row[:width].any():
            continue
        pivot = int(np.argmax(row[:width] != 0))
        row = row * pow(int(row[pivot]), -1, prime) % prime
        hit, used = np.flatnonzero(rows[:, pivot]), slice(width + index + 1)
        rows[hit, used] = (rows[hit, used] - rows[hit, pivot, None] * row[used]) % prime
        work[len(pivots)] = row
        pivots.append(pivot)
        alone = np.count_nonzero(work[: len(pivots), :width], axis=1) == 1
        for found in np.flatnonzero(alone & (sizes[pivots] == 1)):
            solved_by.setdefault(pivots[found], np.flatnonzero(work[found, width:]).tolist())
    return pivots, work[: len(pivots), :width] != 0, solved_by


def _closest(columns: _Flags, sizes: _Integers) -> _Flags:
    """By which batches the two closest sums differ that do differ; by none where all are equal."""
    shared = columns * sizes.astype(np.float64) @ columns.T
    held = np.diag(shared)
    apart = held[:, None] + held - 2 * shared
    apart[apart == 0] = np.inf
    first, second = np.unravel_index(np.argmin(apart), apart.shape)
    return np.asarray(columns[first] != columns[second])


def _prime(seed: bytes) -> int:
    """A prime of 31 bits, or hardly more: products of two residues fit 63 bits."""
    candidate = int.from_bytes(sha256(seed).digest()[:4], "big") >> 2 | 1 << 30 | 1
    while not (candidate % np.arange(3, 1 << 16, 2)).all():
        candidate += 2
    return candidate


def follows(
    cohorts: Cohorts, colluding: int
) -> tuple[SolvableFacts, Mapping[int, tuple[int, ...]]]:
    """Say what follows of single devices, also for a server that colludes with some.

    All coalitions of at most so many devices are tried if they are few (`COALITIONS`). Otherwise
    one is put together greedily, and another may give more.

    Args:
        cohorts: The sums.
        colluding: Devices that may collude.

    Returns:
        The figures, and the solvable devices with their rounds, as in `Solved`.
    """
    seen = {device for _, ids in cohorts for device in map(int, ids)}
    cohorts = cohorts[: MAX_ENTRIES // max(len(seen), 1)]
    found = solve(cohorts)
    sizes = range(1, min(colluding, len(found.devices) - 1) + 1)
    every = (one for size in sizes for one in itertools.combinations(found.devices, size))
    tried = list(itertools.islice(every, COALITIONS + 1))
    if not (is_worst := len(tried) <= COALITIONS):
        tried = [_coalition(found, colluding)]
    facts = SolvableFacts(
        sums=len(cohorts),
        devices=len(found.devices),
        solvable=len(found.rounds),
        with_coalition=max(len(solve(cohorts, one).rounds) for one in [(), *tried]),
        coalition_is_worst=is_worst,
        smallest_group=min(map(len, found.groups), default=0),
    )
    return facts, found.rounds


def _coalition(found: Solved, size: int) -> tuple[int, ...]:
    """Devices that complete the smallest combinations but for one device of each."""
    coalition: set[int] = set()
    known: set[int] = set()
    while left := [group - known for group in found.groups if not group <= known]:
        smallest = min(left, key=len)
        if len(coalition) + len(smallest) - 1 > size:
            break
        coalition.update(sorted(smallest)[1:])
        known |= smallest
    return tuple(coalition)
