"""Directories of the staged run, with all that a run says of itself."""

from fractions import Fraction

from staged_runs import SEED, DrawnStage, Said, played, write

from deltafl.fl.bundle import Architecture, Bundle
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.strategies.base import TrainingState
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import Checkpoint, save_checkpoint
from deltafl.sim.record.evaluations import Evaluation, write_evaluation
from deltafl.sim.record.events import EventLog
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import RunDirectory, write_json
from deltafl.sim.record.truth import TRUTH
from deltafl.sim.run.algorithms import strategy_of
from deltafl.sim.run.engine import report_as_dict
from deltafl.sim.run.summary import DataSize, summarise_experiment, summarise_run
from deltafl.sim.settings.config import (
    ExperimentConfig,
    FederationConfig,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
)

CONFIG = RunConfig(
    federation=FederationConfig(
        algorithm="private-delta-fl", rounds=2, cohort_size=7, theta=Fraction(3, 4)
    ),
    quantile=QuantileConfig(method="bracketed", max_queries=2, resolution_bits=10, loss_bound=8),
    privacy=PrivacyConfig(min_cohort=5, max_weight=512, transcript="full"),
    experiment=ExperimentConfig(seed=SEED),
)
DATA = DataSize("staged", 7, 3)
DATA_SHA256 = "5" * 64


def followed(run):
    """The events of the run, and the server's states after each, as its strategy has them."""
    stage, strategy = run.stage, strategy_of(CONFIG)
    state = strategy.init(stage.start, len(stage.ids))
    events, states = [], []
    for number, outcome in run.outcomes.items():
        came = [e for e in run.entries if isinstance(e, Said) and e.round == number and not e.sent]
        state, report = strategy.follow(
            state, outcome, sum(len(e.data) for e in came) / len(stage.ids)
        )
        states.append(state)
        events.append(
            {
                "round": number,
                **report_as_dict(report),
                "cohort": stage.ids,
                "learning_rate": CONFIG.training.schedule.rate(number - 1),
                "train_cpu_s": 0.0,
                "protocol_cpu_s": 0.0,
                "wall_s": 0.0,
                "stage_s": {"advertise": 0.0, "mask": 0.0},
            }
        )
    return events, states


def directory_of(
    path,
    *,
    config=CONFIG,
    entries=None,
    finished=True,
    change=None,
    stage=DrawnStage,
    platform=None,
    **written,
):
    """The directory of a run of two rounds.

    Args:
        path: Where.
        config: Its settings.
        entries: What the transcript says in place of what happened.
        finished: Whether it has a summary.
        change: Changes its events.
        stage: The run.
        platform: What it says of where it was made, beside the data.
        written: Of `write`.
    """
    run, directory = played(stage), RunDirectory(path)
    directory.prepare(config)
    events, (*_, state) = followed(run)
    for number in (0, 2):
        for folder in directory.metrics_of(config.federation).values():
            write_evaluation(folder, evaluation_of(number))
    if change is not None:
        change(events)
    with EventLog(directory.events) as log:
        for event in events:
            log.append(event)
        size = log.flush()
    mark = write(run.entries if entries is None else entries, directory.transcript, **written)
    save(directory, mark, size, state)
    write_json(directory.versions, {**(platform or {}), "data_sha256": DATA_SHA256})
    if finished and config.federation.thetas == CONFIG.federation.thetas:
        write_file(directory.bundle, bundle_of(state, config.federation.algorithm).to_bytes())
        summary = summarise_experiment([summarise_run(config, directory, DATA)])
        write_json(directory.summary, summary)
    elif finished:
        write_json(directory.summary, {"transcript_sha256": mark.digest.hex()})
    return directory


def evaluation_of(number):
    def row(name, size):
        return DeviceMetrics(name, size, 1.0 / (1 + number), 0.5)

    train = [row(f"train{i}", 10 + 2 * i) for i in range(DATA.train_devices)]
    return Evaluation(number, train, [row(f"test{i}", 4) for i in range(DATA.test_devices)])


def bundle_of(state, algorithm=CONFIG.federation.algorithm):
    return Bundle(
        Architecture("linear", (30,), 2),
        {CONFIG.federation.theta: state.model},
        provenance={
            "algorithm": algorithm,
            "seed": str(SEED),
            "round": "2",
            "data": DATA.name,
            "data_sha256": DATA_SHA256,
            "standardise": "none",
        },
    )


def save(directory, mark: Mark, events_size: int, state: TrainingState):
    checkpoint = Checkpoint(state, events_size, mark, TRUTH.start)
    save_checkpoint(directory.checkpoints, checkpoint)
