"""Devices that lie stand between the work and whoever asks: any strategy, alike under masks."""

from fractions import Fraction

import numpy as np
import pytest
from lenient import SESSIONS
from toy_devices import Quadratic

from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.secagg import Stage, Step, Vanish
from deltafl.sim.cohort.attackers import Attack, AttackingDevices, Known
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import device_objects
from deltafl.sim.settings.attackers import AttackersConfig

LYING = frozenset({1, 3})
CENTRES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
WEIGHTS = (3, 1, 4, 1, 5, 9)
MODEL = np.array([0.0, 0.5], dtype=np.float32)
PREVIOUS = np.array([0.5, 0.25], dtype=np.float32)
ETA = 4.0
BOUND, TICK, MAX_WEIGHT = 32.0, 2.0**-16, 8192


def devices(kind="honest", known=None, **settings):
    honest = device_objects(
        Quadratic(number, centre, weight, rate=0.25)
        for number, (centre, weight) in enumerate(zip(CENTRES, WEIGHTS, strict=True))
    )
    attack = Attack(
        AttackersConfig(Fraction(1, 3), kind, **settings), LYING, BOUND, TICK, MAX_WEIGHT, Seeds(5)
    )
    return AttackingDevices(honest, attack, 7, known or Known(ETA, PREVIOUS))


def own_update(device):
    return (0.25 * (CENTRES[device] - MODEL)).astype(np.float32)


def drawn(device, size):
    generator = Seeds(5).generator(Purpose.ATTACK, round_index=7, device=device)
    return generator.normal(0.0, size, len(MODEL))


def size_of(vector):
    return float(np.sqrt(np.mean(np.square(vector, dtype=np.float64))))


LAST = MODEL - PREVIOUS
BOTH = np.stack([own_update(one) for one in sorted(LYING)]).astype(np.float64)
SENT = {
    "honest": own_update,
    "flipped-labels": own_update,  # of the data that it trains on
    "backdoor": lambda device: 2 * own_update(device),
    "scaled": lambda device: 2 * own_update(device),
    "sign-flipped": lambda device: -2 * own_update(device),
    "gaussian": lambda device: drawn(device, 2 * size_of(own_update(device))),
    "little-is-enough": lambda _: BOTH.mean(0) - 1.5 * np.abs(BOTH[0] - BOTH[1]) / 2,
    "inner-product": lambda _: -(BOTH[0] + BOTH[1]),
    "free-rider-zero": lambda _: np.zeros(2),
    "free-rider-noise": lambda device: drawn(device, 2 * size_of(LAST)),
    "free-rider-last": lambda _: LAST,
}


@pytest.mark.parametrize("kind", SENT)
def test_attackers_send_what_their_kind_says_and_others_their_updates(kind):
    asked = devices(kind)
    pending = [asked.begin_update(device, MODEL) for device in range(6)]
    for device, one in enumerate(pending):
        expected = SENT[kind](device) if device in LYING else own_update(device)
        assert one.result() == pytest.approx(expected, abs=1e-6), device


@pytest.mark.parametrize("kind", ["free-rider-zero", "free-rider-noise", "free-rider-last"])
def test_free_riders_do_not_train(kind):
    asked = devices(kind)
    for device in range(6):
        asked.begin_update(device, MODEL).result()
    trained = [one.num_updates for one in asked.devices.devices.values()]
    assert trained == [1, 0, 1, 0, 1, 1]


def test_a_free_rider_knows_no_change_in_the_first_round():
    asked = devices("free-rider-last", Known())
    assert not asked.begin_update(1, MODEL).result().any()


@pytest.mark.parametrize("kind", ["little-is-enough", "inner-product"])
def test_those_that_collude_train_once_and_know_nothing_of_others(kind):
    asked = devices(kind)
    for device in LYING:
        asked.begin_update(device, MODEL).result()
    trained = [one.num_updates for one in asked.devices.devices.values()]
    assert trained == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("claim", "eta", "claimed"),
    [
        ("top", ETA, BOUND),
        ("top", None, BOUND),
        ("above-eta", ETA, ETA + TICK),
        ("above-eta", BOUND, BOUND),
        ("raise-eta", ETA, 2 * ETA),
        ("raise-eta", 20.0, BOUND),
        ("above-eta", None, None),
        ("raise-eta", None, None),
        ("own", ETA, None),
    ],
)
def test_attackers_claim_a_loss_and_others_tell_theirs(claim, eta, claimed):
    asked = devices(loss=claim, known=Known(eta))
    for device in range(6):
        true = asked.devices.begin_loss(device, MODEL).result()
        expected = claimed if device in LYING and claimed is not None else true
        assert asked.begin_loss(device, MODEL).result() == expected


