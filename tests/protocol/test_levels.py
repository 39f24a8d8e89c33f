"""Several conformity levels in one session: each is the round that it would be by itself."""

import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import (
    DEVICES,
    POLICY,
    assert_fails,
    comparable,
    make_config,
    make_params,
    play_levels,
    play_single,
)

from deltafl.fl.superquantile import weighted_quantile
from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import binding
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.levels import MAX_LEVELS, LevelRounds, Levels
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import RoundServer
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.states import RoundState
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    Adversary,
    ClientId,
    DecodeError,
    Enrolment,
    GraphKind,
    PeerError,
    Refusal,
    Stage,
    Step,
    ThreatModel,
    UsageError,
    Vanish,
)
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import OpenSlot, SessionOpen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds

THETAS = (Fraction(4, 5), Fraction(1, 2), Fraction(1, 10))
MODELS = tuple(np.full(2, number, dtype="<f4").tobytes() for number in (1, 2, 3))
SESSIONS = Sessions(
    policy=POLICY, threat=ThreatModel(0.1, 0.2), graph=GraphKind.COMPLETE, min_cohort=3
)
SEED = bytes(range(32))


class Device:
    """Tells of each model something else."""

    def __init__(self, number, weight, losses, updates):
        self.id, self.weight = number, weight
        self._losses, self._updates = dict(losses), dict(updates)

    def loss(self, model) -> float:
        return self._losses[bytes(model)]

    def update(self, model) -> np.ndarray:
        return self._updates[bytes(model)]


def make_devices(cohort_size, models=MODELS, seed=0, length=4):
    generator = np.random.default_rng(seed)
    return [
        Device(
            3 + 7 * rank,
            int(generator.integers(0, 500)),
            {model: float(generator.integers(0, 40)) / 8 for model in models},
            {model: generator.uniform(-1, 1, length).astype(np.float32) for model in models},
        )
        for rank in range(cohort_size)
    ]


def make_levels(cohort_size=5, thetas=THETAS, warm=None, **changes):
    fields = {"cohort_size": cohort_size, "max_queries": 8, **changes}
    return Levels.at(make_config(**fields), thetas, warm)


def backends(sessions=SESSIONS):
    enrolment = Enrolment(SeededRandomness(b"i" * 32))
    return (
        IdealRounds(sessions),
        MaskedRounds(sessions, SeededRandomness(b"s" * 32), enrolment=enrolment),
    )


def play(backend, levels, devices, models=MODELS, vanishing=None):
    return play_levels(backend, levels, models, devices, vanishing=vanishing, graph_seed=SEED)


def shown(result):
    return [comparable(outcome) for outcome in result.outcomes]


# --- the same as by itself -----------------------------------------------------------------------


@settings(deadline=None, max_examples=5)
@given(
    seed=st.integers(0, 2**20),
    cohort_size=st.integers(5, 8),
    method=st.sampled_from(["mm", "bracketed", "histogram"]),
    thetas=st.sampled_from([THETAS, (Fraction(1), Fraction(1, 3), Fraction(1, 7))]),
)
def test_levels_together_are_as_many_rounds_by_themselves(seed, cohort_size, method, thetas):
    devices = make_devices(cohort_size, seed=seed)
    levels = make_levels(cohort_size, thetas, (None, 700, 3), method=method)
    ideal = IdealRounds(SESSIONS)
    alone = [
        play_single(ideal, config, model, devices, graph_seed=SEED).outcome
        for config, model in zip(levels.rounds, MODELS, strict=True)
    ]
    for backend in backends():
        assert shown(play(backend, levels, devices)) == [comparable(outcome) for outcome in alone]


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 2**20))
def test_every_level_keeps_whom_algorithm_2_keeps(seed):
    devices = make_devices(7, seed=seed)
    levels = make_levels(7)
    result = play(backends()[0], levels, devices)
    for config, model, outcome in zip(levels.rounds, MODELS, result.outcomes, strict=True):
        losses, weights = [d.loss(model) for d in devices], [d.weight for d in devices]
        if not sum(weights) or not outcome.search.certified:
            continue
        eta = weighted_quantile(losses, weights, config.theta)
        kept = [device for device in devices if device.loss(model) >= eta]
        assert outcome.kept_devices == len(kept)
        total = sum(device.weight for device in kept)
        mean = sum(d.weight * d.update(model).astype(np.float64) for d in kept) / total
        assert np.allclose(outcome.update, mean, atol=2**-11)


