"""The errors of the learning side, and who can fix them.

    ValueError
      └─ DataError          the data set: the message names file, user and value, and the remedy
    ArithmeticError
      └─ DivergenceError    training: a loss or an update is no longer finite

A wrong argument of a call is a plain `ValueError` that names the value.
"""


class DataError(ValueError):
    """A data set cannot be used; the message says where the problem is and what to do."""


class DivergenceError(ArithmeticError):
    """A device's loss or update is NaN or infinite, so means over it are meaningless."""
