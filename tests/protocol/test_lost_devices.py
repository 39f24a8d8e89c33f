"""Whoever is lost, and when: real masks and ideal sums give the same outcome, to the bit."""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import POLICY, comparable, make_config, play_levels, steps_of

from deltafl.protocol.levels import LevelRounds, Levels
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import Ended
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import Enrolment, GraphKind, Stage, Step, ThreatModel, Vanish
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort import ideal as ideal_module
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds

SIZE = 6
MODELS = tuple(np.full(2, number, dtype="<f4").tobytes() for number in (1, 2))
THETAS = (Fraction(1, 2), Fraction(1, 3))
SESSIONS = Sessions(
    policy=POLICY,
    threat=ThreatModel(0.1, 0.2),
    graph=GraphKind.COMPLETE,
    min_cohort=3,
)
METHODS = {
    "mm": {"method": "mm"},
    "bracketed": {"method": "bracketed"},
    "histogram": {"method": "histogram", "num_pivots": 3},
    "noisy": {
        "method": "noisy",
        "num_pivots": 2,
        "weighting": Weighting.EQUAL,
        "noise": Noise(Fraction(1), 3),
    },
}
KINDS = {"plain": False, "verified": True}
"""Whether the searches are verified."""


@dataclass(frozen=True)
class Device:
    id: int
    weight: int
    losses: dict[bytes, float]

    def loss(self, model) -> float:
        return self.losses[bytes(model)]

    def update(self, model) -> np.ndarray:
        return np.full(4, 0.25 * (self.id % 5 - 2) * model[0], dtype=np.float32)


