"""Devices that drop out on purpose."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from deltafl.secagg.stages import Stage, Step, Vanish
from deltafl.sim.cohort.seeds import Purpose, Seeds

Dropouts: TypeAlias = Callable[[int, Sequence[int], int], Mapping[int, Vanish]]
"""(round index, device ids, number of slots) → when each vanishing device vanishes."""


def nobody(round_index: int, device_ids: Sequence[int], num_slots: int) -> Mapping[int, Vanish]:
    """No device drops out."""
    del round_index, device_ids, num_slots
    return {}


def stages_of_session(*, signed: bool) -> tuple[Stage, ...]:
    """The stages at which a device may vanish; unsigned sessions have no LIST and no CONFIRM."""
    only_signed = (Stage.LIST, Stage.CONFIRM)
    return tuple(stage for stage in Stage if signed or stage not in only_signed)


def plan_dropouts(
    generator: np.random.Generator,
    device_ids: Sequence[int],
    rate: float,
    num_slots: int,
    *,
    signed: bool,
) -> dict[int, Vanish]:
    """Decide which devices drop out of a session, and when.

    A device drops out with probability `rate`, at a stage drawn uniformly and, if the stage has
    slots, at a slot drawn uniformly. A slot that lacks this stage loses the device at its next
    message; a list is signed before the first slot, if at all. In half of the cases its last
    message still comes, but late.
    Which devices drop out depends neither on `num_slots` nor on `signed`, so that all algorithms
    lose the same devices.

    Args:
        generator: where the randomness comes from.
        device_ids: the cohort.
        rate: a probability.
        num_slots: number of slots of the session, at least 1.
        signed: whether the session is.
    """
    stages = stages_of_session(signed=signed)
    plan = {}
    for device_id in device_ids:
        fate, stage_draw, slot_draw, late_draw = generator.random(4)
        if fate < rate:
            stage = stages[int(stage_draw * len(stages))]
            slot = int(slot_draw * num_slots) if stage > Stage.LIST else 0
            plan[device_id] = Vanish(Step(stage, slot), late=bool(late_draw < 0.5))
    return plan


def seeded_dropouts(seeds: Seeds, rate: float, *, signed: bool) -> Dropouts:
    """Bind `plan_dropouts` to a run: each round has its own generator."""

    def dropouts(
        round_index: int, device_ids: Sequence[int], num_slots: int
    ) -> Mapping[int, Vanish]:
        generator = seeds.generator(Purpose.DROPOUT, round_index=round_index)
        return plan_dropouts(generator, device_ids, rate, num_slots, signed=signed)

    return dropouts
