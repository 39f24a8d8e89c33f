"""A verified search: devices follow it, and believe nothing that does not follow from the sums."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flat_configs import changed_round
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import POLICY, RoundParties, assert_fails, make_config, make_devices

from deltafl.protocol import wire
from deltafl.protocol.anonymity import Tail
from deltafl.protocol.client import LocalWork
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.followed_search import Followed
from deltafl.protocol.messages import Ask
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import RoundState
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import PeerError, Refusal, SlotSum, openings, pedersen, ring
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import SumOpening
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import Stage

METHODS = {
    "mm": {"method": "mm"},
    "mm with epsilon": {"method": "mm", "epsilon_ticks": 100},
    "bracketed": {"method": "bracketed"},
    "histogram": {"method": "histogram", "num_pivots": 3},
    "noisy": {
        "method": "noisy",
        "num_pivots": 4,
        "weighting": Weighting.EQUAL,
        "noise": Noise(Fraction(1), 3),
        "max_queries": 1,
    },
}
CONFIG = make_config(cohort_size=5, max_queries=12, method="bracketed", verified=True)
ABSENT = 3
OTHERS = np.arange(5) > 0  # without the absent device


def added(config, answers):
    """The sum of ring vectors of the search layout."""
    return sum(answers) & np.uint64(2**config.search_layout.ring_bits - 1)


# --- the search that a device works out ---------------------------------------------------------

cohorts = st.lists(st.tuples(st.floats(0, 9), st.integers(0, 600)), min_size=3, max_size=9)
thetas = st.sampled_from([Fraction(9, 10), Fraction(4, 5), Fraction(1, 2), Fraction(1, 10)])


@settings(deadline=None, max_examples=150)
@given(cohorts, thetas, st.sampled_from(list(METHODS)), st.data())
def test_what_a_device_works_out_is_what_the_server_asks(cohort, theta, method, data):
    changes = {"cohort_size": len(cohort), "theta": theta, "verified": True, "max_queries": 6}
    warm = data.draw(st.none() | st.integers(0, 2048))
    config = make_config(**changes | METHODS[method], warm_start=warm)
    devices = [DeviceRound.measured(config, loss, weight) for loss, weight in cohort]
    ids, noise = tuple(range(len(cohort))), SeededRandomness(b"n" * 32)
    round_, followed = Round(config), Followed.begin(config)
    stop = data.draw(st.integers(0, 7))
    for number in range(10):
        if isinstance(round_.question, Threshold):
            break
        followed.check_query(round_.question)
        if number == stop:
            round_.lose()
            with pytest.raises(PeerError, match="although the search is to go on"):
                followed.check_threshold(round_.question, len(ids), shrank=False)
            break
        total = added(config, [device.answer(round_.question, noise) for device in devices])
        round_.take(SlotSum(number, total, ids, ids))
        followed = followed.after(total, len(ids))
        assert followed.num_searched == len(ids)
    threshold = round_.question
    tail = followed.check_threshold(threshold, len(ids), shrank=number == stop)
    if method == "noisy" or not followed.num_searched:
        return
    passing = [device for device in devices if device.passes(threshold)]
    counted = sum(device.weight > 0 for device in passing)  # others hide nobody
    assert tail == Tail(counted, counted)
    if sum(weight for _, weight in cohort):
        assert counted > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_round_of_honest_parties_is_accepted_by_all(method):
    changes = {"cohort_size": 5, "max_queries": 8, "verified": True, **METHODS[method]}
    for least, theta in ((0, Fraction(4, 5)), (5, Fraction(1, 2))):
        config = make_config(**changes, min_search_cohort=least, theta=theta)
        parties = RoundParties(config)
        outcome = parties.play()
        assert outcome.aborted is None
        assert not outcome.drops
        assert {client.state for client in parties.clients.values()} == {RoundState.UPDATED}
        if method != "noisy":
            tails = {client.tail for client in parties.clients.values()}
            assert tails == {Tail(outcome.kept_devices, outcome.kept_devices)}


@pytest.mark.slow
def test_a_verified_search_that_is_not_certified_keeps_whoever_may_be_in_the_tail():
    for verified in (True, False):
        config = changed_round(CONFIG, verified=verified, max_queries=2)
        parties = RoundParties(config)
        outcome = parties.play()
        assert outcome.search.ended is Ended.BUDGET
        exact = RoundParties(changed_round(config, max_queries=12)).play()
        if verified:
            assert outcome.kept_devices >= exact.kept_devices
        assert outcome.search.half_width_half_ticks == 0


# --- lies ---------------------------------------------------------------------------------------


def at_question(number, config=CONFIG, **others):
    """A round in which the victim is to get its n-th question, and the honest envelope."""
    parties = RoundParties(config, **others)
    return parties, parties.until_asked(number)


def opening_of(parties, envelope) -> SumOpening:
    return session_wire.decode(envelope.opening, parties.params)


def with_opening(parties, envelope, **changes) -> bytes:
    opening = replace(opening_of(parties, envelope), **changes)
    return wire.encode(replace(envelope, opening=session_wire.encode(opening, parties.params)))


def with_session(parties, envelope, **changes) -> bytes:
    opened = replace(session_wire.decode(envelope.session, parties.params), **changes)
    return wire.encode(replace(envelope, session=session_wire.encode(opened, parties.params)))


def as_threshold(parties, envelope, threshold, **changes) -> bytes:
    """The envelope as the end of the search."""
    changes = {"slot": parties.config.update_slot, **changes}
    return with_session(parties, replace(envelope, question=threshold), **changes)


def forged_sum(parties, envelope, place=0):
    spec, opening = parties.params.slots[0], opening_of(parties, envelope)
    total, blinding = openings.unpack(spec, opening.packed)
    total[place] += 1
    return with_opening(parties, envelope, packed=openings.pack(spec, total, blinding))


def committed(parties, envelope, change):
    each = {p: bytes(c) for p, c in opening_of(parties, envelope).committed.items()}
    change(each)
    return with_opening(parties, envelope, committed=each)


def forge_commitment(each):
    other = pedersen.commit([1], 7)
    each[2] = other + each[2][len(other) :]


def forge_signature(each):
    each[2] = each[2][:-1] + bytes([each[2][-1] ^ 1])


def swap(each):
    each[1], each[2] = each[2], each[1]


def repeat(each):
    each[1] = each[2]


def leave_out(each):
    del each[2]


LIES = {
    "a forged sum": (forged_sum, Refusal.BAD_OPENING),
    "a forged blinding": (lambda p, e: forged_sum(p, e, -1), Refusal.BAD_OPENING),
    "a forged commitment": (
        lambda p, e: committed(p, e, forge_commitment),
        Refusal.BAD_SIGNATURE,
    ),
    "a forged signature": (lambda p, e: committed(p, e, forge_signature), Refusal.BAD_SIGNATURE),
    "two commitments swapped": (lambda p, e: committed(p, e, swap), Refusal.BAD_SIGNATURE),
    "one commitment twice": (lambda p, e: committed(p, e, repeat), Refusal.BAD_SIGNATURE),
    "a device left out": (lambda p, e: committed(p, e, leave_out), Refusal.MISSING_NEIGHBOUR),
    "no proof": (lambda _, e: wire.encode(replace(e, opening=b"")), Refusal.UNPROVED),
    "no message": (lambda _, e: wire.encode(replace(e, opening=b"x")), Refusal.MALFORMED),
    "another slot's sum": (lambda p, e: with_opening(p, e, slot=1), Refusal.OUT_OF_ORDER),
}


@pytest.mark.parametrize("least", [0, 5])
@pytest.mark.parametrize(("lie", "reason"), LIES.values(), ids=LIES)
def test_a_sum_that_is_not_proved_is_refused(lie, reason, least):
    """In a tolerant slot, and in a whole one."""
    for lying in (False, True):
        config = changed_round(CONFIG, min_search_cohort=least)
        parties, honest = at_question(2, config)
        assert parties.params.slots[0].whole is bool(least)
        if lying:
            assert_fails(parties.machine, lie(parties, honest), reason)
        else:
            assert isinstance(parties.machine.receive(wire.encode(honest)), bytes)


def test_a_commitment_of_a_device_that_is_not_in_the_sum_is_refused():
    parties, _ = at_question(1)
    outgoing = parties.collect(
        {c: parties.answer(c, d) for c, d in parties.pending.items() if c != ABSENT}
    )
    while not isinstance(wire.decode(outgoing[parties.victim]), Ask):
        outgoing = parties.exchange(outgoing)
    honest = wire.decode(outgoing[parties.victim])
    assert sorted(opening_of(parties, honest).committed) == [1, 2, 3, 4]
    other = dict(outgoing)
    data = committed(parties, honest, lambda each: each.update({0: each[1]}))
    assert_fails(parties.machine, data, Refusal.UNKNOWN_NEIGHBOUR)
    client = 17
    assert isinstance(parties.answer(client, other[client]), bytes)


def skipped(parties, envelope):
    following = RoundParties(parties.config).until_asked(3)
    return wire.encode(replace(envelope, question=following.question))


def asked_twice(parties, envelope):
    first = RoundParties(parties.config).until_asked(1)
    return wire.encode(replace(envelope, question=first.question))


def another_pivot(parties, envelope, step=1):
    del parties
    (pivot,) = envelope.question.pivots
    return wire.encode(replace(envelope, question=Query("bracketed", (pivot + step,))))


def too_early(parties, envelope):
    followed = Followed.begin(parties.config)
    spec, opening = parties.params.slots[0], opening_of(parties, envelope)
    total, _ = openings.unpack(spec, opening.packed)
    now = followed.after(total, 5).search.result(shrank=True).threshold
    return as_threshold(parties, envelope, now)


QUESTIONS = {
    "a query skipped": skipped,
    "a query asked twice": asked_twice,
    "the next pivot": another_pivot,
    "the pivot before": lambda p, e: another_pivot(p, e, -1),
    "the threshold of a search that is not over": too_early,
    "everybody in a search that is not over": lambda p, e: as_threshold(p, e, Threshold(0, 0)),
}


@pytest.mark.parametrize("lie", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_that_does_not_follow_is_refused(lie):
    parties, honest = at_question(2)
    assert isinstance(parties.machine.receive(wire.encode(honest)), bytes)
    parties, honest = at_question(2)
    assert_fails(parties.machine, lie(parties, honest), Refusal.NOT_FOLLOWING)


@pytest.mark.parametrize("step", [-1, 1, 100])
def test_the_first_query_follows_from_the_configuration(step):
    parties, honest = at_question(1)
    assert not honest.opening
    assert isinstance(parties.machine.receive(wire.encode(honest)), bytes)
    parties, honest = at_question(1)
    assert_fails(parties.machine, another_pivot(parties, honest, step), Refusal.NOT_FOLLOWING)


@pytest.mark.parametrize("lie", [skipped, asked_twice, another_pivot])
def test_a_search_that_is_not_verified_is_answered_whatever_is_asked(lie):
    """Which is why devices that assume an active server refuse it."""
    parties, honest = at_question(2, changed_round(CONFIG, verified=False))
    assert isinstance(parties.machine.receive(lie(parties, honest)), bytes)


def at_threshold(config=CONFIG, **others):
    parties, number = RoundParties(config, **others), 1
    while not isinstance(parties.until_asked(number).question, Threshold):
        parties, number = RoundParties(config, **others), number + 1
    return parties, wire.decode(parties.pending[parties.victim])


@pytest.mark.parametrize("change", [(0, 0), (1, 0), (-1, 0), (0, 1), (2**60, 0)])
def test_a_threshold_other_than_the_searchs_is_refused(change):
    parties, honest = at_threshold()
    own = honest.question
    other = Threshold(own.eta_half_ticks + change[0], own.half_width_half_ticks + change[1])
    data = wire.encode(replace(honest, question=other))
    if other == own:
        assert parties.machine.receive(data) is LocalWork.TRAIN
    else:
        assert_fails(parties.machine, data, Refusal.NOT_FOLLOWING, "where the sums give")


def test_a_query_after_the_search_is_over_is_refused():
    parties, honest = at_threshold()
    slot = session_wire.decode(parties_last_slot(parties), parties.params).slot + 1
    for query in (Query("bracketed", (5,)), Query("bracketed", (700,))):
        parties, honest = at_threshold()
        data = with_session(parties, replace(honest, question=query), slot=slot)
        assert_fails(parties.machine, data, Refusal.NOT_FOLLOWING, "where the sums give None")


def parties_last_slot(parties):
    """The session's message with the question before the one that the victim is to get."""
    asked = [e for e in map(wire.decode, parties.taken) if isinstance(e, Ask)]
    return asked[-1].session


