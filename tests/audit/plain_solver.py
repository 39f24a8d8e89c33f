"""What follows from sums, by trying everything: for few devices, and without the product's code."""

import itertools
from fractions import Fraction


def rank(rows):
    """Rank of a matrix over the rationals, by Gaussian elimination."""
    rows = [[Fraction(entry) for entry in row] for row in rows]
    found = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(found, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for r in range(found + 1, len(rows)):
            factor = rows[r][column] / rows[found][column]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[found], strict=True)]
        found += 1
    return found


def matrix(cohorts, devices):
    """A row for each sum, a column for each of these devices."""
    return [[int(device in cohort) for device in devices] for cohort in cohorts]


def devices_of(cohorts):
    """All devices, ascending."""
    return sorted(frozenset().union(*cohorts))


def follows(cohorts, device, coalition=()):
    """Whether a device's term follows from the sums and the coalition's own terms."""
    known = [*cohorts, *({one} for one in coalition)]
    devices = devices_of([*known, {device}])
    rows = matrix(known, devices)
    return rank(rows) == rank([*rows, *matrix([{device}], devices)])


def most_that_follow(cohorts, size):
    """Of how many other devices the term follows for the best coalition of at most this size."""
    devices = devices_of(cohorts)
    coalitions = (
        one for number in range(size + 1) for one in itertools.combinations(devices, number)
    )
    return max(
        sum(follows(cohorts, device, one) for device in devices if device not in one)
        for one in coalitions
    )


def isolates(cohorts, group):
    """Whether some combination of the sums holds nobody outside of a group, and somebody in it."""
    others = [device for device in devices_of(cohorts) if device not in group]
    return rank(matrix(cohorts, others)) < rank(matrix(cohorts, devices_of(cohorts)))


def fewest_isolated(cohorts):
    """Devices of the smallest such group."""
    devices = devices_of(cohorts)
    sizes = range(1, len(devices) + 1)
    groups = (group for size in sizes for group in itertools.combinations(devices, size))
    return len(next(group for group in groups if isolates(cohorts, group)))


def places(size, ticks, agrees):
    """For every device, the losses that it can have: some losses of all agree with what is known.

    Args:
        size: How many devices.
        ticks: How many different losses there are.
        agrees: Given a loss for each device, says whether all released numbers would be the same.
    """
    found = [set() for _ in range(size)]
    for losses in itertools.product(range(ticks), repeat=size):
        if agrees(losses):
            for device, loss in enumerate(losses):
                found[device].add(loss)
    return found
