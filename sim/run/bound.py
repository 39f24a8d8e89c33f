"""ε as it is printed: it is a bound, so it is rounded up."""

import math


def rounded_up(epsilon: float) -> str:
    """ε to two decimals, none of them too low.

    >>> rounded_up(2.981), rounded_up(2.5), rounded_up(1234.5), rounded_up(math.inf)
    ('2.99', '2.50', '1,234.50', 'inf')
    """
    return f"{math.ceil(epsilon * 100) / 100:,.2f}" if math.isfinite(epsilon) else "inf"
