"""Are rebuilt secrets guessable? The server rebuilds self-mask seeds, 32 bytes each.

A mask is as good as its seed, and a good generator hides a bad seed from every test of its output.
So the seeds themselves are looked at: equal or consecutive ones, small numbers, repeating bytes,
frequent bits and bytes, and all 2^16 seeds under the usual ways to make 32 bytes of a number.
"""

import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from deltafl.sim.inspect.audit.tails import Counts, PValue, ones, smallest
from deltafl.sim.inspect.audit.uniformity import equally_likely, well_filled

SECRET_SIZE: Final = 32
SEED_BITS: Final = 16
"""The most bits of the seeds that are tried."""

_SPACE: Final = 1 << (8 * SECRET_SIZE)
_PERIODS: Final = (1, 2, 4, 8, 16)
_PREFIX: Final = 8  # bytes by which the table is searched
_ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")


class WeakSeeds:
    """What the seeds of a few bits expand to, for looking up secrets.

    The table holds eight bytes of every expansion; a match is confirmed on all 32.

    Args:
        seed_bits: Seeds in [0, 2^seed_bits) are tried, 1 to 16. Sixteen bits take a second or two
            and about 10 MB.

    Attributes:
        num_candidates: Secrets in the table.
    """

    def __init__(self, seed_bits: int) -> None:
        self._num_seeds = 1 << seed_bits
        prefixes = np.concatenate([_prefixes(e, self._num_seeds) for e in _EXPANSIONS.values()])
        order = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[order]
        self._origins = order.astype(np.uint32)
        self.num_candidates = len(order)

    def find(self, secrets: Sequence[bytes]) -> tuple[tuple[int, str, int], ...]:
        """Secrets that are expansions of a small seed.

        Args:
            secrets: 32 bytes each.

        Returns:
            For each one found: its position in `secrets`, the expansion, and the seed.
        """
        wanted = np.frombuffer(b"".join(s[:_PREFIX] for s in secrets), dtype="<u8")
        first = np.searchsorted(self._prefixes, wanted, side="left")
        past = np.searchsorted(self._prefixes, wanted, side="right")
        names, found = list(_EXPANSIONS), []
        for position in np.flatnonzero(first < past).tolist():
            for origin in self._origins[first[position] : past[position]].tolist():
                expansion, seed = divmod(origin, self._num_seeds)
                if _EXPANSIONS[names[expansion]](seed) == secrets[position]:
                    found.append((position, names[expansion], seed))
                    break
        return tuple(found)


@functools.cache
def weak_seeds(seed_bits: int) -> WeakSeeds:
    """The table of all seeds of so many bits, made once."""
    return WeakSeeds(seed_bits)


def examine_secrets(secrets: Sequence[bytes], seed_bits: int = SEED_BITS) -> tuple[PValue, ...]:
    """The tests that secrets are uniform 32-byte strings, independent of one another.

    Args:
        secrets: Different devices' or slots' secrets, 32 bytes each.
        seed_bits: Seeds of up to so many bits are tried, 1 to 16.

    Returns:
        The tests, `at` naming positions in `secrets`; none if there are no secrets.
    """
    if not secrets:
        return ()
    table = np.frombuffer(b"".join(secrets), dtype=np.uint8).reshape(len(secrets), SECRET_SIZE)
    return (
        _small_seeds(secrets, weak_seeds(seed_bits)),
        _close_together(secrets),
        _small_numbers(secrets),
        _repeating(table),
        *_biased(table),
    )


def _small_seeds(secrets: Sequence[bytes], table: WeakSeeds) -> PValue:
    test = "secrets from small seeds"
    found = table.find(secrets)
    if not found:
        return PValue(test, 1.0, f"none of {len(secrets)} secrets comes from a small seed")
    _, expansion, seed = found[0]
    return PValue(
        test,
        _share_of_space(len(secrets) * table.num_candidates),
        f"{len(found)} of {len(secrets)} secrets come from small seeds; one is {expansion} of "
        f"{seed}",
        tuple(position for position, _, _ in found),
    )


def _close_together(secrets: Sequence[bytes]) -> PValue:
    test = "equal or consecutive secrets"
    if len(secrets) < 2:
        return PValue(test, 1.0, "there is one secret only")
    least, pair = _SPACE, (0, 1)
    for order in _ORDERS:
        numbers = [int.from_bytes(secret, order) for secret in secrets]
        ranked = sorted(range(len(numbers)), key=numbers.__getitem__)
        for one, other in pairwise(ranked):
            if numbers[other] - numbers[one] < least:
                least, pair = numbers[other] - numbers[one], (one, other)
    what = "equal" if least == 0 else f"{least} apart" if least < 1 << 64 else "not close"
    # Each of two numbers' 2·least + 1 differences is as likely as any other, in both byte orders.
    num_pairs = len(secrets) * (len(secrets) - 1) // 2
    return PValue(
        test,
        _share_of_space(len(_ORDERS) * num_pairs * (2 * least + 1)),
        f"the closest two of {len(secrets)} secrets are {what}",
        (min(pair), max(pair)),
    )


