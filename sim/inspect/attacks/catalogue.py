"""All attacks."""

from typing import Final

from deltafl.sim.inspect.attacks import (
    added_noise,
    announced,
    baseline,
    cohorts,
    crafted_models,
    exposures,
    haste,
    hostile_bytes,
    levels,
    lists,
    lying,
    plain_sums,
    quantile,
    radii,
    reuse,
    rounds,
    seeds,
    sessions,
    silence,
    tails,
    verified,
    whole_slots,
)
from deltafl.sim.inspect.attacks.attack import Attack

_MODULES: Final = (
    lists,
    lying,
    whole_slots,
    cohorts,
    added_noise,
    announced,
    verified,
    tails,
    reuse,
    seeds,
    sessions,
    levels,
    rounds,
    silence,
    haste,
    baseline,
    quantile,
    hostile_bytes,
    exposures,
    crafted_models,
    radii,
    plain_sums,
)

ATTACKS: Final = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if type(value) is Attack),
        key=lambda attack: attack.number,
    )
)
"""In the order of their numbers; attacks with the same number are in the order of the modules."""