def test_a_single_level_is_announced_as_any_number():
    config, model = make_config(cohort_size=5), b"the model"
    levels = Levels((config,))
    assert levels.slots() == config.slots()
    params = make_params(config, model)
    server = RoundServer(levels, model, params, range(5))
    opening = session_wire.encode(SessionOpen(params), params)
    assert server.start()[0] == wire.encode(Announce(levels, model, opening))


LATER = make_levels(thetas=THETAS[1:], method="histogram").first_slot(1)


@pytest.mark.parametrize(
    ("signed", "step"),
    [
        (False, Step(Stage.SHARE)),
        (False, Step(Stage.MASK, 1)),
        (False, Step(Stage.MASK, LATER - 1)),  # the first level's update
        (True, Step(Stage.UNMASK, LATER - 1)),
        (False, Step(Stage.MASK, LATER)),
        (True, Step(Stage.CONFIRM, LATER + 1)),
    ],
)
def test_both_backends_agree_whoever_vanishes(step):
    levels = make_levels(6, THETAS[1:], method="histogram")
    devices, gone = make_devices(6), {ClientId(10): Vanish(step)}
    ideal, masked = (
        play(backend, levels, devices, MODELS[1:], gone) for backend in backends(SESSIONS)
    )
    assert shown(ideal) == shown(masked)
    assert all(ClientId(10) in outcome.drops for outcome in ideal.outcomes)


def test_a_level_searches_over_those_who_are_left_by_the_one_before():
    levels, devices = make_levels(6, max_queries=16), make_devices(6)
    gone = {ClientId(10): Vanish(Step(Stage.MASK, levels.first_slot(1) - 1))}
    result = play(backends()[1], levels, devices, vanishing=gone)
    kept = [device for device in devices if device.id != 10]
    rest = make_levels(5, max_queries=16)
    for config, model, outcome in list(zip(rest.rounds, MODELS, result.outcomes, strict=True))[1:]:
        alone = play_single(backends()[0], config, model, kept, graph_seed=SEED)
        assert outcome.kept_devices == alone.outcome.kept_devices
        assert outcome.search.certified
        assert alone.outcome.search.certified


@pytest.mark.slow
@pytest.mark.parametrize("adversary", list(Adversary))
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONFIRM, Stage.UNMASK])
def test_nobody_is_lost_after_the_first_level_if_the_server_may_be_lying(adversary, stage):
    """Nearly equal models would have sums that differ by what the lost device gave."""
    levels = make_levels(10, (Fraction(1), Fraction(1, 2)), verified=True)
    sessions = Sessions(
        policy=replace(POLICY, adversary=adversary),
        threat=ThreatModel(0.1, 0.1, adversary),
        graph=GraphKind.COMPLETE,
        min_cohort=5,
    )
    devices = make_devices(10, MODELS[:2])
    last = len(levels.slots()) - 1
    for slot in (0, 1, last):
        gone = {ClientId(10): Vanish(Step(stage, slot))}
        ideal, masked = (
            play(backend, levels, devices, MODELS[:2], gone) for backend in backends(sessions)
        )
        assert shown(ideal) == shown(masked)
        first, second = masked.outcomes
        assert first.aborted is None
        # Whoever is lost at the last unmasking is in both sums.
        given_up = adversary is Adversary.ACTIVE and not (slot == 0 and stage is Stage.MASK)
        given_up &= not (slot == last and stage is not Stage.MASK)
        assert (second.aborted is not None) is given_up
        if given_up:
            assert "9 devices are left of the 10" in second.aborted


