"""Which devices take part in a round.

Sampling is uniform and without replacement, as in the experiments behind arXiv 2002.11223 (its
Algorithm 2 prints sampling with replacement). Where a run's sums have noise, it matters how often a
device is invited at most, and cohorts are dealt.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
"""Devices by their indices, ascending."""


def others(num_devices: int, without: AbstractSet[int] = frozenset()) -> Indices:
    """All devices of a population, but for some."""
    if not without:
        return np.arange(num_devices, dtype=np.int64)
    return np.array([index for index in range(num_devices) if index not in without], np.int64)


def drawn_of(generator: np.random.Generator, left: Indices, cohort_size: int) -> tuple[int, ...]:
    """Draw `cohort_size` of the devices that are left, ascending; all if there are not more."""
    drawn = generator.choice(left, size=min(cohort_size, len(left)), replace=False)
    return tuple(sorted(int(index) for index in drawn))


def participations(rounds: int, num_devices: int, cohort_size: int) -> int:
    """How often a device is invited at most in so many rounds, if cohorts are dealt by `dealt`."""
    return -(-rounds // (num_devices // cohort_size))


def dealt(
    generator_of: Callable[[int], np.random.Generator],
    num_devices: int,
    cohort_size: int,
    round_index: int,
) -> Indices:
    """The devices that are dealt to a round.

    The population is shuffled and dealt into cohorts that have nothing in common. When fewer than a
    cohort are left, it is shuffled again.

    Args:
        generator_of: the generator of the shuffle with this number, counted from 0.
        num_devices: the population.
        cohort_size: how many to deal, in [1, num_devices].
        round_index: the round, counted from 0.
    """
    shuffle, turn = divmod(round_index, num_devices // cohort_size)
    order = generator_of(shuffle).permutation(num_devices)
    return np.sort(order[turn * cohort_size : (turn + 1) * cohort_size]).astype(np.int64)
