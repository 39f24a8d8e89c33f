"""What a cohort promises whoever asks it, also when devices misbehave."""

from fractions import Fraction

import numpy as np
import pytest
from lenient import SESSIONS

from deltafl.fl.errors import DivergenceError
from deltafl.fl.strategies.afl import AFL
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.strategies.fedmgda import FedMGDA
from deltafl.fl.strategies.levels import PrivateLevels
from deltafl.fl.strategies.masked import MaskedMean
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.q_ffl import QFFL
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.backends.base import SampleReference
from deltafl.sim.cohort.backends.in_process import InProcess
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.simulated import cohort_of

LENGTH = 4


class StandIn:
    """A device that answers what it is told to."""

    def __init__(self, number, update, weight=10):
        self.id, self.weight, self._update = number, weight, update

    def loss(self, _):
        return 1.0 + self.id

    def update(self, *_):
        return self._update


def cohort(update, weight=10, rounds=None):
    honest = np.ones(LENGTH, dtype=np.float32)
    devices = [StandIn(number, honest, weight) for number in range(6)]
    return cohort_of([*devices, StandIn(6, update, weight)], rounds)


STRATEGIES = {
    "fedavg": FedAvg(),
    "delta-fl": DeltaFL(Fraction(1, 2)),
    "afl": AFL(0.1),
    "fedmgda": FedMGDA(0.5),
    "q-ffl": QFFL(1.0, lambda _: 0.1),
}
WRONG = [(1,), (), (1, LENGTH), (LENGTH, 1), (LENGTH + 1,), (0,)]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("shape", WRONG, ids=str)
def test_an_update_of_another_shape_is_refused_and_not_broadcast(strategy, shape):
    state = strategy.init(np.zeros(LENGTH, dtype=np.float32), 7)
    with pytest.raises(DivergenceError, match="shape"):
        strategy.apply(state, cohort(np.ones(shape, dtype=np.float32)))


@pytest.mark.parametrize("shape", WRONG, ids=str)
def test_it_is_refused_by_devices_that_weigh_themselves_too(shape):
    strategy = MaskedMean(QFFL(1.0, lambda _: 0.1), PrivateDeltaFL(Fraction(1)))
    state = strategy.init(np.zeros(LENGTH, dtype=np.float32), 7)
    with pytest.raises(DivergenceError, match="shape"):
        strategy.apply(
            state, cohort(np.ones(shape, dtype=np.float32), rounds=IdealRounds(SESSIONS))
        )


@pytest.mark.parametrize("weight", [2**63, 10**30])
def test_no_weight_is_too_large_for_the_guess_of_who_will_train(weight):
    strategy = PrivateDeltaFL(Fraction(1, 2))
    state = strategy.init(np.zeros(LENGTH, dtype=np.float32), 7)
    update = np.ones(LENGTH, dtype=np.float32)
    _, report = strategy.apply(state, cohort(update, weight, IdealRounds(SESSIONS)))
    assert report.kept_weight > 0


def test_every_level_has_a_model():
    strategy = PrivateDeltaFL(Fraction(1, 2))
    model = np.zeros(LENGTH, dtype=np.float32)
    levels = strategy.levels_for(strategy.init(model, 7), 7)
    asked = cohort(np.ones(LENGTH, dtype=np.float32), rounds=IdealRounds(SESSIONS))
    assert len(asked.secure_round(levels, [model]).outcomes) == 1
    for models in ([], [model, model]):
        with pytest.raises(ValueError, match="pass one for each level"):
            asked.secure_round(levels, models)


def test_a_backend_whose_batch_failed_takes_new_work():
    class Learner:
        def losses(self, _, devices):
            return (1.0 for _ in devices)

    class Broken:
        def __getitem__(self, _):
            raise OSError("unreadable")

    backend = InProcess("reference", Learner())
    model = np.zeros(LENGTH, dtype=np.float32)
    bad = backend.begin_loss(model, SampleReference(Broken(), 0, 3))
    with pytest.raises(OSError, match="unreadable"):
        bad.result()
    good = backend.begin_loss(model, SampleReference([object()], 0, 3))
    assert good.result() == 1.0


def test_a_device_has_one_source_of_noise_in_a_session():
    """As in the real protocol: or a source that starts anew would give the same noise twice."""
    opened = []

    def noise(client):
        opened.append(client)
        return SeededRandomness(bytes([client]) * 32)

    thetas = Fraction(1, 2), Fraction(1, 5)
    strategy = PrivateLevels(thetas, tuple(map(PrivateDeltaFL, thetas)))
    models = np.arange(2 * LENGTH, dtype=np.float32)
    update = np.ones(LENGTH, dtype=np.float32)
    strategy.apply(strategy.init(models, 7), cohort(update, rounds=IdealRounds(SESSIONS, noise)))
    assert opened == list(range(7))
