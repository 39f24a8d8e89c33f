"""How often a device takes part: counted once a round, durably, and never beyond its limits."""

from dataclasses import replace

import numpy as np
import pytest
from changed_configs import CHANGES, CONFIG, neighbours
from round_parties import DEVICES, MODEL, POLICY, Point, RoundParties, assert_fails, make_config

from deltafl.protocol.client import RoundClient
from deltafl.protocol.labels import Label
from deltafl.protocol.participations import Asked, limits_of
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.states import RoundState
from deltafl.secagg import (
    ClientId,
    Enrolment,
    LedgerError,
    MemoryLedger,
    PeerError,
    Refusal,
    UsageError,
)
from deltafl.secagg.labels import digest
from deltafl.secagg.randomness import SeededRandomness

SETTINGS, OTHER_SETTINGS = b"s" * 32, b"o" * 32


def model(number):
    return bytes([number]) * 32


def lifelong(most):
    """The limits of a device that answers for so many models in all."""
    return limits_of(RoundPolicy(max_participations=most), None)


def daily(most, today):
    return limits_of(RoundPolicy(max_rounds_per_day=most), today)


def take(ledger, number, limits, most=1, settings=SETTINGS):
    Asked(model(number), settings).admit(ledger, most, limits, ledger.admit)


def check_left(ledger, limits, wanted):
    for limit in limits:
        limit.check_left(ledger, wanted)


def counted(ledger, limits):
    return [limit.counted(ledger) for limit in limits]


@pytest.mark.parametrize(
    ("limits", "named"),
    [(lifelong(3), "max_participations=3"), (daily(3, 7), "max_rounds_per_day=3")],
)
def test_models_are_counted_up_to_the_limit(limits, named):
    ledger = MemoryLedger()
    for number in range(3):
        assert counted(ledger, limits) == [number]
        check_left(ledger, limits, 3 - number)
        take(ledger, number, limits)
    with pytest.raises(PeerError, match=named) as refused:
        take(ledger, 9, limits)
    assert refused.value.reason is Refusal.POLICY
    assert not ledger.knows(model(9))
    with pytest.raises(PeerError, match=named):
        check_left(ledger, limits, 1)


def test_a_model_that_was_answered_for_is_refused_and_not_counted_again():
    ledger, limits = MemoryLedger(), lifelong(5)
    take(ledger, 0, limits)
    with pytest.raises(PeerError) as refused:
        take(ledger, 0, limits)
    assert refused.value.reason is Refusal.MODEL_REPEATED
    assert counted(ledger, limits) == [1]


def test_limits_that_change_count_what_was_before():
    ledger = MemoryLedger()
    for number in range(4):
        take(ledger, number, lifelong(10))
    assert counted(ledger, lifelong(100)) == [4]
    assert counted(ledger, lifelong(2)) == [2]
    with pytest.raises(PeerError):
        check_left(ledger, lifelong(2), 1)
    check_left(ledger, lifelong(5), 1)


def test_each_day_is_counted_by_itself_whichever_way_the_clock_is_set():
    ledger, left = MemoryLedger(), iter(range(100))
    for today, taken in ((5, 0), (6, 0), (5, 2), (4, 0), (2**63 - 1, 0), (6, 2), (0, 0)):
        assert counted(ledger, daily(2, today)) == [taken]
        for _ in range(taken, 2):
            take(ledger, next(left), daily(2, today))
        with pytest.raises(PeerError, match="max_rounds_per_day=2"):
            take(ledger, 99, daily(2, today))
    assert next(left) == 10


def test_both_limits_hold_at_once():
    ledger, policy = MemoryLedger(), RoundPolicy(max_participations=3, max_rounds_per_day=2)
    first, second = limits_of(policy, 1), limits_of(policy, 2)
    take(ledger, 0, first)
    take(ledger, 1, first)
    with pytest.raises(PeerError, match="max_rounds_per_day=2"):
        take(ledger, 2, first)
    take(ledger, 2, second)
    assert counted(ledger, second) == [3, 1]
    with pytest.raises(PeerError, match="max_participations=3"):
        take(ledger, 3, second)


def test_without_a_limit_nothing_is_counted():
    ledger = MemoryLedger()
    assert limits_of(RoundPolicy(max_rounds_per_day=0), 1) == lifelong(0) == ()
    take(ledger, 0, ())
    check_left(ledger, (), 10**9)
    assert counted(ledger, lifelong(10)) == [0]
    assert ledger.knows(model(0))


@pytest.mark.parametrize("most", [1, 2, 9, 10, 11, 20])
def test_a_limit_is_near_when_nine_tenths_are_used(most):
    ledger, limits = MemoryLedger(), daily(most, 3)
    for number in range(most + 1):
        assert limits[0].is_near(ledger) is (10 * number >= 9 * most)
        if number < most:
            take(ledger, number, limits)