def proved_by(parties, envelope):
    """The sum that comes with a question, without its blinding."""
    total = opening_of(parties, envelope)
    spec = parties.params.slots[total.slot]
    return openings.unpack(spec, total.packed)[0]


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("is_proved", [False, True])
@pytest.mark.parametrize("has_shrunk", [False, True])
def test_a_search_ends_early_only_if_a_device_has_left(is_over, is_proved, has_shrunk):
    """Without the last proof the threshold is that of the sums before it."""
    parties, honest = at_threshold() if is_over else at_question(3)
    followed = parties.machine._search
    if is_proved:
        followed = followed.after(proved_by(parties, honest), 5)
    else:
        honest = replace(honest, opening=b"")
    threshold = followed.search.result(shrank=has_shrunk).threshold
    members = OTHERS if has_shrunk else np.ones(5, dtype=np.bool_)
    data = as_threshold(parties, honest, threshold, members=members)
    if has_shrunk or (is_over and is_proved):
        assert parties.machine.receive(data) is LocalWork.TRAIN
    else:
        reason = Refusal.NOT_FOLLOWING if is_proved else Refusal.UNPROVED
        assert_fails(parties.machine, data, reason)


def test_after_a_sum_that_contradicts_itself_no_query_follows():
    followed = replace(Followed.begin(CONFIG), num_searched=5, contradicted=True)
    with pytest.raises(PeerError, match="where the sums give None"):
        followed.check_query(followed.search.query)


