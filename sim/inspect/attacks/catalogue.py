"""All attacks."""

from typing import Final

from deltafl.sim.inspect.attacks import lying, rounds, sessions, tails, trained
from deltafl.sim.inspect.attacks.attack import Attack

_MODULES: Final = (sessions, tails, rounds, lying, trained)

ATTACKS: Final = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if type(value) is Attack),
        key=lambda attack: attack.number,
    )
)
"""In the order of their numbers; attacks with the same number are in the order of the modules."""