@pytest.mark.parametrize("today", [-1, 2**63, 1.5, "monday"])
def test_what_is_no_day_is_refused(today):
    with pytest.raises(UsageError, match="today="):
        RoundClient(ClientId(1), RoundPolicy(), OWN, today=today)


OWN = DEVICES.credentials(ClientId(1))


class Overtaken(MemoryLedger):
    """Another round of the device is counted just before this one."""

    def __init__(self, *entries):
        super().__init__()
        self.before = [*entries, model(7)]

    def admit(self, entries):
        before, self.before = self.before, []
        super().admit(before)
        return super().admit(entries)


def test_two_rounds_at_once_count_twice():
    policy = RoundPolicy(max_participations=2, max_rounds_per_day=2)
    limits = limits_of(policy, 1)
    for overtaking in (limits, limits[:1], limits[1:]):
        ledger = Overtaken(*(limit.entry(0) for limit in overtaking))
        take(ledger, 1, limits)
        assert counted(ledger, limits) == [1 + (limit in overtaking) for limit in limits]
        assert ledger.knows(model(1))
    (limit,) = lifelong(1)
    late = Overtaken(limit.entry(0))
    with pytest.raises(PeerError, match="max_participations=1"):
        take(late, 1, [limit])
    assert not late.knows(model(1))


def play(number, enrolment, policy):
    config = make_config(round_index=number)
    return RoundParties(
        config, model=MODEL[:-1] + bytes([number]), enrolment=enrolment, policy=policy
    )


def test_a_device_refuses_one_round_too_many_before_it_says_anything():
    enrolment, policy = (
        Enrolment(SeededRandomness(bytes(32))),
        replace(POLICY, max_participations=2),
    )
    for number in range(2):
        assert play(number, enrolment, policy).play().update is not None
    parties = play(2, enrolment, policy)
    with pytest.raises(PeerError, match="max_participations=2"):
        parties.bring(Point(1))
    play(3, enrolment, replace(policy, max_participations=3)).bring(Point(1))


def test_a_round_that_ends_before_a_question_does_not_count():
    enrolment, policy = (
        Enrolment(SeededRandomness(bytes(32))),
        replace(POLICY, max_participations=1),
    )
    parties = play(0, enrolment, policy)
    parties.bring(Point(3))
    assert counted(enrolment.ledger(parties.victim), lifelong(9)) == [0]
    parties = play(1, enrolment, policy)
    parties.bring(Point(4))
    assert counted(enrolment.ledger(parties.victim), lifelong(9)) == [1]


def test_a_limit_without_a_ledger_is_refused():
    """A new ledger for each round would count nothing."""
    with pytest.raises(UsageError, match="max_participations=3 without a ledger"):
        RoundClient(ClientId(1), RoundPolicy(max_participations=3), OWN)
    RoundClient(ClientId(1), RoundPolicy(max_participations=3), OWN, ledger=MemoryLedger())


def test_a_ledger_that_neither_admits_nor_knows_a_model_ends_the_round():
    class Closed(MemoryLedger):
        def admit(self, entries):
            del entries
            return False

    for limits in (lifelong(0), lifelong(3)):
        for most in (1, 3):
            with pytest.raises(PeerError, match="another round over this model"):
                take(Closed(), 0, limits, most)


# --- several rounds over a model ------------------------------------------------------------------


def refusal(ledger, number, limits, most, settings=SETTINGS):
    """Why another round over a model is refused; what the ledger holds stays as it was."""
    before = set(ledger._entries)
    with pytest.raises(PeerError) as refused:
        take(ledger, number, limits, most, settings)
    assert ledger._entries == before
    return refused.value.reason


def check(ledger, number, most, settings=SETTINGS):
    """What a device does when a model is announced."""
    for each in (9, number):
        Asked(model(each), settings).check(ledger, most)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_model_is_answered_for_in_so_many_rounds_and_each_of_them_is_counted(most):
    ledger, limits = MemoryLedger(), lifelong(99)
    for number in range(most):
        assert counted(ledger, limits) == [number]
        check(ledger, 0, most)
        take(ledger, 0, limits, most)
    told = f"max_rounds_per_model={most}" if most > 1 else "answered for this model before$"
    with pytest.raises(PeerError, match=told) as refused:
        check(ledger, 0, most)
    assert refused.value.reason is Refusal.MODEL_REPEATED
    assert refusal(ledger, 0, limits, most) is Refusal.MODEL_REPEATED
    assert counted(ledger, limits) == [most]
    check(ledger, 1, most)
    take(ledger, 1, limits, most)
    assert counted(ledger, limits) == [most + 1]


