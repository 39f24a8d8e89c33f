"""Device, learner, strategy and data together: the effect that Δ-FL exists for."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch

from deltafl.fl.data.digits import load_digits
from deltafl.fl.data.federated import DeviceData, Split
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.metrics import summarise_test_error
from deltafl.fl.models import build_model
from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.sim.cohort.simulated import cohort_of

TRAINING = LocalTraining(learning_rate=0.2, batch_size=10)
NUM_ROUNDS = 20
COHORT_SIZE = 20


@dataclass
class TrainingDevice:
    id: int
    data: DeviceData
    learner: Learner
    generator: torch.Generator

    @property
    def weight(self):
        return self.data.num_samples

    def loss(self, model):
        return self.learner.mean_loss(model, self.data)

    def update(self, model):
        return self.learner.train(model, self.data, TRAINING, self.generator)


def measure_test_error(strategy, seed):
    """Mean and 90th percentile of the test error; equal seeds give equal cohorts."""
    dataset = load_digits(Split(seed=seed))
    module = build_model("linear", input_shape=(8, 8), num_classes=10, seed=seed)
    learner, state = Learner(module), TrainingState(to_vector(module))
    cohorts = np.random.default_rng(seed)
    for round_number in range(NUM_ROUNDS):
        cohort = sorted(cohorts.choice(len(dataset.train), COHORT_SIZE, replace=False))
        devices = [
            TrainingDevice(
                int(k),
                dataset.train[k],
                learner,
                torch.Generator().manual_seed(1000 * round_number + int(k)),
            )
            for k in cohort
        ]
        state, _ = strategy.apply(state, cohort_of(devices))
    summary = summarise_test_error(learner.evaluate(state.model, dataset.test))
    return summary.mean, summary.percentiles[90]


@pytest.mark.slow
def test_delta_fl_serves_the_worst_served_devices_better_than_fedavg():
    fedavg = [measure_test_error(FedAvg(), seed) for seed in (1, 2)]
    delta = [measure_test_error(DeltaFL(Fraction(1, 2)), seed) for seed in (1, 2)]
    # the worst seed of one is far better than the best seed of the other
    assert max(tail for _, tail in delta) < min(tail for _, tail in fedavg) - 0.05
    # and the average device does not pay for it
    assert np.mean([mean for mean, _ in delta]) < np.mean([mean for mean, _ in fedavg]) + 0.01
