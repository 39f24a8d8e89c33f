"""Rounds that are lost and repeated: one search and one sum of updates for each model."""

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import combinations

import lenient
import numpy as np
import pytest
from given_devices import SESSIONS, SIZE, devices_of, masked
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import (
    MODEL,
    POLICY,
    RoundParties,
    comparable,
    make_config,
    make_params,
    play_levels,
    shown,
    steps_of,
)

from deltafl.protocol.anonymity import least_tail
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.levels import LevelRounds, Levels
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.round import LostSearch, Round, limited_to
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import RoundServer
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    Adversary,
    Drop,
    Fault,
    PeerError,
    Refusal,
    SessionAborted,
    SlotSum,
    Stage,
    Step,
    ThreatModel,
    UsageError,
    Vanish,
)
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver
from deltafl.secagg.states import ServerState
from deltafl.secagg.threat import at_most

NOTHING = LostSearch()
OTHER_MODEL = MODEL[::-1]
METHODS = {
    "mm": {"method": "mm"},
    "bracketed": {"method": "bracketed"},
    "histogram": {"method": "histogram", "num_pivots": 3},
    "noisy": {
        "method": "noisy",
        "num_pivots": 2,
        "weighting": Weighting.EQUAL,
        "noise": Noise(Fraction(1), 3),
        "max_queries": 1,
    },
}
exact_methods = pytest.mark.parametrize("method", [name for name in METHODS if name != "noisy"])
signed_or_not = pytest.mark.parametrize("signed", [False, True])

VECTORS = np.random.default_rng(5).normal(0, 0.3, (SIZE, 4))
DEVICES = devices_of(VECTORS)
IDS = [device.id for device in DEVICES]
MOST = dict.fromkeys(IDS[1:5])
"""Without so many, every round is lost: a session needs four of six."""


def config_of(method="bracketed", **changes):
    fields = {"cohort_size": SIZE, "max_queries": 12, "min_search_cohort": 5}
    return make_config(**fields | METHODS[method] | changes)


def gone_at(step, ids=MOST):
    return dict.fromkeys(ids, Vanish(step))


class Sums(NoObserver):
    """Notes what is revealed, round by round."""

    def __init__(self):
        self.rounds = []

    def revealed(self, slot_sum):
        self.rounds[-1].append(slot_sum)


class Story:
    """Masked rounds over one model, one after the other, by devices that remember them."""

    def __init__(self, config, devices=DEVICES, *, signed=False):
        self.config, self.devices, self.number = config, devices, 0
        self.seen = Sums()
        self.backend = replace(masked(signed), observer=self.seen)

    def play(self, gone=None, lost=None):
        searches = () if lost is None else (lost,)
        levels = Levels((self.config,))
        (outcome,) = self.play_levels(levels, (MODEL,), gone, searches)
        return outcome

    def play_levels(self, levels, models, gone=None, lost=()):
        numbered = Levels(tuple(replace(one, round_index=self.number) for one in levels.rounds))
        seed, self.number = bytes([self.number]) * 32, self.number + 1
        self.seen.rounds.append([])
        return play_levels(
            self.backend,
            numbered,
            models,
            self.devices,
            vanishing=gone,
            graph_seed=seed,
            lost=lost,
        ).outcomes

    def sums(self, number):
        """What a round has revealed: sums of its search, and of updates."""
        sums = self.seen.rounds[number]
        return (
            [one for one in sums if one.slot < self.config.update_slot],
            [one for one in sums if one.slot >= self.config.update_slot],
        )


# --- a round that goes on -----------------------------------------------------------------------