def test_devices_insist_on_it_themselves(monkeypatch):
    monkeypatch.setattr(LevelRounds, "_check_cohort", lambda *_: None)
    levels = make_levels(10, (Fraction(1), Fraction(1, 2)), verified=True)
    devices, gone = make_devices(10, MODELS[:2]), {ClientId(10): Vanish(Step(Stage.MASK, 1))}
    for adversary in Adversary:
        sessions = Sessions(
            policy=replace(POLICY, adversary=adversary),
            threat=ThreatModel(0.1, 0.1, Adversary.ACTIVE),
            graph=GraphKind.COMPLETE,
            min_cohort=5,
        )
        if adversary is Adversary.ACTIVE:
            with pytest.raises(PeerError, match="9 of the 10 of the first level"):
                play(backends(sessions)[1], levels, devices, MODELS[:2], gone)
        else:
            play(backends(sessions)[1], levels, devices, MODELS[:2], gone)


def tails_of(weights, least, *, insists=False):
    """Both outcomes of five devices of known losses, at two levels whose models differ by a bit."""
    levels = make_levels(5, (Fraction(9, 10), Fraction(1, 2)), verified=True, min_tail=least)
    policy = replace(POLICY, min_honest_tail=least if insists else 0)
    sessions = replace(SESSIONS, policy=policy, min_cohort=5)
    models, made = MODELS[:2], make_devices(5, MODELS[:2])
    update = dict.fromkeys(models, np.zeros(4, dtype=np.float32))
    devices = [
        Device(device.id, weight, dict.fromkeys(models, float(loss)), update)
        for loss, (device, weight) in enumerate(zip(made, weights, strict=True), start=1)
    ]
    ideal, masked = (
        play(backend, levels, devices, models)
        for backend in backends(replace(sessions, graph=GraphKind.COMPLETE))
    )
    assert shown(ideal) == shown(masked)
    return masked.outcomes


FIVE_AND_FOUR = 20, 40, 20, 10, 10  # of a hundred; nine tenths take all, and half all but one
FOUR_AND_FOUR = 5, 60, 15, 10, 10
FIVE_AND_THREE = 20, 20, 40, 10, 10


@pytest.mark.parametrize(
    ("weights", "least", "given_up"),
    [
        (FIVE_AND_FOUR, 2, True),
        (FIVE_AND_FOUR, 1, False),
        (FOUR_AND_FOUR, 2, True),  # a colluding device may be in one of them for an honest one
        (FOUR_AND_FOUR, 0, False),
        (FIVE_AND_THREE, 2, False),
    ],
)
def test_the_tails_of_two_levels_do_not_differ_by_one_device(weights, least, given_up):
    """Although they would not if all devices weighed the same, which is all that θ says."""
    first, second = tails_of(weights, least)
    assert first.kept_devices > 0
    assert (second.aborted is not None) is given_up
    if given_up:
        apart = first.kept_devices - 4
        assert f"may differ by {apart} devices, and min_tail is 2" in second.aborted


def test_devices_insist_on_the_difference_themselves(monkeypatch):
    monkeypatch.setattr(LevelRounds, "_check_difference", lambda *_: None)
    monkeypatch.setattr(RoundPolicy, "_check_tails", lambda *_: None)  # θ says enough
    with pytest.raises(PeerError, match="1 devices may be the difference") as refused:
        tails_of(FIVE_AND_FOUR, 2, insists=True)
    assert refused.value.reason is Refusal.TAIL_TOO_SMALL
    tails_of(FIVE_AND_FOUR, 1, insists=True)


