"""How often a device takes part: counted once a model, durably, and never beyond its limit."""

from dataclasses import replace

import pytest
from round_parties import MODEL, POLICY, Point, RoundParties, make_config

from deltafl.protocol.client import RoundClient
from deltafl.protocol.participations import admit_model, check_left, counted, entry
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import ClientId, Enrolment, MemoryLedger, PeerError, Refusal, UsageError
from deltafl.secagg.randomness import SeededRandomness


def model(number):
    return bytes([number]) * 32


def test_models_are_counted_up_to_the_limit():
    ledger = MemoryLedger()
    for number in range(3):
        assert counted(ledger, 3) == number
        check_left(ledger, 3, 3 - number)
        admit_model(ledger, model(number), 3)
    with pytest.raises(PeerError, match="max_participations=3") as refused:
        admit_model(ledger, model(9), 3)
    assert refused.value.reason is Refusal.POLICY
    assert not ledger.knows(model(9))
    with pytest.raises(PeerError):
        check_left(ledger, 3, 1)


def test_a_model_that_was_answered_for_is_refused_and_not_counted_again():
    ledger = MemoryLedger()
    admit_model(ledger, model(0), 5)
    with pytest.raises(PeerError) as refused:
        admit_model(ledger, model(0), 5)
    assert refused.value.reason is Refusal.MODEL_REPEATED
    assert counted(ledger, 5) == 1


def test_limits_that_change_count_what_was_before():
    ledger = MemoryLedger()
    for number in range(4):
        admit_model(ledger, model(number), 10)
    assert counted(ledger, 100) == 4
    assert counted(ledger, 2) == 2
    with pytest.raises(PeerError):
        check_left(ledger, 2, 1)
    check_left(ledger, 5, 1)


def test_without_a_limit_nothing_is_counted():
    ledger = MemoryLedger()
    admit_model(ledger, model(0), 0)
    check_left(ledger, 0, 10**9)
    assert counted(ledger, 10) == 0
    assert ledger.knows(model(0))


class Overtaken(MemoryLedger):
    """Another round of the device is counted just before this one."""

    overtaken = False

    def admit(self, entries):
        if not self.overtaken:
            self.overtaken = True
            super().admit([entry(0), model(7)])
        return super().admit(entries)


def test_two_rounds_at_once_count_twice():
    ledger = Overtaken()
    admit_model(ledger, model(1), 2)
    assert counted(ledger, 9) == 2
    late = Overtaken()
    with pytest.raises(PeerError, match="max_participations=1"):
        admit_model(late, model(1), 1)
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
    assert counted(enrolment.ledger(parties.victim), 9) == 0
    parties = play(1, enrolment, policy)
    parties.bring(Point(4))
    assert counted(enrolment.ledger(parties.victim), 9) == 1


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
            admit_model(Closed(), b"m" * 32, most)
