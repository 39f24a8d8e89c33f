"""Weighted means under secure aggregation: the same step as in clear, up to a bound."""

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import lenient
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_devices import GAMMA, Drawn, constant_rate

from deltafl.fl.data.digits import load_digits
from deltafl.fl.data.federated import Split
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.models import build_model
from deltafl.fl.objectives import PLAIN
from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.base import TrainingState, Visibility
from deltafl.fl.strategies.choices import DeviceWeights
from deltafl.fl.strategies.fedavg import FedAvg, FedProx, PropFair
from deltafl.fl.strategies.masked import FIRST_WEIGHT_BITS, WEIGHT_BITS, InUnits, MaskedMean
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from deltafl.fl.strategies.q_ffl import QFFL
from deltafl.fl.strategies.server_optimizer import Momentum, WithServerOptimizer
from deltafl.fl.strategies.tilted_erm import TiltedERM
from deltafl.fl.strategies.weighted_mean import Share
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import Stage, Step, ThreatModel, UsageError, Vanish
from deltafl.sim.cohort.backends.base import SampleReference
from deltafl.sim.cohort.backends.in_process import InProcess
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort, cohort_of
from deltafl.sim.cohort.work import BackendDevices, DeviceObjects
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from deltafl.sim.record.record import write_record

POLICY = RoundPolicy(**lenient.ROUNDS, dropout_rate=0.2)
SESSIONS = Sessions(POLICY, ThreatModel(0.1, 0.2), min_cohort=5)
IDEAL = IdealRounds(SESSIONS)
START = np.array([0.5, -1.0, 0.0], dtype=np.float32)
RESOLUTION_BITS = 10
LOSS_STEP = 2.0**-16  # losses are summed on the grid


def masked(mean, *, expected_loss=2.0, **update):
    encoding = Encoding(update=UpdateParams(resolution_bits=RESOLUTION_BITS, **update))
    return MaskedMean(mean, PrivateDeltaFL(Fraction(1), encoding), expected_loss)


def announce(strategy, cohort_size):
    levels = strategy.levels_for(TrainingState(START), cohort_size)
    return SESSIONS.params_of_levels(levels, START.tobytes(), bytes(32))


WHOLE = [FedAvg(), FedProx(0.3), PropFair(5.0)]
REAL = [
    QFFL(1.0, constant_rate),
    QFFL(10.0, constant_rate, DeviceWeights.SAMPLES),
    TiltedERM(1.0),
    TiltedERM(10.0, DeviceWeights.SAMPLES),
]

losses = st.floats(0.0, 4.0)
numbers = st.floats(-1.0, 1.0)
cohorts = st.lists(
    st.tuples(st.integers(1, 300), losses, st.tuples(numbers, numbers, numbers)),
    min_size=5,
    max_size=9,
).map(lambda rows: [Drawn(k, *row) for k, row in enumerate(rows)])


def contributed(mean, devices, plain):
    """The largest distance of a contribution u_k from the mean."""
    if not isinstance(mean, QFFL):
        updates = np.array([device.given_update for device in devices])
    else:
        lipschitz = 1 / GAMMA
        updates = np.array(
            [
                np.array(device.given_update)
                * (1 / (1 + mean.q * lipschitz * squared(device) / (device.given_loss + 1e-10)))
                for device in devices
            ]
        )
    return np.abs(updates - plain).max()


def squared(device):
    return float(np.sum(np.square(device.given_update)))


def check_close_to_plain(strategy, devices):
    """Play two rounds each way; the derived bound holds in both, clipping aside."""
    state, told = TrainingState(START), []
    for _ in range(2):
        before = state
        following, plain = strategy.mean.apply(before, cohort_of(devices, IDEAL))
        state, report = strategy.apply(before, cohort_of(devices, IDEAL))
        told.append(report)
        assert (report.aborted, state.round) == (None, following.round)
        if report.clipped or report.empty:
            continue
        mean_weight = report.kept_weight / report.kept_devices
        step = following.model.astype(np.float64) - before.model
        spread = contributed(strategy.mean, devices, step)
        if strategy.mean.has_whole_weights:
            bound = 2.0**-RESOLUTION_BITS / (2 * mean_weight)
            assert report.kept_weight == plain.kept_weight
        else:
            bound = (spread + 1) / (2 * mean_weight)
        floats = 3e-7  # of models and updates near 1
        assert np.abs(state.model - following.model).max() <= bound + floats
        if plain.train_loss is not None:
            assert report.train_loss == pytest.approx(
                plain.train_loss, abs=LOSS_STEP + 9 / mean_weight
            )
    return told