def test_devices_count_who_is_lost_with_an_update_of_an_earlier_level(monkeypatch):
    """Once they have answered it, their search is that of the next level."""
    monkeypatch.setattr(Round, "check_tail", lambda *_: None)
    monkeypatch.setattr(RoundPolicy, "_check_tails", lambda *_: None)  # θ says enough
    levels = make_levels(5, (Fraction(9, 10), Fraction(1, 2)), verified=True, min_tail=5)
    devices = make_devices(5, MODELS[:2])
    gone = {ClientId(devices[0].id): Vanish(Step(Stage.MASK, levels.first_slot(1) - 1))}
    for least in (0, 5):
        policy = replace(POLICY, min_honest_tail=least)
        masked = backends(replace(SESSIONS, policy=policy))[1]
        if least:
            with pytest.raises(PeerError, match="4 devices, fewer than 5"):
                play(masked, levels, devices, MODELS[:2], gone)
        else:
            assert play(masked, levels, devices, MODELS[:2], gone).outcomes[0].aborted is None


def test_levels_that_were_over_when_the_session_ended_keep_their_outcome():
    levels, devices = make_levels(5), make_devices(5)
    step = Step(Stage.MASK, levels.first_slot(1))
    gone = {ClientId(device.id): Vanish(step) for device in devices[:3]}
    for backend in backends():
        first, *others = play(backend, levels, devices, vanishing=gone).outcomes
        assert first.aborted is None
        assert first.update is not None
        assert all(other.aborted for other in others)
        assert all(other.update is None for other in others)


# --- what levels are -----------------------------------------------------------------------------


def test_levels_fall_and_differ_in_nothing_else():
    config = make_config()
    for thetas in ([], [Fraction(1, 2)] * 2, [Fraction(1, 10), Fraction(1, 2)]):
        with pytest.raises(ConfigurationError):
            Levels.at(config, thetas)
    with pytest.raises(ConfigurationError, match="more than θ"):
        Levels((config, make_config(theta=Fraction(1, 3), max_weight=9)))
    with pytest.raises(ConfigurationError, match="more than θ"):
        Levels((config, make_config(theta=Fraction(1, 3), verified=True)))
    Levels((config, make_config(theta=Fraction(1, 3), warm_start=9)))
    most = [Fraction(1, 2 + n) for n in range(MAX_LEVELS)]
    assert len(Levels.at(config, most).rounds) == MAX_LEVELS
    with pytest.raises(ConfigurationError, match=f"1 to {MAX_LEVELS}"):
        Levels.at(config, [*most, Fraction(1, 100)])


def test_slots_of_a_level_follow_those_of_the_one_before():
    levels = make_levels(thetas=(Fraction(1), Fraction(1, 2)))
    assert [levels.first_slot(level) for level in range(3)] == [0, 1, 10]
    assert len(levels.slots()) == 10
    assert [s.whole for s in levels.slots()][:4] == [False, False, True, True]


def test_the_context_binds_every_level_and_model():
    levels = make_levels()
    contexts = {
        levels.context(b"".join(MODELS)),
        levels.context(b"".join(MODELS[::-1])),
        make_levels(thetas=THETAS[:2]).context(b"".join(MODELS)),
        make_levels(thetas=(*THETAS[:2], Fraction(1, 9))).context(b"".join(MODELS)),
        Levels((levels.common,)).context(b"".join(MODELS)),
        make_levels(warm=(None, None, 7)).context(b"".join(MODELS)),
        make_levels(warm=(None, 7, None)).context(b"".join(MODELS)),
        make_levels(verified=True).context(b"".join(MODELS)),
    }
    assert len(contexts) == 8


def test_the_server_announces_what_it_plays_and_waits_for_the_last_level():
    levels = make_levels(5)
    rounds = LevelRounds(levels)
    assert rounds.level == 0
    assert rounds.slot == 0
    assert isinstance(rounds.question, Query)
    rounds.lose()  # the search ends with what it has
    assert isinstance(rounds.question, Threshold)
    assert rounds.slot == levels.first_slot(1) - 1


# --- what devices refuse -------------------------------------------------------------------------