def _small_numbers(secrets: Sequence[bytes]) -> PValue:
    values = (
        (int.from_bytes(secret, order), position)
        for order in _ORDERS
        for position, secret in enumerate(secrets)
    )
    least, position = min(values)
    return PValue(
        "small secrets",
        _share_of_space(len(_ORDERS) * len(secrets) * (least + 1)),
        f"the smallest of {len(secrets)} secrets has {least.bit_length()} of 256 bits",
        (position,),
    )


def _repeating(table: npt.NDArray[np.uint8]) -> PValue:
    test = "repeating secrets"
    for period in _PERIODS:
        found = np.flatnonzero((table[:, period:] == table[:, :-period]).all(axis=1))
        if len(found):
            # Twice, because shorter periods were tried before.
            return PValue(
                test,
                _share_of_space(2 * len(table) << (8 * period)),
                f"{len(found)} of {len(table)} secrets repeat their first {period} bytes",
                tuple(found.tolist()),
            )
    return PValue(test, 1.0, f"none of {len(table)} secrets repeats its bytes")


def _biased(table: npt.NDArray[np.uint8]) -> list[PValue]:
    by_bit = np.unpackbits(table, axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
    worst, value = smallest(ones(by_bit, len(table)))
    total, trials = int(by_bit.sum()), len(table) * len(by_bit)
    results = [
        PValue(
            "ones in all bits of secrets",
            float(ones(total, trials)),
            f"{total} ones in {trials} bits of secrets: {total / trials:.4%}",
        ),
        PValue(
            "ones by bit of secrets",
            value,
            f"bit {worst % 8} of byte {worst // 8} is one in {by_bit[worst]} of {len(table)} "
            "secrets",
        ),
    ]
    values: Counts = np.bincount(table.reshape(-1), minlength=256)
    if (cells := well_filled(values)) is not None:
        results.append(equally_likely("values of bytes of secrets", *cells))
    return results


def _share_of_space(count: int) -> float:
    """The share of `count` among all 2^256 strings, at most 1."""
    return min(1.0, count / _SPACE)


Expansion = Callable[[int], bytes]


def _sha256_of_number(size: int, order: Literal["little", "big"]) -> Expansion:
    def expand(seed: int) -> bytes:
        # A seed that needs more bytes is left to the longer forms; it is its residue here.
        return hashlib.sha256((seed % (1 << (8 * size))).to_bytes(size, order)).digest()

    return expand


def _sha256_of_digits(seed: int) -> bytes:
    return hashlib.sha256(b"%d" % seed).digest()


# The three generators below are no source of secrets here: they are what careless software seeds
# and draws secrets from, and what an attacker would try.


def _numpy_generator(seed: int) -> bytes:
    """`numpy.random.default_rng(seed).bytes(32)`, made faster."""
    return np.random.PCG64(seed).random_raw(4).astype("<u8").tobytes()


_LEGACY: Final = np.random.RandomState(0)
_PYTHON: Final = random.Random(0)  # noqa: S311 - the attacker's guess


def _numpy_legacy(seed: int) -> bytes:
    """`numpy.random.RandomState(seed).bytes(32)`."""
    _LEGACY.seed(seed)
    return _LEGACY.bytes(SECRET_SIZE)


def _python_random(seed: int) -> bytes:
    """`random.Random(seed).randbytes(32)`."""
    _PYTHON.seed(seed)
    return _PYTHON.randbytes(SECRET_SIZE)


_EXPANSIONS: Final[dict[str, Expansion]] = {
    "SHA-256 of one byte": _sha256_of_number(1, "little"),
    **{
        f"SHA-256 of {size} {order}-endian bytes": _sha256_of_number(size, order)
        for size in (2, 4, 8)
        for order in _ORDERS
    },
    "SHA-256 of the decimal digits": _sha256_of_digits,
    "numpy's default_rng": _numpy_generator,
    "numpy's RandomState": _numpy_legacy,
    "Python's random.Random": _python_random,
}
"""Ways to make 32 bytes of a small number. Zero padding and repetition need no table."""


def few_seeds(seed_bits: int) -> Iterator[tuple[bytes, str]]:
    """Secrets of so many bits, 32 bytes each, and how they are made; also padded, and repeated.

    Args:
        seed_bits: 1 to 8.
    """
    for seed in range(1 << seed_bits):
        yield bytes([seed]) * SECRET_SIZE, f"{seed}, repeated"
        for order in _ORDERS:
            yield seed.to_bytes(SECRET_SIZE, order), f"{seed}, padded with zeros"
        for name, expand in _EXPANSIONS.items():
            yield expand(seed), f"{name} of {seed}"


def _prefixes(expand: Expansion, num_seeds: int) -> npt.NDArray[np.uint64]:
    joined = b"".join([expand(seed)[:_PREFIX] for seed in range(num_seeds)])
    return np.frombuffer(joined, dtype="<u8").astype(np.uint64)
