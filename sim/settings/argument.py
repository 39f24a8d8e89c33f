"""Numbers of the command line that are checked where they are read."""

import argparse
from collections.abc import Callable

from deltafl.sim.settings.constraints import Interval


def whole(interval: str) -> Callable[[str], int]:
    """A type for `argparse`: whole numbers of an interval, in mathematical notation.

    >>> whole("[1, 9]")("7")
    7
    """
    expected = Interval(interval)

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not expected.holds(number):
            raise argparse.ArgumentTypeError(
                f"{text[:40]} must be a whole number, and {expected.requirement()}"
            )
        return number

    return convert
