"""Drop-outs for algorithms that run in clear: devices that drop out never take part.

In clear there is no session to drop out of half-way. A device that would drop out of a secure run
at any step is removed from the cohort before the round.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from deltafl.fl.cohort import Cohort, Pending, SecureRoundResult, Weighing
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState, Visibility
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.secagg.stages import Vanish
from deltafl.sim.cohort.faults import Dropouts


@dataclass(frozen=True, slots=True)
class SurvivorReport(RoundReport):
    """A report that also says how many devices dropped out.

    Attributes:
        dropped_by_stage: number of devices that vanished, by the stage at which they did.
        aborted: why the round was given up; None if it was not.
    """

    dropped_by_stage: dict[str, int]
    aborted: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Survivors:
    """Some devices of a cohort; a `Cohort` for strategies in clear.

    Attributes:
        cohort: All devices.
        weights: n_k of those that are left.
    """

    cohort: Cohort
    weights: Mapping[int, int]

    def reveal_losses(
        self, model: Vector, ids: Collection[int] | None = None
    ) -> Sequence[Pending[float]]:
        """See `Cohort`."""
        return self.cohort.reveal_losses(model, self.weights if ids is None else ids)

    def reveal_updates(
        self,
        model: Vector,
        ids: Collection[int] | None = None,
        objective: LocalObjective = PLAIN,
    ) -> Sequence[Pending[Vector]]:
        """See `Cohort`."""
        return self.cohort.reveal_updates(model, self.weights if ids is None else ids, objective)

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """There is none: a session loses devices by itself, half-way too."""
        del levels, models, weighing
        raise ValueError("strategies in clear take no secure sums")


@dataclass(frozen=True, slots=True)
class WithDropouts:
    """A strategy in clear of a single level, played with the devices that do not drop out."""

    strategy: Strategy
    dropouts: Dropouts

    @property
    def name(self) -> str:
        """The wrapped strategy's name."""
        return self.strategy.name

    @property
    def server_sees(self) -> Visibility:
        """What the wrapped strategy shows."""
        return self.strategy.server_sees

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """As the wrapped strategy."""
        return self.strategy.init(model, num_devices)

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, RoundReport]:
        """Play one round with the survivors; without any, the round is given up.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        plan = self.dropouts(state.round, list(cohort.weights), 1)
        weights = {one: size for one, size in cohort.weights.items() if one not in plan}
        if cohort.weights and not weights:
            lost = RoundReport(
                eta=None, kept_devices=0, kept_weight=0, train_loss=None, empty=False, secure_sums=0
            )
            reason = f"all {len(cohort.weights)} devices of the cohort vanished"
            return replace(state, round=state.round + 1), _extend(lost, _by_stage(plan), reason)
        state, report = self.strategy.apply(state, _Survivors(cohort, weights))
        return state, _extend(report, _by_stage(plan), None)


def _by_stage(plan: Mapping[int, Vanish]) -> dict[str, int]:
    return dict(Counter(vanish.step.stage.name.lower() for vanish in plan.values()))


def _extend(
    report: RoundReport, dropped_by_stage: dict[str, int], aborted: str | None
) -> SurvivorReport:
    known = {field.name: getattr(report, field.name) for field in fields(report)}
    return SurvivorReport(**known, dropped_by_stage=dropped_by_stage, aborted=aborted)