@pytest.mark.slow
@signed_or_not
@pytest.mark.parametrize("least", [0, 5])
def test_a_round_that_was_lost_at_any_step_goes_on_with_its_sums_and_asks_nothing_again(
    least, signed
):
    config = config_of(max_queries=2, min_search_cohort=least)
    undisturbed = comparable(Story(config, signed=signed).play())
    num_sums = []
    for step in steps_of(Levels((config,))):
        story = Story(config, signed=signed)
        first = story.play(gone_at(step))
        assert first.aborted is not None
        assert first.update is None
        if first.lost is None:
            assert step.slot == config.update_slot
            assert step.stage > Stage.MASK  # it may come to be known
            continue
        searched, updates = story.sums(0)
        assert updates == []
        assert [total.tolist() for total in first.lost.sums] == [
            one.vector.tolist() for one in searched
        ]
        assert {first.lost.devices} == {one.contributors for one in searched} or not searched
        num_sums.append(len(searched))

        second = story.play(lost=first.lost)
        asked, (update,) = story.sums(1)
        assert (second.aborted, second.lost) == (None, None)
        if not searched and (least or not first.lost.devices):
            assert comparable(second) == undisturbed
            continue
        assert asked == []
        if not searched:  # what was asked in a tolerant slot may be known of some of them
            assert second.kept_devices == SIZE
            continue
        assert (second.secure_sums, second.search.num_queries) == (1, len(searched))
        assert set(update.contributors) <= set(first.lost.devices)
    assert set(num_sums) == {0, 1, 2}


@signed_or_not
def test_without_the_sums_every_query_is_asked_again_and_tells_a_device(signed):
    """The control: what makes the difference is that the repeated round is told of them."""
    config = config_of(max_queries=2)
    update = Step(Stage.MASK, config.update_slot)
    for goes_on in (True, False):
        story = Story(config, signed=signed)
        first = story.play(gone_at(update))
        absent = gone_at(Step(Stage.ADVERTISE), IDS[:1])
        story.play(absent, first.lost if goes_on else None)
        asked, _ = story.sums(1)
        if goes_on:
            assert asked == []
            continue
        before, again = (one.vector.astype(np.uint64) for one in (first_of(story, 0), asked[0]))
        difference = (before - again) & np.uint64(2**config.search_layout.ring_bits - 1)
        own = DeviceRound.measured(config, DEVICES[0].value, DEVICES[0].weight)
        np.testing.assert_array_equal(difference, own.answer(config.start_search().query))


def first_of(story, number):
    return story.sums(number)[0][0]


@exact_methods
@pytest.mark.parametrize("max_queries", [2, 12])
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONFIRM])
def test_a_search_that_was_over_leads_to_the_step_of_an_undisturbed_round(
    method, max_queries, stage
):
    """If all devices are back: by a search that ended, or that had used all its queries."""
    config = config_of(method, max_queries=max_queries)
    undisturbed = Story(config, signed=True).play()
    story = Story(config, signed=True)
    first = story.play(gone_at(Step(stage, config.update_slot)))
    second = story.play(lost=first.lost)
    assert second.search.threshold == first.search.threshold == undisturbed.search.threshold
    assert second.search.certified is undisturbed.search.certified
    assert second.update.tobytes() == undisturbed.update.tobytes()
    assert (second.kept_weight, second.kept_devices) == (
        undisturbed.kept_weight,
        undisturbed.kept_devices,
    )
    # the control: a search that was not over leads elsewhere
    early = Story(config, signed=True)
    cut = early.play(gone_at(Step(Stage.MASK, 1)))
    shorter = early.play(lost=cut.lost).search
    assert (shorter.ended, shorter.num_queries) == (Ended.SHRANK, 1)
    assert shorter.threshold != undisturbed.search.threshold


def test_a_noisy_search_keeps_its_threshold_and_its_noise():
    """Noise that was drawn anew for the same question would average out."""
    config = config_of("noisy", min_search_cohort=4)
    story = Story(config)
    first = story.play(gone_at(Step(Stage.MASK, config.update_slot)))
    second = story.play(gone_at(Step(Stage.SHARE), IDS[:1]), first.lost)
    assert second.search == first.search
    assert second.search.ended is Ended.NOISY
    assert story.sums(1)[0] == []


def test_a_sum_that_no_honest_cohort_gives_ends_the_search_of_both_rounds():
    config = config_of(max_queries=3)
    measured = measured_of(config, DEVICES)
    for num_sound in (0, 1):
        round_ = Round(config)
        for number in range(num_sound + 1):
            total = added(config, measured, round_.question)
            if number == num_sound:
                total = np.full_like(total, (1 << config.search_layout.ring_bits) - 1)
            round_.take(SlotSum(number, total, tuple(IDS), tuple(IDS)))
        assert isinstance(round_.question, Threshold)
        lost = round_.outcome({}, "lost").lost
        assert len(lost.sums) == num_sound + 1
        again = Round(config, lost)
        assert again.question == round_.question
        assert again.slot == config.update_slot


