"""One run: the rounds of one algorithm with one seed, continuing from its directory's state.

A round consists of: sample the cohort, let the strategy run the round, log it, write the
checkpoint, and evaluate if due. A crash costs at most the current round.

Where devices answer under masks, the record says that a round begins before any of its messages
leaves. A run that is resumed goes on with such a round where the devices outlive the server's
process: it makes the same rows again, and then further ones.
It gives up every other round that was begun and that its checkpoint does not know of: the round is
lost, its devices count as having answered, and the next round has another number, and so another
context. What the server saw stays in the record.

In other runs no device can answer twice, as all is computed here. They are resumed as if the
current round had never begun, and the result is the same bit for bit.
"""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Final, Protocol

from deltafl.fl.cohort import Cohort, CohortView
from deltafl.fl.errors import DivergenceError
from deltafl.fl.metrics import Summary, summarise_test_error
from deltafl.fl.registry import OWN
from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState
from deltafl.fl.strategies.levels import LevelsReport, split_models
from deltafl.fl.vectors import Vector
from deltafl.protocol.round import LostSearch
from deltafl.sim.cohort.attackers import Known
from deltafl.sim.cohort.sampling import Answered, Answers, InterruptedCohort
from deltafl.sim.errors import RunDirectoryError, RunError, damaged
from deltafl.sim.record.attacked import AttackLog
from deltafl.sim.record.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from deltafl.sim.record.evaluations import (
    Evaluation,
    is_due,
    keep_if_best,
    read_last_evaluation,
    write_evaluation,
)
from deltafl.sim.record.events import Event, add_event
from deltafl.sim.record.record import Record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    BegunRound,
    TranscriptWriter,
    read_beyond,
)
from deltafl.sim.record.truth import Told, TruthWriter
from deltafl.sim.run.accounting import account_of
from deltafl.sim.run.algorithms import strategy_of
from deltafl.sim.run.arms import session_of
from deltafl.sim.run.drawing import Asked, Draw, Lying, Measured, Population
from deltafl.sim.run.resuming import check_checkpoint
from deltafl.sim.run.simulated import first_model, training_in
from deltafl.sim.run.stage_seconds import StageSeconds
from deltafl.sim.settings.config import REMOTE, RunConfig, TrainingConfig
from deltafl.sim.settings.config_io import show
from deltafl.sim.settings.constraints import AUTO, FULL, SUMS

MAX_LOST_ROUNDS: Final = 3
"""A run fails after this many lost rounds in a row, because the next would probably fail too."""


class Stop(Exception):
    """A `Progress` raises it to end a run before its last round; what is done is kept."""


class Progress(Protocol):
    """Receives the progress of a run, and may end it by `Stop`."""

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """A run starts, or continues after `rounds_done` rounds."""

    def played(self, event: Event) -> None:
        """A round was played and its checkpoint is on the disk."""

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """A model was evaluated on all devices: their errors, by what devices are for."""


