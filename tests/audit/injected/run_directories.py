"""Directories of the staged run, with all that a run says of itself."""

from fractions import Fraction

import numpy as np
from staged_runs import Stage, played, write

from deltafl.fl.strategies.base import TrainingState
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import Checkpoint, save_checkpoint
from deltafl.sim.record.events import EventLog
from deltafl.sim.record.rundir import RunDirectory, write_json
from deltafl.sim.record.truth import TRUTH
from deltafl.sim.settings.config import FederationConfig, PrivacyConfig, QuantileConfig, RunConfig

CONFIG = RunConfig(
    federation=FederationConfig(algorithm="private-delta-fl", rounds=2, theta=Fraction(3, 4)),
    quantile=QuantileConfig(method="bracketed", max_queries=2, resolution_bits=10, loss_bound=8),
    privacy=PrivacyConfig(min_cohort=5, max_weight=512, transcript="full"),
)


def event_of(number, outcome):
    search = outcome.search
    return {
        "round": number,
        "kept_devices": outcome.kept_devices,
        "kept_weight": outcome.kept_weight,
        "train_loss": outcome.train_loss,
        "secure_sums": outcome.secure_sums,
        "num_queries": search.num_queries,
        "certified": search.certified,
        "clipped": outcome.clipped,
        "aborted": outcome.aborted,
    }


def directory_of(path, *, config=CONFIG, entries=None, finished=True, change=None, **written):
    """The directory of a run of two rounds.

    Args:
        path: Where.
        config: Its settings.
        entries: What the transcript says in place of what happened.
        finished: Whether it has a summary.
        change: Changes its events.
        written: Of `write`.
    """
    run, directory = played(Stage), RunDirectory(path)
    directory.prepare(config)
    events = [event_of(number, outcome) for number, outcome in run.outcomes.items()]
    if change is not None:
        change(events)
    with EventLog(directory.events) as log:
        for event in events:
            log.append(event)
        size = log.flush()
    mark = write(run.entries if entries is None else entries, directory.transcript, **written)
    save(directory, mark, size)
    if finished:
        write_json(directory.summary, {"transcript_sha256": mark.digest.hex()})
    return directory


def save(directory, mark: Mark, events_size: int, number: int = 2):
    state = TrainingState(np.zeros(60, np.float32), number, None)
    checkpoint = Checkpoint(state, events_size, mark, TRUTH.start)
    save_checkpoint(directory.checkpoints, checkpoint)