# --- whom it is over ----------------------------------------------------------------------------


def test_only_devices_of_the_search_are_invited_and_heard():
    """The others are lost before they say anything, and what they send all the same is ignored."""
    config = config_of()
    lost = LostSearch(tuple(IDS[:5]), lost_search(config).sums)
    params = make_params(config, min_cohort=4, threshold=3)
    for searches, invited in (((lost,), IDS[:5]), ((), IDS), ((NOTHING,), IDS)):
        server = RoundServer(Levels((config,)), MODEL, params, IDS, lost=searches)
        outgoing = server.start()
        assert list(outgoing) == invited
        server.receive(IDS[5], b"anything")
        server.close_round()
        malformed = Drop(Fault.MALFORMED, Step(Stage.ADVERTISE))
        timed_out = Drop(Fault.TIMED_OUT, Step(Stage.ADVERTISE))
        (outcome,) = server.outcomes
        assert outcome.drops[IDS[5]] == (timed_out if len(invited) == 5 else malformed)
        assert shown(outcome.lost) == shown(lost if len(invited) == 5 else NOTHING)


def test_levels_go_on_with_those_who_are_in_all_searches():
    one, other = (LostSearch(ids, (np.zeros(1),)) for ids in ((1, 2, 3), (2, 3, 4)))
    everybody = {1, 2, 3, 4, 5}
    assert limited_to((), everybody) == everybody
    assert limited_to((NOTHING, NOTHING), everybody) == everybody
    assert limited_to((one, NOTHING), everybody) == {1, 2, 3}
    assert limited_to((one, other), everybody) == {2, 3}
    assert limited_to((one,), {3, 9}) == {3}
    levels = Levels.at(config_of(), (Fraction(4, 5), Fraction(1, 2)))
    for number in (1, 3):
        with pytest.raises(UsageError, match=f"{number} lost searches for 2 levels"):
            LevelRounds(levels, lost=[NOTHING] * number)


@signed_or_not
def test_a_device_that_was_not_searched_over_is_not_in_the_sum_of_updates(signed):
    config = config_of(max_queries=2)
    update = Step(Stage.MASK, config.update_slot)
    story = Story(config, signed=signed)
    first = story.play({IDS[0]: Vanish(Step(Stage.SHARE)), **gone_at(update)})
    assert first.lost.devices == tuple(IDS[1:])
    second = story.play(lost=first.lost)
    _, (released,) = story.sums(1)
    assert released.contributors == tuple(IDS[1:])
    assert second.drops == {IDS[0]: Drop(Fault.TIMED_OUT, Step(Stage.ADVERTISE))}


# --- how many are kept --------------------------------------------------------------------------


def measured_of(config, devices):
    return {one.id: DeviceRound.measured(config, one.value, one.weight) for one in devices}


def added(config, measured, question):
    noise = SeededRandomness(b"n" * 32)
    answers = (one.answer(question, noise).astype(np.uint64) for one in measured.values())
    total = reduce(np.add, answers)
    return total & np.uint64((1 << config.search_layout.ring_bits) - 1)


def lost_search(config, devices=DEVICES, num_sums=99):
    """What a search has revealed that was lost after so many sums, or once it was over."""
    round_, measured = Round(config), measured_of(config, devices)
    ids = tuple(measured)
    while isinstance(round_.question, Query) and round_.slot < num_sums:
        total = added(config, measured, round_.question)
        round_.take(SlotSum(round_.slot, total, ids, ids))
    return round_.outcome({}, "lost").lost


def tails(config, measured, lost):
    """Over whom a repeated round is, and who passes in it; None if it ends. All subsets."""
    for num_left in range(len(measured) + 1):
        round_ = Round(config, lost)
        round_.assemble(num_left)
        assert isinstance(round_.question, Threshold)
        try:
            round_.check_opened(range(num_left))
        except SessionAborted:
            passing = None
        else:
            passing = {i for i, one in measured.items() if one.passes(round_.question)}
        for left in combinations(measured, num_left):
            yield left, None if passing is None else passing.intersection(left)


KINDS_OF_DEVICES = {
    "equal weights": devices_of(VECTORS, [10] * SIZE),
    "one heavy device": devices_of(VECTORS, [10, 10, 10, 10, 10, 400]),
    "ties": devices_of(VECTORS, losses=[1.0, 1.0, 2.0, 2.0, 2.0, 3.0]),
    "without samples": devices_of(VECTORS, [10, 0, 10, 10, 0, 10]),
}


