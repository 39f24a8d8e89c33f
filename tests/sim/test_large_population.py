"""A run over many devices holds a cohort of them, and not the population."""

import resource
import subprocess
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from doubles import Silent
from records import evaluations_of

from deltafl.fl.data.federated import DeviceData, Split
from deltafl.fl.data.lazy import LazyDevices, federate_lazily, sizes_of
from deltafl.sim.record.memory import peak_memory_mb
from deltafl.sim.run.experiment import run_experiment

SAMPLES = 3
DEVICE_BYTES = SAMPLES * (2 * 4 + 8)


class Population:
    """Devices made when they are asked for; counts how often, and how many are alive at once."""

    def __init__(self, num_devices, kept_bytes=0, recent_bytes=0):
        self.alive = self.most = self.made = 0
        self.limits = patch.multiple(
            "deltafl.fl.data.lazy", KEPT_BYTES=kept_bytes, RECENT_BYTES=recent_bytes
        )
        ids = [f"{number:06}" for number in range(num_devices)]
        devices = LazyDevices(
            ids, np.full(num_devices, SAMPLES), self._make, f"counted {num_devices}"
        )
        with self.limits:
            self.dataset = federate_lazily("counted", devices, Split(), num_classes=2)

    def _make(self, number):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((SAMPLES, 2)).astype(np.float32)
        self.made += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(x, self._gone)
        return DeviceData(f"{number:06}", x, np.arange(SAMPLES) % 2)

    def _gone(self):
        self.alive -= 1


def run(config, path, population):
    with (
        patch("deltafl.sim.run.experiment.build_dataset", lambda _, **_how: population.dataset),
        population.limits,
    ):
        return run_experiment(
            config, path, resume=False, progress=Silent(), warn=pytest.fail, plots=False
        )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["delta-fl", "private-delta-fl"])
def test_a_run_holds_its_cohort_and_not_the_population(tiny, tmp_path, algorithm):
    federation = replace(tiny.federation, algorithm=algorithm, rounds=2, cohort_size=6)
    privacy = replace(tiny.privacy, sums="ideal", min_cohort=5)
    config = replace(tiny, federation=federation, privacy=privacy)
    cohort = federation.cohort_size
    most = []
    for num_devices in (60, 600):
        population = Population(num_devices, recent_bytes=cohort * DEVICE_BYTES)
        summary = run(config, tmp_path / str(num_devices), population)
        assert summary["train_devices"] + summary["test_devices"] == num_devices
        evaluation = evaluations_of(tmp_path / str(num_devices))[-1]
        assert len(evaluation.train) + len(evaluation.test) == num_devices
        assert population.made >= 2 * num_devices  # two evaluations over everybody
        most.append(population.most)
    # the cohort, what two sides remember, and whom the pass over everybody is at
    assert most[1] <= 3 * cohort + 3
    assert most[0] == most[1]
    hoarder = Population(60, kept_bytes=1 << 20)
    run(config, tmp_path / "hoarder", hoarder)
    assert hoarder.most >= 60


def test_what_was_made_first_is_remembered_and_what_was_asked_for_last():
    population = Population(100, kept_bytes=10 * DEVICE_BYTES, recent_bytes=4 * DEVICE_BYTES)
    train = population.dataset.train
    with population.limits:
        devices = list(train)
        assert [number for number in range(46) if train[number] is devices[number]] == [*range(10)]
        cohort = [train[number] for number in (20, 30, 40, 45)]
        assert [train[number] for number in (20, 30, 40, 45)] == cohort
        assert train[20] is cohort[0]  # asked for again, so it stays
        assert train[21] is not devices[21]
        assert train[20] is cohort[0]
        assert train[30] is not cohort[1]


def test_sizes_are_known_without_making_a_device():
    population = Population(100)
    made = population.made
    assert sizes_of(population.dataset.train).tolist() == [SAMPLES] * 50
    assert population.made == made
    assert sizes_of(population.dataset.train[:4]).tolist() == [SAMPLES] * 4
    assert sizes_of(()).tolist() == []


def test_no_more_is_remembered_than_there_is_room_for():
    for kept, recent in ((10, 0), (0, 4), (10, 4), (0, 0)):
        population = Population(100, kept * DEVICE_BYTES, recent * DEVICE_BYTES)
        with population.limits:
            for side in (population.dataset.train, population.dataset.test):
                assert sum(device.num_samples for device in side) == 50 * SAMPLES
        held = min(1, kept + recent)  # by the sequence of both sides: the first, for its shape
        assert population.alive == 2 * (kept + recent) + held


def test_a_tenth_is_remembered_or_nothing():
    for kept, remembered in ((5, 5), (4, 0)):  # of 50
        population = Population(100, kept * DEVICE_BYTES)
        with population.limits:
            assert len(list(population.dataset.train)) == 50
        assert population.alive == remembered


def test_peak_memory_counts_what_is_no_longer_held():
    with patch(
        "deltafl.sim.record.memory.resource.getrusage",
        lambda _: SimpleNamespace(ru_maxrss=2_000_000),
    ):
        assert peak_memory_mb() == (2 if sys.platform == "darwin" else 2_048)
    held = np.ones(8_000_000)
    peak = peak_memory_mb()
    assert peak > held.nbytes / 1e6
    del held
    assert peak_memory_mb() >= peak
    command = [sys.executable, "-c", "held = b'1' * 64_000_000"]
    subprocess.run(command, check=True)  # noqa: S603 - our own
    assert 64 < peak_memory_mb(resource.RUSAGE_CHILDREN) < 1e5
