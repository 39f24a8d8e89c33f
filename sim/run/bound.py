"""ε as it is printed: upper bounds are rounded up, and lower ones down."""

import math
from collections.abc import Callable


def rounded_up(epsilon: float) -> str:
    """An upper bound to two decimals, never too low.

    >>> rounded_up(2.981), rounded_up(2.5), rounded_up(1234.5), rounded_up(math.inf)
    ('2.99', '2.50', '1,234.50', 'inf')
    """
    return _rounded(epsilon, math.ceil)


def rounded_down(epsilon: float) -> str:
    """A lower bound to two decimals, never too high.

    >>> rounded_down(0.567), rounded_down(5.0)
    ('0.56', '5.00')
    """
    return _rounded(epsilon, math.floor)


def _rounded(epsilon: float, towards: Callable[[float], int]) -> str:
    return f"{towards(epsilon * 100) / 100:,.2f}" if math.isfinite(epsilon) else str(epsilon)
