"""Whose update follows from the released sums, if updates stay the same over rounds?

A released sum of updates says Σ_k n_k·z_k·Δ_k over its contributors k, where z_k in {0, 1} is the
filter's verdict, which the server does not know for a single device. If device k's term n_k·z_k·Δ_k
were the same in all rounds, the sums would be linear equations in these terms, and the server
computes k's term if and only if the unit vector e_k lies in the row space of the 0/1 participation
matrix (rows: sums, columns: devices). Source: So et al., AAAI 2023; Lam et al., ICML 2021.

That is an assumption in the attacker's favour. Updates change from round to round, and so does who
passes the filter: what the server really gets is the device's term plus the changes of all the
others. Conversely, the sums do not determine the term of a device that is not solvable here, even
if nothing ever changes; what else the server knows of the updates may.

The remedy of So et al. is a selection in which devices come in batches, always in a sum together or
not at all. Every combination of sums weighs the devices of a batch alike, so none isolates fewer
devices than the smallest batch has.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from deltafl.secagg.shamir import PRIME

LISTED_DEVICES: Final = 10
"""Solvable devices of which the rounds are listed."""
MAX_ENTRIES: Final = 1 << 26
"""Entries of the participation matrix (sums times batches) up to which sums are taken in."""
_BLOCK: Final = 1 << 16  # entries that are eliminated at a time; their intermediates fit the cache
_PANEL: Final = 64  # rows that are eliminated together, see `_product`

_Entry = TypeVar("_Entry", np.bool_, np.uint32)
_Residues = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ParticipationResult:
    """What the participation matrix says.

    Attributes:
        sums: Sums that were taken in.
        sums_left_out: Later sums that were not, since the matrix would have had more than
            `MAX_ENTRIES` entries; all else is about the others.
        devices: Devices that were in at least one sum.
        rank: Rank of the matrix; at most `sums` and at most `batches`.
        first_round_by_device: Solvable devices, each with the round whose sum made it so. A device
            stays solvable.
        solvable: The first `LISTED_DEVICES` of them, by that round and then by id, each with
            the rounds of one combination of sums that yields its term. Others may need fewer.
        smallest_group: The devices of the sparsest combination seen: a released sum, the difference
            of two, or a row of the reduced matrix. To find the sparsest of all combinations is
            NP-hard; it has at most this many, and at least `smallest_batch`. Empty without sums.
        smallest_difference: Fewest devices, at least one, that are in one of two released sums and
            not in the other; None if no two sums differ.
        batches: Batches: sets of devices that were in the same sums. Their sizes sum to `devices`.
        batched_devices: Devices that share their batch with another device.
        smallest_batch: Devices in the smallest batch; None without devices.
    """

    sums: int
    sums_left_out: int
    devices: int
    rank: int
    first_round_by_device: Mapping[int, int]
    solvable: Mapping[int, tuple[int, ...]]
    smallest_group: tuple[int, ...]
    smallest_difference: int | None
    batches: int
    batched_devices: int
    smallest_batch: int | None

    @property
    def num_solvable(self) -> int:
        """Devices whose term follows from the sums if it stays the same over rounds."""
        return len(self.first_round_by_device)


class Participation:
    """Takes in who was in which sum of updates, in the order of the sums' release.

    The matrix is kept in reduced row echelon form modulo a prime, with a column per batch and not
    per device: batches are split when a sum holds a part of one. A device is solvable if and only
    if it is alone in its batch and its unit vector is a row of the reduced matrix.

    Ranks modulo a prime p differ from those over the rationals only if p divides a certain minor. A
    minor of 1,000 sums is below 2^4000, so at most 133 of the 50 million primes between 2^30 and
    2^31 divide it. Whoever chooses the cohorts might aim at a prime that is known before: use
    `draw_prime` with a seed that depends on them.

    Memory: 5 bytes per entry, up to the next powers of two. Time: grows with the cube of the
    rank, a few seconds for a thousand devices and sums.

    Args:
        prime: The modulus, a prime below 2^31.

    Raises:
        ValueError: `prime` is not a prime below 2^31.

    >>> participation = Participation()
    >>> participation.add(1, [1, 2, 3])
    >>> participation.add(2, [2, 3])
    >>> result = participation.result()
    >>> result.first_round_by_device, result.solvable, result.smallest_batch
    ({1: 2}, {1: (1, 2)}, 1)
    """

    def __init__(self, prime: int = PRIME) -> None:
        if not (prime < 1 << 31 and _is_prime(prime)):
            raise ValueError(f"{prime} is not a prime below 2^31: take one from draw_prime")
        self._prime = prime
        self._batch_of: dict[int, int] = {}  # by device
        self._members: list[set[int]] = []  # by batch
        self._released = np.zeros((64, 64), dtype=np.bool_)  # (batches, sums)
        self._rounds: list[int] = []  # by sum
        self._sizes: list[int] = []  # by sum
        self._left_out = 0
        self._reduced = np.zeros((64, 64), dtype=np.uint32)  # (rank, batches)
        self._nonzeros = np.zeros(64, dtype=np.int64)  # per row of the reduced matrix
        self._pivots: list[int] = []  # batch, by row
        self._row_of: dict[int, int] = {}  # by pivot
        self._independent: list[int] = []  # the sums that raised the rank
        self._solved_by: dict[int, int] = {}  # solvable devices: the sum that made them so
        self._closest: tuple[int, int, int] | None = None  # (difference, sum, sum)

    def add(self, round_number: int, contributors: Iterable[int]) -> None:
        """Take in one released sum of updates.

        Args:
            round_number: The round that it belongs to; only repeated in the result.
            contributors: Ids of the devices in it, any integers; repetitions do not count.
        """
        devices = set(contributors)
        most_batches = len(self._members) + min(len(devices), len(self._members) + 1)
        if self._left_out or (len(self._rounds) + 1) * most_batches > MAX_ENTRIES:
            self._left_out += 1
            return
        number = len(self._rounds)
        batches = self._split(devices)
        self._compare(number, batches, len(devices))
        self._released = _grown(self._released, len(self._members), number + 1)
        self._released[batches, number] = True
        self._rounds.append(round_number)
        self._sizes.append(len(devices))
        self._reduce(number, batches)

    def result(self) -> ParticipationResult:
        """What the sums so far say."""
        batch_sizes = [len(members) for members in self._members]
        return ParticipationResult(
            sums=len(self._rounds),
            sums_left_out=self._left_out,
            devices=len(self._batch_of),
            rank=len(self._pivots),
            first_round_by_device={d: self._rounds[i] for d, i in self._solved_by.items()},
            solvable=self._combinations(),
            smallest_group=self._smallest_group(np.array(batch_sizes, dtype=np.int64)),
            smallest_difference=self._closest[0] if self._closest else None,
            batches=len(batch_sizes),
            batched_devices=sum(size for size in batch_sizes if size > 1),
            smallest_batch=min(batch_sizes, default=None),
        )

    def _split(self, devices: set[int]) -> list[int]:
        """Make `devices` a union of batches, and say of which."""
        parts: defaultdict[int | None, set[int]] = defaultdict(set)
        for device in devices:
            parts[self._batch_of.get(device)].add(device)
        batches = []
        for batch, part in parts.items():
            if batch is not None and len(part) == len(self._members[batch]):
                batches.append(batch)
                continue
            new = len(self._members)
            batches.append(new)
            self._members.append(part)
            self._batch_of.update(dict.fromkeys(part, new))
            self._released = _grown(self._released, new + 1, len(self._rounds))
            self._reduced = _grown(self._reduced, len(self._pivots), new + 1)
            if batch is not None:
                # A pivot stays with those who are not in the new sum, whose row then needs no
                # reduction by the pivot's: the matrix stays sparse for longer.
                self._members[batch] -= part
                self._released[new] = self._released[batch]
                rank = len(self._pivots)
                column = self._reduced[:rank, batch]
                self._reduced[:rank, new] = column
                self._nonzeros[:rank] += column != 0
        return batches

    def _compare(self, number: int, batches: list[int], size: int) -> None:
        """Find the earlier sum that differs the least from a new one, but does differ."""
        weights = np.array([len(self._members[batch]) for batch in batches], dtype=np.float64)
        shared = weights @ self._released[batches, :number].astype(np.float64)
        differences = np.array(self._sizes, dtype=np.int64) + size - 2 * shared.astype(np.int64)
        others = np.flatnonzero(differences)
        if others.size:
            nearest = int(others[differences[others].argmin()])
            candidate = (int(differences[nearest]), nearest, number)
            self._closest = min(self._closest or candidate, candidate)

    def _reduce(self, number: int, batches: list[int]) -> None:
        """Bring a new sum into the reduced matrix, and see who becomes solvable."""
        rank, width = len(self._pivots), len(self._members)
        row = np.zeros(width, dtype=np.int64)
        row[batches] = 1
        hit = [self._row_of[batch] for batch in batches if batch in self._row_of]
        row -= self._reduced[hit, :width].sum(axis=0, dtype=np.int64)
        row %= self._prime
        support = np.flatnonzero(row)
        if not support.size:
            return
        pivot = int(support[-1])  # a young batch is in few rows, which costs little elimination
        row = row * pow(int(row[pivot]), -1, self._prime) % self._prime
        changed = np.flatnonzero(self._reduced[:rank, pivot])
        self._eliminate(changed, support, pivot, row[support])
        self._reduced = _grown(self._reduced, rank + 1, width)
        self._nonzeros.resize(len(self._reduced), refcheck=False)
        self._reduced[rank, :width] = row
        self._nonzeros[rank] = support.size
        self._pivots.append(pivot)
        self._row_of[pivot] = rank
        self._independent.append(number)
        for index in (*changed.tolist(), rank):
            members = self._members[self._pivots[index]]
            if self._nonzeros[index] == 1 and len(members) == 1:
                self._solved_by.setdefault(next(iter(members)), number)

    def _eliminate(
        self, rows: npt.NDArray[np.intp], support: npt.NDArray[np.intp], pivot: int, row: _Residues
    ) -> None:
        """Subtract multiples of a row from others, so that they become zero at the pivot."""
        step = max(1, _BLOCK // support.size)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            at = np.ix_(some, support)
            block = self._reduced[at].astype(np.int64)
            before = np.count_nonzero(block, axis=1)
            block -= self._reduced[some, pivot, None].astype(np.int64) * row
            block %= self._prime
            self._reduced[at] = block
            self._nonzeros[some] += np.count_nonzero(block, axis=1) - before

    def _smallest_group(self, batch_sizes: npt.NDArray[np.int64]) -> tuple[int, ...]:
        rank, width = len(self._pivots), len(batch_sizes)
        groups: list[npt.NDArray[np.bool_]] = []
        cohorts = [index for index, size in enumerate(self._sizes) if size]
        if cohorts:
            smallest = min(cohorts, key=self._sizes.__getitem__)
            groups.append(self._released[:width, smallest])
        if self._closest:
            _, first, second = self._closest
            groups.append(self._released[:width, first] != self._released[:width, second])
        if rank:
            in_row = self._reduced[:rank, :width]
            sizes = [int(batch_sizes[row != 0].sum()) for row in in_row]
            groups.append(in_row[int(np.argmin(sizes))] != 0)
        if not groups:
            return ()
        group = min(groups, key=lambda group: int(batch_sizes[group].sum()))
        return tuple(sorted(d for batch in np.flatnonzero(group) for d in self._members[batch]))

    def _combinations(self) -> dict[int, tuple[int, ...]]:
        """The rounds whose sums combine to the terms of the first solvable devices."""
        listed = sorted(self._solved_by, key=lambda d: (self._solved_by[d], d))[:LISTED_DEVICES]
        if not listed:
            return {}
        last = max(self._solved_by[device] for device in listed)
        sums = [number for number in self._independent if number <= last]
        targets = np.zeros((len(sums), len(listed)), dtype=np.int64)
        for place, device in enumerate(listed):
            targets[self._row_of[self._batch_of[device]], place] = 1
        # On their pivots' columns, the first n independent sums are a regular matrix for every n.
        equations = self._released[np.ix_(self._pivots[: len(sums)], sums)].astype(np.int64)
        coefficients = _solve(equations, targets, self._prime)
        return {
            device: tuple(sorted({self._rounds[sums[i]] for i in np.flatnonzero(column)}))
            for device, column in zip(listed, coefficients.T, strict=True)
        }


def draw_prime(seed: bytes) -> int:
    """Draw a prime between 2^30 and 2^31, the same one for the same seed.

    Args:
        seed: Any bytes; where cohorts may have been chosen with an eye on the audit, a digest that
            depends on all of them.
    """
    counter = 0
    while True:
        digest = hashlib.sha256(seed + counter.to_bytes(4, "big")).digest()
        candidate = int.from_bytes(digest[:4], "big") >> 1 | 1 << 30 | 1
        if _is_prime(candidate):
            return candidate
        counter += 1


def _is_prime(number: int) -> bool:
    """Miller–Rabin; these bases decide all numbers below 3,215,031,751 (Jaeschke 1993)."""
    bases = (2, 3, 5, 7)
    if number < 2 or any(number % base == 0 for base in bases):
        return number in bases
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(
        (power := pow(base, odd, number)) == 1
        or any(pow(power, 1 << i, number) == number - 1 for i in range(twos))
        for base in bases
    )


def _solve(matrix: _Residues, targets: _Residues, prime: int) -> _Residues:
    """Solve matrix · x = target for every column, by Gaussian elimination modulo the prime.

    Args:
        matrix: Residues of shape (n, n); for every m up to n, the first m rows and columns are a
            regular matrix, so that no pivot has to be searched.
        targets: Residues of shape (n, systems).
        prime: The modulus, below 2^31.

    Returns:
        The solutions, shape (n, systems).
    """
    size = len(matrix)
    work = np.concatenate([matrix, targets], axis=1)
    panels = [slice(start, min(start + _PANEL, size)) for start in range(0, size, _PANEL)]
    for panel in panels:
        rows = work[panel, panel.start :]  # a view, whose first columns become the unit matrix
        for j in range(len(rows)):
            rows[j] = rows[j] * pow(int(rows[j, j]), -1, prime) % prime
            factors = rows[:, j].copy()
            factors[j] = 0
            rows[:] = (rows - factors[:, None] * rows[j]) % prime
        rest = work[panel.stop :, panel.stop :]
        rest -= _product(work[panel.stop :, panel], work[panel, panel.stop :], prime)
        rest %= prime
    solutions = work[:, size:]
    for panel in reversed(panels):
        rest = solutions[: panel.start]
        rest -= _product(work[: panel.start, panel], solutions[panel], prime)
        rest %= prime
    return solutions


def _product(left: _Residues, right: _Residues, prime: int) -> _Residues:
    """The product of residues modulo the prime, over at most `_PANEL` terms.

    The left numbers are cut into 16 bits and the rest, so that sums of 64 products with 31-bit
    numbers stay below 2^53, where double precision is exact.
    """
    factor = right.astype(np.float64)
    high, low = (half.astype(np.float64) @ factor for half in (left >> 16, left & 0xFFFF))
    product: _Residues = (high.astype(np.int64) % prime * (1 << 16) + low.astype(np.int64)) % prime
    return product


def _grown(array: npt.NDArray[_Entry], rows: int, columns: int) -> npt.NDArray[_Entry]:
    """The array with room for so many rows and columns: zeros, and at least twice as many."""
    shape = tuple(
        have if have >= need else max(need, 2 * have)
        for have, need in zip(array.shape, (rows, columns), strict=True)
    )
    if shape == array.shape:
        return array
    grown = np.zeros(shape, dtype=array.dtype)
    grown[: array.shape[0], : array.shape[1]] = array
    return grown
