"""Runs of honest parties that train nothing, whose devices vanish as the faults of a run say."""

import shutil
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import records

from deltafl.fl.strategies.base import TrainingState
from deltafl.secagg.session import NoObserver
from deltafl.sim.cohort.dropouts import seeded_dropouts
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import device_objects
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.record.truth import Told, TruthWriter
from deltafl.sim.run.algorithms import build_rounds, build_strategy
from deltafl.sim.settings.config_io import build_config

SETTINGS = {
    "federation": {"cohort_size": 10},
    "quantile": {"method": "bracketed", "resolution_bits": 8, "loss_bound": 8, "max_queries": 3},
    "privacy": {"min_cohort": 5, "colluding": 0.1, "expected_dropout": 0.2},
}


@dataclass(frozen=True)
class StandIn:
    """A device that draws its loss and its update, and remembers nothing."""

    id: int
    round: int

    @property
    def weight(self):
        return 1 + 37 * self.id % 90

    def loss(self, _model):
        return float(np.random.default_rng([self.id, self.round, 1]).uniform(0.5, 4))

    def update(self, model, objective=None):
        del objective
        drawn = np.random.default_rng([self.id, self.round, 2]).uniform(-0.4, 0.4, len(model))
        return drawn.astype(np.float32)


@dataclass(frozen=True)
class HonestRun:
    """What came of a run.

    Attributes:
        transcript: Its file.
        truth: The truth file.
        mark: How far the transcript goes.
        reports: What the strategy says of each round.
        told: What the devices of each round told the protocol.
        state: What the server knows at the end.
    """

    transcript: Path
    truth: Path
    mark: Mark
    reports: list
    told: list
    state: TrainingState

    @property
    def lost_at(self) -> Counter:
        """Devices lost, by stage."""
        return sum((Counter(report.dropped_by_stage) for report in self.reports), Counter())


def config_of(**changes):
    """The settings of a run, with changes in dictionaries by section."""
    sections = SETTINGS.keys() | changes.keys()
    return build_config(
        [{name: SETTINGS.get(name, {}) | changes.get(name, {}) for name in sections}]
    )


def build_verified(config):
    """The strategy of the settings, with searches that devices can check."""
    strategy = build_strategy(config)
    search = replace(strategy.encoding.search, verified=True)
    return replace(strategy, encoding=replace(strategy.encoding, search=search))


def play_honestly(
    folder,
    *,
    mode="full",
    rounds=2,
    dropout=0.0,
    dropouts=None,
    seed=1,
    length=40,
    batches=1,
    finish=True,
    build=build_strategy,
    meddle=None,
    **changes,
) -> HonestRun:
    """Play a run, and write its transcript and its truth into a folder.

    Args:
        folder: Where.
        mode: Of the transcript.
        rounds: How many.
        dropout: Probability that a device vanishes.
        dropouts: Who vanishes when, in place of that.
        seed: Of the drop-outs and graphs.
        length: Of the model.
        batches: Cohorts that take turns; none of their devices is in another.
        finish: Whether the transcript gets its last record.
        build: Makes the strategy of the settings.
        meddle: Given the number of a round and the state before it, changes the state.
        changes: Of the settings, by section.
    """
    config, seeds = config_of(**changes), Seeds(seed)
    transcript, truth = folder / "record.sqlite", folder / "truth.sqlite"
    state = TrainingState(np.linspace(-1, 1, length).astype(np.float32))
    reports, rounds_told = [], []
    with write_record(transcript) as record, ExitStack() as stack:
        writer = TranscriptWriter(record, mode, is_durable=False)
        truths = TruthWriter(truth, writer.run_id, 0, b"", keeps_updates=mode == "full")
        stack.callback(truths.close)
        strategy = build(config)
        secure = build_rounds(config, writer)
        losing = dropouts or seeded_dropouts(seeds, dropout)
        for number in range(1, rounds + 1):
            batch = number % batches * config.federation.cohort_size
            ids = [3 * (batch + i) + 1 for i in range(config.federation.cohort_size)]
            devices, told = device_objects(StandIn(i, number) for i in ids), Told()
            cohort = SimulatedCohort(devices, state.round, seeds, secure, losing, told)
            writer.begin_round(number, ids)
            state = meddle(number, state) if meddle else state
            state, report = strategy.apply(state, cohort)
            writer.end_round(report.aborted)
            truths.add(number, told)
            reports.append(report)
            rounds_told.append(told)
        if finish:
            writer.finish(rounds)
        record.keep()
        mark = record.chain.mark
        truths.flush()
    return HonestRun(transcript, truth, mark, reports, rounds_told, state)


class _Tape(NoObserver):
    """Keeps messages in memory."""

    def __init__(self):
        self.messages = []

    def message(self, *, sent, peer, data):
        self.messages.append((sent, peer, data))


def messages_of(*, rounds=1, dropout=0.0, seed=1, length=40, build=build_strategy, **changes):
    """The messages of a run, in order: whether the server sent it, the device, and the bytes."""
    config, seeds, tape = config_of(**changes), Seeds(seed), _Tape()
    dropouts = seeded_dropouts(seeds, dropout)
    strategy, secure = build(config), build_rounds(config, tape)
    state = TrainingState(np.linspace(-1, 1, length).astype(np.float32))
    for number in range(1, rounds + 1):
        ids = [3 * i + 1 for i in range(config.federation.cohort_size)]
        devices = device_objects(StandIn(i, number) for i in ids)
        cohort = SimulatedCohort(devices, state.round, seeds, secure, dropouts)
        state, _ = strategy.apply(state, cohort)
    return tape.messages


def edited(transcript: Path, path: Path, change=None, bodies=None) -> None:
    """Write a record with other rows, under a chain that is right.

    Args:
        transcript: Its file.
        path: The file to write.
        change: Given the table and the fields of a row, changes the fields.
        bodies: Given a message, returns another.
    """
    shutil.copy(transcript, path)
    rows = records.rows_of(path)
    if bodies is not None:
        with closing(sqlite3.connect(path)) as db:
            others = {n: bodies(data) for n, data in db.execute("SELECT number, data FROM bodies")}
            pairs = [(data, number) for number, data in others.items()]
            db.executemany("UPDATE bodies SET data = ? WHERE number = ?", pairs)
            db.commit()
        for table, _, fields, body in rows:
            if table == "messages":
                fields["size"] = len(others[body])
                fields["sha256"] = sha256(others[body]).digest()
    for table, _, fields, _ in rows:
        if change is not None:
            change(table, fields)
    records.write_rows(path, rows)