def test_who_left_before_the_search_does_not_end_it_later():
    parties, asked = RoundParties(CONFIG), []
    outgoing = parties.server.start()
    del outgoing[min(parties.devices)]  # it never answers
    while len(asked) < 3:
        outgoing = parties.exchange(outgoing)
        envelope = wire.decode(outgoing[parties.victim])
        asked += [envelope] if isinstance(envelope, Ask) else []
    followed = parties.machine._search.after(proved_by(parties, asked[-1]), 4)
    assert followed.search.query is not None
    data = as_threshold(
        parties,
        asked[-1],
        followed.search.result(shrank=True).threshold,
        members=np.ones(4, dtype=np.bool_),
    )
    assert_fails(parties.machine, data, Refusal.NOT_FOLLOWING, "the search is to go on")


@pytest.mark.parametrize("stage", [Stage.RECEIPT, Stage.MASK])
def test_who_is_lost_after_the_first_list_is_shown_ends_the_search_of_honest_devices(stage):
    """It has left the cohort that signs: without a question before, the threshold is due."""
    parties = RoundParties(changed_round(CONFIG, min_search_cohort=4))
    outgoing = parties.server.start()
    while outgoing:
        gone = {ABSENT} if parties.server.step.stage is stage else set()
        outgoing = parties.collect(
            {c: parties.answer(c, data) for c, data in outgoing.items() if c not in gone}
        )
    (outcome,) = parties.server.outcomes
    assert outcome.aborted is None
    assert (outcome.search.ended is Ended.SHRANK) is (stage is Stage.MASK)
    others = [client for device, client in parties.clients.items() if device != ABSENT]
    assert {client.state for client in others} == {RoundState.UPDATED}


