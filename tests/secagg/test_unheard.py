"""Neighbours whose box did not open do not count: a server may have made them up.

A box that opens was sealed for this device's fresh key, by somebody who is there now. Whoever else
is shown to a device counts neither for the smallest cohort, nor among the holders of its shares,
nor as a signer of the survivors.
"""

from dataclasses import replace

import pytest
from malicious_clients import MaliciousClients, deal_outside_the_field, seal_junk
from parties import Parties, make_params, plain_sum
from refusing import OTHERS, VICTIM, refuse

from deltafl.secagg import PeerError, Refusal, Stage
from deltafl.secagg.messages import ConsistencyCheck, OpenSlot, ShareReceipt, UnmaskRequest
from deltafl.secagg.states import ClientState

COMPLETE = make_params(6, threshold=3, min_cohort=4)
SIGNED = COMPLETE
SPARSE = make_params(9, degree=4, threshold=3)
SPARSE_VICTIM = Parties(SPARSE).ids[4]

in_both = pytest.mark.parametrize("params", [COMPLETE, SIGNED], ids=["unsigned", "signed"])


def delivered(params, unheard, victim=VICTIM):
    """A session at the delivery of shares, some of whose boxes the victim cannot open.

    Returns:
        The parties, and the delivery.
    """
    parties = Parties(params)
    message = parties.decode(parties.advance(ClientState.SHARED)[victim])
    junk = {parties.position(client) for client in unheard}
    assert junk <= message.boxes.keys()
    boxes = {p: bytes(len(b)) if p in junk else b for p, b in message.boxes.items()}
    return parties, parties.encode(replace(message, boxes=boxes))


def ready(params, unheard, victim=VICTIM):
    """The same, a step later: the victim has told whose boxes held nothing."""
    parties, data = delivered(params, unheard, victim)
    receipt = parties.decode(parties.clients[victim].receive(data))
    assert receipt == ShareReceipt(tuple(sorted(parties.position(c) for c in unheard)))
    return parties


def without(parties, *lost):
    return parties.members(set(parties.ids) - set(lost))


def told_at(stage, params, unheard, lost, victim=VICTIM):
    """A session whose victim is told at some stage that some devices are lost."""
    parties = ready(params, unheard, victim)
    machine, members = parties.clients[victim], without(parties, *lost)
    if stage == "opening":
        return parties, parties.encode(OpenSlot(0, members))
    parties.answer(victim, parties.encode(OpenSlot(0, without(parties))))
    assert machine.state is ClientState.MASKED
    kind = ConsistencyCheck
    return parties, parties.encode(kind(0, members))


at_each_stage = pytest.mark.parametrize("stage", ["opening", "survivors"])


# The smallest cohort.


def test_as_many_boxes_as_make_a_cohort_must_open(params):
    """With its own, four of six: 5 − 2 + 1 are enough for min_cohort = 4, 5 − 3 + 1 are not."""
    assert ready(params, OTHERS[:2]).clients[VICTIM].state is ClientState.READY
    parties, data = delivered(params, OTHERS[:3])
    refuse(parties, data, Refusal.COHORT_TOO_SMALL, match="3 devices are left, fewer than 4")


@at_each_stage
@pytest.mark.parametrize(
    ("unheard", "lost", "enough"),
    [
        (OTHERS[:2], [], True),
        (OTHERS[:2], OTHERS[:2], True),  # those who do not count may well be lost
        (OTHERS[:2], OTHERS[2:3], False),
        (OTHERS[:1], OTHERS[1:2], True),
        (OTHERS[:1], OTHERS[1:3], False),
        ([], OTHERS[:2], True),
        ([], OTHERS[:3], False),
    ],
)
def test_who_does_not_count_never_counts_again(params, stage, unheard, lost, enough):
    parties, data = told_at(stage, params, unheard, lost)
    if enough:
        parties.clients[VICTIM].receive(data)
        assert parties.clients[VICTIM].state is not ClientState.FAILED
    else:
        refuse(parties, data, Refusal.COHORT_TOO_SMALL, match="3 devices are left, fewer than 4")


# The holders of its shares.


def neighbours(parties, victim=SPARSE_VICTIM):
    return [parties.roster[p] for p in sorted(parties.clients[victim]._cohort.neighbours)]


def near_the_sparse_victim():
    parties = Parties(SPARSE)
    parties.advance(ClientState.SHARED)
    return neighbours(parties)


NEAR = near_the_sparse_victim()


def test_threshold_many_neighbours_must_be_heard_on_a_sparse_graph():
    params = SPARSE
    assert len(NEAR) == SPARSE.threshold + 1
    machine = ready(params, NEAR[:1], SPARSE_VICTIM).clients[SPARSE_VICTIM]
    assert machine.state is ClientState.READY
    parties, data = delivered(params, NEAR[:2], SPARSE_VICTIM)
    left = "2 who hold its shares are left, fewer than t = 3"
    refuse(parties, data, Refusal.TOO_FEW_NEIGHBOURS, SPARSE_VICTIM, left)


@at_each_stage
@pytest.mark.parametrize(("lost", "enough"), [([], True), (NEAR[:1], True), (NEAR[1:2], False)])
def test_an_unheard_neighbour_holds_no_shares(stage, lost, enough):
    params = SPARSE
    parties, data = told_at(stage, params, NEAR[:1], lost, SPARSE_VICTIM)
    if enough:
        parties.clients[SPARSE_VICTIM].receive(data)
        assert parties.clients[SPARSE_VICTIM].state is not ClientState.FAILED
    else:
        refuse(parties, data, Refusal.TOO_FEW_NEIGHBOURS, SPARSE_VICTIM)