@pytest.mark.slow
@exact_methods
@pytest.mark.parametrize("kind", KINDS_OF_DEVICES)
@pytest.mark.parametrize("num_sums", [1, 2, 99])
def test_whoever_is_missing_the_tail_is_large_enough_or_the_round_ends(method, kind, num_sums):
    """All subsets of the devices; those who are missing may all have been in the tail."""
    devices = KINDS_OF_DEVICES[kind]
    weighs = {one.id for one in devices if one.weight}
    for min_tail in range(SIZE + 1):
        config = config_of(method, min_tail=min_tail, min_search_cohort=0)
        lost, measured = lost_search(config, devices, num_sums), measured_of(config, devices)
        assert len(lost.sums) <= num_sums
        for left, passing in tails(config, measured, lost):
            fewest = max(len(weighs) - (SIZE - len(left)), 0)  # if everybody is kept
            ends = fewest < min_tail
            assert (passing is None) is ends
            assert Round(config, lost).can_go_on(len(left)) is not ends
            if not ends:
                assert len(weighs & passing) >= min_tail


@pytest.mark.parametrize("counted", [True, False])
def test_a_threshold_that_does_not_count_who_is_missing_cuts_the_tail(monkeypatch, counted):
    """The control: what an undisturbed search leads to, over those who are left."""
    config = config_of(min_tail=3, min_search_cohort=0)
    if not counted:
        monkeypatch.setattr(Round, "assemble", lambda *_: None)
        monkeypatch.setattr(Round, "check_tail", lambda *_: None)
    played = tails(config, measured_of(config, DEVICES), lost_search(config))
    fewest = min(len(passing) for _, passing in played if passing is not None)
    assert (fewest >= 3) is counted


@pytest.mark.parametrize("num_missing", [0, 1, 2])
def test_the_threshold_keeps_as_many_more_as_are_missing(num_missing):
    config = config_of(min_tail=3, min_search_cohort=0)
    story = Story(config)
    first = story.play(gone_at(Step(Stage.MASK, config.update_slot)))
    assert first.search.tail.fewest == 3
    missing = gone_at(Step(Stage.ADVERTISE), IDS[SIZE - num_missing :])
    second = story.play(missing, first.lost)
    assert second.search.tail.fewest >= 3 + num_missing
    assert second.kept_devices == second.search.tail.fewest - num_missing  # the largest losses
    assert second.kept_devices >= 3


def test_a_repeated_round_whose_tail_may_be_too_small_ends_and_may_be_repeated_again():
    config = config_of(min_tail=5)
    story = Story(config)
    first = story.play(gone_at(Step(Stage.MASK, config.update_slot)))
    second = story.play(gone_at(Step(Stage.SHARE), IDS[:2]), first.lost)
    assert "the tail may have as few as 4 devices, and min_tail is 5" in second.aborted
    assert (second.secure_sums, second.update, second.asked) == (0, None, False)
    assert shown(second.lost) == shown(first.lost)
    third = story.play(lost=second.lost)
    assert third.aborted is None
    assert third.kept_devices >= 5


def test_a_device_that_is_lost_before_its_update_may_have_been_in_the_tail():
    """The threshold is announced by then, and cannot keep more."""
    config = config_of(min_tail=3)
    update = config.update_slot
    for step, is_lost in ((Step(Stage.ADVERTISE), False), (Step(Stage.MASK, update), True)):
        story = Story(config)
        first = story.play(gone_at(Step(Stage.MASK, update)))
        second = story.play(gone_at(step, IDS[:1]), first.lost)
        assert (second.aborted is not None) is is_lost


# --- any round, lost by anybody -----------------------------------------------------------------

RATE = 0.2  # one of six may collude
COLLUDING = IDS[-1]