@pytest.mark.parametrize("is_proved", [True, False])
def test_who_is_missing_from_the_first_sum_is_no_reason_to_leave_it_unproved(is_proved):
    parties, _ = at_question(1)
    outgoing = parties.collect(
        {c: parties.answer(c, d) for c, d in parties.pending.items() if c != ABSENT}
    )
    while not isinstance(wire.decode(outgoing[parties.victim]), Ask):
        outgoing = parties.exchange(outgoing)
    honest = wire.decode(outgoing[parties.victim])
    if is_proved:
        assert isinstance(parties.machine.receive(wire.encode(honest)), bytes)
    else:
        data = as_threshold(parties, replace(honest, opening=b""), Threshold(0, 0))
        assert_fails(parties.machine, data, Refusal.UNPROVED)


@pytest.mark.parametrize("change", [(0, 0), (2, 0), (-2, 0)])
def test_a_search_that_ends_early_has_one_threshold(change):
    parties, honest = at_question(3)
    own = parties.machine._search.search.result(shrank=True).threshold
    other = Threshold(own.eta_half_ticks + change[0], own.half_width_half_ticks)
    honest = replace(honest, opening=b"")
    data = as_threshold(parties, honest, other, members=OTHERS)
    if other == own:
        assert parties.machine.receive(data) is LocalWork.TRAIN
    else:
        assert_fails(parties.machine, data, Refusal.NOT_FOLLOWING)


