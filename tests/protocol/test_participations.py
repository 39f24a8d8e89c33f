"""How often a device takes part: counted once a model, durably, and never beyond its limits."""

from dataclasses import replace

import pytest
from round_parties import MODEL, POLICY, Point, RoundParties, make_config

from deltafl.protocol.client import RoundClient
from deltafl.protocol.participations import admit_model, check_left, limits_of
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
from deltafl.secagg.randomness import SeededRandomness


def model(number):
    return bytes([number]) * 32


def lifelong(most):
    """The limits of a device that answers for so many models in all."""
    return limits_of(RoundPolicy(max_participations=most), None)


def daily(most, today):
    return limits_of(RoundPolicy(max_rounds_per_day=most), today)


def take(ledger, number, limits):
    admit_model(ledger, model(number), limits, ledger.admit)


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
        RoundClient(ClientId(1), RoundPolicy(), today=today)


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
        RoundClient(ClientId(1), RoundPolicy(max_participations=3))
    RoundClient(ClientId(1), RoundPolicy(max_participations=3), ledger=MemoryLedger())


def test_a_ledger_that_neither_admits_nor_knows_a_model_ends_the_round():
    class Closed(MemoryLedger):
        def admit(self, entries):
            del entries
            return False

    for most in (0, 3):
        with pytest.raises(PeerError, match="another round over this model"):
            take(Closed(), 0, lifelong(most))


# --- what a server can do to a ledger -------------------------------------------------------------


def with_room(capacity, signed=True):
    """A round whose victim has a ledger of that capacity, and the ledger."""
    parties = RoundParties(signed=signed)
    own = parties.machine
    own._ledger = own._session._ledger = ledger = MemoryLedger(capacity)
    return parties, ledger


def test_the_first_answer_admits_all_or_nothing():
    """A signed session's context, the model and what counts against limits: four entries."""
    policy = replace(POLICY, max_participations=5, max_rounds_per_day=5)
    for capacity in (4, 3):
        parties, ledger = with_room(capacity)
        parties.machine._limits = limits = limits_of(policy, 0)
        data = parties.bring(Point(3))
        before = [parties.params.context, *(limit.entry(0) for limit in limits)]
        assert not any(map(ledger.knows, before))
        if capacity == 4:
            assert isinstance(parties.answer(parties.victim, data), bytes)
            assert all(map(ledger.knows, before))
            continue
        with pytest.raises(LedgerError, match="its capacity of 3"):
            parties.answer(parties.victim, data)
        assert parties.machine.state is RoundState.FAILED
        assert not any(map(ledger.knows, before))


def announced(number, enrolment, ledger):
    """A device that has joined a round of which nothing is ever asked."""
    parties = play(number, enrolment, POLICY)
    params = parties.params
    credentials = enrolment.credentials_for(parties.victim, params)
    machine = RoundClient(parties.victim, POLICY, credentials=credentials, ledger=ledger)
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
