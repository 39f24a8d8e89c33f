"""All attacks."""

from typing import Final

from deltafl.sim.inspect.attacks import (
    crafted_models,
    hostile_bytes,
    lying,
    plain_sums,
    queries,
    rounds,
    sessions,
    tails,
    verified,
)
from deltafl.sim.inspect.attacks.attack import Attack

_MODULES: Final = (
    sessions,
    tails,
    verified,
    queries,
    rounds,
    hostile_bytes,
    lying,
    crafted_models,
    plain_sums,
)

ATTACKS: Final = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if type(value) is Attack),
        key=lambda attack: attack.number,
    )
)
"""In the order of their numbers; attacks with the same number are in the order of the modules."""