def test_a_proof_in_a_round_that_is_not_verified_is_refused():
    _, verified = at_question(2)
    plain = changed_round(CONFIG, verified=False)
    for opening in (b"", verified.opening):
        parties, honest = at_question(2, plain)
        assert honest.opening == b""
        data = wire.encode(replace(honest, opening=opening))
        if opening:
            assert_fails(parties.machine, data, Refusal.OUT_OF_ORDER, "was not waited for")
        else:
            assert isinstance(parties.machine.receive(data), bytes)


def test_a_proof_before_anything_was_asked_is_refused():
    _, later = at_question(2)
    parties, honest = at_question(1)
    data = wire.encode(replace(honest, opening=later.opening))
    assert_fails(parties.machine, data, Refusal.OUT_OF_ORDER, "was not waited for")


@pytest.mark.parametrize("number", [3, 4])
def test_a_proof_of_an_older_sum_is_refused(number):
    older = [RoundParties(CONFIG).until_asked(n).opening for n in range(2, number)]
    for opening in older:
        parties, honest = at_question(number)
        data = wire.encode(replace(honest, opening=opening))
        assert_fails(parties.machine, data, Refusal.OUT_OF_ORDER, "proves no sum")


def test_an_older_sum_under_another_form_is_refused():
    parties, honest = at_question(3)
    spec, earlier = parties.params.slots[0], opening_of(parties, at_question(2)[1])
    total, blinding = openings.unpack(spec, earlier.packed)
    total[0] += 1
    other = replace(earlier, packed=openings.pack(spec, total, blinding))
    opening = session_wire.encode(other, parties.params)
    data = wire.encode(replace(honest, opening=opening))
    assert_fails(parties.machine, data, Refusal.OUT_OF_ORDER, "slot 0")


# --- the tail -----------------------------------------------------------------------------------


def devices_of(config, losses, weights=None):
    made = make_devices(config)
    weights = [10] * len(losses) if weights is None else weights
    return {
        client: replace(device, loss=loss, weight=weight)
        for (client, device), loss, weight in zip(made.items(), losses, weights, strict=True)
    }


@pytest.fixture
def any_theta(monkeypatch):
    """Devices that count tails only once they are announced, so that a test gets there."""
    monkeypatch.setattr(RoundPolicy, "_check_tails", lambda *_: None)


@pytest.mark.parametrize("theta", [Fraction(1, 10), Fraction(1, 5), Fraction(2, 5)])
@pytest.mark.parametrize("insisted", [0, 1, 2, 3])
@pytest.mark.parametrize("least", [0, 3])
def test_a_tail_of_too_few_is_refused_and_one_that_is_widened_is_not(
    theta, insisted, least, any_theta
):
    devices = devices_of(CONFIG, [1, 2, 3, 4, 5])
    config = changed_round(CONFIG, theta=theta, min_tail=least)
    policy = replace(POLICY, min_honest_tail=insisted)
    parties, honest = at_threshold(config, devices=devices, policy=policy)
    num_kept = max(int(theta * 5) + 1, least)  # the device at the quantile, and those above
    data = wire.encode(honest)
    if num_kept >= insisted:
        assert parties.machine.receive(data) is LocalWork.TRAIN
        assert parties.machine.tail == Tail(num_kept, num_kept)
    else:
        told = f"{num_kept} devices, fewer than {insisted}"
        assert_fails(parties.machine, data, Refusal.TAIL_TOO_SMALL, told)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4])