class Parties:
    """A session of levels driven by hand; the first device is the one under test."""

    def __init__(self, levels=None, models=MODELS, policy=POLICY):
        self.levels = make_levels(3) if levels is None else levels
        self.models = b"".join(models)
        self.devices = {d.id: d for d in make_devices(3, models)}
        self.params = make_params(
            self.levels.common,
            slots=self.levels.slots(),
            context=self.levels.context(self.models),
        )
        self.server = RoundServer(
            self.levels, self.models, self.params, self.devices, directory=DEVICES
        )
        self.clients = {
            i: RoundClient(i, policy, DEVICES.credentials(i), SeededRandomness(bytes([i]) * 32))
            for i in self.devices
        }
        self.machine = self.clients[3]
        self.pending = self.server.start()

    def do(self, client, reply):
        machine, device = self.clients[client], self.devices[client]
        if reply is LocalWork.MEASURE_LOSS:
            return machine.supply_losses([device.loss(m) for m in machine.models], device.weight)
        if reply is LocalWork.TRAIN:
            return machine.supply_update(device.update(machine.model))
        if reply is LocalWork.WAIT:
            return machine.supply_zeros()
        return reply

    def step(self):
        for client, data in self.pending.items():
            reply = self.do(client, self.clients[client].receive(data))
            if reply is not None:
                self.server.receive(client, reply)
        self.pending = self.server.close_round()

    def until(self, slot):
        """Play on until the slot is to be opened."""
        while self.pending:
            envelope = wire.decode(self.pending[3])
            if isinstance(envelope, Ask) and self.opened(envelope).slot == slot:
                return envelope
            self.step()
        raise AssertionError(f"slot {slot} was never opened")

    def opened(self, envelope) -> OpenSlot:
        return session_wire.decode(envelope.session, self.params)

    def ask(self, question, slot):
        """What a lying server asks of the device under test."""
        members = np.ones(3, dtype=np.bool_)
        session = session_wire.encode(OpenSlot(slot, members), self.params)
        return wire.encode(Ask(question, session))


def test_the_device_says_whose_turn_it_is():
    parties = Parties()
    seen = []
    while parties.pending:
        parties.step()
        seen.append((parties.machine.state, parties.machine.model))
    walked = list(dict.fromkeys(model for _, model in seen))
    assert walked == list(MODELS)
    assert {state for state, model in seen if model != MODELS[-1]} == {RoundState.SEARCHING}
    assert seen[-1][0] is RoundState.UPDATED
    assert [outcome.aborted for outcome in parties.server.outcomes] == [None] * 3


def test_two_levels_with_one_model_are_refused():
    parties = Parties(models=(*MODELS[:2], MODELS[0]))
    assert_fails(parties.machine, parties.pending[3], Refusal.POLICY)
    with pytest.raises(PeerError, match="same model"):
        play(backends()[0], make_levels(3), make_devices(3), models=(*MODELS[:2], MODELS[0]))


def test_models_that_differ_in_the_sign_of_a_zero_are_one_model():
    zeros = [np.array([sign * 0.0, 1], dtype="<f4").tobytes() for sign in (1, -1)]
    assert zeros[0] != zeros[1]
    parties = Parties(models=(zeros[0], MODELS[0], zeros[1]))
    assert_fails(parties.machine, parties.pending[3], Refusal.POLICY)
    other = np.array([0, -1], dtype="<f4").tobytes()
    parties = Parties(models=(zeros[0], MODELS[0], other))
    assert parties.machine.receive(parties.pending[3]) is LocalWork.MEASURE_LOSS


def test_more_levels_than_the_device_wants_are_refused():
    parties = Parties(policy=replace(POLICY, max_levels=2))
    assert_fails(parties.machine, parties.pending[3], Refusal.POLICY, "max_levels=2")
    assert (
        Parties(policy=replace(POLICY, max_levels=3)).machine.receive(parties.pending[3])
        is LocalWork.MEASURE_LOSS
    )


