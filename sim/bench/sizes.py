"""How large a benchmark may be: what is beyond would fill the memory, or never end.

That it may not be empty says the benchmark itself, in its own words.
"""

from typing import Final

from deltafl.secagg.params import MAX_SLOTS
from deltafl.sim.settings.argument import whole

CLIENTS: Final = whole("[0, 100000]")
SLOTS: Final = whole(f"[0, {MAX_SLOTS}]")
MANY: Final = whole("[0, 1000000]")
"""Rounds, vectors or masks."""


def check_least(**least: tuple[int, int]) -> None:
    """Refuse the first number that is too small, and name no other.

    >>> check_least(clients=(5, 2), dim=(0, 1))
    Traceback (most recent call last):
    ValueError: dim=0 must be at least 1

    Args:
        least: by name, a number and the least that it may be.

    Raises:
        ValueError: one is smaller.
    """
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise ValueError(f"{name}={value} must be at least {lowest}")
