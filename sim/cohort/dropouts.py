"""Devices that drop out on purpose: when in a session, and in clear not to take part at all.

In clear there is no session to drop out of half-way. A device that would drop out of a secure run
at any step is removed from the cohort before the round.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from deltafl.fl.cohort import Cohort, CohortView
from deltafl.fl.strategies.base import RoundReport, TrainingState, Wrapper
from deltafl.secagg.states import Stage, Step, Vanish
from deltafl.sim.cohort.seeds import Purpose, Seeds

Dropouts: TypeAlias = Callable[[int, Sequence[int], int], Mapping[int, Vanish]]
"""(round index, device ids, number of slots) → when each vanishing device vanishes."""


def nobody(round_index: int, device_ids: Sequence[int], num_slots: int) -> Mapping[int, Vanish]:
    """No device drops out."""
    del round_index, device_ids, num_slots
    return {}


def seeded_dropouts(seeds: Seeds, rate: float) -> Dropouts:
    """Decide which devices drop out of a run's sessions, and when; each round draws anew.

    A device drops out with probability `rate`, at a stage drawn uniformly and, if the stage has
    slots, at a slot drawn uniformly. A slot that lacks this stage loses the device at its next
    message. In half of the cases its last message still comes, but late.
    Which devices drop out does not depend on the number of slots, so that all algorithms lose the
    same devices.

    Args:
        seeds: where the randomness comes from.
        rate: a probability.
    """
    stages = tuple(Stage)

    def dropouts(
        round_index: int, device_ids: Sequence[int], num_slots: int
    ) -> Mapping[int, Vanish]:
        generator = seeds.generator(Purpose.DROPOUT, round_index=round_index)
        plan = {}
        for device_id in device_ids:
            fate, stage_draw, slot_draw, late_draw = generator.random(4)
            if fate < rate:
                stage = stages[int(stage_draw * len(stages))]
                slot = int(slot_draw * num_slots) if stage >= Stage.MASK else 0
                plan[device_id] = Vanish(Step(stage, slot), late=bool(late_draw < 0.5))
        return plan

    return dropouts


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorReport(RoundReport):
    """A report that also says how many devices dropped out.

    Attributes:
        dropped_by_stage: number of devices that vanished, by the stage at which they did.
        aborted: why the round was given up; None if it was not.
    """

    dropped_by_stage: dict[str, int]
    aborted: str | None


@dataclass(frozen=True, slots=True)
class WithDropouts(Wrapper):
    """A strategy in clear of a single level, played with the devices that do not drop out."""

    dropouts: Dropouts

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Play one round with the survivors; without any, the round is given up.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        plan = self.dropouts(state.round, list(cohort.weights), 1)
        weights = {one: size for one, size in cohort.weights.items() if one not in plan}
        aborted = None
        if cohort.weights and not weights:
            state = replace(state, round=state.round + 1)
            report = RoundReport(kept_devices=0, kept_weight=0, secure_sums=0)
            aborted = f"all {len(cohort.weights)} devices of the cohort vanished"
        else:
            state, report = self.strategy.apply(state, CohortView(cohort, weights))
        known = {field.name: getattr(report, field.name) for field in fields(report)}
        dropped = Counter(vanish.step.stage.name.lower() for vanish in plan.values())
        return state, SurvivorReport(**known, dropped_by_stage=dict(dropped), aborted=aborted)