def test_another_round_must_have_the_same_settings():
    ledger, limits = MemoryLedger(), lifelong(99)
    for _ in range(2):
        take(ledger, 0, limits, 3)
        with pytest.raises(PeerError, match="with other settings") as refused:
            check(ledger, 0, 3, OTHER_SETTINGS)
        assert refused.value.reason is Refusal.MODEL_REPEATED
        assert refusal(ledger, 0, limits, 3, OTHER_SETTINGS) is Refusal.MODEL_REPEATED
    check(ledger, 0, 3)
    take(ledger, 0, limits, 3)  # what was refused does not count
    check(ledger, 1, 3, OTHER_SETTINGS)
    take(ledger, 1, limits, 3, OTHER_SETTINGS)
    assert counted(ledger, limits) == [4]


def test_a_model_of_which_the_ledger_has_no_settings_is_answered_for_once():
    """It was answered for by a device that answers in one round only."""
    ledger, limits = MemoryLedger(), lifelong(99)
    take(ledger, 0, limits, 1)
    for most in (1, 2, 8):
        assert refusal(ledger, 0, limits, most) is Refusal.MODEL_REPEATED
    take(ledger, 1, limits, 8)
    assert refusal(ledger, 1, limits, 1) is Refusal.MODEL_REPEATED
    take(ledger, 1, limits, 8)


def test_a_number_of_rounds_that_changes_counts_what_was_before():
    ledger = MemoryLedger()
    for most in (3, 3, 3, 5, 4, 5):
        if most == 4:  # four rounds were answered
            assert refusal(ledger, 0, (), most) is Refusal.MODEL_REPEATED
        else:
            take(ledger, 0, (), most)
    for most in (1, 2, 5):
        assert refusal(ledger, 0, (), most) is Refusal.MODEL_REPEATED


@pytest.mark.parametrize(
    ("limits", "named"),
    [(lifelong(2), "max_participations=2"), (daily(2, 7), "max_rounds_per_day=2")],
)
def test_a_round_over_a_known_model_is_held_to_the_limits(limits, named):
    ledger = MemoryLedger()
    for _ in range(2):
        take(ledger, 0, limits, 3)
    for number in (0, 1):
        with pytest.raises(PeerError, match=named):
            take(ledger, number, limits, 3)
        assert refusal(ledger, number, limits, 3) is Refusal.POLICY
    take(ledger, 0, (), 3)  # the round that was refused is still left


def test_of_two_first_rounds_over_one_model_at_once_one_is_answered():
    """Both have looked at the ledger before either was noted."""
    limits, first = lifelong(9), Asked(model(1), SETTINGS)
    for most, settings in ((1, SETTINGS), (8, SETTINGS), (8, OTHER_SETTINGS)):
        noted = first.next_round(MemoryLedger(), most)
        ledger = Overtaken(*noted, limits[0].entry(0))
        with pytest.raises(PeerError, match="has begun") as refused:
            take(ledger, 1, limits, most, settings)
        assert refused.value.reason is Refusal.MODEL_REPEATED
        assert counted(ledger, limits) == [1]


@pytest.mark.parametrize("most", [2, 3])
def test_two_further_rounds_over_one_model_at_once_count_twice(most):
    limits, asked = lifelong(9), Asked(model(1), SETTINGS)
    before = MemoryLedger()
    take(before, 1, limits, most)
    ledger = Overtaken(*asked.next_round(before, most), limits[0].entry(1))
    assert MemoryLedger.admit(ledger, list(before._entries))
    if most == 2:
        with pytest.raises(PeerError, match="has begun"):
            take(ledger, 1, limits, most)
    else:
        take(ledger, 1, limits, most)
    assert counted(ledger, limits) == [most]


def test_the_entries_are_those_of_the_specification():
    config = replace(CONFIG, round_index=7)
    known = digest(Label.MODEL, MODEL)
    same = digest(Label.AGAIN, replace(config, round_index=0).canonical())
    rounds = [digest(Label.AGAIN, known, same, number) for number in range(3)]
    asked, ledger = Asked.of(config, MODEL), MemoryLedger()
    assert asked.next_round(ledger, 1) == (known,)
    for wanted in ((known, rounds[0]), (rounds[1],), (rounds[2],)):
        found = asked.next_round(ledger, 3)
        assert found == wanted
        assert ledger.admit(found)
    assert not ledger.admit(asked.next_round(ledger, 3))


def test_settings_are_all_that_is_announced_of_a_level_but_the_number_of_its_round():
    def settings_of(config):
        return Asked.of(config, MODEL).settings

    numbered = [CONFIG, *neighbours("round_index")]
    assert len({settings_of(config) for config in numbered}) == 1
    assert len({config.canonical() for config in numbered}) == len(numbered)
    others = [one for name in CHANGES.keys() - {"round_index"} for one in neighbours(name)]
    assert len({settings_of(config) for config in [CONFIG, *others]}) == 1 + len(others)
    assert {Asked.of(config, MODEL).model for config in others} == {digest(Label.MODEL, MODEL)}
    assert settings_of(CONFIG) == Asked.of(CONFIG, MODEL[::-1]).settings


