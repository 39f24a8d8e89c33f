"""Whom a run asks: all its devices, and those of the next round.

The engine does not know where the devices are. They may be simulated, or be machines of their own.

In secure rounds, a device answers for a model in so many rounds, so those are drawn that have not
answered yet. Where these are too few, a lost round is repeated with its cohort.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from deltafl.fl.cohort import Cohort
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import LocalTraining
from deltafl.fl.strategies.base import Strategy, TrainingState
from deltafl.fl.vectors import Vector
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.round import LostSearch, Round
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.attackers import Known
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.sampling import Answered, Indices, dealt, drawn_of
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError
from deltafl.sim.record.attacked import Population as Attackers
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import LostRound
from deltafl.sim.record.transcript import BegunRound, TranscriptWriter
from deltafl.sim.record.truth import Told
from deltafl.sim.run.accounting import Account
from deltafl.sim.run.algorithms import check_session, levels_of, sessions_of
from deltafl.sim.settings.config import REMOTE, RunConfig


class Measured(NamedTuple):
    """A model on all devices.

    Attributes:
        train: on those that train.
        test: on those that test it.
        validation: on those that it is chosen by.
        backdoor: share of test samples with a trigger that get its label; None without attackers
            that use one.
    """

    train: Sequence[DeviceMetrics]
    test: Sequence[DeviceMetrics]
    validation: Sequence[DeviceMetrics] = ()
    backdoor: float | None = None


class Lying(NamedTuple):
    """What a round with attackers needs beside.

    Attributes:
        known: what every device has been told.
        aggregated: where the simulator notes the weights of devices whose updates are aggregated.
    """

    known: Known
    aggregated: dict[int, int]


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

    def num_others(self, without: AbstractSet[int], only: AbstractSet[int] | None = None) -> int:
        """How many devices there are, present or not, beside some; or how many of some alone."""

    def present(
        self, size: int, without: AbstractSet[int], only: AbstractSet[int] | None = None
    ) -> Indices:
        """Devices that can be asked now.

        Args:
            size: how many are to be asked. It may wait until so many can be.
            without: those that are not to be asked.
            only: those that may be asked, and it would be better with all of them: it may wait a
                little for them. None if all may.
        """

    def begin(
        self, ids: Sequence[int], round_index: int, transcript: TranscriptWriter, mark: Mark | None
    ) -> None:
        """Before a round: note what it takes to go on with it, if it can be.

        Args:
            ids: its devices, ascending.
            round_index: the round, counted from 0.
            transcript: where; kept as the round begins.
            mark: where the rows of the round begin in it, if it goes on.
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


class Asked(NamedTuple):
    """The devices of a run: how many, they themselves, and what rounds cost them."""

    number: int
    devices: Devices
    account: Account | None


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The draw of one round.

    Attributes:
        config: the settings of the run.
        strategy: which is to play it.
        asked: of whom.
        answered: who may have answered for the models that the server has now.
        state: the server's.
    """

    config: RunConfig
    strategy: Strategy
    asked: Asked
    answered: Answered
    state: TrainingState

    def again(self) -> LostRound | None:
        """The lost round that the next one repeats, where devices new to the model are too few.

        Not where devices answer for a model in fewer rounds, or its devices are too few.
        """
        lost, size = self.answered.lost, self.config.federation.cohort_size
        others = self.asked.devices.num_others(self.answered.anyone)
        most = sessions_of(self.config).policy.rounds_per_model
        if lost is None or others >= size or lost.rounds >= most:
            return None
        if self._is_dealt and not set(lost.cohort) <= set(self._due()):
            return None
        return None if self._fewest(lost) is None else lost

    def _fewest(self, lost: LostRound) -> int | None:
        """With fewer devices, a lost round is not repeated; None if there are too few at all."""
        params = check_session(self.config, self.strategy, self.state, len(lost.cohort))
        levels = levels_of(self.strategy, self.state, len(lost.cohort))
        if params is None or levels is None:
            return None
        least = max(params.threshold, params.min_cohort, params.min_roster)
        there = self.asked.devices.num_others(_NONE, lost.devices)
        enough = (
            number
            for number in range(least, there + 1)
            if all(
                Round(config, search).can_go_on(number)
                for config, search in zip(levels.rounds, lost.searches, strict=True)
            )
        )
        return next(enough, None)

    def cohort(self, again: LostRound | None) -> tuple[int, ...]:
        """The cohort of the next round: of secure rounds, devices new to the model.

        If too few are, that of the lost round that is repeated.
        """
        if again is not None:
            self.asked.devices.present(self._fewest(again) or 0, _NONE, again.devices)
            return again.cohort
        population, size = self.asked.number, self.config.federation.cohort_size
        answered = self.answered.anyone
        present = self.asked.devices.present(size, answered)
        generator = self._seeds.generator(Purpose.COHORT, round_index=self.state.round)
        if self._is_dealt:  # nobody more often than the account says
            present = np.intersect1d(present, self._due())
        ids = drawn_of(generator, present, size)
        if len(ids) < size:
            try:
                check_session(self.config, self.strategy, self.state, len(ids))
            except (ProtocolError, SecAggError) as error:
                if not answered:  # as where devices were taken off a list
                    raise RunError(
                        f"gave up after round {self.state.round}: with {len(ids)} devices there "
                        f"can be no secure round ({error}); have more of them take part, then "
                        "resume"
                    ) from error
                raise RunError(
                    f"gave up after round {self.state.round}: {len(answered)} of {population} "
                    f"devices may have answered for the current model, {self._why_not_again}; with "
                    f"the {len(ids)} others there can be no secure round ({error}); train with "
                    f"more devices, or lose fewer rounds: {self.asked.devices.to_lose_fewer} "
                    "or raise privacy.expected_dropout; if no round was lost, the model stays the "
                    "same because training diverges (lower training.learning_rate), or because "
                    "attackers who send no change have all of the weight"
                ) from error
        return ids

    @property
    def _why_not_again(self) -> str:
        """Why the last round is not repeated."""
        most, lost = sessions_of(self.config).policy.rounds_per_model, self.answered.lost
        if most == 1:
            return "and none answers for a model twice"
        if lost is None:
            return (
                "and the round is not repeated: its updates were or may have been summed, or "
                "devices follow its search"
            )
        if lost.rounds >= most:
            return f"in {most} rounds (policy.max_rounds_per_model)"
        return "and too few of them may take part in another round"

    @property
    def _is_dealt(self) -> bool:
        is_remote = self.config.federation.devices == REMOTE
        return self.asked.account is not None and not is_remote

    def _due(self) -> Indices:
        """The devices that are dealt to the next round."""
        number, size = self.asked.number, self.config.federation.cohort_size
        return dealt(self._seeds.shuffle_of_population, number, size, self.state.round)

    @property
    def _seeds(self) -> Seeds:
        return Seeds(self.config.experiment.seed)


_NONE: Final[AbstractSet[int]] = frozenset()
