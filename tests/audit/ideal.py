"""Ideal masked words for the tests of the auditor's statistics, and what p-values of them obey."""

import numpy as np
from scipy import special

from deltafl.secagg.prg import keystream
from deltafl.secagg.ring import to_words

CAUGHT = 1e-9
"""A p-value below it is no chance."""


def ideal_words(seed: int, shape, bits: int):
    """Uniform words of Z_2^bits: the keystream of a seed, as masks are."""
    size = 8 * int(np.prod(shape))
    words = np.frombuffer(keystream(seed.to_bytes(32, "big"), size), dtype="<u8").reshape(shape)
    return to_words(words & np.uint64((1 << bits) - 1), bits)


def too_often(values, rate: float) -> bool:
    """Whether more p-values are at most `rate` than valid ones would be, but once in 10^6."""
    values = np.asarray(values)
    hits = int((values <= rate).sum())
    return hits > 0 and special.bdtrc(hits - 1, values.size, rate) < 1e-6


def super_uniform(values) -> bool:
    """Whether p-values are small no more often than they may be."""
    return not any(too_often(values, rate) for rate in (0.5, 0.2, 0.05, 0.01, 0.001))


def by_test(results):
    """Results by the name of their test."""
    named = {result.test: result for result in results}
    assert len(named) == len(results)
    return named


def caught(named):
    """The tests, of results by test, whose p-values are no chance."""
    return {name for name, result in named.items() if result.value < CAUGHT}