def test_devices_that_may_collude_are_counted_besides(rate, any_theta, monkeypatch):
    """Three are in the tail."""
    monkeypatch.setattr(RoundPolicy, "check", lambda *_: None)  # of the session
    config = changed_round(CONFIG, theta=Fraction(2, 5))
    devices = devices_of(CONFIG, [1, 2, 3, 4, 5])
    policy = replace(POLICY, min_honest_tail=2, colluding_rate=rate)
    parties, honest = at_threshold(config, devices=devices, policy=policy)
    data = wire.encode(honest)
    if rate < 0.4:
        assert parties.machine.receive(data) is LocalWork.TRAIN
    else:
        assert_fails(parties.machine, data, Refusal.TAIL_TOO_SMALL, "3 devices, fewer than 4")


def test_whoever_is_lost_after_the_threshold_may_have_been_in_the_tail(any_theta):
    """A server that waits for the updates could otherwise cut the tail down to one."""
    config = changed_round(CONFIG, theta=Fraction(2, 5))
    policy = replace(POLICY, min_honest_tail=2)
    for num_lost in (0, 1, 2):
        devices = devices_of(CONFIG, [1, 2, 3, 4, 5])
        parties, _ = at_threshold(config, devices=devices, policy=policy)
        lost = tuple(devices)[:num_lost]
        following = parties.collect(
            {c: parties.answer(c, d) for c, d in parties.pending.items() if c not in lost}
        )
        assert parties.machine.tail == Tail(3, 3)
        data = following[parties.victim]
        if 3 - num_lost >= 2:
            assert isinstance(parties.machine.receive(data), bytes)
        else:
            assert_fails(parties.machine, data, Refusal.TAIL_TOO_SMALL, "1 devices")


def test_whoever_is_lost_before_the_threshold_may_have_been_in_the_tail(any_theta):
    """They were in the last sum of the search, and are not asked for updates."""
    config = changed_round(CONFIG, theta=Fraction(2, 5))
    policy = replace(POLICY, min_honest_tail=2)

    def at_the_threshold(num_lost, last=None):
        """The parties as the threshold comes, and after how many trips."""
        devices = devices_of(CONFIG, [1, 2, 3, 4, 5])
        parties = RoundParties(config, devices=devices, policy=policy)
        outgoing, trips = parties.server.start(), 0
        while True:
            asked = wire.decode(outgoing[parties.victim])
            if isinstance(asked, Ask) and isinstance(asked.question, Threshold):
                return parties, outgoing, trips
            lost = tuple(devices)[:num_lost] if trips == last else ()
            replies = {c: parties.answer(c, d) for c, d in outgoing.items() if c not in lost}
            outgoing, trips = parties.collect(replies), trips + 1

    *_, trips = at_the_threshold(0)
    for num_lost in (0, 1, 2):
        parties, outgoing, _ = at_the_threshold(num_lost, last=trips - 1)
        assert len(outgoing) == 5 - num_lost
        data = outgoing[parties.victim]
        if 3 - num_lost >= 2:
            assert parties.machine.receive(data) is LocalWork.TRAIN
            assert parties.machine.tail == Tail(3, 3)
        else:
            assert_fails(parties.machine, data, Refusal.TAIL_TOO_SMALL, "1 devices")


@pytest.mark.parametrize("method", ["mm", "bracketed", "histogram"])
def test_devices_without_weight_hide_nobody_in_the_tail(method, any_theta):
    config = changed_round(CONFIG, **METHODS[method], theta=Fraction(1, 2))
    policy = replace(POLICY, min_honest_tail=2)
    for weights, num_counted in (([0] * 5, 0), ([0, 10, 0, 0, 20], 1), ([0, 10, 0, 20, 20], 2)):
        devices = devices_of(config, [1, 2, 3, 4, 5], weights)
        parties = RoundParties(config, devices=devices, policy=policy)
        if num_counted < 2:
            with pytest.raises(PeerError, match=f"{num_counted} devices, fewer than 2"):
                parties.play()
        else:
            assert parties.play().aborted is None


@pytest.mark.parametrize("method", ["mm", "bracketed"])
def test_without_weight_everybody_is_kept_and_counted(method):
    """Such sums come from a device that counts itself and claims to weigh nothing."""
    config = changed_round(CONFIG, **METHODS[method])
    sums = {field.name: np.array([0]) for field in config.search_layout.fields}
    sums |= {"count": np.array([3]), "count_below": np.array([2])}
    after = config.start_search().update(sums)
    assert after.result().ended is Ended.NO_WEIGHT
    assert after.result().eta_half_ticks == 0
    assert after.result().tail == Tail(3, 3)


