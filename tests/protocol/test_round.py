"""Whole rounds by both backends: one answer, and Algorithm 2's filter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import lenient
import numpy as np
import pytest
from flat_configs import round_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from round_parties import POLICY, comparable, play_single

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import RoundServer
from deltafl.protocol.sessions import Sessions, preferred_graph
from deltafl.protocol.states import RoundState
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    Adversary,
    ClientId,
    Enrolment,
    Fault,
    GraphKind,
    PeerError,
    Refusal,
    SlotSum,
    Stage,
    Step,
    ThreatModel,
    Vanish,
    wire,
)
from deltafl.secagg.graph import Graph
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver
from deltafl.secagg.survival import settle
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds

SESSIONS = Sessions(
    policy=POLICY, threat=ThreatModel(0.1, 0.2), graph=GraphKind.COMPLETE, min_cohort=3
)
MODEL = np.arange(4, dtype="<f4").tobytes()
LENGTH = 4


@dataclass(frozen=True)
class Device:
    id: int
    weight: int
    value: float
    delta: tuple[float, ...] = (0.5, -0.25, 0.125, 1.0)

    def loss(self, model) -> float:
        assert bytes(model) == MODEL
        return self.value

    def update(self, model) -> np.ndarray:
        assert bytes(model) == MODEL
        return np.array(self.delta, dtype=np.float32) * np.float32(self.id % 5 - 2)


class AnyModel(Device):
    """Answers the same whatever the model."""

    def loss(self, model) -> float:
        del model
        return super().loss(np.frombuffer(MODEL, "<f4"))

    def update(self, model) -> np.ndarray:
        del model
        return super().update(np.frombuffer(MODEL, "<f4"))


def config(cohort_size: int, theta: Fraction, method: str, **changes) -> RoundConfig:
    fields = {
        "round_index": 3,
        "cohort_size": cohort_size,
        "theta": theta,
        "method": method,
        "num_pivots": None,
        "max_queries": 26,
        "grid": LossGrid(resolution_bits=8, bound=8),
        "max_weight": 512,
        "update_length": LENGTH,
        "update_clip": 4.0,
        "update_resolution_bits": 12,
    }
    return round_of(**(fields | changes))


def masked(sessions=SESSIONS) -> MaskedRounds:
    return MaskedRounds(
        sessions,
        SeededRandomness(b"s" * 32),
        enrolment=Enrolment(SeededRandomness(b"i" * 32)),
    )


ALL_SESSIONS = {
    "unsigned": SESSIONS,
    "signed": replace(SESSIONS, signed=True),
    "active": replace(
        SESSIONS,
        threat=ThreatModel(0.1, 0.2, Adversary.ACTIVE),
        policy=lenient.trusting(POLICY),
    ),
}
backends = pytest.mark.parametrize("backend", [masked, lambda: IdealRounds(SESSIONS)])
all_sessions = pytest.mark.parametrize("sessions", ALL_SESSIONS.values(), ids=ALL_SESSIONS)


def play(backend, round_config, devices: Sequence[Device], vanishing=None, warm=None):
    warmed = replace(round_config, warm_start=warm)
    return play_single(backend, warmed, MODEL, devices, vanishing=vanishing)


thetas = st.sampled_from([Fraction(1), Fraction(4, 5), Fraction(1, 2), Fraction(1, 10)])
methods = st.sampled_from(["mm", "bracketed", "histogram"])
cohorts = st.lists(st.tuples(st.integers(0, 600), st.floats(0, 9)), min_size=5, max_size=9).map(
    lambda rows: [Device(7 * i + 1, w, x) for i, (w, x) in enumerate(rows)]
)
weightings = st.sampled_from(Weighting)
in_set_up, in_slots = ([s for s in Stage if (s >= Stage.LIST) is late] for late in (False, True))
# Not every stage comes in every slot: who is to vanish at one that does not is gone at the next
# step, as in both backends.
steps = st.one_of(
    st.builds(Step, st.sampled_from(in_set_up)),
    # A search takes some eight queries; the update is summed in slot 26.
    st.builds(Step, st.sampled_from(in_slots), st.integers(0, 9) | st.just(26)),
)


@all_sessions
@settings(max_examples=40)
@given(cohorts, thetas, methods, st.data())
def test_both_backends_give_the_same_outcome_whoever_vanishes(
    sessions, devices, theta, method, data
):
    round_config = config(len(devices), theta, method)
    gone = data.draw(st.sets(st.sampled_from([d.id for d in devices]), max_size=3))
    vanishing = {i: data.draw(st.builds(Vanish, steps, st.booleans())) for i in gone}
    warm = data.draw(st.none() | st.integers(0, round_config.search.grid.max_tick))
    real = play(masked(sessions), round_config, devices, vanishing, warm)
    ideal = play(IdealRounds(sessions), round_config, devices, vanishing, warm)
    assert comparable(real.outcome) == comparable(ideal.outcome)


@all_sessions
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stage", Stage)
def test_one_device_lost_at_each_stage_leaves_the_others_their_round(sessions, stage, late):
    devices = [Device(i, 10 + i, 0.3 * i) for i in range(1, 9)]
    round_config = config(8, Fraction(1, 2), "bracketed")
    slot = round_config.update_slot if stage >= Stage.LIST else 0
    gone = {3: Vanish(Step(stage, slot), late)}
    real = play(masked(sessions), round_config, devices, gone)
    assert comparable(real.outcome) == comparable(
        play(IdealRounds(sessions), round_config, devices, gone).outcome
    )
    signed = sessions is not SESSIONS
    missing = {} if signed else {Stage.CONFIRM: Stage.UNMASK}
    expected = {Stage.LIST: Stage.MASK, **missing}.get(stage, stage)  # the update lists nobody
    assert {i: drop.step for i, drop in real.outcome.drops.items()} == {3: Step(expected, slot)}
    assert real.outcome.aborted is None
    assert real.outcome.search.certified
    assert real.outcome.update is not None


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_both_backends_agree_on_sparse_graphs(signed):
    sessions = Sessions(
        policy=replace(POLICY, colluding_rate=0.05),
        threat=ThreatModel(0.05, 0.1),
        graph=GraphKind.SPARSE,
        signed=signed,
    )
    devices = [Device(i, 10 + i, 0.05 * i) for i in range(60)]
    stages = [s for s in Stage if s is not Stage.LIST and (signed or s is not Stage.CONFIRM)]
    round_config = config(60, Fraction(1, 2), "bracketed")
    gone = {
        7 * i: Vanish(Step(stage, round_config.update_slot * (stage >= Stage.MASK)), i % 2 == 1)
        for i, stage in enumerate(stages)
    }
    real = play(masked(sessions), round_config, devices, gone)
    assert comparable(real.outcome) == comparable(
        play(IdealRounds(sessions), round_config, devices, gone).outcome
    )
    assert {i: drop.step.stage for i, drop in real.outcome.drops.items()} == {
        7 * i: stage for i, stage in enumerate(stages)
    }
    assert real.outcome.update is not None


def test_against_an_active_adversary_sessions_are_signed_and_quorums_overlap():
    params = ALL_SESSIONS["active"].params(config(9, Fraction(1, 2), "mm"), MODEL, bytes(32))
    assert params.signed
    assert params.is_complete
    assert 2 * params.threshold > 1.1 * params.num_holders


def test_no_sparse_graph_is_left_to_an_active_server():
    threat = ThreatModel(0.05, 0.05, Adversary.ACTIVE)
    assert preferred_graph(1000, threat) is GraphKind.COMPLETE
    assert preferred_graph(1000, replace(threat, adversary=Adversary.CURIOUS)) is GraphKind.SPARSE
    policy = RoundPolicy(**lenient.ROUNDS, adversary=Adversary.ACTIVE, colluding_rate=0.05)
    sessions = Sessions(policy=policy, threat=threat, graph=GraphKind.SPARSE)
    round_config = config(1000, Fraction(1), "mm")
    with pytest.raises(PeerError, match="not that of the complete graph"):
        sessions.params(round_config, MODEL, bytes(32))
    accepting = replace(sessions, policy=replace(policy, adversary=Adversary.CURIOUS))
    assert not accepting.params(round_config, MODEL, bytes(32)).is_complete


def test_devices_keep_their_identities_from_round_to_round():
    class Identities(NoObserver):
        def __init__(self):
            self.seen = {}

        def message(self, *, sent, peer, data):
            if not sent and data[2] == 0x11:
                message = wire.decode(data, params)
                self.seen.setdefault(peer, []).append(message.credential.identity)

    devices = [AnyModel(i, 10, 0.1 * i) for i in range(1, 6)]
    identities = Identities()
    backend = replace(masked(ALL_SESSIONS["signed"]), observer=identities)
    for round_index in range(2):
        model = MODEL if round_index else MODEL[::-1]
        round_config = config(5, Fraction(1), "mm", round_index=round_index)
        params = backend.sessions.params(round_config, model, b"g" * 32)
        play_single(backend, round_config, model, devices)
    keys = identities.seen.values()
    assert all(len(each) == 2 and len(set(each)) == 1 for each in keys)
    assert len({each[0] for each in keys}) == 5


@pytest.mark.parametrize("round_index", [3, 4])
def test_by_devices_that_answer_in_one_round_a_round_over_a_model_is_played_once(round_index):
    devices = [Device(i, 10, 0.1 * i) for i in range(1, 6)]
    round_config = config(5, Fraction(1), "mm")
    once = {"policy": replace(POLICY, max_rounds_per_model=1)}
    unsigned, signed, active = (
        masked(sessions)
        for sessions in (
            replace(SESSIONS, **once),
            replace(SESSIONS, signed=True, **once),
            ALL_SESSIONS["active"],
        )
    )
    played = [play(backend, round_config, devices) for backend in (unsigned, signed, active)]
    assert len({str(comparable(one.outcome)) for one in played}) == 1
    for backend in (unsigned, signed, active):
        with pytest.raises(PeerError) as refused:
            play(backend, replace(round_config, round_index=round_index), devices)
        assert refused.value.reason is Refusal.MODEL_REPEATED
    again = play(masked(), round_config, devices)  # by devices that were not there before
    assert comparable(again.outcome) == comparable(played[0].outcome)


@pytest.mark.parametrize("signed", [False, True])
def test_devices_that_take_the_server_to_follow_the_protocol_play_a_round_again(signed):
    """With the same settings, and as often as they answer for a model."""
    devices = [Device(i, 10, 0.1 * i) for i in range(1, 6)]
    round_config = config(5, Fraction(1, 2), "mm")
    policy = replace(POLICY, max_rounds_per_model=3)
    backend = masked(replace(SESSIONS, signed=signed, policy=policy))
    outcomes = []
    for number in (3, 4, 5):
        if number == 5:
            for changes in ({"theta": Fraction(1)}, {"min_tail": 1}, {"method": "bracketed"}):
                with pytest.raises(PeerError, match="with other settings") as refused:
                    play(backend, replace(round_config, round_index=5, **changes), devices)
                assert refused.value.reason is Refusal.MODEL_REPEATED
        numbered = replace(round_config, round_index=number)
        outcomes.append(comparable(play(backend, numbered, devices).outcome))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    with pytest.raises(PeerError, match="max_rounds_per_model=3"):
        play(backend, replace(round_config, round_index=6), devices)


@pytest.mark.slow
@all_sessions
@settings(max_examples=25)
@given(cohorts, thetas, methods, weightings, st.integers(2, 10), st.data())
def test_both_backends_agree_on_searches_that_are_to_say_less(
    sessions, devices, theta, method, weighting, least, data
):
    changes = {"weighting": weighting, "min_search_cohort": least}
    if method == "mm":
        changes["epsilon_ticks"] = data.draw(st.sampled_from([0, 1, 100, 2048]))
    round_config = config(len(devices), theta, method, **changes)
    gone = data.draw(st.sets(st.sampled_from([d.id for d in devices]), max_size=3))
    late = st.sampled_from([*(Step(s) for s in Stage), Step(Stage.MASK, 1), Step(Stage.MASK, 26)])
    vanishing = {i: data.draw(st.builds(Vanish, late, st.booleans())) for i in gone}
    warm = data.draw(st.none() | st.integers(0, round_config.search.grid.max_tick))
    real = play(masked(sessions), round_config, devices, vanishing, warm)
    ideal = play(IdealRounds(sessions), round_config, devices, vanishing, warm)
    assert comparable(real.outcome) == comparable(ideal.outcome)
    found = real.outcome.search
    if found is not None and found.ended is Ended.TOO_FEW:
        assert (found.num_queries, found.certified) == (0, False)
        assert real.outcome.secure_sums <= 1
    elif theta < 1 and real.outcome.secure_sums > 1:
        set_up = (Stage.ADVERTISE, Stage.SHARE, Stage.RECEIPT)
        drops = real.outcome.drops.values()
        assert len(devices) - sum(drop.step.stage in set_up for drop in drops) >= least


@pytest.mark.parametrize("num_gone", [0, 1, 2])
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.RECEIPT])
@pytest.mark.parametrize("signed", [False, True])
def test_over_too_few_devices_nothing_is_asked_and_everybody_is_kept(signed, stage, num_gone):
    sessions = replace(SESSIONS, signed=signed)
    devices = [Device(i, 10 + i, 0.3 * i) for i in range(1, 9)]
    round_config = config(8, Fraction(1, 2), "mm", min_search_cohort=7)
    gone = {i: Vanish(Step(stage)) for i in range(1, num_gone + 1)}
    real = play(masked(sessions), round_config, devices, gone, warm=1000)
    ideal = play(IdealRounds(sessions), round_config, devices, gone, warm=1000)
    assert comparable(real.outcome) == comparable(ideal.outcome)
    outcome = real.outcome
    if num_gone < 2:
        assert outcome.search.certified
        assert outcome.kept_devices < 8 - num_gone
        return
    assert outcome.search.ended is Ended.TOO_FEW
    assert not outcome.search.certified
    assert (outcome.search.num_queries, outcome.secure_sums) == (0, 1)
    assert (outcome.search.eta_half_ticks, outcome.search.half_width_half_ticks) == (0, 0)
    assert outcome.kept_devices == 6
    assert outcome.update is not None


@backends
def test_a_cohort_that_is_too_small_as_invited_is_fedavg_with_a_reason(backend):
    devices = [Device(i, 10 * i, float(i)) for i in range(1, 7)]
    small = config(6, Fraction(1, 2), "mm", min_search_cohort=7)
    outcome = play(backend(), small, devices, warm=1000).outcome
    plain = play(backend(), config(6, Fraction(1), "mm"), devices).outcome
    assert (outcome.search.ended, plain.search.ended) == (Ended.TOO_FEW, Ended.EXACT)
    assert comparable(replace(outcome, search=plain.search)) == comparable(plain)


@pytest.mark.parametrize("signed", [False, True])
def test_who_is_missing_from_a_first_query_over_enough_leaves_no_sum_over_fewer(signed):
    sessions = replace(SESSIONS, signed=signed)
    devices = [Device(i, 10 + i, 0.3 * i) for i in range(1, 9)]
    gone = {1: Vanish(Step(Stage.MASK, 0))}
    for least, ended in ((0, Ended.LAST_DEVICE), (1, Ended.SHRANK), (8, Ended.SHRANK)):
        round_config = config(8, Fraction(1, 2), "mm", min_search_cohort=least)
        real = play(masked(sessions), round_config, devices, gone, warm=300)
        ideal = play(IdealRounds(sessions), round_config, devices, gone, warm=300)
        assert comparable(real.outcome) == comparable(ideal.outcome)
        assert real.outcome.search.ended is ended
        if least:
            assert (real.outcome.search.num_queries, real.outcome.secure_sums) == (0, 1)
            assert real.outcome.search.eta_half_ticks == 0  # nothing is known: all are kept


@pytest.mark.slow
def test_a_search_over_too_few_only_because_some_are_isolated_ends_the_round_in_both_backends(
    monkeypatch,
):
    """Devices accept no graph in which so few are missing that some are isolated, but for tests."""
    made = Sessions.params_of_levels

    def fewer(*given):
        return replace(made(*given), min_cohort=20)

    monkeypatch.setattr(Sessions, "params_of_levels", fewer)
    monkeypatch.setattr(RoundPolicy, "_check_sparse", lambda *_: None)
    sessions = Sessions(
        policy=replace(POLICY, colluding_rate=0.05),
        threat=ThreatModel(0.05, 0.1),
        graph=GraphKind.SPARSE,
    )
    devices = [Device(i, 10 + i, 0.05 * i) for i in range(60)]
    params = sessions.params(config(60, Fraction(1, 2), "bracketed"), MODEL, b"g" * 32)
    graph = Graph(60, params.degree, params.graph_seed)
    num_gone = params.degree - params.threshold + 1  # who has lost so many cannot be unmasked
    isolated, lost = next(
        (alone, near)
        for alone in range(60)
        for near in [graph.neighbours(alone).tolist()[:num_gone]]
        if np.flatnonzero(~settle(graph, params, ~np.isin(np.arange(60), near))).tolist()
        == sorted([alone, *near])
    )
    gone = {i: Vanish(Step(Stage.RECEIPT)) for i in lost}
    for least, aborted in ((60 - num_gone, True), (59 - num_gone, False)):
        round_config = config(60, Fraction(1, 2), "bracketed", min_search_cohort=least)
        real = play(masked(sessions), round_config, devices, gone)
        ideal = play(IdealRounds(sessions), round_config, devices, gone)
        assert comparable(real.outcome) == comparable(ideal.outcome)
        outcome = real.outcome
        assert (outcome.aborted is not None) == aborted
        assert outcome.drops[isolated].fault is Fault.ISOLATED
        if aborted:
            assert f"min_search_cohort is {least}" in outcome.aborted
            assert outcome.secure_sums == 0
        else:
            assert outcome.search.certified


def weighing(*weights):
    """Devices of these weights, from the smallest loss to the largest."""
    return [Device(7 * i + 1, weight, float(i)) for i, weight in enumerate(weights)]


@settings(max_examples=150)
@given(cohorts, thetas, methods, weightings)
@example(weighing(1, 1, 1, 1, 500), Fraction(1, 2), "bracketed", Weighting.EQUAL)
@example(weighing(3, 3, 2, 2, 2), Fraction(1, 2), "bracketed", Weighting.POWERS_OF_TWO)
def test_the_update_is_the_weighted_mean_over_the_exact_tail(devices, theta, method, weighting):
    round_config = config(len(devices), theta, method, weighting=weighting)
    outcome = play(IdealRounds(SESSIONS), round_config, devices).outcome
    ticks = [round_config.search.grid.tick(d.value)[0] for d in devices]
    weights = [min(d.weight, 512) for d in devices]
    total = sum(weights)
    if total == 0:
        assert outcome.update is None
        assert outcome.kept_weight == 0
        return
    searched = [weighting.of(w) for w in weights]
    quantile = min(
        x
        for x in ticks
        if sum(w for w, t in zip(searched, ticks, strict=True) if t <= x)
        >= (1 - theta) * sum(searched)
    )
    tail = [i for i, t in enumerate(ticks) if t >= quantile]
    assert outcome.kept_devices == len(tail)
    assert outcome.kept_weight == sum(weights[i] for i in tail)
    expected = sum(weights[i] * devices[i].update(MODEL).astype(float) for i in tail)
    step = 2.0**-round_config.update.resolution_bits
    assert np.abs(outcome.update * outcome.kept_weight - expected).max() <= step * len(tail)
    assert outcome.search is not None
    assert outcome.search.certified


def test_an_exact_tie_keeps_everybody():
    devices = [Device(i, 10, 1.0) for i in range(1, 7)]
    for method in ("mm", "bracketed", "histogram"):
        outcome = play(masked(), config(6, Fraction(1, 10), method), devices).outcome
        assert outcome.kept_devices == 6


def test_theta_one_asks_nothing_and_is_fedavg():
    devices = [Device(i, 10 * i, float(i)) for i in range(1, 7)]
    outcome = play(masked(), config(6, Fraction(1), "mm"), devices).outcome
    assert outcome.secure_sums == 1
    assert outcome.kept_devices == 6
    assert outcome.train_loss == pytest.approx(sum(i * i for i in range(1, 7)) / 21, abs=1e-2)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONFIRM, Stage.UNMASK])
def test_a_search_ends_when_its_cohort_shrinks(stage, signed):
    sessions = replace(SESSIONS, signed=signed)
    devices = [Device(i, 10 + i, 0.3 * i) for i in range(1, 7)]
    round_config = config(6, Fraction(1, 2), "mm")
    unharmed = play(IdealRounds(sessions), round_config, devices).outcome.search
    assert unharmed.num_queries >= 3
    for slot in range(unharmed.num_queries):
        gone = {1: Vanish(Step(stage, slot), late=slot % 2 == 1)}
        real = play(masked(sessions), round_config, devices, gone)
        assert comparable(real.outcome) == comparable(
            play(IdealRounds(sessions), round_config, devices, gone).outcome
        )
        outcome = real.outcome
        found = outcome.search
        # Whose vector is missing from the first query was never in the search. From a later one on
        # there is no sum over the others; after the last nothing is left to be asked.
        # The first slot is the only one in which there is something to confirm or to unmask.
        lost = stage is Stage.MASK or slot > 0
        shrank = slot > 0 if lost else slot < unharmed.num_queries - 1
        if lost and stage is not Stage.MASK:
            # Nothing is asked at this stage of a whole slot: the device is missed in the next one.
            shrank, slot = slot < unharmed.num_queries - 1, slot + 1
        assert (found.ended is Ended.SHRANK) == shrank
        assert found.certified == (not shrank)
        if shrank:
            assert found.num_queries == (slot if lost else slot + 1)
        assert outcome.secure_sums == found.num_queries + 1
        assert outcome.drops.keys() == {1}
        assert outcome.aborted is None
        assert outcome.kept_devices >= 1


def test_a_search_ends_when_somebody_is_gone_after_a_sum_which_counts_all_the_same():
    round_config = config(3, Fraction(1, 2), "mm")
    round_ = Round(round_config)
    devices = [DeviceRound.measured(round_config, 0.5 + i, 10) for i in range(3)]
    for remaining in ((1, 2, 3), (1, 2)):
        total = sum(device.answer(round_.question) for device in devices)
        total &= np.uint64(2**round_config.search_layout.ring_bits - 1)
        assert isinstance(round_.question, Query)
        round_.take(SlotSum(round_.slot, total, (1, 2, 3), remaining))
    assert isinstance(round_.question, Threshold)
    found = round_.outcome({}).search
    assert (found.ended, found.num_queries) == (Ended.SHRANK, 2)


def test_too_few_survivors_abort_the_round_and_leave_the_model():
    devices = [Device(i, 10, 0.1 * i) for i in range(1, 7)]
    gone = {i: Vanish(Step(Stage.SHARE)) for i in range(1, 5)}
    for backend in (masked(), IdealRounds(SESSIONS)):
        outcome = play(backend, config(6, Fraction(1, 2), "mm"), devices, gone).outcome
        assert outcome.aborted is not None
        assert "min_cohort" in outcome.aborted
        assert outcome.update is None
        assert set(outcome.drops) == {1, 2, 3, 4}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@backends
def test_what_is_not_finite_counts_as_the_bound_or_as_zeros(backend, bad):
    devices = [Device(i, 10, 0.1 * i) for i in range(1, 6)]
    everyone = config(5, Fraction(1), "mm")

    def outcome_with(last):
        return play(backend(), everyone, [*devices[:4], last]).outcome

    largest = replace(devices[4], value=everyone.search.grid.bound + 1.0)
    spoiled = outcome_with(replace(devices[4], value=bad))
    assert comparable(spoiled) == comparable(outcome_with(largest))
    idle, broken = (
        outcome_with(replace(devices[4], id=8, delta=delta))
        for delta in ((0.0,) * 4, (0.0, bad, 0.0, 0.0))
    )
    assert comparable(broken) == comparable(replace(idle, clipped=idle.clipped + 4))


def test_what_is_out_of_bounds_is_clipped_and_counted_under_the_mask():
    devices = [
        Device(1, 600, 1.0),  # the weight
        Device(2, 10, 9.5),  # the loss; its update is zero
        Device(3, 10, 1.0, (50.0, 0.0, -50.0, 1.0)),  # two elements
        Device(4, 10, 1.0),
        Device(5, 10, 1.0),
    ]
    outcome = play(masked(), config(5, Fraction(1), "mm"), devices).outcome
    assert outcome.clipped == 4
    assert outcome.kept_weight == 552


def test_bytes_up_do_not_tell_who_passed_the_filter():
    class Sizes(NoObserver):
        def __init__(self):
            self.seen = {}

        def message(self, *, sent, peer, data):
            if not sent:
                self.seen.setdefault(peer, []).append(len(data))

    devices = [Device(i, 10 + i, 0.3 * i) for i in range(1, 9)]
    sizes = Sizes()
    backend = replace(masked(), observer=sizes)
    outcome = play(backend, config(8, Fraction(1, 2), "bracketed"), devices).outcome
    assert 0 < outcome.kept_devices < 8
    assert len({tuple(lengths) for lengths in sizes.seen.values()}) == 1


def test_the_count_of_clipped_elements_is_exact():
    above = float(np.nextafter(np.float32(0.1), np.float32(1)))  # a float32 just above 0.1
    device = DeviceRound.measured(config(5, Fraction(1), "mm", update_clip=0.1), 1.0, 10)
    update = np.array([above, 0.1, -above, 0.0], dtype=np.float32)
    words = device.contribution(update)
    # As float32, 0.1 is itself a little more than the bound.
    assert device.config.update_layout.decode(words)["clipped"].tolist() == [3]


def test_an_envelope_delayed_in_an_earlier_round_is_ignored():
    devices = [Device(i, 10, 0.1 * i) for i in range(1, 6)]
    earlier, now = (config(5, Fraction(1), "mm", round_index=i) for i in (0, 1))
    client = RoundClient(ClientId(1), POLICY, SeededRandomness(b"c" * 32))
    openings = [
        RoundServer(
            Levels((c,)), MODEL, SESSIONS.params(c, MODEL, b"g" * 32), [d.id for d in devices]
        ).start()
        for c in (earlier, now)
    ]
    assert client.receive(openings[1][1]) is LocalWork.MEASURE_LOSS
    client.supply_loss(0.5, 10)
    assert client.receive(openings[0][1]) is None
    assert client.state is RoundState.SEARCHING