@st.composite
def stories(draw):
    """A round's settings and devices, and who is gone from each of three rounds over it.

    One device colludes: it claims the largest loss, and stays.
    """
    weights = draw(st.lists(st.integers(0, 30), min_size=SIZE, max_size=SIZE))
    losses = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0]), min_size=5, max_size=5))
    config = config_of(
        draw(st.sampled_from(["mm", "bracketed", "histogram"])),
        theta=draw(st.sampled_from([Fraction(9, 10), Fraction(1, 2), Fraction(1, 5)])),
        max_queries=draw(st.sampled_from([1, 2, 8])),
        min_search_cohort=draw(st.sampled_from([0, 4])),
        min_tail=least_tail(at_most(RATE, SIZE), draw(st.integers(0, 3))),
    )
    steps = steps_of(Levels((config,)))
    known_steps = [
        step for step in steps if step != Step(Stage.UNMASK, config.update_slot)
    ]  # after it, the sum of updates may be known
    vanishes = st.builds(Vanish, st.sampled_from(known_steps))

    def plan(fewest, most):
        others = st.sampled_from([i for i in IDS if i != COLLUDING])
        return draw(st.dictionaries(others, vanishes, min_size=fewest, max_size=most))

    devices = devices_of(VECTORS, weights, [*losses, 9.0])
    return config, devices, [plan(3, 5), plan(0, 4), plan(0, 1)], draw(st.booleans())


def check_story(config, devices, plans, signed):
    """Play the rounds, each of which goes on with the one before; what came of it."""
    story, lost = Story(config, devices, signed=signed), None
    for gone in plans:
        outcome = story.play(gone, lost)
        if lost is not None and lost.sums:  # it stays as it was
            assert outcome.lost is None or shown(outcome.lost) == shown(lost)
        lost = outcome.lost
        if lost is None:
            break
    rounds = [story.sums(number) for number in range(story.number)]
    searched = [one for queries, _ in rounds for one in queries]
    updates = [one for _, sums in rounds for one in sums]
    assert len(updates) == (outcome.aborted is None)  # at most one, in the last of them
    assert lost is None or not updates
    # all sums of a search are of one round and over one list, and no slot has two
    assert sum(bool(queries) for queries, _ in rounds) <= 1
    assert len({one.contributors for one in searched}) <= 1
    assert [one.slot for one in searched] == list(range(len(searched)))
    if updates:
        (update,) = updates
        assert not searched or set(update.contributors) <= set(searched[0].contributors)
        assert outcome.aborted is None
        check_step(config, devices, outcome, update.contributors, bool(searched))
    return story.number, outcome


def check_step(config, devices, outcome, contributors, is_searched):
    """The plain weighted mean of the devices that pass, of whom there are enough."""
    found, grid = outcome.search, config.search.grid
    least = found.eta_half_ticks - found.half_width_half_ticks
    passing = [
        one for one in devices if one.id in contributors and 2 * grid.tick(one.value)[0] >= least
    ]
    weight = sum(one.weight for one in passing)
    assert (outcome.kept_devices, outcome.kept_weight) == (len(passing), weight)
    honest = [
        one
        for one in passing
        if one.id != COLLUDING and (one.weight or not is_searched)  # without weight, it hides none
    ]
    assert len(honest) >= config.min_tail - 1
    if not weight:
        assert outcome.update is None
        return
    mean = sum(one.weight * one.vector.astype(float) for one in passing) / weight
    rounding = len(passing) * 2.0**-config.update.resolution_bits / weight
    assert np.abs(outcome.update - mean).max() <= rounding


@pytest.mark.slow
@settings(max_examples=60)
@given(stories())
def test_whoever_is_lost_and_back_there_is_one_search_and_one_sum_of_updates(story):
    check_story(*story)


def plans_of_one_story():
    """The first round is lost at its update, and the first device is absent from the second."""
    config = config_of(
        min_tail=least_tail(at_most(RATE, SIZE), 2), max_queries=2, min_search_cohort=4
    )
    update = Step(Stage.MASK, config.update_slot)
    absent = gone_at(Step(Stage.ADVERTISE), IDS[:1])
    devices = devices_of(VECTORS, losses=[0.0, 0.5, 1.0, 2.5, 7.0, 9.0])
    return config, devices, [gone_at(update), absent], False


def test_a_round_that_begins_anew_is_noticed(monkeypatch):
    number, outcome = check_story(*plans_of_one_story())
    assert (number, outcome.lost) == (2, None)
    begin = Round.__init__
    monkeypatch.setattr(Round, "__init__", lambda own, config, *_: begin(own, config))
    with pytest.raises(AssertionError):
        check_story(*plans_of_one_story())


