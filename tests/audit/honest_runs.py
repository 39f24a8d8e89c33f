"""Runs of honest parties that train nothing, whose devices vanish as the faults of a run say."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl.strategies.base import ServerState
from sim.algorithms import build_strategy
from sim.chain import Mark
from sim.config_io import build_config
from sim.faults import seeded_dropouts
from sim.seeds import Seeds
from sim.transcript import TranscriptWriter
from sim.truth import TruthWriter, WatchedDevice

RUN_ID = b"an honest run..."
SETTINGS = {
    "federation": {"cohort_size": 12},
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

    def loss(self, model):
        return float(np.random.default_rng([self.id, self.round, 1]).uniform(0.5, 4))

    def update(self, model):
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
        devices: The devices of each round; they know what they were asked.
    """

    transcript: Path
    truth: Path
    mark: Mark
    reports: list
    devices: list

    @property
    def lost_at(self) -> Counter:
        """Devices lost, by stage."""
        return sum((Counter(report.dropped_by_stage) for report in self.reports), Counter())


def config_of(**changes):
    """The settings of a run, with changes in dictionaries by section."""
    sections = SETTINGS.keys() | changes.keys()
    return build_config([{name: SETTINGS.get(name, {}) | changes.get(name, {}) for name in sections}])


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
        changes: Of the settings, by section.
    """
    config, seeds = config_of(**changes), Seeds(seed)
    signed = config.privacy.sessions_are_signed
    transcript, truth = folder / "transcript.bin", folder / "truth.bin"
    state = ServerState(np.linspace(-1, 1, length).astype(np.float32))
    reports, rounds_of_devices = [], []
    with (
        TranscriptWriter(transcript, mode, run_id=RUN_ID) as writer,
        TruthWriter(truth, RUN_ID, mode) as truths,
    ):
        strategy = build_strategy(
            config,
            seeds=seeds,
            dropouts=dropouts or seeded_dropouts(seeds, dropout, signed=signed),
            observer=writer,
        )
        for number in range(1, rounds + 1):
            batch = number % batches * config.federation.cohort_size
            ids = [3 * (batch + i) + 1 for i in range(config.federation.cohort_size)]
            devices = [WatchedDevice(StandIn(i, number)) for i in ids]
            writer.begin_round(number)
            state, report = strategy.apply(state, devices)
            writer.end_round(report.aborted)
            for device in devices:
                truths.append(number, device)
            reports.append(report)
            rounds_of_devices.append(devices)
        if finish:
            writer.finish(rounds)
        mark = writer.flush()
        truths.flush()
    return HonestRun(transcript, truth, mark, reports, rounds_of_devices)