DEVICES = [
    Device(3 + 7 * rank, 10 + rank, {MODELS[0]: 0.5 + rank // 2, MODELS[1]: 0.3 * (5 - rank)})
    for rank in range(SIZE)
]
IDS = [device.id for device in DEVICES]


def levels_of(method, *, verified, least, num_levels, warm=None, most=3, min_tail=0):
    config = make_config(
        cohort_size=SIZE,
        verified=verified,
        min_search_cohort=least,
        warm_start=warm,
        min_tail=min_tail,
        max_queries=1 if method == "noisy" else most,
        **METHODS[method],
    )
    return Levels.at(config, THETAS[:num_levels])


def noise_of(client):
    return SeededRandomness(b"noise".ljust(28, b"n") + client.to_bytes(4, "little"))


def outcomes_of(rounds, levels, gone, number=0, lost=()):
    models = MODELS[: len(levels.rounds)]
    numbered = Levels(tuple(replace(config, round_index=number) for config in levels.rounds))
    seed = bytes([number]) * 32
    result = play_levels(
        rounds, numbered, models, DEVICES, vanishing=gone, graph_seed=seed, lost=lost
    )
    return [comparable(outcome) for outcome in result.outcomes], result.outcomes


def assert_same(levels, gone):
    """Both kinds of sums have one outcome, which is returned."""
    (outcomes,) = assert_all_same(levels, [gone])
    return outcomes


def assert_all_same(levels, plans):
    """Both kinds of sums have the same outcomes, which are returned, until a round is not lost.

    Each round goes on with what the one before has revealed.
    """
    sessions = SESSIONS
    enrolment = Enrolment(SeededRandomness(b"i" * 32))
    masked = MaskedRounds(
        sessions, SeededRandomness(b"s" * 32), enrolment=enrolment, noise=noise_of
    )
    ideal = IdealRounds(sessions, noise_of)
    played, masked_lost, ideal_lost = [], (), ()
    for number, gone in enumerate(plans):
        found, outcomes = outcomes_of(masked, levels, gone, number, masked_lost)
        wanted, others = outcomes_of(ideal, levels, gone, number, ideal_lost)
        assert found == wanted, plans[: number + 1]
        played.append(outcomes)
        masked_lost, ideal_lost = ([one.lost for one in each] for each in (outcomes, others))
        if None in masked_lost:
            break
    return played


methods = pytest.mark.parametrize("method", METHODS)
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.slow
@methods
@kinds
@pytest.mark.parametrize("least", [0, 5, 6])
def test_one_device_is_lost_at_one_step(method, kind, least):
    verified = KINDS[kind]
    levels = levels_of(method, verified=verified, least=least, num_levels=1, warm=700)
    ended = set()
    for client, step in product((IDS[0], IDS[-1]), steps_of(levels)):
        gone = {client: Vanish(step, late=client == IDS[0])}
        (outcome,) = assert_same(levels, gone)
        assert outcome.aborted is None
        assert outcome.drops.keys() == {client}
        ended.add(outcome.search.ended)
    assert Ended.SHRANK in ended or (method, least) == ("noisy", 0)
    assert (Ended.TOO_FEW in ended) == (least == 6)


@pytest.mark.slow
@methods
@kinds
@pytest.mark.parametrize("least", [0, 5])
def test_one_device_is_lost_at_one_step_of_two_levels(method, kind, least):
    verified = KINDS[kind]
    levels = levels_of(method, verified=verified, least=least, num_levels=2, most=2)
    for step in steps_of(levels):
        outcomes = assert_same(levels, {IDS[2]: Vanish(step)})
        assert [outcome.aborted for outcome in outcomes] == [None, None]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_devices_are_lost_at_any_steps(data):
    verified = data.draw(st.booleans())
    levels = levels_of(
        data.draw(st.sampled_from(list(METHODS))),
        verified=verified,
        least=data.draw(st.sampled_from([0, 4, 5])),
        num_levels=data.draw(st.integers(1, 2)),
        warm=data.draw(st.none() | st.integers(0, 2048)),
        min_tail=data.draw(st.integers(0, 4)),
    )
    vanishes = st.builds(Vanish, st.sampled_from(steps_of(levels)), st.booleans())
    gone = data.draw(st.dictionaries(st.sampled_from(IDS), vanishes, min_size=1, max_size=3))
    assert_same(levels, gone)


@pytest.mark.parametrize("min_tail", [2, 3])
def test_a_round_whose_tail_may_be_too_small_is_given_up_in_both(min_tail):
    """θ = 1/2 keeps two or four of six, in pairs; who is lost after that may have been kept."""
    levels = levels_of(
        "bracketed", verified=True, least=0, num_levels=1, most=12, min_tail=min_tail
    )
    for step in (Step(Stage.MASK, 12), Step(Stage.CONFIRM, 12), Step(Stage.UNMASK, 12)):
        for num_lost in (0, 1, 2):
            gone = dict.fromkeys(IDS[:num_lost], Vanish(step))
            (outcome,) = assert_same(levels, gone)
            assert outcome.search.certified
            lost = num_lost if step.stage is Stage.MASK else 0
            assert (outcome.aborted is None) == (4 - lost >= min_tail)
            assert (outcome.update is None) == (outcome.aborted is not None)


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("stage", [Stage.CONFIRM, Stage.UNMASK])
def test_who_left_after_its_answer_may_have_been_in_the_tail(stage, most):
    """Four are in the tail by the first sum, and nobody but the server knows who.

    If three are too few, the threshold keeps all; and if five are, the round is given up.
    """
    for (client, num_kept), min_tail in product(((IDS[0], 4), (IDS[-1], 3)), (3, 4, 6)):
        levels = levels_of(
            "bracketed", verified=True, least=0, num_levels=1, most=most, min_tail=min_tail
        )
        (outcome,) = assert_same(levels, {client: Vanish(Step(stage, 0))})
        assert outcome.secure_sums == 1 + (min_tail < 6)
        assert outcome.kept_devices == {3: num_kept, 4: 5, 6: 0}[min_tail]
        assert (outcome.aborted is None) == (min_tail < 6)


def test_a_level_without_a_device_that_was_agreed_on_has_no_search():
    """Its vector is in the sum before, and no query may be without it."""
    levels = levels_of("mm", verified=False, least=5, num_levels=2, most=2)
    for slot in (2, 3):
        gone = {IDS[2]: Vanish(Step(Stage.UNMASK, slot))}
        first, second = assert_same(levels, gone)
        assert (first.secure_sums, first.kept_devices) == (3, 4)
        assert (second.search.ended, second.secure_sums) == (Ended.SHRANK, slot - 1)
        assert second.aborted is None


# --- lost rounds that are repeated --------------------------------------------------------------

LOST = dict.fromkeys(IDS[1:5])
"""So many are gone that every round is lost: a session needs four of six."""


@pytest.mark.slow
@pytest.mark.parametrize(("least", "num_levels"), [(0, 1), (5, 1), (5, 2)])
def test_a_round_that_was_lost_at_any_step_is_repeated(least, num_levels):
    levels = levels_of(
        "bracketed", verified=False, least=least, num_levels=num_levels, most=2, min_tail=1
    )
    num_sums = set()
    for step in steps_of(levels):
        gone = dict.fromkeys(LOST, Vanish(step))
        first, *others = assert_all_same(levels, [gone, {IDS[0]: Vanish(step)}, {}])
        assert first[-1].aborted is not None
        if others:
            assert others[0][0].aborted is None
            num_sums.add(len(first[0].lost.sums))
    assert num_sums == {0, 1, 2}


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_rounds_are_lost_and_repeated_whoever_is_gone_from_each(data):
    verified = False
    levels = levels_of(
        data.draw(st.sampled_from(list(METHODS))),
        verified=verified,
        least=data.draw(st.sampled_from([0, 4, 5])),
        num_levels=data.draw(st.integers(1, 2)),
        warm=data.draw(st.none() | st.integers(0, 2048)),
        min_tail=data.draw(st.integers(0, 4)),
    )
    vanishes = st.builds(Vanish, st.sampled_from(steps_of(levels)), st.booleans())

    def plan(fewest, most):
        devices = st.sampled_from(IDS)
        return st.dictionaries(devices, vanishes, min_size=fewest, max_size=most)

    plans = [data.draw(plan(3, 6)), data.draw(plan(0, 4)), data.draw(plan(0, 2))]
    assert_all_same(levels, plans)


# --- these tests can fail -----------------------------------------------------------------------


def test_a_twin_that_lets_other_devices_into_a_repeated_round_is_noticed(monkeypatch):
    """The first is missing from the sums of the search, and is there when the round is repeated."""
    levels = levels_of("bracketed", verified=False, least=5, num_levels=1, most=2)
    plans = [
        {IDS[0]: Vanish(Step(Stage.RECEIPT)), **dict.fromkeys(LOST, Vanish(Step(Stage.MASK, 2)))},
        {},
    ]
    _, (again,) = assert_all_same(levels, plans)
    assert again.drops.keys() == {IDS[0]}
    monkeypatch.setattr(ideal_module, "limited_to", lambda _, devices: frozenset(devices))
    with pytest.raises(AssertionError, match="RECEIPT"):
        assert_all_same(levels, plans)


def test_a_twin_that_forgets_the_sums_of_the_lost_round_is_noticed(monkeypatch):
    levels = levels_of("bracketed", verified=False, least=5, num_levels=1, most=2)
    plans = [dict.fromkeys(LOST, Vanish(Step(Stage.MASK, 2))), {}]
    _, (again,) = assert_all_same(levels, plans)
    assert (again.secure_sums, again.search.num_queries) == (1, 2)

    def forget(*given, lost, **named):
        del lost
        return LevelRounds(*given, **named)

    monkeypatch.setattr(ideal_module, "LevelRounds", forget)
    with pytest.raises(AssertionError, match="MASK"):
        assert_all_same(levels, plans)


def test_noise_that_is_drawn_in_vain_is_missed(monkeypatch):
    """A device draws noise for an answer although the sum is lost, and other noise afterwards."""
    levels = levels_of("noisy", verified=False, least=5, num_levels=2)
    gone = {IDS[2]: Vanish(Step(Stage.MASK, 0))}
    _, second = assert_same(levels, gone)
    assert second.search.ended is Ended.NOISY
    monkeypatch.setattr(ideal_module._Devices, "answer_in_vain", lambda *_: None)
    with pytest.raises(AssertionError, match="MASK"):
        assert_same(levels, gone)
