"""Who a run asks: all devices that it may ask, and those of one run of it.

The engine does not know where the devices are. They may be simulated, or be machines of their own.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from deltafl.fl.cohort import Cohort
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import LocalTraining
from deltafl.fl.vectors import Vector
from deltafl.protocol.round import LostSearch
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.attackers import Known
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.sampling import Indices
from deltafl.sim.record.attacked import Aggregated
from deltafl.sim.record.attacked import Population as Attackers
from deltafl.sim.record.transcript import BegunRound
from deltafl.sim.record.truth import Told
from deltafl.sim.settings.config import RunConfig


class Measured(NamedTuple):
    """A model on all devices.

    Attributes:
        train: on those that train.
        test: on those that test it.
        backdoor: share of test samples with a trigger that get its label; None without attackers
            that use one.
    """

    train: Sequence[DeviceMetrics]
    test: Sequence[DeviceMetrics]
    backdoor: float | None = None


class Lying(NamedTuple):
    """What a round with attackers needs beside.

    Attributes:
        known: what every device has been told.
        aggregated: where the simulator notes whose updates are aggregated.
    """

    known: Known
    aggregated: Aggregated


class Devices(Protocol):
    """The devices of one run, which keep what outlives a round: identities, and what they did."""

    @property
    def clock(self) -> CpuClock:
        """The CPU time of their work, as far as this machine does it."""

    @property
    def attackers(self) -> Attackers | None:
        """Which of them lie; None if nobody does."""

    @property
    def to_lose_fewer(self) -> str:
        """What whoever runs it can do so that fewer of them are lost; for a sentence."""

    def num_others(self, without: AbstractSet[int]) -> int:
        """How many devices there are, present or not, beside some."""

    def present(self, size: int, without: AbstractSet[int], hoped: int = 0) -> Indices:
        """Devices that can be asked now.

        Args:
            size: how many are to be asked. It may wait until so many can be.
            without: those that are not to be asked.
            hoped: with how many it would be better. It may wait a little for them.
        """

    def begin(self, ids: Sequence[int], round_index: int) -> None:
        """Before a round: bring to the disk what it takes to go on with it, if it can be.

        Args:
            ids: its devices, ascending.
            round_index: the round, counted from 0.
        """

    def cohort(
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> Cohort:
        """Some of them, for one round.

        Args:
            ids: which, ascending.
            round_index: the round, counted from 0.
            training: how to train in this round.
            told: where to note what devices tell, of simulated ones; None to note nothing.
            lying: of devices with attackers among them, what these know; None of others.
            lost: what earlier rounds over the same models have revealed, level by level.
        """

    def forget(self) -> None:
        """Drop work that was requested in the last round, because nobody will need it."""

    def evaluate(self, models: Sequence[Vector], round_number: int) -> Sequence[Measured] | None:
        """Measure models on every device; None where nobody may see such numbers.

        Args:
            models: one for each conformity level.
            round_number: the rounds that they were trained for.
        """


class Population(Protocol):
    """All devices that a run may ask, numbered from 0."""

    @property
    def num_devices(self) -> int:
        """How many train."""

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model of the settings, with the shapes of the devices' data."""

    def keeps(self, begun: BegunRound) -> bool:
        """Whether a round that an earlier process has begun can be gone on with.

        If not, it never will be: what was kept of it goes.
        """

    def of_run(self, config: RunConfig, observer: Observer) -> Devices:
        """Make them ready for a run.

        Args:
            config: the settings of one run.
            observer: sees all messages of secure rounds.
        """