@pytest.mark.slow
@pytest.mark.parametrize("mean", WHOLE + REAL)
@settings(max_examples=25)
@given(devices=cohorts)
def test_masked_is_plain_up_to_the_bound(mean, devices):
    first, report = check_close_to_plain(masked(mean), devices)
    if not (mean.has_whole_weights or first.clipped or first.kept_weight < 100):
        # a round that has told how large weights are gives the next bits enough
        mean_bits = WEIGHT_BITS - (len(devices) - 1).bit_length() - 4
        least = min(mean_bits, FIRST_WEIGHT_BITS // 2) - 2
        assert report.kept_weight / report.kept_devices > 2**least


def test_a_coarse_unit_would_miss_the_plain_step():
    # the negative control of the bound: the same comparison with weights of few bits fails
    devices = [
        Drawn(k, 1, loss, (loss, 0.0, 0.0)) for k, loss in enumerate((0.1, 0.2, 0.3, 0.6, 1))
    ]
    mean = TiltedERM(5.0)
    plain, _ = mean.apply(TrainingState(START), cohort_of(devices, IDEAL))
    fine, _ = masked(mean, expected_loss=0.5).apply(TrainingState(START), cohort_of(devices, IDEAL))
    assert np.abs(fine.model - plain.model).max() < 1e-5
    # a mean that is said to be 2^22 times larger leaves weights of a few units
    memory = {"masked.mean_weight": np.array([5.0 + 22, 0])}
    coarse, report = masked(mean).apply(
        TrainingState(START, memory=memory), cohort_of(devices, IDEAL)
    )
    assert np.abs(coarse.model - plain.model).max() > 1e-3
    assert report.kept_weight < 100


STEEP = [Drawn(k, 20 + k, 0.3 * k, (0.1 * k, -0.1, 0.05)) for k in range(6)]


@pytest.mark.parametrize("mean", [FedProx(0.3), *REAL])
def test_real_masks_and_ideal_sums_agree_to_the_bit(mean):
    vanish = {2: Vanish(Step(Stage.MASK, 0), late=False)}
    states = {}
    for name, rounds in (("ideal", IDEAL), ("masked", MaskedRounds(SESSIONS))):
        strategy = masked(mean)
        state = TrainingState(START)
        reports = []
        for gone in ({}, vanish):
            cohort = cohort_of(STEEP, rounds, dropouts=lambda *_, gone=gone: gone)
            state, report = strategy.apply(state, cohort)
            reports.append(replace(report, bytes_up_per_device=None))
        states[name] = state, reports
    ideal, real = states["ideal"], states["masked"]
    assert ideal[1] == real[1]
    assert ideal[0].model.tobytes() == real[0].model.tobytes()
    assert str(ideal[0].memory) == str(real[0].memory)
    assert [report.kept_devices for report in ideal[1]] == [6, 5]


@pytest.mark.parametrize("kind", [IdealRounds, MaskedRounds])
@pytest.mark.parametrize("mean", [FedAvg(), *REAL])
def test_a_device_measures_once_and_trains_once(mean, kind):
    # also where the weight follows from the update, which is then there before it is asked for
    begun = []

    class Counted(DeviceObjects):
        def begin_loss(self, device, model):
            begun.append(("loss", device))
            return super().begin_loss(device, model)

        def begin_update(self, device, model, objective=PLAIN):
            begun.append(("update", device))
            return super().begin_update(device, model, objective)

    devices = Counted({one.id: one for one in STEEP})
    masked(mean).apply(TrainingState(START), SimulatedCohort(devices, rounds=kind(SESSIONS)))
    assert sorted(begun) == sorted((what, one.id) for what in ("loss", "update") for one in STEEP)


def test_a_device_that_vanishes_is_in_neither_sum():
    vanish = {0: Vanish(Step(Stage.ADVERTISE, 0), late=False)}
    mean = TiltedERM(1.0)
    cohort = cohort_of(STEEP, IDEAL, dropouts=lambda *_: vanish)
    state, report = masked(mean).apply(TrainingState(START), cohort)
    plain, _ = mean.apply(TrainingState(START), cohort_of(STEEP[1:], IDEAL))
    np.testing.assert_allclose(state.model, plain.model, atol=1e-5)
    assert report.dropped_by_stage == {"advertise": 1}


def test_the_unit_follows_the_weights_over_many_orders_of_magnitude():
    # exp(t·F) falls by a factor of e^12 a round, more than a million altogether
    strategy = masked(TiltedERM(4.0), expected_loss=16.0)
    state = TrainingState(START)
    for height in (16.0, 13.0, 10.0, 7.0, 4.0):
        devices = [replace(one, given_loss=height + one.given_loss / 10) for one in STEEP]
        before = state
        state, report = strategy.apply(state, cohort_of(devices, IDEAL))
        plain, _ = strategy.mean.apply(before, cohort_of(devices, IDEAL))
        assert report.clipped == 0
        mean_weight = report.kept_weight / report.kept_devices
        np.testing.assert_allclose(state.model, plain.model, atol=1 / mean_weight + 3e-7)
        log2_mean = state.memory["masked.mean_weight"][0]
        assert log2_mean == pytest.approx(4.0 * (height + 0.08) / math.log(2), abs=1)


def test_weights_may_grow_tenfold_between_rounds_and_are_not_clipped():
    strategy = masked(TiltedERM(1.0))
    same = [Drawn(k, 1, 2.0, (0.1, 0.0, 0.0)) for k in range(4)] + [Drawn(4, 1, 4.3, (0.0,) * 3)]
    state, _ = strategy.apply(TrainingState(START), cohort_of(same, IDEAL))
    grown = [replace(one, given_loss=one.given_loss + math.log(10)) for one in same]
    _, report = strategy.apply(state, cohort_of(grown, IDEAL))
    assert report.clipped == 0
    # the negative control: a hundredfold is more than the unit leaves room for
    grown = [replace(one, given_loss=one.given_loss + math.log(100)) for one in same]
    _, report = strategy.apply(state, cohort_of(grown, IDEAL))
    assert report.clipped > 0


def test_weights_are_rounded_to_the_nearest_unit():
    # a known mean of 2^21 makes the unit 1 in a cohort of five
    memory = {"masked.mean_weight": np.array([21.0, 0])}
    devices = [Drawn(k, 1, math.log(2.75), (0.1, 0.0, 0.0)) for k in range(5)]
    _, report = masked(TiltedERM(1.0)).apply(
        TrainingState(START, memory=memory), cohort_of(devices, IDEAL)
    )
    assert (report.weight_unit_log2, report.kept_weight) == (0, 15)


def test_weights_that_have_grown_too_much_are_clipped_and_counted_and_then_fit():
    strategy = masked(TiltedERM(1.0), expected_loss=0.5)
    grown = [replace(one, given_loss=one.given_loss + 28) for one in STEEP]
    state, first = strategy.apply(TrainingState(START), cohort_of(grown, IDEAL))
    assert first.clipped > 0
    assert first.kept_weight <= 6 << FIRST_WEIGHT_BITS
    for _ in range(3):
        before = state
        state, report = strategy.apply(state, cohort_of(grown, IDEAL))
        if report.clipped == 0:
            break
    plain, _ = strategy.mean.apply(before, cohort_of(grown, IDEAL))
    assert report.clipped == 0
    np.testing.assert_allclose(state.model, plain.model, atol=1e-4)


def test_weights_that_round_to_nothing_leave_the_model_and_make_the_unit_finer():
    strategy = masked(QFFL(30.0, constant_rate), expected_loss=2.0)
    tiny = [replace(one, given_loss=0.05 + one.given_loss / 100) for one in STEEP]
    state = TrainingState(START)
    emptied = 0
    for _ in range(20):
        state, report = strategy.apply(state, cohort_of(tiny, IDEAL))
        if not report.empty:
            break
        emptied += 1
        np.testing.assert_array_equal(state.model, START)
        assert report.train_loss is None
    assert 0 < emptied < 10
    before = state
    state, report = strategy.apply(state, cohort_of(tiny, IDEAL))
    plain, _ = strategy.mean.apply(before, cohort_of(tiny, IDEAL))
    np.testing.assert_allclose(state.model - before.model, plain.model - before.model, atol=1e-4)
    assert report.kept_weight / 6 > 2**16


def test_a_round_that_was_given_up_teaches_nothing():
    everybody = {one.id: Vanish(Step(Stage.SHARE, 0), late=False) for one in STEEP}
    strategy = masked(TiltedERM(1.0))
    first, _ = strategy.apply(TrainingState(START), cohort_of(STEEP, IDEAL))
    lost = cohort_of(STEEP, IDEAL, round_index=1, dropouts=lambda *_: everybody)
    second, report = strategy.apply(first, lost)
    assert report.aborted
    assert second.memory == first.memory
    np.testing.assert_array_equal(second.model, first.model)


def test_heavy_numbers_of_samples_are_clipped_like_in_every_private_round():
    _, report = masked(FedAvg(), max_weight=22).apply(TrainingState(START), cohort_of(STEEP, IDEAL))
    assert report.clipped == 3
    assert report.kept_weight == 20 + 21 + 22 * 4


def test_a_device_without_samples_changes_nothing():
    idle = Drawn(9, 0, 3.0, (9.0, 9.0, 9.0))
    for mean in (FedAvg(), TiltedERM(1.0), QFFL(1.0, constant_rate)):
        alone, _ = masked(mean).apply(TrainingState(START), cohort_of(STEEP, IDEAL))
        joined, report = masked(mean).apply(TrainingState(START), cohort_of([*STEEP, idle], IDEAL))
        np.testing.assert_array_equal(alone.model, joined.model)
        assert report.kept_devices == 7


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_device_that_diverged_goes_on_with_the_largest_loss_and_zeros(strange):
    zeros, bound = (0.0, 0.0, 0.0), float(LossGrid().bound)
    pairs = (
        (Drawn(9, 3, 1.0, (strange, 1.0, 0.0)), Drawn(9, 3, 1.0, zeros), 3),
        (Drawn(9, 3, strange, zeros), Drawn(9, 3, bound, zeros), 1),
    )
    for mean in (FedAvg(), TiltedERM(1.0), QFFL(1.0, constant_rate)):
        for kind in (IdealRounds, MaskedRounds):
            for diverged, counts_as, num_clipped in pairs:
                (state, report), (other, expected) = (
                    masked(mean).apply(
                        TrainingState(START), cohort_of([*STEEP, device], kind(SESSIONS))
                    )
                    for device in (diverged, counts_as)
                )
                np.testing.assert_array_equal(state.model, other.model)
                assert report == replace(expected, clipped=expected.clipped + num_clipped)


class Overflowing(FedAvg):
    """A mean whose factors of updates leave the range of a float32."""

    def share(self, own, round_index):
        return replace(super().share(own, round_index), step=1e300)


edges = st.sampled_from([0.0, -0.0, 1e-45, 3.4e38, -3.4e38, math.inf, math.nan])
EXTREME = [*WHOLE, *REAL, TiltedERM(1e6), QFFL(100.0, lambda _: 1e-30), Overflowing()]


@pytest.mark.parametrize("mean", EXTREME, ids=lambda mean: f"{mean.name}-{type(mean).__name__}")
@settings(max_examples=30)
@given(
    loss=st.one_of(st.sampled_from([1e308, -1e308, 1e-320]), edges),
    weight=st.sampled_from([0, 1, 2**63, 2**200]),
    update=st.tuples(edges, edges, edges),
)
def test_no_loss_weight_or_update_ends_the_round_of_a_device_that_weighs_itself(
    mean, loss, weight, update
):
    device = Drawn(9, weight, loss, update)
    _, report = masked(mean).apply(TrainingState(START), cohort_of([*STEEP, device], IDEAL))
    assert (report.kept_devices, report.aborted) == (7, None)


@pytest.mark.parametrize(
    ("share", "weighed"),
    [
        (Share(math.nan), 0),
        (Share(1.0, math.nan), 0),
        (Share(0.0, math.inf), 0),
        (Share(math.inf, -math.inf), 0),
        (Share(math.inf), 8),
        (Share(1e-300, 1e6), 8),
        (Share(1e-300, 300 * math.log(10)), 1),
        (Share(1e300, -1e6), 0),
        (Share(1e300, -300 * math.log(10)), 1),
        (Share(3.0), 3),
    ],
)
def test_no_weight_is_too_strange_to_be_sent(share, weighed):
    mean = SimpleNamespace(share=lambda *_: share)
    weighing = InUnits(mean, round_index=1, unit=0, max_weight=7)
    assert weighing.weigh(None) == (weighed, 1.0)


def test_names_and_what_the_server_sees():
    names = [masked(mean).name for mean in (*WHOLE, REAL[0], REAL[2])]
    assert names == [
        "private-fedavg",
        "private-fedprox",
        "private-propfair",
        "private-q-ffl",
        "private-tilted-erm",
    ]
    assert masked(FedAvg()).server_sees is Visibility.SUMS


def test_settings_that_cannot_be_are_refused():
    rounds = masked(FedAvg()).rounds
    with pytest.raises(ValueError, match="theta=1/2 of the rounds is not 1"):
        MaskedMean(FedAvg(), replace(rounds, theta=Fraction(1, 2)))
    with pytest.raises(ValueError, match="expected_loss=0 is not a positive number"):
        MaskedMean(FedAvg(), rounds, 0)
    with pytest.raises(UsageError):
        announce(masked(TiltedERM(1.0)), 3)
    announce(masked(TiltedERM(1.0)), 100)


def test_memory_survives_a_checkpoint(tmp_path):
    strategy = WithServerOptimizer(masked(TiltedERM(1.0)), Momentum(0.5, 0.9))
    state, _ = strategy.apply(strategy.init(START, 6), cohort_of(STEEP, IDEAL))
    assert set(state.memory) == {"masked.mean_weight", "server_optimizer.m"}
    with write_record(tmp_path / "record.sqlite") as record:
        save_checkpoint(record, Checkpoint(state, Mark(0, bytes(32))))
        restored = load_checkpoint(record).state
    after, _ = strategy.apply(state, cohort_of(STEEP, IDEAL))
    again, _ = strategy.apply(restored, cohort_of(STEEP, IDEAL))
    assert after.model.tobytes() == again.model.tobytes()


def test_learners_on_digits_end_up_with_the_plain_model():
    dataset = load_digits(Split(train_fraction=Fraction(1, 2)), num_devices=12)
    module = build_model("linear", input_shape=dataset.input_shape, num_classes=10, seed=1)
    backend, start = InProcess("reference", Learner(module)), to_vector(module)
    for mean in (FedProx(0.3), PropFair(5.0), QFFL(1.0, lambda _: 0.1), TiltedERM(2.0)):
        states = [TrainingState(start), TrainingState(start)]
        for index in range(2):
            refs = {
                k: SampleReference(dataset.train, k, data.num_samples)
                for k, data in enumerate(dataset.train)
            }
            devices = BackendDevices(refs, backend, LocalTraining(0.1, 32), Seeds(1), index)
            cohort = SimulatedCohort(devices, index, Seeds(1), IDEAL)
            for k, strategy in enumerate((mean, masked(mean))):
                states[k], _ = strategy.apply(states[k], cohort)
        assert np.abs(states[0].model - states[1].model).max() < 1e-5
        assert np.abs(states[0].model - start).max() > 1e-2