def test_a_round_that_keeps_too_few_is_noticed(monkeypatch):
    config, devices, plans, signed = plans_of_one_story()
    monkeypatch.setattr(Round, "check_tail", lambda *_: None)
    monkeypatch.setattr(Round, "assemble", lambda *_: None)
    few = [plans[0], gone_at(Step(Stage.ADVERTISE), IDS[3:5])]  # of those with the largest losses
    with pytest.raises(AssertionError):
        check_story(config, devices, few, signed)


# --- what may be repeated -----------------------------------------------------------------------


@pytest.mark.parametrize("theta", [Fraction(1), Fraction(1, 2)])
def test_once_updates_were_summed_nothing_goes_on(theta):
    for outcome in (
        Story(config_of(theta=theta)).play(),
        Story(config_of(theta=theta), devices_of(VECTORS, [0] * SIZE)).play(),  # no step
    ):
        assert outcome.aborted is None
        assert outcome.lost is None


def noisy_updates():
    noise = UpdateNoise.at_least(Fraction(1), 4.0, 3, Sizes.of(4, SIZE))
    return config_of("noisy", max_weight=1, update_noise=noise, min_search_cohort=4)


@pytest.mark.parametrize("config", [config_of(), noisy_updates()], ids=["exact", "noisy"])
def test_once_updates_were_summed_nothing_goes_on_even_if_the_sum_cannot_be_read(config):
    lost = lost_search(config)
    round_, ids = Round(config, lost), tuple(IDS)
    round_.check_opened(range(SIZE))
    assert shown(round_.outcome({}, "lost").lost) == shown(lost)
    length, bits = config.slots()[config.update_slot].length, config.update_layout.ring_bits
    total = np.full(length, 1 << (bits - 1), dtype=np.uint64)  # beyond what devices may give
    round_.take(SlotSum(config.update_slot, total, ids, ids))
    outcome = round_.outcome({})
    assert outcome.update is None
    assert outcome.aborted is not None
    assert outcome.lost is None


@signed_or_not
def test_what_is_known_is_carried_on_however_often_the_round_is_lost(signed):
    config = config_of(max_queries=2)
    story = Story(config, signed=signed)
    lost = story.play(gone_at(Step(Stage.MASK, config.update_slot))).lost
    assert len(lost.sums) == 2
    kept = lost
    for step in (
        Step(Stage.ADVERTISE),
        Step(Stage.SHARE),
        Step(Stage.RECEIPT),
        Step(Stage.MASK, config.update_slot),
    ):
        outcome = story.play(gone_at(step), kept)
        assert outcome.aborted is not None
        assert outcome.asked == (step.stage is Stage.MASK)
        assert outcome.search is not None
        assert shown(outcome.lost) == shown(lost)
        kept = outcome.lost
    assert story.play(lost=kept).update is not None


def test_a_round_without_a_search_is_repeated_as_it_was():
    config = config_of(theta=Fraction(1))
    story = Story(config)
    first = story.play(gone_at(Step(Stage.MASK)))
    assert shown(first.lost) == shown(NOTHING)
    second = story.play(gone_at(Step(Stage.ADVERTISE), IDS[:1]), first.lost)
    third = Story(config).play(gone_at(Step(Stage.ADVERTISE), IDS[:1]))
    assert comparable(second) == comparable(third)


def test_devices_that_expect_an_active_server_take_no_part_in_a_repeated_round():
    policy = lenient.trusting(POLICY)
    active = replace(SESSIONS, threat=ThreatModel(0.1, 0.1, Adversary.ACTIVE), policy=policy)
    config = config_of(max_queries=2)
    for sessions, refused in ((active, True), (replace(SESSIONS, signed=True), False)):
        story = Story(config)
        story.backend = replace(story.backend, sessions=sessions)
        first = story.play(gone_at(Step(Stage.MASK, config.update_slot)))
        assert len(first.lost.sums) == 2
        if not refused:
            assert story.play(lost=first.lost).update is not None
            continue
        with pytest.raises(PeerError) as caught:
            story.play(lost=first.lost)
        assert caught.value.reason is Refusal.MODEL_REPEATED


# --- several levels -----------------------------------------------------------------------------

THETAS = (Fraction(4, 5), Fraction(1, 2))


