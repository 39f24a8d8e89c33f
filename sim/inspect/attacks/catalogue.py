"""All attacks."""

from typing import Final

from deltafl.sim.inspect.attacks import boxes, lying, rounds, sessions, sums, tails
from deltafl.sim.inspect.attacks.attack import Attack

_MODULES: Final = (sessions, boxes, tails, rounds, lying, sums)

ATTACKS: Final = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if type(value) is Attack),
        key=lambda attack: attack.number,
    )
)
"""In the order of their numbers; attacks with the same number are in the order of the modules."""