def test_devices_far_away_send_no_boxes_and_count():
    """All that a device knows of them is the roster, as in the published protocol."""
    params = replace(SPARSE, min_cohort=8)
    assert ready(params, NEAR[:1], SPARSE_VICTIM).clients[SPARSE_VICTIM].num_members == 9
    parties, data = delivered(params, NEAR[:2], SPARSE_VICTIM)
    refuse(parties, data, Refusal.COHORT_TOO_SMALL, SPARSE_VICTIM, "7 devices are left")


# The signers of the survivors.


def request(params, unheard, signers, victim=VICTIM):
    """A session whose victim has signed that all survived, and a request with signatures."""
    parties, data = told_at("survivors", params, unheard, [], victim)
    parties.clients[victim].receive(data)
    everybody = without(parties)
    signatures = {parties.position(c): parties.sign_survivors(c, everybody) for c in signers}
    return parties, parties.encode(UnmaskRequest(0, everybody, signatures))


@pytest.mark.parametrize("others", [OTHERS[1:2], OTHERS[1:3], OTHERS[1:]])
def test_the_signature_of_an_unheard_neighbour_is_not_wanted(others):
    """However many more have signed: no honest server sends it."""
    unheard = OTHERS[0]
    parties, data = request(SIGNED, [unheard], [unheard, VICTIM, *others])
    position = parties.position(unheard)
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR, match=f"position {position}, who has no say")
    # Control: it is a good one.
    parties, data = request(SIGNED, [], [unheard, VICTIM, *OTHERS[1:]])
    assert parties.clients[VICTIM].receive(data) is not None


@pytest.mark.parametrize("own", [False, True])
def test_threshold_many_of_those_heard_must_have_signed(own):
    """Its own signature is one of them."""
    signers = [VICTIM] if own else []
    fewer = SIGNED.threshold - 1 - own
    parties, data = request(SIGNED, OTHERS[:2], signers + OTHERS[2 : 2 + fewer])
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, match="2, fewer than t = 3")
    parties, data = request(SIGNED, OTHERS[:2], signers + OTHERS[2 : 3 + fewer])
    assert parties.clients[VICTIM].receive(data) is not None


def test_threshold_many_heard_neighbours_must_have_signed_on_a_sparse_graph():
    parties, data = request(SPARSE, NEAR[:1], NEAR[1:], SPARSE_VICTIM)
    assert parties.clients[SPARSE_VICTIM].receive(data) is not None
    parties, data = request(SPARSE, NEAR[:1], NEAR[2:], SPARSE_VICTIM)
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, SPARSE_VICTIM)
    parties, data = request(SPARSE, NEAR[:1], NEAR[:3], SPARSE_VICTIM)
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR, SPARSE_VICTIM)


# What an honest server makes of it.

HONEST = {
    "complete": make_params(7, threshold=3),
    "sparse": make_params(10, degree=6, threshold=3),
}


def attacker_session(params, deal, num_victims):
    """A session in which the first of the roster deals to some neighbours what they cannot read."""
    probe = Parties(params)
    probe.advance(ClientState.SHARED)
    attacker = probe.roster[0]
    victims = sorted(probe.clients[attacker]._cohort.neighbours)[:num_victims]
    return MaliciousClients(params, {(attacker, Stage.SHARE): deal(victims)}), attacker, victims


DEALS = {
    "does not open": lambda victims: lambda *say: seal_junk(*say, victims),
    "no field elements": deal_outside_the_field,
}


@pytest.mark.parametrize("graph", HONEST)
@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("num_victims", [1, 3])
def test_one_attacker_dealer_costs_nobody_a_signed_session(graph, deal, num_victims):
    params = HONEST[graph]
    parties, attacker, victims = attacker_session(params, DEALS[deal], num_victims)
    steps = parties.steps()
    for pending in steps:
        for client, data in pending.items():
            message = parties.decode(data)
            if isinstance(message, UnmaskRequest):
                assert len(message.signatures) == params.threshold
                told_of_attacker = parties.position(attacker) in message.signatures
                # First of the roster, it would be asked of every one of its neighbours.
                position = parties.position(client)
                near = parties.clients[client]._cohort.holders
                expected = parties.position(attacker) in near and position not in victims
                assert told_of_attacker == expected
    assert parties.server.drops == {}
    assert {dispute.owner for dispute in parties.server.disputes} == {attacker}
    for result in parties.sums:
        assert result.contributors == tuple(parties.roster)
        expected = plain_sum(params, result.slot, parties.inputs, parties.roster)
        assert result.vector.tolist() == expected
    assert len(parties.sums) == 2


@pytest.mark.parametrize("graph", HONEST)
def test_a_server_that_left_no_signer_out_would_be_refused(graph):
    """Control of the above: the victims would leave, for no fault of theirs."""
    parties, _, victims = attacker_session(HONEST[graph], DEALS["does not open"], 1)
    for client, data in parties.deliver(parties.advance(ClientState.MASKED)).items():
        parties.server.receive(client, data)
    parties.server._refusals = {p: frozenset() for p in parties.server._refusals}
    pending = parties.server.close_round()
    victim = parties.roster[victims[0]]
    with pytest.raises(PeerError) as refused:
        parties.clients[victim].receive(pending[victim])
    assert refused.value.reason is Refusal.UNKNOWN_NEIGHBOUR