def test_a_wrong_number_of_losses_is_a_misuse():
    parties = Parties()
    assert parties.machine.receive(parties.pending[3]) is LocalWork.MEASURE_LOSS
    for losses in ([], [1.0], [1.0, 2.0], [1.0] * 4):
        with pytest.raises(UsageError, match="one for each"):
            parties.machine.supply_losses(losses, 5)
    with pytest.raises(UsageError):
        parties.machine.supply_loss(1.0, 5)
    assert isinstance(parties.machine.supply_losses([1.0, 2.0, 3.0], 5), bytes)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: replace(a, models=b"".join(MODELS[::-1])),
        lambda a: replace(a, levels=make_levels(3, (*THETAS[:2], Fraction(1, 9)))),
        lambda a: replace(a, levels=make_levels(3, round_index=4)),
        lambda a: replace(a, levels=Levels((a.levels.common,))),
    ],
    ids=["models swapped", "another level", "another round", "as one level"],
)
def test_what_the_session_is_not_bound_to_is_refused(change):
    parties = Parties()
    announced = wire.decode(parties.pending[3])
    assert_fails(parties.machine, wire.encode(change(announced)), Refusal.MALFORMED)


def test_a_session_with_other_slots_is_refused_although_its_context_fits():
    parties = Parties()
    params = replace(parties.params, slots=parties.levels.common.slots())
    session = session_wire.encode(SessionOpen(params), params)
    data = wire.encode(Announce(parties.levels, parties.models, session))
    assert_fails(parties.machine, data, Refusal.MALFORMED)


@pytest.mark.parametrize("level", [1, 2])
def test_a_question_in_a_slot_of_a_later_level_is_refused(level):
    parties = Parties()
    parties.until(0)
    slot = parties.levels.first_slot(level)
    assert_fails(parties.machine, parties.ask(Query("mm", (5,)), slot), Refusal.OUT_OF_ORDER)


def test_a_threshold_for_another_level_is_refused():
    parties = Parties()
    parties.until(0)
    slot = parties.levels.first_slot(2) - 1
    assert_fails(parties.machine, parties.ask(Threshold(700, 1), slot), Refusal.OUT_OF_ORDER)


def test_an_earlier_level_does_not_come_back():
    parties = Parties()
    parties.until(parties.levels.first_slot(1))
    slot = parties.levels.first_slot(1) - 1
    assert_fails(parties.machine, parties.ask(Threshold(700, 1), slot), Refusal.OUT_OF_ORDER)


def test_a_query_in_the_update_slot_of_its_level_is_refused():
    parties = Parties()
    parties.until(parties.levels.first_slot(1))
    slot = parties.levels.first_slot(2) - 1
    assert_fails(parties.machine, parties.ask(Query("mm", (5,)), slot), Refusal.OUT_OF_ORDER)


def test_a_device_shown_another_threshold_spoils_the_sum_of_that_level_alone():
    # The binding holds at every level: masks of different questions do not cancel.
    parties = Parties(make_levels(3, max_queries=16))
    first = parties.levels.first_slot(1) - 1
    envelope = parties.until(first)
    other = wire.encode(replace(envelope, question=replace(envelope.question, eta_half_ticks=0)))
    assert binding(b"c", envelope.question) != binding(b"c", wire.decode(other).question)
    parties.pending = {**parties.pending, 3: other}
    while parties.pending:
        parties.step()
    spoiled, *others = parties.server.outcomes
    assert spoiled.update is None
    assert all(outcome.search and outcome.update is not None for outcome in others)