@signed_or_not
def test_a_level_that_was_lost_is_repeated_beside_a_new_model(signed):
    """The first level was over, and its model has changed; of the second, the search is known."""
    config = config_of(max_queries=2)
    levels = Levels.at(config, THETAS)
    second_update = levels.first_slot(2) - 1
    story = Story(config, signed=signed)
    gone = {IDS[0]: Vanish(Step(Stage.SHARE)), **gone_at(Step(Stage.MASK, second_update))}
    over, lost = story.play_levels(levels, (MODEL, OTHER_MODEL), gone)
    assert (over.aborted, over.lost) == (None, None)
    assert (lost.update, len(lost.lost.sums)) == (None, 2)
    outcomes = story.play_levels(
        levels, (b"the next model..", OTHER_MODEL), lost=(NOTHING, lost.lost)
    )
    assert [outcome.aborted for outcome in outcomes] == [None, None]
    assert [outcome.secure_sums for outcome in outcomes] == [3, 1]
    slots = [one.slot for one in story.seen.rounds[1]]
    assert slots == [0, 1, config.update_slot, second_update]
    assert {one.contributors for one in story.seen.rounds[1]} == {tuple(IDS[1:])}
    assert outcomes[1].search.threshold == lost.search.threshold


@signed_or_not
def test_a_round_that_was_lost_is_repeated_beside_another_level(signed):
    config = config_of(max_queries=2)
    story = Story(config, signed=signed)
    first = story.play(gone_at(Step(Stage.MASK, config.update_slot)))
    levels = Levels.at(config, (config.theta, Fraction(1, 5)))
    outcomes = story.play_levels(levels, (MODEL, OTHER_MODEL), lost=(first.lost, NOTHING))
    assert [outcome.aborted for outcome in outcomes] == [None, None]
    assert [outcome.secure_sums for outcome in outcomes] == [1, 3]
    swapped = Levels.at(config, (Fraction(4, 5), Fraction(1, 5)))  # at another level
    with pytest.raises(PeerError, match="with other settings"):
        story.play_levels(swapped, (MODEL, b"the next model.."), lost=(first.lost, NOTHING))


# --- what may come to be known late --------------------------------------------------------------


def at_stage(config, state, slot):
    """A round whose devices have answered at a stage of a slot, and what they have sent."""
    parties = RoundParties(config)
    outgoing = parties.server.start()
    while parties.server._session.state is not state or parties.server.step.slot != slot:
        outgoing = parties.exchange(outgoing)
    return parties, {client: parties.answer(client, data) for client, data in outgoing.items()}


def closed_with(parties, replies, in_time):
    """The server when the round trip is over, in which so many answers have come in time."""
    for client, data in list(replies.items())[:in_time]:
        parties.server.receive(client, data)
    parties.server.close_round()
    return parties.server


def test_a_sum_of_updates_that_may_come_out_late_is_not_repeated():
    """What helps to unmask it may come after the round was given up."""
    config = config_of(max_queries=2)
    for in_time in (SIZE, 1):
        parties, replies = at_stage(config, ServerState.UNMASK, config.update_slot)
        server = closed_with(parties, replies, in_time)
        (outcome,) = server.outcomes
        assert (outcome.update is not None) is (in_time == SIZE)
        assert outcome.lost is None


@pytest.mark.parametrize(
    ("least", "state"), [(5, ServerState.MASK), (0, ServerState.UNMASK)], ids=["whole", "tolerant"]
)
def test_a_query_whose_sum_may_come_out_late_is_not_asked_of_others(least, state):
    config = config_of(max_queries=2, min_search_cohort=least)
    for in_time in (SIZE, 1):
        parties, replies = at_stage(config, state, 0)
        server = closed_with(parties, replies, in_time)
        if in_time == SIZE:
            assert server.revealed.slot == 0
            continue
        (outcome,) = server.outcomes
        again = None if outcome.lost is None else Round(config, outcome.lost)
        if again is not None:
            again.assemble(SIZE - 1)
        assert again is None or not isinstance(again.question, Query)


def test_a_round_with_a_verified_search_is_not_repeated():
    """Devices follow the search, and do not know the sums before."""
    config = config_of(max_queries=2, verified=True)
    story = Story(config, signed=True)
    first = story.play(gone_at(Step(Stage.MASK, config.update_slot)))
    assert first.secure_sums == 2
    assert first.lost is None