def play(
    config: RunConfig,
    directory: RunDirectory,
    record: Record,
    population: Population,
    progress: Progress,
    own: Strategy | None = None,
    model: Vector | None = None,
) -> None:
    """Run to the last round; do nothing if the run is already finished.

    Args:
        config: settings of one run (no baselines, one seed).
        directory: claimed by this process.
        record: the run's, as it was claimed.
        population: who can be asked.
        progress: receives progress.
        own: the strategy, if it is one of the caller's own.
        model: the first one; None for that of the settings.

    Raises:
        Stop: `progress` has ended the run.
        RunError: too many rounds in a row were lost.
        DivergenceError: a loss or an update is NaN or infinite.
        UserError: the settings do not fit, or the directory is damaged.
    """
    checkpoint, num_devices = load_checkpoint(record), population.num_devices
    strategy = strategy_of(config, own)
    if model is None:
        model = first_model(config, population.spec(config))
    first = strategy.init(model, num_devices)
    if checkpoint is not None:
        check_checkpoint(config, record, checkpoint, first, num_devices)
    begun, lost = _begun(config, record, checkpoint, num_devices), None
    if begun is not None and not population.keeps(begun):
        begun, lost = None, begun
    mode = mode_of(config, first.model.size // len(config.federation.thetas), own)
    goes_on, is_durable = config.federation.devices == REMOTE, config.has_masked_sums
    transcript = TranscriptWriter(record, mode, keeps_open=goes_on, is_durable=is_durable)
    with contextlib.ExitStack() as stack:
        truth = None
        if config.federation.is_private and config.privacy.truth:
            before = checkpoint.state.round if checkpoint else 0
            goes_on_from = transcript.run_id, before, transcript.last_truth()
            is_full = transcript.mode == FULL
            truth = TruthWriter(directory.truth, *goes_on_from, keeps_updates=is_full)
            stack.callback(truth.close)
        stages = StageSeconds(transcript)
        devices = population.of_run(config, stages)
        lying = devices.attackers
        attacks = None if lying is None else AttackLog(record, lying)
        account = account_of(config, num_devices, first.model.size, own)
        asked = Asked(num_devices, devices, account)
        written = record, transcript, truth, attacks, stages
        _Run(config, directory, asked, progress, strategy, *written).go_on(
            first, checkpoint, lost, begun
        )


_MOST_IN_FULL: Final = 1_000_000_000  # bytes


def mode_of(config: RunConfig, num_parameters: int, own: Strategy | None = None) -> str:
    """How the messages of a run are recorded.

    Args:
        config: settings of one run.
        num_parameters: of the model of one conformity level.
        own: the strategy, if it is one of the caller's own.
    """
    if config.privacy.transcript != AUTO or not config.has_masked_sums:
        return FULL if config.privacy.transcript == AUTO else config.privacy.transcript
    _, params = session_of(config, num_parameters, own)
    vectors = sum(one.packed_size for one in params.slots)
    each = vectors * params.num_invited
    return FULL if each * config.federation.rounds <= _MOST_IN_FULL else SUMS


def _begun(
    config: RunConfig, record: Record, checkpoint: Checkpoint | None, num_devices: int
) -> BegunRound | None:
    """The round that was begun beyond the checkpoint; none where devices answer nobody.

    Raises:
        RunDirectoryError: that is not how a run of this checkpoint can go on.
        ChainError: the record is damaged.
    """
    if not config.has_masked_sums:
        return None
    begun = read_beyond(record, checkpoint.mark if checkpoint else record.chain.start)
    if begun is None:
        return None
    if checkpoint is None:
        raise RunDirectoryError(
            f"{record.path} has no checkpoint, and devices have answered in this run: restore it, "
            "or start again in another --out"
        )
    before = checkpoint.state.round
    is_next = begun.round == before + 1 <= config.federation.rounds
    if not is_next or not begun.cohort or begun.cohort[-1] >= num_devices:
        devices = ", ".join(map(str, begun.cohort[-3:]))
        raise damaged(
            record.path,
            f"it says that round {begun.round} began after round {before}, with the devices "
            f"{devices}",
        )
    return begun


@dataclass(slots=True, eq=False)
class _Run:
    """A run in this process, and where it writes what happens, as far as it has any of it.

    Attributes:
        stages: how long its sessions take.
        previous: the model before the last round, for attackers.
        answered: who may have answered for the models that the server has now.
    """

    config: RunConfig
    directory: RunDirectory
    asked: Asked
    progress: Progress
    strategy: Strategy
    record: Record
    transcript: TranscriptWriter
    truth: TruthWriter | None
    attacks: AttackLog | None
    stages: StageSeconds
    previous: Vector | None = None
    answered: Answered = field(default_factory=Answered)

    def go_on(
        self,
        first: TrainingState,
        checkpoint: Checkpoint | None,
        lost: BegunRound | None,
        begun: BegunRound | None,
    ) -> None:
        """Run the remaining rounds, or all rounds if there is no checkpoint.

        Args:
            first: the state before the first round.
            checkpoint: where to continue.
            lost: the round that was begun after it, if that is given up.
            begun: the same if it goes on: its rows are made once more.
        """
        progress, rounds = self.progress, self.config.federation.rounds
        progress.begin(self.config, checkpoint.state.round if checkpoint else 0)
        if checkpoint is None:
            state = first
            self._evaluate_if_due(state)
            self._save(state)
        else:
            state = self._resume(checkpoint, lost, begun)
        why_lost: list[str] = []
        if state.round < rounds:
            self.directory.bundle.unlink(missing_ok=True)  # that of a run that was stopped
        while state.round < rounds:
            if self.asked.account is not None:  # lost rounds cost as much
                self.asked.account.check(state.round + 1)
            draw = Draw(self.config, self.strategy, self.asked, self.answered, state)
            again = draw.again()
            mark, ids = None, () if begun else draw.cohort(again)
            if begun is not None:
                mark, ids, begun = begun.before, begun.cohort, None
            searches = again.searches if again is not None and again.cohort == ids else ()
            self.asked.devices.begin(ids, state.round, self.transcript, mark)
            self.transcript.begin_round(state.round + 1, ids, mark)
            state, event = self._play_round(state, ids, searches)
            self._save(state)
            self._tell(state, event)
            why_lost = _lost_after(why_lost, event)
            self._give_up_if_hopeless(state.round, why_lost)

    def _tell(self, state: TrainingState, event: Event) -> None:
        """Measure and tell what was played; after the last round there is nothing to stop."""
        stopped: Stop | None = None
        for told in (partial(self._evaluate_if_due, state), partial(self.progress.played, event)):
            try:
                told()
            except Stop as stop:
                stopped = stop
        if stopped is not None and state.round < self.config.federation.rounds:
            raise stopped

    @property
    def _thetas(self) -> Sequence[Fraction]:
        return self.config.federation.thetas

    def _resume(
        self, checkpoint: Checkpoint, lost: BegunRound | None, begun: BegunRound | None
    ) -> TrainingState:
        """The state to go on from: that of the checkpoint, once a round beyond it is lost."""
        state, progress = checkpoint.state, self.progress
        self.answered = Answered(checkpoint.answered, checkpoint.lost)
        if self.asked.devices.attackers is not None:
            earlier = load_checkpoint(self.record, before=state.round)
            self.previous = None if earlier is None else earlier.state.model
        for theta in self._thetas:
            if last := read_last_evaluation(self.record, theta):
                progress.evaluated(last.round, _errors_of(last))
        is_finished = state.round == self.config.federation.rounds
        self._evaluate_if_due(state)
        if lost is not None or (begun is None and not is_finished):
            self.transcript.resume(state.round)
        if lost is not None:
            state, event = self._play_round(state, lost.cohort, (), lost)
            self._save(state)
            self._tell(state, event)
        return state

    def _give_up_if_hopeless(self, round_number: int, lost: list[str]) -> None:
        if len(lost) >= min(MAX_LOST_ROUNDS, self.config.federation.rounds):
            raise RunError(
                f"gave up after round {round_number}: {len(lost)} rounds in a row were lost, the "
                f"last because {lost[-1]}; {self.asked.devices.to_lose_fewer}, or raise "
                f"federation.cohort_size or privacy.expected_dropout"
            )

    def _play_round(
        self,
        state: TrainingState,
        ids: tuple[int, ...],
        searches: Sequence[LostSearch],
        lost: BegunRound | None = None,
    ) -> tuple[TrainingState, Event]:
        """Let the strategy play a round over these devices, or lose one, and log it.

        Args:
            state: before the round.
            ids: the devices.
            searches: with which it goes on.
            lost: the round, if it is one that was begun and is given up.
        """
        devices, training = self.asked.devices, training_in(self.config.training, state.round)
        # record the devices' private values only if they are written to a file: updates are large
        told = None if self.truth is None else Told()
        answers, before, account = Answers(), state.model, self.asked.account
        lying = None
        if devices.attackers is not None:
            lying = Lying(Known(state.eta, self.previous), {})
        cohort: Cohort = devices.cohort(ids, state.round, training, told, lying, searches)
        if lost is not None:
            cohort = InterruptedCohort(cohort, lost.slots, INTERRUPTED)
        here, learning = devices.clock.here, devices.clock.seconds
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        try:
            state, report = self.strategy.apply(
                state, CohortView(cohort, shown=partial(answers.note, cohort.weights))
            )
        finally:
            devices.forget()
        stage_s = self.stages.taken()
        cpu_s = time.process_time() - cpu_start
        self.answered = self.answered.after(
            answers, ids, self._models(before), self._models(state.model)
        )
        reported = report_as_dict(report)
        if lost is None:
            self._end_round(state.round, told, reported.get("aborted"))
        if self.attacks is not None and lying is not None:
            self.attacks.add_round(state.round, lying.aggregated)
            self.previous = before
        event = add_event(
            self.record,
            {
                "round": state.round,
                **reported,
                **(account.after(state.round).event if account else {}),
                "cohort": ids,
                "learning_rate": training.learning_rate,
                "train_cpu_s": devices.clock.seconds - learning,
                "protocol_cpu_s": cpu_s - (devices.clock.here - here),
                "wall_s": time.perf_counter() - wall_start,
                "stage_s": stage_s,
            },
        )
        return state, event

    def _end_round(self, number: int, told: Told | None, aborted: object) -> None:
        """Note that a round is over; the truth first, for the record has its digest."""
        truth = b""
        if self.truth is not None and told is not None:
            self.truth.add(number, told)
            truth = self.truth.flush()
        self.transcript.end_round(str(aborted or ""), truth)

    def _models(self, model: Vector) -> list[Vector]:
        return split_models(model, len(self._thetas))

    def _evaluate_if_due(self, state: TrainingState) -> None:
        """Evaluate every few rounds and after the last, unless this state has been evaluated."""
        federation = self.config.federation
        if not is_due(state.round, federation.evaluate_every, federation.rounds):
            return
        last = [read_last_evaluation(self.record, theta) for theta in self._thetas]
        if all(one is not None and one.round >= state.round for one in last):
            return
        models = self._models(state.model)
        measured = self.asked.devices.evaluate(models, state.round)
        if measured is None:
            return
        noted = [
            self._note(state.round, one, theta, model)
            for theta, one, model in zip(self._thetas, measured, models, strict=True)
        ]
        self.record.keep()
        for evaluation in noted:
            self.progress.evaluated(state.round, _errors_of(evaluation))

    def _note(
        self, round_number: int, measured: Measured, theta: Fraction, model: Vector
    ) -> Evaluation:
        evaluation = Evaluation(round_number, measured.train, measured.test, measured.validation)
        for one in chain.from_iterable(evaluation.sides.values()):
            if not math.isfinite(one.loss):
                why = _why_not_finite(self.config.training, round_number)
                raise DivergenceError(
                    f"after round {round_number} the loss on device {one.id} is {one.loss}: {why}"
                )
            if not math.isfinite(one.error):
                raise DivergenceError(
                    f"after round {round_number} the metric on device {one.id} is {one.error}: it "
                    "must be a finite number wherever the loss is, such as 0.5 for the AUC of a "
                    "device that lacks a class"
                )
        if self.attacks is not None:
            self.attacks.add_backdoor(round_number, measured.backdoor)
        write_evaluation(self.record, theta, evaluation)
        keep_if_best(self.record, theta, evaluation, model, self.config.experiment.best_by)
        return evaluation

    def _save(self, state: TrainingState) -> None:
        """Save the state, and with it, at once, all that its round has come to."""
        answered = self.answered
        if state.round == self.config.federation.rounds:
            self.transcript.finish(state.round)
        mark = self.record.chain.mark
        state_now = Checkpoint(state, mark, answered.by_level, answered.lost)
        save_checkpoint(self.record, state_now)
        self.record.keep()


def _why_not_finite(training: TrainingConfig, round_number: int) -> str:
    """What a loss that is not finite comes of, and what to do."""
    loss = "`loss`" if training.loss == OWN else f"the loss ({training.loss})"
    is_own = f", or see to it that {loss} is finite everywhere" if training.loss == OWN else ""
    if round_number:
        return f"training diverged; lower training.learning_rate{is_own}"
    return (
        f"nothing has been trained yet, so it is {loss}, the module or a sample: a loss must be "
        "finite for all outputs and targets, and has no logarithm or root of what may be negative"
    )


def report_as_dict(report: RoundReport) -> dict[str, object]:
    """What the event of a round says of its report, by key; of several levels, each in `levels`."""
    named: dict[str, object] = {field.name: getattr(report, field.name) for field in fields(report)}
    if isinstance(report, LevelsReport):
        named["levels"] = {show(theta): report_as_dict(one) for theta, one in report.levels.items()}
    return named


def _errors_of(evaluation: Evaluation) -> Mapping[str, Summary]:
    """The errors over the devices of each side that there is."""
    return {name: summarise_test_error(one) for name, one in evaluation.sides.items() if one}


def _lost_after(lost: list[str], event: Event) -> list[str]:
    """Why the last rounds were lost, after one more event.

    An interruption says nothing about the next round.
    """
    aborted = event.get("aborted")
    if aborted == INTERRUPTED:
        return lost
    return [*lost, str(aborted)] if aborted else []
