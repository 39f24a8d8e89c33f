"""Which devices take part in a round.

Sampling is uniform and without replacement, as in the experiments behind arXiv 2002.11223 (its
Algorithm 2 prints sampling with replacement).
"""

import numpy as np


def sample_cohort(
    generator: np.random.Generator, num_devices: int, cohort_size: int
) -> tuple[int, ...]:
    """Draw a cohort: `cohort_size` different indices below `num_devices`, ascending.

    Raises:
        ValueError: there are fewer devices than the cohort needs.
    """
    if not 0 < cohort_size <= num_devices:
        raise ValueError(f"cohort_size={cohort_size} is not in [1, {num_devices}]")
    drawn = generator.choice(num_devices, size=cohort_size, replace=False)
    return tuple(sorted(int(index) for index in drawn))
