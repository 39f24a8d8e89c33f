"""What can go wrong in learning, and whose fault it is.

    ValueError
      └─ DataError          the data set: the message names file, user and value, and the remedy
    ArithmeticError
      └─ DivergenceError    training: a loss or an update is no longer finite

A wrong argument of a call is a plain `ValueError` that names the value.
"""


class DataError(ValueError):
    """A data set cannot be used as it is; the message says where and what to do."""


class DivergenceError(ArithmeticError):
    """A device's loss or update is NaN or infinite, so no mean over it has a meaning."""
