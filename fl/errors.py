"""The errors of the learning side, and who can fix them; and a check that many arguments share.

    ValueError
      └─ DataError          the data set: the message names file, user and value, and the remedy
    ArithmeticError
      └─ DivergenceError    training: a loss or an update is no longer finite

A wrong argument of a call is a plain `ValueError` that names the value.
"""

import math


class DataError(ValueError):
    """A data set cannot be used; the message says where the problem is and what to do."""


class DivergenceError(ArithmeticError):
    """A device's loss or update is NaN or infinite, so means over it are meaningless."""


def check_positive(**values: float) -> None:
    """Check that numbers are finite and above 0.

    Raises:
        ValueError: one is not; it says which, by its name.
    """
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} is not a positive number")
