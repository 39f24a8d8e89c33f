"""The simulated cohort of a round, as strategies see it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deltafl.fl.cohort import Cohort, Pending, SecureRoundResult, Weighing
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ClientId
from deltafl.secagg.states import Stage, Step, Vanishing
from deltafl.sim.cohort.dropouts import Dropouts, nobody
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.work import CohortWork, Device, Devices, device_objects
from deltafl.sim.record.truth import Told


class SecureRounds(Protocol):
    """Something that plays secure rounds: `MaskedRounds` or `IdealRounds`."""

    @property
    def sessions(self) -> Sessions:
        """How sessions are set up."""

    def play(
        self,
        levels: Levels,
        work: CohortWork,
        *,
        graph_seed: bytes,
        vanishing: Vanishing,
        lost: Sequence[LostSearch] = (),
    ) -> SecureRoundResult:
        """Play a round at one or more levels in one session.

        Args:
            levels: Their rounds.
            work: What the devices do, and the levels' models.
            graph_seed: 32 public bytes, unique to the session.
            vanishing: Which devices vanish, and when.
            lost: What earlier rounds over the models have revealed; see `RoundServer`.

        Raises:
            UsageError: no session parameters withstand the threat with so small a cohort.
            PeerError: the session falls short of the devices' policy, such as by two levels with
                one model.
            EncodingError: a device's update has the wrong shape.
        """


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedCohort(Cohort):
    """Devices in one process; a `Cohort`.

    Attributes:
        devices: who does the work.
        round_index: the round, counted from 0.
        seeds: where the public seed of the session's graph comes from.
        rounds: plays secure rounds; None for strategies in clear.
        dropouts: which devices vanish from a secure round, and when.
        told: where to note what devices tell in a secure round; None to note nothing.
        aggregated: where to note the weights of the devices whose updates are aggregated; None to
            note nothing.
        lost: what earlier rounds over the same models have revealed, with which this one goes on.
    """

    devices: Devices
    round_index: int = 0
    seeds: Seeds = field(default_factory=lambda: Seeds(0))
    rounds: SecureRounds | None = None
    dropouts: Dropouts = nobody
    told: Told | None = None
    aggregated: dict[int, int] | None = None
    lost: Sequence[LostSearch] = ()

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k by device."""
        return self.devices.weights

    def reveal_losses(
        self, model: Vector, ids: Collection[int] | None = None
    ) -> Sequence[Pending[float]]:
        """Ask for losses in clear; see `Cohort`."""
        asked = self.weights if ids is None else ids
        return [self.devices.begin_loss(device, model) for device in asked]

    def reveal_updates(
        self,
        model: Vector,
        ids: Collection[int] | None = None,
        objective: LocalObjective = PLAIN,
    ) -> Sequence[Pending[Vector]]:
        """Ask for updates in clear; see `Cohort`."""
        asked = self.weights if ids is None else ids
        if self.aggregated is not None:
            weights = self.weights
            self.aggregated.update({device: weights[device] for device in asked})
        return [self.devices.begin_update(device, model, objective) for device in asked]

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Play a round of Algorithm 3; see `Cohort`."""
        if self.rounds is None:
            raise ValueError("this cohort takes no secure sums: give it rounds")
        if len(levels.rounds) != len(models):
            raise ValueError(
                f"{len(levels.rounds)} levels and {len(models)} models: pass one for each level"
            )
        if weighing is not None and len(models) > 1:
            raise ValueError(f"weighing with {len(models)} levels: only a single level has one")
        thetas = [config.theta for config in levels.rounds]
        bound = levels.common.search.grid.bound
        work = CohortWork(self.devices, models, thetas, bound, weighing, self.told)
        plan = self.dropouts(self.round_index, list(self.weights), len(levels.slots()))
        result = self.rounds.play(
            levels,
            work,
            graph_seed=self.seeds.digest(Purpose.GRAPH, round_index=self.round_index),
            vanishing={ClientId(device): vanish for device, vanish in plan.items()},
            lost=self.lost,
        )
        if self.aggregated is not None:
            self.aggregated.update(_summed(levels, work, result))
        return result


def _summed(levels: Levels, work: CohortWork, result: SecureRoundResult) -> dict[int, int]:
    """The claimed weights of the devices whose updates are in the sum of a single level."""
    (config,), (outcome,) = levels.rounds, result.outcomes
    if outcome.update is None:
        return {}
    masked = Step(Stage.MASK, config.update_slot).order
    return {
        device: min(work.weights[device], config.update.max_weight)
        for device in sorted(work.passed)
        if device not in outcome.drops or outcome.drops[ClientId(device)].step.order > masked
    }


def cohort_of(
    devices: Iterable[Device],
    rounds: SecureRounds | None = None,
    *,
    round_index: int = 0,
    dropouts: Dropouts = nobody,
    told: Told | None = None,
) -> SimulatedCohort:
    """A cohort of device objects for trying out a strategy; see `SimulatedCohort`.

    Raises:
        ValueError: an id appears twice.
    """
    return SimulatedCohort(
        device_objects(devices), round_index, rounds=rounds, dropouts=dropouts, told=told
    )