def test_the_tail_is_counted_right_however_the_search_ended():
    losses, weights = [1.0, 1.0, 2.0, 3.0, 5.0], [10, 20, 1, 30, 40]
    devices = devices_of(CONFIG, losses, weights)

    def tail_after(*, absent=None, number=None, **changes):
        parties = RoundParties(changed_round(CONFIG, **changes), devices=devices)
        assert parties.machine.tail is None
        asks = 0

        def answer(client, data):
            return None if client == absent and asks == number else parties.answer(client, data)

        outgoing = parties.server.start()
        while outgoing:
            asks += isinstance(wire.decode(outgoing[parties.victim]), Ask)
            outgoing = parties.collect({c: answer(c, d) for c, d in outgoing.items()})
        return parties.machine.tail, parties.server.outcomes[0]

    tail, outcome = tail_after(theta=Fraction(1, 2))
    assert outcome.search.certified
    assert tail == Tail(outcome.kept_devices, outcome.kept_devices) == Tail(2, 2)
    tail, outcome = tail_after(max_queries=1, warm_start=640)
    assert outcome.search.ended is Ended.BUDGET
    assert tail == Tail(outcome.kept_devices, outcome.kept_devices)
    # Who is missing from the first query is not in the search.
    tail, outcome = tail_after(absent=3, number=1)
    assert outcome.search.certified
    assert tail == Tail(outcome.kept_devices, outcome.kept_devices)
    # Who is missing from a later one may have been in the tail.
    tail, outcome = tail_after(absent=3, number=3)
    assert outcome.search.ended is Ended.SHRANK
    kept = [d for d in devices.values() if outcome.search.passes(round(d.loss * 256))]
    assert tail == Tail(len(kept), len(kept))
    assert outcome.kept_devices >= len(kept) - 1
    # Nothing was asked: all are kept.
    tail, outcome = tail_after(absent=3, number=0, min_search_cohort=5)
    assert outcome.search.ended is Ended.TOO_FEW
    assert (tail, outcome.kept_devices) == (None, 4)
    tail, outcome = tail_after(absent=3, number=1, min_search_cohort=4)
    assert outcome.search.ended is Ended.SHRANK
    assert (tail, outcome.kept_devices) == (None, 4)
    tail, outcome = tail_after(theta=Fraction(1))
    assert (tail, outcome.kept_devices) == (None, 5)


# --- devices that lie ---------------------------------------------------------------------------


def test_sums_that_contradict_themselves_end_the_search_on_both_sides(monkeypatch):
    liar = ABSENT
    honest = DeviceRound.answer

    def lie(device, query, randomness=None):
        if device.weight != 499:
            return honest(device, query, randomness)
        values = {"weight": 0, "count": 0, "weight_below": 499, "count_below": 1}
        return device.config.search_layout.encode(values)[0].astype(np.uint64)

    devices = devices_of(CONFIG, [1, 1, 1, 1, 1], [499, 1, 1, 1, 1])
    assert devices[liar].weight == 499
    for lying in (False, True):
        if lying:
            monkeypatch.setattr(DeviceRound, "answer", lie)
        parties = RoundParties(CONFIG, devices=devices)
        outcome = parties.play()
        assert outcome.search.certified is not lying
        assert (outcome.search.ended is Ended.SHRANK) is lying
        assert parties.machine._search.contradicted is lying
        assert outcome.aborted is None
        assert not outcome.drops
        assert outcome.kept_devices == 5
        assert {client.state for client in parties.clients.values()} == {RoundState.UPDATED}


@pytest.mark.parametrize("least", [0, 5])
def test_who_commits_to_something_else_than_it_masks_ends_the_round_and_is_not_named(
    least, monkeypatch
):
    parties = RoundParties(changed_round(CONFIG, min_search_cohort=least))
    liar = parties.enrolment.credentials(10).identity.public
    commit = openings.commit

    def lie(context, spec, vector, identity, *rest):
        made = commit(context, spec, vector, identity, *rest)
        if identity.public == liar:
            vector[0] += 1  # what is masked next
        return made

    honest = RoundParties(parties.config).play()
    assert honest.aborted is None
    monkeypatch.setattr(openings, "commit", lie)
    outcome = parties.play()
    assert "nobody can tell which device it was" in outcome.aborted
    assert not outcome.drops
    assert outcome.update is None
    assert (outcome.search, outcome.secure_sums) == (None, 0)


