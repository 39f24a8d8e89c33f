"""How large a benchmark may be, and how often it is repeated.

What is larger would fill the memory, or never end.

That it may not be empty says the benchmark itself, in its own words.
"""

import argparse
from typing import Final

from deltafl.secagg.params import MAX_SLOTS
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.settings.argument import whole

CLIENTS: Final = whole("[0, 100000]")
SLOTS: Final = whole(f"[0, {MAX_SLOTS}]")
MANY: Final = whole("[0, 1000000]")
"""Rounds, vectors or masks."""


def add_repetition(parser: argparse.ArgumentParser) -> None:
    """Declare how often a search's answers are measured, of which losses, and how it is told."""
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="R", help="times each is measured (5)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of losses and weights (1)"
    )
    add_json(parser)
    add_quiet(parser)


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
