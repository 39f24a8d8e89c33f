"""The bounds of `deltafl.secagg.threat` in exact arithmetic, for a table of sizes and rates.

`exact_threat.py` compares every row, and says how near a limit any comparison came. There are only
whole numbers and fractions: rates are decimal, and probabilities are numbers of ways, compared by
cross products.

Spec: §3.4, §3.5, §3.6.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import product
from math import ceil, comb, floor, log2, perm
from typing import Final

from deltafl.secagg import UsageError
from deltafl.secagg.threat import (
    Adversary,
    ThreatModel,
    complete_threshold,
    sparse_parameters,
)

SMALL: Final = tuple(range(2, 61))
LARGE: Final = (75, 100, 150, 200, 300, 500, 1000, 2000, 5000)
HUGE: Final = (10_000, 100_000, 1_000_000)
RATES: Final = ("0", "0.01", "0.05", "0.1", "0.2", "0.3", "0.33")
OF_HUGE: Final = ("0.05", "0.1")
_FROM_TWO: Final = 400  # up to this degree all smaller ones are refuted; above it, only the next

Row = tuple[int, str, str, bool]


class Exact:
    """Degree and threshold, exactly.

    Args:
        num_devices: N.
        colluding: γ, a decimal fraction.
        dropped: δ, a decimal fraction.
        active: Whether the server may lie.

    Attributes:
        nearest: The least distance of a probability from the limit that it was compared with, as a
            binary logarithm of their quotient; infinite before the first comparison.
    """

    def __init__(self, num_devices: int, colluding: str, dropped: str, active: bool) -> None:
        gamma, delta = Fraction(colluding), Fraction(dropped)
        self.size, self.active = num_devices, active
        self.colluding = floor(gamma * num_devices)
        self.dropped = floor(delta * num_devices)
        self.surviving = ceil((1 - delta) * num_devices)
        self.nearest = float("inf")

    def complete(self) -> int | None:
        """The threshold of the complete graph; None if there is none."""
        n, c, s = self.size, self.colluding, self.surviving
        majority = n // 2 + 1
        quorum = (n + c) // 2 + 1 if self.active else min(majority, s)
        return t if (t := max(quorum, c + 2)) <= s else None

    def threshold(self, degree: int) -> int | None:
        """The threshold of the sparse graph of a degree; None if the degree is too small."""
        n, k, gone = self.size, degree, self.colluding + self.dropped
        # C(n − k, g − k) / C(n, g) is the quotient of two falling factorials of k factors
        if gone >= k and not self._below(
            n * (n - k - 1) * perm(gone, k), 2 * perm(n, k), 2**41, strict=True
        ):
            return None
        smallest = n - self.dropped
        colluding, total = ways(smallest, self.colluding, k), comb(smallest, k)
        most, tail = k, 0  # the smallest x for which more than x collude with 2^-41/n at most
        while most >= 0 and self._below(tail + colluding[most], total, 2**41 * n):
            tail += colluding[most]
            most -= 1
        surviving, total = ways(n, self.surviving, k), comb(n, k)
        fewest, tail = 0, surviving[0]  # the smallest y
        while self._below(tail, total, 2**20 * n, strict=True):
            fewest += 1
            tail += surviving[fewest]
        t = (k + most) // 2 + 1 if self.active else most + 1
        return max(t, 2) if t <= fewest else None

    def sparse(self) -> tuple[int, int] | None:
        """The smallest degree with its threshold, by trying all; None if there is none."""
        for degree in range(2, self.size - self.dropped - 1, 2):
            if (t := self.threshold(degree)) is not None:
                return degree, t
        return None

    def _below(self, part: int, whole: int, times: int, *, strict: bool = False) -> bool:
        """Whether part/whole ≤ 1/times, or < if strict; remembers how near it was."""
        if part:
            self.nearest = min(self.nearest, abs(log2(part) + log2(times) - log2(whole)))
        return part * times < whole if strict else part * times <= whole


def ways(total: int, marked: int, drawn: int) -> list[int]:
    """In how many ways 0 … drawn marked ones are among `drawn` of `total`."""
    found = [0] * (drawn + 1)
    first = max(0, drawn - (total - marked))
    if first > min(marked, drawn):
        return found
    found[first] = comb(marked, first) * comb(total - marked, drawn - first)
    for i in range(first, min(marked, drawn)):
        up, down = (marked - i) * (drawn - i), (i + 1) * (total - marked - drawn + i + 1)
        found[i + 1] = found[i] * up // down
    return found


def table(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Sizes and rates for which there may be parameters."""
    for size, active in product(sizes, (False, True)):
        rates = OF_HUGE if size in HUGE else RATES
        for gamma, delta in product(rates, rates):
            if Fraction(gamma) + (1 + active) * Fraction(delta) <= Fraction(9, 10):
                yield size, gamma, delta, active


def differences(row: Row) -> tuple[list[str], float]:
    """Where the floating-point code differs from the exact twin, and the nearest comparison."""
    size, gamma, delta, active = row
    exact = Exact(*row)
    threat = ThreatModel(
        float(gamma), float(delta), Adversary.ACTIVE if active else Adversary.CURIOUS
    )
    found = []

    def compare(name: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            found.append(f"{row}: {name} is {ours}, and exactly {theirs}")

    compare("c", threat.num_colluding(size), exact.colluding)
    compare("s", threat.num_surviving(size), exact.surviving)
    compare("d", threat.num_dropped(size), exact.dropped)
    compare("complete t", or_none(complete_threshold, size, threat), exact.complete())
    ours = or_none(sparse_parameters, size, threat)
    if ours is None or ours[0] <= _FROM_TWO:
        compare("k and t", ours, exact.sparse())
    else:  # too many degrees to refute them all exactly
        compare("t", ours[1], exact.threshold(ours[0]))
        compare("t of the next smaller k", None, exact.threshold(ours[0] - 2))
    return found, exact.nearest


def or_none(compute, *arguments):
    """What the code computes; None if it says that there is nothing."""
    with suppress(UsageError):
        return compute(*arguments)
    return None


def main() -> int:
    """Compare the whole table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--least", type=int, default=2, help="smallest size to compare")
    parser.add_argument("--largest", type=int, default=1_000_000, help="largest size to compare")
    arguments = parser.parse_args()
    begin, rows, wrong, nearest = time.monotonic(), 0, 0, (float("inf"), "")
    for size in (*SMALL, *LARGE, *HUGE):
        if not arguments.least <= size <= arguments.largest:
            continue
        for row in table((size,)):
            found, near = differences(row)
            rows, wrong, nearest = rows + 1, wrong + len(found), min(nearest, (near, str(row)))
            print(*found, sep="\n", end="\n" if found else "")
        print(f"{size}: {rows} rows so far, {wrong} differences, nearest {nearest[0]:.2g} bits "
              f"{nearest[1]}, {time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