# --- split views --------------------------------------------------------------------------------

SPLIT = make_config(cohort_size=6, max_queries=3, method="histogram", num_pivots=60, verified=True)
LIAR = 3


def split_parties():
    """A round in which the losses of all devices lie close together."""
    return RoundParties(SPLIT, devices=devices_of(SPLIT, [1 + rank / 256 for rank in range(6)]))


def made_up_answer(pivots):
    """As if three devices, which weigh 500 together, had a loss below that of all others."""
    below = np.array(pivots)
    weights, counts = 500 * (below > 100), np.where(below > 256, 1, 3) * (below > 100)
    return np.concatenate(([500, 1], weights, counts))


def other_proof(parties, honest, wired, drawn, context):
    """A second sum of the first query that the colluding device makes provable."""
    opening, spec = opening_of(parties, honest), parties.params.slots[0]
    identity = parties.enrolment.credentials(LIAR).identity
    pivots = Followed.begin(SPLIT).search.query.pivots
    vector = ring.to_words(made_up_answer(pivots), spec.ring_bits)
    sealing = parties.clients[LIAR]._session._own_sealing.public
    again, signed = openings.commit(
        context, spec, vector, identity, sealing, SeededRandomness(b"o" * 32)
    )
    total, blinding = openings.unpack(spec, opening.packed)
    total = total - wired + vector
    ring.reduce(total, spec.ring_bits)
    packed = openings.pack(spec, total, blinding - drawn + again)
    records = {p: bytes(c) for p, c in opening.committed.items()} | {0: signed}
    changed = replace(opening, packed=packed, committed=records)
    return session_wire.encode(changed, parties.params), total


@pytest.mark.parametrize("split", [True, False])
def test_halves_that_are_shown_different_sums_get_different_questions_and_only_noise(
    split, monkeypatch
):
    parties, commit, drawn = split_parties(), openings.commit, {}

    def remember(context, spec, vector, identity, *rest):
        made = commit(context, spec, vector, identity, *rest)
        if identity.public == parties.enrolment.credentials(LIAR).identity.public:
            drawn["wired"] = vector.copy(), made[0], context
        return made

    monkeypatch.setattr(openings, "commit", remember)
    honest = parties.until_asked(2)
    proof, total = other_proof(parties, honest, *drawn["wired"])
    following = Followed.begin(SPLIT).after(total, 6).search.query
    assert isinstance(following, Query)
    assert following != honest.question
    half = tuple(parties.devices)[3:] if split else tuple(parties.devices)
    spec, words = parties.params.slots[1], {}
    for client, data in parties.pending.items():
        envelope = wire.decode(data)
        if client in half:
            envelope = replace(envelope, question=following, opening=proof)
        reply = session_wire.decode(parties.answer(client, wire.encode(envelope)), parties.params)
        words[client] = openings.unpack(spec, reply.packed)[0]
    questions = {c: following if c in half else honest.question for c in words}
    true = sum(
        parties.devices[c].measured(SPLIT).answer(question) for c, question in questions.items()
    )
    for part in (words, set(words) & set(half), set(words) - set(half)):
        if not part or (not split and part is not words):
            continue
        noise = sum(words[c].astype(np.uint64) for c in part)
        if part is words:
            noise = noise - true
        noise = noise & np.uint64(2**spec.ring_bits - 1)
        if split:
            assert np.count_nonzero(noise) >= 0.95 * len(noise)
            assert looks_uniform(noise, spec.ring_bits)
        else:
            assert not noise.any()


def looks_uniform(words, bits):
    """Whether every bit is one about half the time, to 5 standard deviations."""
    ones = np.array([np.mean((words >> np.uint64(bit)) & np.uint64(1)) for bit in range(bits)])
    return bool(np.abs(ones - 0.5).max() < 2.5 / np.sqrt(len(words)))


def test_the_test_for_noise_can_fail():
    assert not looks_uniform(np.arange(122, dtype=np.uint64), 20)
    drawn = np.random.default_rng(4).integers(0, 2**20, 122, dtype=np.uint64)
    assert looks_uniform(drawn, 20)
