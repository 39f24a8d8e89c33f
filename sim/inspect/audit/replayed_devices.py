"""The devices of a run that is played again: they answer as the record says.

Who falls silent in a simulation follows from its settings, and from what devices refuse: the plan
of drop-outs is drawn from the seed, and a device holds to its policy.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.local import LocalTraining
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.secagg.session import Observer
from deltafl.secagg.states import Stage, Step
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.sampling import Indices, lost_outcomes, others
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.transcript import INTERRUPTED, BegunRound, TranscriptWriter
from deltafl.sim.record.truth import Told
from deltafl.sim.run.algorithms import dropouts_of
from deltafl.sim.run.drawing import Lying, Measured
from deltafl.sim.run.engine import Stop
from deltafl.sim.run.simulated import SimulatedDevices
from deltafl.sim.settings.config import RunConfig

_MANY = 1 << 40  # devices on a list that nobody has


class Follower(Protocol):
    """Is told what the engine does in rounds that the record has."""

    def drawn(self, kept: Kept, ids: Sequence[int], index: int) -> None:
        """It draws these devices, of the round counted from 0."""

    def played(self, kept: Kept, levels: Levels, models: Sequence[Vector], index: int) -> None:
        """It announces this to them."""


@dataclass(slots=True, eq=False)
class Silences:
    """Which devices of a simulation fall silent though they should answer.

    None refuses an announcement: a run does not begin by settings that its devices refuse.

    Attributes:
        config: The settings of the run.
        untold: Rounds in which all that were left fell silent at once, as devices do that refuse.
    """

    config: RunConfig
    untold: list[int] = field(default_factory=list)

    def unfounded(self, kept: Kept, index: int, num_slots: int) -> Iterator[tuple[int, Step]]:
        """Devices whose silence follows neither from the plan nor from a refusal, and since when.

        What they refuse is known from the truth. Without it, all refuse at once: all are told the
        same, and have one policy.

        Args:
            kept: What the round came to.
            index: The round, counted from 0.
            num_slots: Of its session.
        """
        plan = dropouts_of(self.config)(index, list(kept.cohort), num_slots)
        for device, step in kept.silent.items():
            if device in plan and not plan[device].answers(step):
                continue
            refuses = self._at_once(kept, step) if kept.refused is None else device in kept.refused
            if not refuses:
                yield device, step

    def _at_once(self, kept: Kept, step: Step) -> bool:
        ended = {one for one, since in kept.silent.items() if since.order <= step.order}
        if step.stage is Stage.ADVERTISE or ended != set(kept.cohort):
            return False
        if (number := kept.place.round) is not None and number not in self.untold:
            self.untold.append(number)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedPopulation:
    """All devices of a run; a `Population`.

    Attributes:
        spec_of_run: The model, with the shapes of their data; None if nobody knows it.
        number: How many train; None if they are those that the record has, and others.
        kept: What the rounds came to, by number.
        follower: Is told what the engine does.
        measuring: Evaluates models; None if the data are not here.
    """

    spec_of_run: ModelSpec | None
    number: int | None
    kept: Mapping[int, Kept]
    follower: Follower
    measuring: SimulatedDevices | None = None

    @property
    def num_devices(self) -> int:
        """How many train, or how many ids the record needs."""
        if self.number is not None:
            return self.number
        return 1 + max((max(one.cohort, default=0) for one in self.kept.values()), default=0)

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model; see `Population`."""
        return self.spec_of_run or ModelSpec(config.model.name, (), 0)

    def keeps(self, begun: BegunRound) -> bool:
        """No: what the record has begun anew is played as it says."""
        del begun
        return False

    def of_run(self, config: RunConfig, observer: Observer) -> "_Devices":
        """The devices of the run; see `Population`."""
        del config, observer
        return _Devices(self)


@dataclass(slots=True, eq=False)
class _Devices:
    """Devices that answer as the record says; see `drawing.Devices`."""

    of: ReplayedPopulation
    clock: CpuClock = field(default_factory=CpuClock)
    attackers: None = None
    to_lose_fewer: str = ""
    _next: int = 1

    def num_others(self, without: AbstractSet[int], only: AbstractSet[int] | None = None) -> int:
        """How many there are; where nobody knows, enough unless the record repeats a round."""
        if only is not None or self.of.number is not None:
            return len(self.present(0, without, only))
        return 0 if without & set(self._cohort) else _MANY

    def present(
        self, size: int, without: AbstractSet[int], only: AbstractSet[int] | None = None
    ) -> Indices:
        """All that there are; where nobody knows, those that the record has invited."""
        del size
        if self.of.number is not None:
            found = others(self.of.number, without)
        else:
            found = np.array(sorted(set(self._cohort) - without), np.int64)
            found = found if only is None else np.array(sorted(only), np.int64)
        return found if only is None else found[np.isin(found, list(only))]

    @property
    def _cohort(self) -> tuple[int, ...]:
        kept = self.of.kept.get(self._next)
        return () if kept is None else kept.cohort

    def begin(
        self,
        ids: Sequence[int],
        round_index: int,
        transcript: TranscriptWriter,
        mark: Mark | None,
    ) -> None:
        """Nothing is gone on with."""

    def cohort(
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> "_Cohort":
        """Some of them."""
        del training, told, lying, lost
        kept = self.of.kept.get(round_index + 1)
        if kept is None:
            raise Stop
        self._next = round_index + 2
        self.of.follower.drawn(kept, ids, round_index)
        return _Cohort(ids, round_index, kept, self.of.follower)

    def forget(self) -> None:
        """Nothing was asked for."""

    def evaluate(self, models: Sequence[Vector], round_number: int) -> Sequence[Measured] | None:
        """Measure models, if the data are here."""
        measuring = self.of.measuring
        return None if measuring is None else measuring.evaluate(models, round_number)


@dataclass(frozen=True, slots=True, eq=False)
class _Cohort(Cohort):
    """The devices of a round, which have answered as the record says."""

    ids: Sequence[int]
    index: int
    kept: Kept
    follower: Follower

    @property
    def weights(self) -> Mapping[int, int]:
        """1 for each device: what they weigh is in the sums."""
        return dict.fromkeys(self.ids, 1)

    def secure_round(
        self, levels: Levels, models: Sequence[Vector], weighing: Weighing | None = None
    ) -> SecureRoundResult:
        """What the round came to; see `Cohort`."""
        del weighing
        kept = self.kept
        if kept.outcomes is None and not kept.is_interrupted:
            raise Stop
        self.follower.played(kept, levels, models, self.index)
        if kept.outcomes is None:
            return SecureRoundResult(lost_outcomes(levels, kept.slots, INTERRUPTED), None)
        return SecureRoundResult(kept.outcomes, kept.received / len(kept.cohort))
