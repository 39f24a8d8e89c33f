"""Rounds of several passes over the updates: what they come to, and what a server cannot do."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from given_devices import SESSIONS, SIZE, devices_of, ideal, masked, random_devices
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import (
    MODEL,
    POLICY,
    RoundParties,
    assert_fails,
    comparable,
    make_config,
    play_single,
)

from deltafl.protocol import wire
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Ask, Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.robust import Centre
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import RoundState
from deltafl.secagg import (
    Adversary,
    PeerError,
    Refusal,
    SlotSum,
    Stage,
    Step,
    ThreatModel,
    Vanish,
)
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import OpenSlot

BITS, CLIP, NU = 12, 4.0, 0.5


def config_of(passes, theta=Fraction(1), size=SIZE, **changes):
    return make_config(
        cohort_size=size, theta=theta, passes=passes, smoothing=NU, max_queries=3, **changes
    )


def weiszfeld(devices, passes, nu=NU):
    """The passes by their definition, in float64 of NumPy, with factors that are real numbers.

    Returns the last mean and Σ n·b / Σ n of the last pass.
    """
    n = np.array([device.weight for device in devices], dtype=np.float64)
    updates = np.array([device.vector for device in devices], dtype=np.float64)
    b, v = np.ones(len(n)), n @ updates / n.sum()
    for _ in range(passes - 1):
        apart = np.linalg.norm(updates - v, axis=1)
        b = np.clip(nu / np.maximum(nu, apart), 1 / 32, 1)
        v = (n * b) @ updates / (n * b).sum()
    return v, n @ b / n.sum()


@pytest.mark.parametrize("backend", [masked, ideal])
@pytest.mark.parametrize("passes", [1, 2, 3, 8])
def test_the_step_is_weiszfelds(backend, passes):
    """To 0.001: factors are in multiples of 2^-16.

    One mean of these updates, to which the geometric median comes nearer with every pass, is off by
    0.2 and more.
    """
    devices = random_devices()
    wanted, mean_factor = weiszfeld(devices, passes)
    outcome = play_single(backend(), config_of(passes), MODEL, devices).outcome
    assert np.abs(outcome.update - wanted).max() < 0.001
    assert outcome.passes == outcome.secure_sums == passes
    if passes == 1:
        assert outcome.mean_factor is None
    else:
        assert outcome.mean_factor == pytest.approx(mean_factor, abs=1e-4)
        assert np.abs(outcome.update - weiszfeld(devices, 1)[0]).max() > 0.2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.sampled_from([Fraction(1), Fraction(1, 2)]))
def test_the_sums_are_exact_but_for_rounding_updates(seed, passes, theta):
    """Each pass is Σ n·b·Δ / Σ n·b of the very factors, to m/2 units of the sum's resolution.

    Every device rounds n·b·Δ to multiples of 2^-BITS, so the sum of m devices is off by at most
    m/2 of them, and the mean by that over Σ n·b. What float64 adds is below a billionth.
    """
    devices = random_devices(seed)
    config = config_of(passes, theta)
    seen = []
    round_ = Round(config)
    own = {device.id: device for device in devices}
    measured = {i: DeviceRoundOf(config, one) for i, one in own.items()}
    while round_.question is not None:
        question, slot = round_.question, round_.slot
        vectors = [one.answer(question) for one in measured.values()]
        seen.append(question)
        ids = tuple(own)
        total = np.sum([v.astype(np.uint64) for v in vectors], axis=0, dtype=np.uint64)
        bits = config.slots()[slot].ring_bits
        round_.take(SlotSum(slot, total & np.uint64((1 << bits) - 1), ids, ids))
    outcome = round_.outcome({})
    assert len([q for q in seen if isinstance(q, Centre)]) == passes - 1
    kept = [one for one in measured.values() if one.passed]
    last = seen[-1].vector().astype(np.float64)
    nb, updates = [], []
    for one in kept:
        apart = np.linalg.norm(one.device.vector.astype(np.float64) - last)
        nb.append(one.device.weight * max(1, round(2**16 * NU / max(NU, apart))))
        updates.append(one.device.vector.astype(np.float64))
    exact = np.array(nb) @ np.array(updates) / sum(nb)
    bound = len(kept) / 2 * 2.0**-BITS / sum(nb)
    assert np.abs(outcome.update - exact).max() <= bound + 1e-9
    assert outcome.mean_factor == sum(nb) / (2**16 * sum(one.device.weight for one in kept))
    # and masked rounds have the same outcome, to the bit
    real = play_single(masked(), config, MODEL, devices).outcome
    assert real.update.tobytes() == outcome.update.tobytes()
    assert real.mean_factor == outcome.mean_factor


class DeviceRoundOf:
    """A device without messages."""

    def __init__(self, config, device):
        self.device = device
        self.own = DeviceRound.measured(config, device.value, device.weight)
        self.passed = False

    def answer(self, question):
        if isinstance(question, Query):
            return self.own.answer(question)
        if isinstance(question, Threshold):
            self.passed = self.own.passes(question)
            update = self.device.vector if self.passed else None
            self.kept = self.own.kept(update)
            return self.own.contribution(update)
        return self.kept.answer(question)


@pytest.mark.parametrize("theta", [Fraction(1), Fraction(1, 2)])
def test_what_else_is_learnt_is_that_of_the_first_pass(theta):
    devices = random_devices()
    once, again = (
        play_single(ideal(), config_of(passes, theta), MODEL, devices).outcome for passes in (1, 4)
    )
    assert again.secure_sums == once.secure_sums + 3
    same = ("search", "kept_weight", "kept_devices", "train_loss", "clipped", "drops", "aborted")
    for name in same:
        assert getattr(again, name) == getattr(once, name)


def test_one_far_update_moves_the_step_far_less():
    """One of six devices is moved by 4 in each number: their mean by 0.7, the median hardly."""
    near = devices_of(np.random.default_rng(1).normal(0, 0.05, (6, 4)), weights=[10] * 6)
    far = [*near[:-1], replace(near[-1], vector=near[-1].vector + np.float32(3.9))]
    moved = {}
    for passes in (1, 8):
        one, other = (
            play_single(ideal(), config_of(passes), MODEL, each).outcome.update
            for each in (near, far)
        )
        moved[passes] = np.abs(other - one).max()
    assert moved[1] == pytest.approx(3.9 / 6, abs=0.01)
    assert moved[8] < moved[1] / 5


def test_nobody_passes_and_nothing_is_asked_again():
    config = config_of(3)
    devices = random_devices()
    nothing = [replace(device, weight=0) for device in devices]
    outcome = play_single(ideal(), config, MODEL, nothing).outcome
    assert outcome.update is None
    assert (outcome.passes, outcome.secure_sums, outcome.mean_factor) == (1, 1, None)


# --- devices that are lost ------------------------------------------------------------------------


def steps_of(config):
    set_up = [Step(stage) for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.RECEIPT)]
    in_slots = (Stage.LIST, Stage.MASK, Stage.CONFIRM, Stage.UNMASK)
    return set_up + [Step(s, slot) for slot in range(config.num_slots) for s in in_slots]


def assert_same(config, gone, signed):
    devices = random_devices()
    real, same = (
        play_single(rounds(signed), config, MODEL, devices, vanishing=gone).outcome
        for rounds in (masked, ideal)
    )
    assert comparable(real) == comparable(same), gone
    return real


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("theta", [Fraction(1), Fraction(1, 2)])
def test_whoever_is_lost_at_one_step_both_backends_agree(signed, theta):
    config = config_of(3, theta)
    made = set()
    late = False
    for step in steps_of(config):
        late = not late
        made.add(assert_same(config, {10: Vanish(step, late)}, signed).passes)
    assert made == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whoever_is_lost_both_backends_agree(signed, data):
    config = config_of(
        data.draw(st.integers(2, 4)), data.draw(st.sampled_from([1, Fraction(1, 2)]))
    )
    ids = [device.id for device in random_devices()]
    gone = data.draw(
        st.dictionaries(
            st.sampled_from(ids),
            st.builds(Vanish, st.sampled_from(steps_of(config)), st.booleans()),
            max_size=3,
        )
    )
    assert_same(config, gone, signed)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("slot", "passes"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_the_last_centre_stands_if_a_device_is_lost(signed, slot, passes):
    """Lost when it was to help with pass 1, or to answer pass 2, 3 or 4."""
    stage = Stage.UNMASK if slot == 0 else Stage.MASK
    outcome = assert_same(config_of(4), {10: Vanish(Step(stage, slot))}, signed)
    assert (outcome.passes, outcome.secure_sums, outcome.aborted) == (passes, passes, None)
    wanted, _ = weiszfeld(random_devices(), passes)
    assert np.abs(outcome.update - wanted).max() < 0.001


# --- sums that honest devices do not give ---------------------------------------------------------


def after_first(config, mean=0.5, weight=100):
    """A round whose first sum is in."""
    round_ = Round(config)
    layout = config.update_layout
    vector = np.zeros(layout.length, dtype=np.uint64)
    vector[:4] = int(mean * weight * 2**BITS)
    vector[4] = weight
    ids = (3, 10, 17)
    round_.take(SlotSum(0, vector, ids, ids))
    return round_, ids


@pytest.mark.parametrize(
    ("weight", "is_used"),
    [(99, False), (100, True), (100 << 16, True), (6_553_601, False), (0, False), (2**42, False)],
)
def test_a_sum_of_weights_that_no_factors_give_ends_the_passes(weight, is_used):
    round_, ids = after_first(config_of(3))
    assert isinstance(round_.question, Centre)
    vector = np.zeros(config_of(3).pass_layout.length, dtype=np.uint64)
    vector[4] = weight
    round_.take(SlotSum(1, vector, ids, ids))
    outcome = round_.outcome({})
    assert (outcome.passes, round_.question is not None) == ((2, True) if is_used else (1, False))
    assert outcome.update.tolist() == [0.0 if is_used else 0.5] * 4
    assert outcome.aborted is None


def test_a_mean_beyond_the_clip_still_has_a_centre_that_devices_accept():
    round_, _ = after_first(config_of(2, update_clip=0.1), mean=0.1 + 2.0**-BITS)
    assert round_.outcome({}).update.max() > 0.1
    assert float(round_.question.vector().max()) <= 0.1


def test_centres_are_the_means_in_float32():
    round_, _ = after_first(config_of(2), mean=1 / 3)
    mean = round_.outcome({}).update
    assert round_.question.numbers == mean.astype("<f4").tobytes()


# --- a server that does otherwise -----------------------------------------------------------------

CONFIG = make_config(theta=Fraction(1), passes=3, smoothing=NU, max_queries=0)
EVERYBODY = np.ones(3, dtype=bool)


def parties(signed=False, config=CONFIG, policy=POLICY):
    return RoundParties(config, signed=signed, policy=policy)


def to_centre(own, number=1):
    """Play until the victim is to get its n-th centre; the envelope."""
    return own.until_asked(1 + number)


def opening_of(own, slot, members=EVERYBODY):
    return session_wire.encode(OpenSlot(slot, members), own.params)


@pytest.mark.parametrize("signed", [False, True])
def test_a_round_of_several_passes_is_played(signed):
    own = parties(signed)
    outcome = own.play()
    assert outcome.passes == 3
    assert own.machine.state is RoundState.UPDATED


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_a_pass_over_fewer_devices_is_refused(signed, number):
    """Else its difference from one over all would be what a single device gave."""
    own = parties(signed)
    asked = to_centre(own, number)
    fewer = EVERYBODY.copy()
    fewer[0] = False
    told = Ask(asked.question, opening_of(own, number, fewer))
    assert_fails(own.machine, wire.encode(told), Refusal.NOT_AGREED)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda asked, own: Ask(asked.question, opening_of(own, 2)), Refusal.OUT_OF_ORDER),
        (lambda asked, _: Ask(Centre(bytes(12)), asked.session), Refusal.MALFORMED),
        (lambda asked, _: Ask(Centre(b"\0\0\xc0\x7f" * 4), asked.session), Refusal.MALFORMED),
        (lambda asked, _: Ask(Centre(b"\0\0\xa0\x40" * 4), asked.session), Refusal.MALFORMED),
        (lambda asked, _: Ask(Threshold(0, 0), asked.session), Refusal.OUT_OF_ORDER),
        (lambda asked, _: Ask(Query("mm", (5,)), asked.session), Refusal.OUT_OF_ORDER),
        (lambda asked, _: Relay(asked.session), Refusal.OUT_OF_ORDER),
    ],
    ids=["skips one", "short", "NaN", "beyond the clip", "threshold", "query", "no question"],
)
def test_another_question_than_the_next_centre_is_refused(change, reason):
    own = parties()
    asked = to_centre(own)
    assert_fails(own.machine, wire.encode(change(asked, own)), reason)


def test_a_centre_before_the_update_is_refused():
    own = parties()
    asked = own.until_asked(1)
    told = Ask(Centre(bytes(16)), asked.session)
    assert_fails(own.machine, wire.encode(told), Refusal.OUT_OF_ORDER, "in state searching")


def test_a_second_centre_of_one_pass_is_refused():
    own = parties()
    asked = to_centre(own)
    own.answer(own.victim, wire.encode(asked))
    again = Ask(Centre(bytes(16)), opening_of(own, 1))
    assert_fails(own.machine, wire.encode(again), Refusal.OUT_OF_ORDER, "opens no slot")


def test_a_pass_after_the_last_is_refused():
    own = parties()
    own.play()
    told = wire.encode(Ask(Centre(bytes(16)), opening_of(own, 2)))
    assert_fails(own.machine, told, Refusal.OUT_OF_ORDER, "opens no slot")


def test_a_centre_in_a_round_of_one_pass_is_refused():
    once = replace(CONFIG, update=replace(CONFIG.update, passes=1))
    own = parties(config=once)
    own.play()
    told = wire.encode(Ask(Centre(bytes(16)), opening_of(own, 0)))
    assert_fails(own.machine, told, Refusal.OUT_OF_ORDER, "opens no slot")


def test_a_device_that_was_shown_another_centre_spoils_the_sum():
    """Its masks do not cancel: the sum is of no use, and the last centre stands."""
    own = parties()
    told = to_centre(own)
    other = wire.encode(replace(told, question=Centre(bytes(16))))
    outgoing = dict(own.pending) | {own.victim: other}
    outcome = own.play(outgoing)
    once = parties(config=replace(CONFIG, update=replace(CONFIG.update, passes=1))).play()
    assert outcome.passes == 1
    assert outcome.update.tobytes() == once.update.tobytes()


def test_what_is_sent_does_not_show_who_passed():
    """In every pass all devices send a message of one size and at once."""
    config = make_config(passes=3, smoothing=NU, cohort_size=6, max_queries=3)
    own = RoundParties(config)
    sizes = {}
    outgoing = own._logged(own.server.start())
    while outgoing:
        asked = wire.decode(outgoing[own.victim])
        replies = {client: own.answer(client, data) for client, data in outgoing.items()}
        if isinstance(asked, Ask) and isinstance(asked.question, Centre):
            sizes.setdefault(asked.question.numbers, set()).update(map(len, replies.values()))
        outgoing = own.collect(replies)
    assert 0 < own.server.outcomes[0].kept_devices < 6
    assert len(sizes) == 2
    assert all(len(each) == 1 for each in sizes.values())


def test_a_device_that_has_left_keeps_nothing():
    own = parties()
    to_centre(own)
    assert own.machine._kept is not None
    own.machine.close()
    assert own.machine._kept is None


# --- configuration and policy ---------------------------------------------------------------------


def test_one_pass_is_the_round_as_it_was():
    once = replace(CONFIG, update=replace(CONFIG.update, passes=1))
    assert once.update.smoothing == 1.0
    plain = make_config(theta=Fraction(1), max_queries=0)
    assert once == plain
    assert once.canonical() == plain.canonical()
    assert once.slots() == plain.slots()


@pytest.mark.parametrize("passes", [1, 2, 16])
def test_later_passes_have_whole_slots_after_the_update(passes):
    config = make_config(passes=passes, max_queries=2)
    slots = config.slots()
    assert len(slots) == config.num_slots == 2 + passes
    later = slots[config.update_slot + 1 :]
    assert all(spec.whole and not spec.verified and spec.label == "update again" for spec in later)
    assert {spec.length for spec in later} <= {config.update_length + 1}
    assert not slots[config.update_slot].whole


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"passes": 0}, "passes=0"),
        ({"passes": 17}, "passes=17"),
        ({"passes": 2, "smoothing": 0.0}, "smoothing=0.0"),
        ({"passes": 2, "smoothing": float("nan")}, "smoothing=nan"),
        ({"passes": 2, "smoothing": float("inf")}, "smoothing=inf"),
        ({"passes": 2, "max_weight": 2**50, "update_resolution_bits": 0}, "needs"),
    ],
)
def test_impossible_passes_are_refused_by_the_value(changes, named):
    with pytest.raises(ConfigurationError, match=named):
        make_config(**changes)


def test_several_levels_have_one_pass():
    with pytest.raises(ConfigurationError, match="passes=3 with 2 conformity levels"):
        Levels.at(make_config(passes=3), (Fraction(1, 2), Fraction(1, 3)))
    assert Levels.at(make_config(), (Fraction(1, 2), Fraction(1, 3)))


def test_a_device_limits_the_passes():
    config = config_of(3)
    levels = Levels((config,))
    params = SESSIONS.params_of_levels(levels, MODEL, bytes(32))
    replace(POLICY, max_passes=3).check_round(levels, params)
    with pytest.raises(PeerError, match="passes=3 is above max_passes=2") as refused:
        replace(POLICY, max_passes=2).check_round(levels, params)
    assert refused.value.reason is Refusal.POLICY


def test_an_active_server_gets_one_pass_unless_the_device_is_told_otherwise():
    active = replace(POLICY, adversary=Adversary.ACTIVE)
    sessions = replace(SESSIONS, threat=ThreatModel(0.1, 0.2, Adversary.ACTIVE), policy=active)
    for passes, unverified in product((1, 2), (False, True)):
        levels = Levels((config_of(passes),))
        policy = replace(active, unverified_if_active=unverified)
        own = replace(sessions, policy=policy)
        if passes == 1 or unverified:
            assert own.params_of_levels(levels, MODEL, bytes(32)).signed
        else:
            with pytest.raises(PeerError, match="passes=2: the server chooses the centres"):
                own.params_of_levels(levels, MODEL, bytes(32))