def test_a_level_that_is_not_the_last_is_no_end():
    parties = Parties()
    parties.until(parties.levels.first_slot(1))
    assert parties.machine.state is RoundState.SEARCHING
    assert parties.server.outcomes is None
    with pytest.raises(UsageError, match="SupplyEarlierUpdate in state searching"):
        parties.machine.supply_update(np.zeros(4, dtype=np.float32))


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=20)
@given(
    parts=st.sets(st.fractions(0, 1, max_denominator=2**20), min_size=2, max_size=MAX_LEVELS),
    size=st.integers(0, 9),
    starts=st.lists(st.none() | st.integers(0, 2048), min_size=MAX_LEVELS, max_size=MAX_LEVELS),
)
def test_announcements_survive_the_wire(parts, size, starts):
    thetas = sorted(parts - {0}, reverse=True)
    levels = Levels.at(make_config(), thetas, starts[: len(thetas)])
    announced = Announce(levels, bytes(size * len(thetas)), b"session")
    assert wire.decode(wire.encode(announced)) == announced


def fields_of(envelope):
    kind, fields = wire._to_fields(envelope)
    return [wire.VERSION, kind, *fields]


@pytest.mark.parametrize(
    "packed",
    [
        bytes(15),
        struct.pack("<IIQ", 1, 0, 0),
        struct.pack("<IIQ", 2, 4, 0),
        struct.pack("<IIQ", 9, 10, 0),
        struct.pack("<IIQ", 0, 1, 0),
        struct.pack("<IIQ", 1, 3, 8 * 2**8 + 2),
        struct.pack("<IIQ", 1, 3, 2**63),
        b"".join(struct.pack("<IIQ", 1, n + 3, 0) for n in range(MAX_LEVELS)),
    ],
    ids=[
        "half a level",
        "no denominator",
        "not in lowest terms",
        "rising",
        "theta of zero",
        "a warm start beyond the grid",
        "a warm start of 64 bits",
        "too many",
    ],
)
def test_impossible_levels_do_not_decode(packed):
    announced = Announce(make_levels(thetas=THETAS[1:]), b"ab", b"session")
    fields = fields_of(announced)
    good = wire.write_fields(fields)
    assert wire.decode(good) == announced
    fields[-3] = struct.pack("<IIQ", 1, 10, 0)
    assert wire.decode(wire.write_fields(fields)) == announced
    fields[-3] = packed
    with pytest.raises(DecodeError):
        wire.decode(wire.write_fields(fields))


def test_models_of_different_sizes_do_not_decode():
    announced = Announce(make_levels(thetas=THETAS[1:]), b"abc", b"session")
    with pytest.raises(DecodeError, match="not 2 of one size"):
        wire.decode(wire.encode(announced))


def test_levels_are_announced_once():
    parties = Parties()
    announced = parties.pending[3]
    parties.step()
    other = wire.encode(replace(wire.decode(announced), models=bytes(3)))
    assert_fails(parties.machine, other, Refusal.OUT_OF_ORDER)


def test_a_relay_that_opens_a_slot_is_refused_between_levels():
    parties = Parties()
    envelope = parties.until(parties.levels.first_slot(1))
    assert_fails(parties.machine, wire.encode(Relay(envelope.session)), Refusal.OUT_OF_ORDER)


NOISY = {
    "method": "noisy",
    "num_pivots": 4,
    "weighting": Weighting.EQUAL,
    "noise": Noise(Fraction(1), 3),
}


@pytest.mark.parametrize(
    ("thetas", "changes", "can_be"),
    [
        ([Fraction(1)], {}, True),
        ([Fraction(1, 2)], {}, False),
        ([Fraction(1), Fraction(1, 2)], {}, False),
        ([Fraction(1), Fraction(1, 2)], {"min_search_cohort": 4}, True),
        ([Fraction(1), Fraction(1, 2)], {"verified": True}, True),
        ([Fraction(1), Fraction(1, 2)], {"verified": True, **NOISY}, False),
    ],
)
def test_devices_can_count_a_tail_where_they_follow_every_level(thetas, changes, can_be):
    levels = Levels.at(make_config(**changes, max_queries=1, warm_start=5), thetas)
    assert [config.warm_start for config in levels.rounds] == [5] * len(thetas)
    assert levels.can_be_followed is can_be