def test_attackers_claim_a_weight():
    assert devices(weight="largest").weights == {0: 3, 1: 8192, 2: 4, 3: 8192, 4: 5, 5: 9}
    assert devices().weights == dict(enumerate(WEIGHTS))


def cohort(asked, rounds=None, dropouts=None):
    given = {} if dropouts is None else {"dropouts": dropouts}
    return SimulatedCohort(asked, 7, Seeds(5), rounds, aggregated={}, **given)


def stepped(strategy, played):
    state = strategy.init(MODEL, 6)
    return strategy.apply(state, played)


def test_fedavg_averages_what_is_sent_by_what_is_claimed():
    played = cohort(devices("sign-flipped", weight="largest"))
    state, report = stepped(FedAvg(), played)
    claimed = devices(weight="largest").weights
    sent = {one: (-2 if one in LYING else 1) * own_update(one) for one in range(6)}
    mean = sum(claimed[one] * sent[one].astype(np.float64) for one in sent) / sum(claimed.values())
    assert state.model == pytest.approx(MODEL + mean, abs=1e-6)
    assert played.aggregated == claimed
    assert report.kept_weight == sum(claimed.values())


@pytest.mark.parametrize("loss", ["own", "top"])
def test_delta_fl_lets_those_in_that_claim_a_top_loss(loss):
    played = cohort(devices("sign-flipped", loss=loss))
    _, report = stepped(DeltaFL(Fraction(1, 2)), played)
    expected = {"own": {4, 5}, "top": {1, 3, 4, 5}}[loss]
    assert set(played.aggregated) == expected
    assert report.kept_devices == len(expected)


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("loss", ["own", "top"])
def test_masks_change_nothing(kind, loss):
    """Masked sums give the model of ideal ones to the bit, and that in clear up to rounding."""
    found = {}
    strategy = PrivateDeltaFL(Fraction(1, 2))
    for rounds in (MaskedRounds, IdealRounds):
        played = cohort(devices(kind, loss=loss), rounds(SESSIONS))
        state, report = stepped(strategy, played)
        found[rounds.__name__] = state.model.tobytes(), played.aggregated
        assert sum(played.aggregated.values()) == report.kept_weight
    assert found["MaskedRounds"] == found["IdealRounds"]
    in_clear = cohort(devices(kind, loss=loss))
    clear, _ = stepped(DeltaFL(Fraction(1, 2)), in_clear)
    assert in_clear.aggregated == found["IdealRounds"][1]
    assert state.model == pytest.approx(clear.model, abs=2e-3)


@pytest.mark.parametrize("rounds", [MaskedRounds, IdealRounds])
@pytest.mark.parametrize(
    ("stage", "counts"), [(Stage.SHARE, False), (Stage.MASK, False), (Stage.UNMASK, True)]
)
@pytest.mark.parametrize("late", [False, True])
def test_who_vanishes_before_its_update_is_summed_is_not_counted(rounds, stage, counts, late):
    def dropouts(round_index, ids, slots):
        del round_index, ids
        slot = slots - 1 if stage >= Stage.MASK else 0
        return {5: Vanish(Step(stage, slot), late=late)}

    played = cohort(devices("sign-flipped", loss="top"), rounds(SESSIONS), dropouts)
    _, report = stepped(PrivateDeltaFL(Fraction(1, 2)), played)
    assert sum(played.aggregated.values()) == report.kept_weight
    assert len(played.aggregated) == report.kept_devices
    assert played.aggregated.keys() >= LYING
    assert (5 in played.aggregated) == counts


def test_a_round_that_is_given_up_has_no_aggregate():
    def everybody(round_index, ids, slots):
        del round_index, slots
        return {one: Vanish(Step(Stage.SHARE)) for one in ids}

    played = cohort(devices(), IdealRounds(SESSIONS), everybody)
    _, report = stepped(PrivateDeltaFL(Fraction(1, 2)), played)
    assert report.aborted
    assert played.aggregated == {}
