"""Drop-outs for the algorithms that run in clear: whoever vanishes was never there.

In clear there is no session to vanish from half-way, so a device that a secure run would lose at
any step is taken out of the cohort before the round.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from deltafl.fl.strategies.base import Device, RoundReport, ServerState, Strategy, Visibility
from deltafl.fl.vectors import Vector
from deltafl.secagg.stages import Vanish
from deltafl.sim.faults import Dropouts


@dataclass(frozen=True, slots=True)
class SurvivorReport(RoundReport):
    """A report that also says who was lost.

    Attributes:
        dropped_by_stage: number of devices that vanished, by the stage at which they did.
        aborted: why the round was given up; None if it was not.
    """

    dropped_by_stage: dict[str, int]
    aborted: str | None


@dataclass(frozen=True, slots=True)
class SurvivorsOnly:
    """A strategy in clear, played with those devices of a cohort that do not vanish."""

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

    def init(self, model: Vector, num_devices: int) -> ServerState:
        """As the wrapped strategy."""
        return self.strategy.init(model, num_devices)

    def apply(
        self, state: ServerState, devices: Sequence[Device]
    ) -> tuple[ServerState, RoundReport]:
        """Play one round with the survivors; without any, the round is given up.

        Raises:
            ValueError: the cohort is empty.
            DivergenceError: a device's loss or update is NaN or infinite.
        """
        plan = self.dropouts(state.round, [device.id for device in devices], 1)
        survivors = [device for device in devices if device.id not in plan]
        if devices and not survivors:
            lost = RoundReport(
                eta=None, kept_devices=0, kept_weight=0, train_loss=None, empty=False, secure_sums=0
            )
            reason = f"all {len(devices)} devices of the cohort vanished"
            return replace(state, round=state.round + 1), _extend(lost, _by_stage(plan), reason)
        state, report = self.strategy.apply(state, survivors)
        return state, _extend(report, _by_stage(plan), None)


def _by_stage(plan: Mapping[int, Vanish]) -> dict[str, int]:
    return dict(Counter(vanish.step.stage.name.lower() for vanish in plan.values()))


def _extend(
    report: RoundReport, dropped_by_stage: dict[str, int], aborted: str | None
) -> SurvivorReport:
    known = {field.name: getattr(report, field.name) for field in fields(report)}
    return SurvivorReport(**known, dropped_by_stage=dropped_by_stage, aborted=aborted)