def test_a_model_is_known_by_its_numbers_in_another_round_too():
    zeros, nan = np.zeros(4, "<f4"), np.array([np.nan], "<f4")
    other_nan = (nan.view("<u4") + 1).view("<f4")
    for one, other in ((zeros, -zeros), (nan, other_nan)):
        assert one.tobytes() != other.tobytes()
        ledger = MemoryLedger()
        for model in (one, other):
            asked = Asked.of(CONFIG, model.tobytes())
            asked.admit(ledger, 2, (), ledger.admit)
        with pytest.raises(PeerError, match="has begun"):
            asked.admit(ledger, 2, (), ledger.admit)


def over_one_model(numbers, policy, **settings):
    """Rounds of the same devices over one model, one after the other."""
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    for seed, number in enumerate(numbers):
        config = make_config(round_index=number)
        yield RoundParties(config, enrolment=enrolment, policy=policy, seed=seed, **settings)


@pytest.mark.parametrize("most", [2, 3])
def test_a_device_answers_for_a_model_in_so_many_rounds_whatever_their_numbers(most):
    policy = replace(POLICY, max_rounds_per_model=most)
    rounds = over_one_model((5, 0, 2**63 - 1, 4, 9), policy)
    for parties, _ in zip(rounds, range(most), strict=False):
        assert parties.play().update is not None
    for parties in rounds:
        data = parties.server.start()[parties.victim]
        assert_fails(parties.machine, data, Refusal.MODEL_REPEATED, f"max_rounds_per_model={most}")


def test_without_signatures_another_round_may_have_the_number_of_the_first():
    """A signed one may not: its context would be the same."""
    first, second = over_one_model((3, 3), POLICY)
    assert first.play().update is not None
    with pytest.raises(PeerError) as refused:
        second.play()
    assert refused.value.reason is Refusal.SESSION_REPEATED


def test_each_round_over_a_model_is_a_participation():
    policy = replace(POLICY, max_participations=2)
    rounds = over_one_model(range(3), policy)
    for number, parties in zip((1, 2), rounds, strict=False):
        ledger = parties.enrolment.ledger(parties.victim)
        parties.bring(Point(3))
        assert counted(ledger, lifelong(9)) == [number - 1]
        parties.go_on()
        assert counted(ledger, lifelong(9)) == [number]
    parties = next(rounds)
    data = parties.server.start()[parties.victim]
    assert_fails(parties.machine, data, Refusal.POLICY, "max_participations=2")


# --- what a server can do to a ledger -------------------------------------------------------------


def with_room(capacity, policy):
    """A signed round whose victim has a ledger of that capacity, and the ledger."""
    parties = RoundParties(policy=policy)
    own = parties.machine
    own._ledger = own._session._ledger = ledger = MemoryLedger(capacity)
    return parties, ledger


@pytest.mark.parametrize(("most", "needed"), [(1, 4), (8, 5)])
def test_the_first_answer_admits_all_or_nothing(most, needed):
    """A signed session's context, the model, its round, and what counts against limits."""
    policy = replace(POLICY, max_participations=5, max_rounds_per_day=5, max_rounds_per_model=most)
    for capacity in (needed, needed - 1):
        parties, ledger = with_room(capacity, policy)
        parties.machine._limits = limits = limits_of(policy, 0)
        data = parties.bring(Point(3))
        before = [parties.params.context, digest(Label.MODEL, MODEL)]
        before += [limit.entry(0) for limit in limits]
        assert not any(map(ledger.knows, before))
        if capacity == needed:
            assert isinstance(parties.answer(parties.victim, data), bytes)
            assert all(map(ledger.knows, before))
            continue
        with pytest.raises(LedgerError, match=f"its capacity of {capacity}"):
            parties.answer(parties.victim, data)
        assert parties.machine.state is RoundState.FAILED
        assert not any(map(ledger.knows, before))


def announced(number, enrolment, ledger):
    """A device that has joined a round of which nothing is ever asked."""
    parties = play(number, enrolment, POLICY)
    credentials = enrolment.credentials(parties.victim)
    machine = RoundClient(parties.victim, POLICY, credentials, ledger=ledger)
    machine.receive(parties.server.start()[parties.victim])
    machine.supply_loss(1.0, 5)


def test_announcements_alone_neither_fill_a_ledger_nor_make_it_forget():
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    ledger = MemoryLedger(capacity=3)
    assert ledger.admit([model(0)])
    for number in range(12):
        announced(number, enrolment, ledger)
    assert ledger.knows(model(0))
    assert ledger.admit([model(1), model(2)])  # there is as much room as before
