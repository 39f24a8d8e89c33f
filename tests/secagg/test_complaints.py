"""Boxes without shares: who is blamed for them, and who cannot be blamed by whom."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malicious_clients import (
    COMPLETE,
    MaliciousClients,
    check_sums,
    deal_outside_the_field,
    device_at,
    every_kind,
    lie_about,
    refuse,
    seal_junk,
)
from parties import make_params

from deltafl.secagg import Fault, SessionAborted, Stage, Step
from deltafl.secagg.graph import Graph
from deltafl.secagg.messages import ShareReceipt
from deltafl.secagg.states import Dispute
from deltafl.secagg.survival import judge

SEED = bytes(32)


def everybody(graph):
    return np.ones(graph.num_devices, dtype=np.bool_)


def told(refusals):
    return {accuser: frozenset(refused) for accuser, refused in refusals.items()}


def judge_plain(graph, members, refusals, threshold):
    """The slow twin: the two rules, one device at a time."""
    here = {p for p in range(graph.num_devices) if members[p]}
    near = {p: set(graph.neighbours(p).tolist()) & here for p in here}
    blamed = {
        p: Fault.BAD_RECEIPT for p in here if 2 * len(refusals.get(p, set()) & here) > len(near[p])
    }
    believed = here - set(blamed)
    for dealer in sorted(believed):
        accusers = {p for p in believed if dealer in refusals.get(p, set())}
        holders = set(graph.holders_of(dealer).tolist()) & believed
        if accusers and len(holders - accusers) < threshold:
            blamed[dealer] = Fault.BAD_BOX
    return blamed


@st.composite
def hearings(draw, *, all_stay=True):
    """A graph, who is still there, what each refused (of those who were), the threshold."""
    num_devices = draw(st.integers(3, 12))
    degree = draw(st.sampled_from([2, 4, 6, num_devices]))
    graph = Graph(num_devices, degree, draw(st.binary(min_size=32, max_size=32)))
    members = everybody(graph)
    if not all_stay:
        members = np.array(
            draw(st.lists(st.booleans(), min_size=num_devices, max_size=num_devices))
        )
    refusals = {
        accuser: frozenset(draw(st.sets(st.sampled_from(graph.neighbours(accuser).tolist()))))
        for accuser in draw(st.sets(st.integers(0, num_devices - 1)))
    }
    if all_stay:
        refusals = {a: r for a, r in refusals.items() if members[a]}
    return graph, members, refusals, draw(st.integers(1, graph.num_holders))


@settings(max_examples=60)
@given(hearing=hearings())
def test_equals_the_slow_twin(hearing):
    assert judge(*hearing) == judge_plain(*hearing)


@settings(max_examples=60)
@given(hearing=hearings(all_stay=False))
def test_equals_the_slow_twin_where_devices_have_left_meanwhile(hearing):
    assert judge(*hearing) == judge_plain(*hearing)


@pytest.mark.slow
@settings(max_examples=60)
@given(hearing=hearings(all_stay=False))
def test_who_has_left_is_not_blamed_again(hearing):
    graph, members, refusals, threshold = hearing
    here = {p for p in range(graph.num_devices) if members[p]}
    about_members = {accuser: refused & here for accuser, refused in refusals.items()}
    blamed = judge(graph, members, about_members, threshold)
    assert blamed == judge_plain(graph, members, about_members, threshold)
    assert set(blamed) <= here


def test_nobody_is_blamed_without_a_complaint():
    for graph in (Graph(5, 4, SEED), Graph(10, 4, SEED)):
        assert judge(graph, everybody(graph), {}, graph.num_holders) == {}
        silent = told({p: () for p in range(graph.num_devices)})
        # Not even where too few are left: that is the business of others.
        nearly_none = everybody(graph)
        nearly_none[2:] = False
        assert judge(graph, nearly_none, silent, graph.num_holders) == {}


@pytest.mark.parametrize(("num", "degree"), [(7, 6), (8, 7), (12, 6)])
def test_most_is_more_than_half(num, degree):
    graph = Graph(num, degree, SEED)
    near = graph.neighbours(2).tolist()
    half = len(near) // 2
    assert judge(graph, everybody(graph), told({2: near[:half]}), 2) == {}
    blamed = judge(graph, everybody(graph), told({2: near[: half + 1]}), 2)
    assert blamed == {2: Fault.BAD_RECEIPT}


@pytest.mark.parametrize(("num", "degree"), [(9, 8), (14, 8)])
@pytest.mark.parametrize("threshold", [4, 5, 6])
def test_a_few_accusers_expel_nobody(num, degree, threshold):
    # It takes one more than can be spared: h − t + 1 of the h who hold shares.
    graph = Graph(num, degree, SEED)
    victim, spared = 3, graph.num_holders - threshold
    accusers = graph.neighbours(victim).tolist()
    few = told(dict.fromkeys(accusers[:spared], (victim,)))
    assert judge(graph, everybody(graph), few, threshold) == {}
    enough = told(dict.fromkeys(accusers[: spared + 1], (victim,)))
    assert judge(graph, everybody(graph), enough, threshold) == {victim: Fault.BAD_BOX}


def test_who_accuses_most_leaves_first_and_is_not_believed():
    graph = Graph(6, 5, SEED)
    liars = told(dict.fromkeys((0, 1), range(2, 6)))
    # Without the two, four shares of everybody's are left: too few for t = 5, but that is
    # nobody's fault among those who stay.
    assert judge(graph, everybody(graph), liars, 5) == dict.fromkeys((0, 1), Fault.BAD_RECEIPT)
    # An accuser who is believed makes the difference.
    accused = judge(graph, everybody(graph), liars | told({4: (3,)}), 5)
    assert accused == {0: Fault.BAD_RECEIPT, 1: Fault.BAD_RECEIPT, 3: Fault.BAD_BOX}


def test_a_dealer_whom_all_accuse_leaves_and_its_accusers_stay():
    for graph in (Graph(7, 6, SEED), Graph(12, 6, SEED)):
        accusers = graph.neighbours(4).tolist()
        complaints = told(dict.fromkeys(accusers, (4,)))
        assert judge(graph, everybody(graph), complaints, 3) == {4: Fault.BAD_BOX}


@st.composite
def feuds(draw, *, some_leave=False):
    """Malicious clients who deal and accuse as they like among honest devices.

    Malicious clients are at most half of each honest neighbourhood, which is what the rules need.
    """
    num_devices = draw(st.integers(5, 14))
    degree = draw(st.sampled_from([4, 6, num_devices]))
    graph = Graph(num_devices, degree, draw(st.binary(min_size=32, max_size=32)))
    near = {p: graph.neighbours(p).tolist() for p in range(num_devices)}
    attackers = set[int]()
    for attacker in draw(st.permutations(range(num_devices)))[: draw(st.integers(1, num_devices))]:
        more = attackers | {attacker}
        if all(2 * len(more & set(near[p])) <= len(near[p]) for p in range(num_devices)):
            attackers = more
    leaving = draw(st.sets(st.sampled_from(sorted(attackers)))) if some_leave else set()
    members = everybody(graph)
    members[list(leaving)] = False
    refusals = {}
    for accuser in range(num_devices):
        others = near[accuser] if accuser in attackers else sorted(attackers & set(near[accuser]))
        chosen = draw(st.sets(st.sampled_from(others))) if others else set()
        # The worst case often: they all accuse one, or one is dealt nothing by all of them.
        refusals[accuser] = frozenset(others if draw(st.booleans()) else chosen)
    return graph, members, refusals, attackers


@pytest.mark.slow
@settings(max_examples=60)
@given(feud=feuds(), data=st.data())
def test_an_honest_device_is_not_blamed_while_enough_of_its_holders_are_honest(feud, data):
    graph, members, refusals, attackers = feud
    threshold = data.draw(st.integers(1, graph.num_holders))
    blamed = judge(graph, members, refusals, threshold)
    for honest in set(range(graph.num_devices)) - attackers:
        assert blamed.get(honest) is not Fault.BAD_RECEIPT
        left = set(graph.holders_of(honest).tolist()) - attackers
        if len(left) >= threshold:
            assert honest not in blamed


@pytest.mark.slow
@settings(max_examples=60)
@given(feud=feuds(some_leave=True))
def test_attackers_that_leave_do_not_turn_their_victims_into_accusers_of_most(feud):
    # Boxes of devices which left before the receipts were in are nobody's business any more.
    graph, members, refusals, attackers = feud
    near = {p: graph.neighbours(p) for p in range(graph.num_devices)}
    blamed = judge(graph, members, refusals, 1)
    for honest in set(range(graph.num_devices)) - attackers:
        attacker = sum(members[p] for p in near[honest].tolist() if p in attackers)
        if 2 * attacker <= np.count_nonzero(members[near[honest]]):
            assert honest not in blamed


# Whole sessions.


def graph_of(params):
    return Graph(params.num_invited, params.degree, params.graph_seed)


def check_whole(parties, dropped=()):
    """Both slots have the sums of all but those who were dropped before the first."""
    sums = parties.finish()
    left = tuple(client for client in parties.roster if client not in dropped)
    assert [result.contributors for result in sums] == [left, left]


@every_kind
@pytest.mark.parametrize("attacker", [0, 5])
def test_boxes_that_nobody_can_open_cost_their_dealer_the_session(params, attacker):
    attacker = device_at(params, attacker)
    parties = MaliciousClients(params, {(attacker, Stage.SHARE): seal_junk})
    check_whole(parties, dropped=[attacker])
    assert parties.faults == {attacker: Fault.BAD_BOX}
    assert parties.server.drops[attacker].step == Step(Stage.RECEIPT)


@every_kind
@pytest.mark.parametrize("how", ["junk", "outside the field"])
@pytest.mark.parametrize("attacker", [0, 5])
def test_a_box_that_one_device_cannot_use_costs_a_share_only(params, how, attacker):
    victims = graph_of(params).neighbours(attacker)[:1].tolist()
    change = {
        "junk": lambda *say: seal_junk(*say, victims),
        "outside the field": deal_outside_the_field(victims),
    }[how]
    parties = MaliciousClients(params, {(device_at(params, attacker), Stage.SHARE): change})
    check_whole(parties)
    assert parties.faults == {}
    owner, holder = device_at(params, attacker), device_at(params, victims[0])
    assert parties.server.disputes == {Dispute(owner, holder, Step(Stage.RECEIPT))}
    assert attacker not in parties.clients[holder]._held.positions


@every_kind
def test_boxes_outside_the_field_for_all_cost_their_dealer_the_session(params):
    attacker = device_at(params, 5)
    change = deal_outside_the_field(range(params.num_invited))
    parties = MaliciousClients(params, {(attacker, Stage.SHARE): change})
    check_whole(parties, dropped=[attacker])
    assert parties.faults == {attacker: Fault.BAD_BOX}


@every_kind
def test_who_refuses_most_boxes_is_dropped_and_who_refuses_half_is_not(params):
    near = graph_of(params).neighbours(2).tolist()
    half = len(near) // 2
    for count, faults in ((half, {}), (half + 1, {device_at(params, 2): Fault.BAD_RECEIPT})):
        attacker = device_at(params, 2)
        parties = MaliciousClients(params, {(attacker, Stage.RECEIPT): refuse(near[:count])})
        # What it pretends not to have, it must not give either.
        parties.changes[attacker, Stage.UNMASK] = withhold(near[:count])
        check_whole(parties, dropped=faults)
        assert parties.faults == faults


def withhold(positions):
    def change(parties, client, message):
        keep = ~np.isin(message.positions, positions)
        return replace(
            message,
            positions=message.positions[keep],
            kinds=message.kinds[keep],
            shares=message.shares[keep],
        )

    return change


@every_kind
def test_what_was_refused_must_not_be_given_either(params):
    # Its receipt says that it does not have the share.
    near = graph_of(params).neighbours(2).tolist()
    attacker = device_at(params, 2)
    parties = MaliciousClients(params, {(attacker, Stage.RECEIPT): refuse(near[:1])})
    sums = parties.finish()
    assert parties.faults == {attacker: Fault.MALFORMED}
    assert parties.server.drops[attacker].step == Step(Stage.UNMASK)
    assert sums[0].contributors == tuple(parties.roster)


@every_kind
def test_accusers_that_can_be_spared_expel_nobody_and_the_sum_stands(params):
    graph, victim = graph_of(params), 3
    spared = params.num_holders - params.threshold
    changes = {}
    for accuser in graph.neighbours(victim).tolist()[:spared]:
        changes[device_at(params, accuser), Stage.RECEIPT] = refuse([victim])
        changes[device_at(params, accuser), Stage.UNMASK] = withhold([victim])
    parties = MaliciousClients(params, changes)
    check_whole(parties)
    assert parties.faults == {}


@every_kind
def test_one_accuser_more_expels_its_victim_and_the_sum_of_the_others_stands(params):
    graph, victim = graph_of(params), 3
    spared = params.num_holders - params.threshold
    changes = {
        (device_at(params, accuser), Stage.RECEIPT): refuse([victim])
        for accuser in graph.neighbours(victim).tolist()[: spared + 1]
    }
    parties = MaliciousClients(params, changes)
    check_whole(parties, dropped=[device_at(params, victim)])
    assert parties.faults == {device_at(params, victim): Fault.BAD_BOX}


@every_kind
def test_receipts_about_others_than_the_senders_of_boxes_are_malformed(params):
    graph = graph_of(params)
    strangers = sorted(set(range(params.num_invited)) - set(graph.neighbours(2).tolist()) - {2})
    for named in ([2], [params.num_invited], [2**32 - 1], *([s] for s in strangers[:1])):
        attacker = device_at(params, 2)
        parties = MaliciousClients(params, {(attacker, Stage.RECEIPT): refuse(named)})
        check_whole(parties, dropped=[attacker])
        assert parties.faults == {attacker: Fault.MALFORMED}


def test_a_receipt_about_a_device_whose_boxes_were_not_delivered_is_malformed():
    attacker, gone = device_at(COMPLETE, 2), device_at(COMPLETE, 3)
    changes = {
        (gone, Stage.SHARE): lambda *_: None,
        (attacker, Stage.RECEIPT): refuse([3]),
    }
    parties = MaliciousClients(COMPLETE, changes)
    check_whole(parties, dropped=[attacker, gone])
    assert parties.faults == {gone: Fault.TIMED_OUT, attacker: Fault.MALFORMED}


def test_a_receipt_may_name_a_device_that_leaves_meanwhile():
    # The box came, and did not open; that its sender is gone since does not make this wrong.
    attacker, victim = device_at(COMPLETE, 2), device_at(COMPLETE, 5)
    changes = {
        (attacker, Stage.SHARE): lambda *say: seal_junk(*say, [5]),
        (attacker, Stage.RECEIPT): lambda *_: b"\x90",
    }
    parties = MaliciousClients(COMPLETE, changes)
    check_whole(parties, dropped=[attacker])
    assert parties.faults == {attacker: Fault.MALFORMED}
    assert victim in parties.server.remaining


@every_kind
def test_three_attackers_that_leave_do_not_take_a_victim_along(params):
    # Three of its eight neighbours give it no shares, and are gone before it can say so.
    victim = 6
    changes = {}
    for attacker in graph_of(params).neighbours(victim)[:3].tolist():
        attacker = device_at(params, attacker)
        changes[attacker, Stage.SHARE] = lambda *say: seal_junk(*say, [victim])
        changes[attacker, Stage.RECEIPT] = lambda *_: None
    parties = MaliciousClients(params, changes)
    parties.finish()
    assert set(parties.faults.values()) == {Fault.TIMED_OUT}
    assert device_at(params, victim) in parties.server.remaining


def test_shares_that_were_refused_can_be_missed_later():
    # Of seven with t = 3, four accuse position 3; its three shares are just enough, and then one
    # of those who hold them vanishes. The sum is lost, not wrong.
    params = make_params(7, threshold=3, slots=((4, 13),))
    changes = {(device_at(params, accuser), Stage.RECEIPT): refuse([3]) for accuser in (0, 1, 2, 4)}
    changes |= {
        (device_at(params, accuser), Stage.UNMASK): withhold([3]) for accuser in (0, 1, 2, 4)
    }
    whole = MaliciousClients(
        params, changes | {(device_at(params, 2), Stage.UNMASK): lambda *_: None}
    )
    list(itertools.islice(whole.steps(), 7))
    check_sums(whole)
    assert len(whole.sums) == 1
    lost = MaliciousClients(
        params, changes | {(device_at(params, 6), Stage.UNMASK): lambda *_: None}
    )
    with pytest.raises(SessionAborted, match="2 shares came for position 3"):
        list(lost.steps())
    assert lost.sums == []


def test_whose_shares_have_become_too_few_leaves_before_the_next_slot():
    # As above, but the device leaves when slot 0 is done: slot 1 need not be opened with position
    # 3, and then is not lost.
    params = make_params(7, threshold=3, slots=((4, 13), (3, 40)))

    def answer_and_leave(parties, client, message):
        parties.server.receive(client, parties.encode(message))
        return b"\x90"

    changes = {(device_at(params, 6), Stage.UNMASK): answer_and_leave}
    for accuser in (0, 1, 2, 4):
        changes[device_at(params, accuser), Stage.RECEIPT] = refuse([3])
        changes[device_at(params, accuser), Stage.UNMASK] = withhold([3])
    parties = MaliciousClients(params, changes)
    sums = parties.finish()
    left = tuple(device_at(params, p) for p in (0, 1, 2, 4, 5))
    assert [result.contributors for result in sums] == [tuple(parties.roster), left]


def test_complaints_are_not_confused_with_lies():
    # One refuses a box, another lies about all shares: each costs what it costs.
    accuser, liar = device_at(COMPLETE, 1), device_at(COMPLETE, 0)
    changes = {
        (accuser, Stage.RECEIPT): lambda *_: ShareReceipt((2,)),
        (accuser, Stage.UNMASK): withhold([2]),
        (liar, Stage.UNMASK): lie_about(),
    }
    parties = MaliciousClients(COMPLETE, changes)
    parties.finish()
    assert parties.faults == {liar: Fault.BAD_SHARE}
