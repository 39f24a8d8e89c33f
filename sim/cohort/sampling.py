"""Which devices take part in a round.

Sampling is uniform and without replacement, as in the experiments behind arXiv 2002.11223 (its
Algorithm 2 prints sampling with replacement).
"""

from collections.abc import Set as AbstractSet

import numpy as np


def sample_cohort(
    generator: np.random.Generator,
    num_devices: int,
    cohort_size: int,
    without: AbstractSet[int] = frozenset(),
) -> tuple[int, ...]:
    """Draw a cohort: `cohort_size` different indices below `num_devices`, ascending.

    Args:
        generator: where the randomness comes from.
        num_devices: the population.
        cohort_size: how many to draw, in [1, num_devices].
        without: devices that are not drawn. If they leave fewer than `cohort_size`, the cohort is
            all that are left, which may be none.

    Raises:
        ValueError: there are fewer devices than the cohort needs.
    """
    if not 0 < cohort_size <= num_devices:
        raise ValueError(f"cohort_size={cohort_size} is not in [1, {num_devices}]")
    if not without:
        drawn = generator.choice(num_devices, size=cohort_size, replace=False)
    else:
        left = np.array([index for index in range(num_devices) if index not in without], np.int64)
        drawn = generator.choice(left, size=min(cohort_size, len(left)), replace=False)
    return tuple(sorted(int(index) for index in drawn))
