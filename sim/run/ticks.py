"""Marks of an axis that counts rounds: the first round, the last one, and round numbers between."""

import itertools


def round_ticks(first: int, last: int, most: int = 6) -> list[int]:
    """Where to mark an axis of rounds, ascending.

    Args:
        first: the first round on the axis.
        last: the last one; at least `first`.
        most: intervals between marks, at most about so many; at least 1.

    >>> round_ticks(0, 60), round_ticks(0, 64), round_ticks(1, 97), round_ticks(3, 3)
    ([0, 10, 20, 30, 40, 50, 60], [0, 20, 40, 64], [1, 20, 40, 60, 80, 97], [3])
    """
    steps = (factor * 10**decade for decade in itertools.count() for factor in (1, 2, 5))
    step = next(step for step in steps if last - first <= step * most)
    inner = range(-(-first // step) * step, last + 1, step)
    apart = [at for at in inner if min(at - first, last - at) > step / 2]  # not on top of the ends
    return sorted({first, *apart, last})
