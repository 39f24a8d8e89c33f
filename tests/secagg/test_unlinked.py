"""Pairs without a link: who is off at one end is off at the other, and counts for nothing.

A neighbour that showed the right tag has read this device's box with a key that it signed. Whoever
did not counts neither for the smallest cohort, nor among the holders of the device's shares, nor as
a signer of the survivors, and shares no mask with it.
"""

from dataclasses import replace

import numpy as np
import pytest
from malicious_clients import (
    COMPLETE,
    MaliciousClients,
    check_sums,
    deal_outside_the_field,
    device_at,
    every_kind,
    say_of_links,
    seal_junk,
    unread,
)
from parties import BINDING, Parties, make_params, plain_sum
from refusing import OTHERS, VICTIM, refuse

from deltafl.secagg import Fault, Refusal, SessionAborted, Stage, Step
from deltafl.secagg.graph import Graph
from deltafl.secagg.messages import ConsistencyCheck, OpenSlot, UnmaskRequest
from deltafl.secagg.states import ClientState

PARAMS = make_params(6, threshold=3, min_cohort=4)
SPARSE = make_params(9, degree=4, threshold=3)
SPARSE_VICTIM = Parties(SPARSE).ids[4]


# What a device counts.


LIES = {
    "withheld": None,
    "wrong": lambda tags, peer, _: tags[peer][:-1] + bytes([tags[peer][-1] ^ 1]),
    "reflected": lambda _, peer, own: own[peer],
    "another's": lambda tags, peer, _: next(tag for p, tag in tags.items() if p != peer),
}
"""What a server may show in the place of a neighbour's tag; reflected: the device's own."""

every_lie = pytest.mark.parametrize("how", LIES)


def linked(params, unlinked, how="withheld", victim=VICTIM):
    """A session whose victim is to get the first slot, and is lied to about some tags.

    Returns:
        The parties, and the opening.
    """
    parties = Parties(params)
    pending = parties.advance(ClientState.LINKED)
    message = parties.decode(pending[victim])
    receipts, near = parties.server._receipts, parties.server._cohort.graph.neighbours
    position = parties.position(victim)
    own = {
        peer: bytes(receipts._rows[position, column, :16])
        for column, peer in enumerate(near(position).tolist())
    }
    honest = {p: bytes(tag) for p, tag in message.tags.items()}
    off = [parties.position(client) for client in unlinked]
    told = {p: LIES[how](honest, p, own) for p in off if how != "withheld"}
    tags = {p: tag for p, tag in honest.items() if p not in off} | told
    return parties, replace(message, tags=dict(sorted(tags.items())))


def without(parties, *lost):
    return parties.members(set(parties.ids) - set(lost))


@every_lie
def test_as_many_as_make_a_cohort_must_show_their_tags(how):
    """With its own, four of six: 5 − 2 + 1 are enough for min_cohort = 4, 5 − 3 + 1 are not."""
    parties, message = linked(PARAMS, OTHERS[:2], how)
    parties.clients[VICTIM].receive(parties.encode(message))
    assert parties.clients[VICTIM].state is ClientState.OPENED
    parties, message = linked(PARAMS, OTHERS[:3], how)
    fewer = "3 devices are left, fewer than 4"
    refuse(parties, parties.encode(message), Refusal.COHORT_TOO_SMALL, match=fewer)


@every_lie
def test_who_has_no_link_shares_no_mask_and_no_secret(how):
    parties, message = linked(PARAMS, OTHERS[:2], how)
    parties.clients[VICTIM].receive(parties.encode(message))
    secrets = parties.clients[VICTIM]._phase.secrets
    left = {parties.position(c) for c in OTHERS[2:]}
    assert [set(of) for of in secrets.pairs.values()] == [left, left]
    assert set(secrets.owners.tolist()) == left | {parties.position(VICTIM)}
    # Control: with all tags, everybody is there.
    parties, message = linked(PARAMS, [])
    parties.clients[VICTIM].receive(parties.encode(message))
    assert len(parties.clients[VICTIM]._phase.secrets.pairs[0]) == 5


@pytest.mark.parametrize("position", ["its own", 6, 2**32 - 1])
def test_a_tag_of_nobody_ends_the_session(position):
    parties, message = linked(PARAMS, [])
    position = parties.position(VICTIM) if position == "its own" else position
    data = parties.encode(replace(message, tags={**message.tags, position: bytes(16)}))
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR)


def test_a_tag_of_a_device_whose_box_was_not_read_counts_for_nothing():
    """Whatever the tag: there is none that the device expects."""
    parties = Parties(PARAMS)
    pending = parties.advance(ClientState.SHARED)
    message = parties.decode(pending[VICTIM])
    junk = [parties.position(c) for c in OTHERS[:3]]
    boxes = {p: bytes(len(b)) if p in junk else b for p, b in message.boxes.items()}
    deliveries = {**pending, VICTIM: parties.encode(replace(message, boxes=boxes))}
    parties.exchange(deliveries)
    openings = parties.server.open_slot(0, BINDING)
    if VICTIM in openings:
        told = parties.decode(openings[VICTIM])
    else:
        told = OpenSlot(0, without(parties), {})
    for made in (bytes(16), b"\1" * 16):
        assert not set(told.tags) & set(junk)
        tags = {**told.tags, **dict.fromkeys(junk, made)}
        parties.clients[VICTIM]._seen.clear()
    data = parties.encode(replace(told, members=without(parties), tags=tags))
    refuse(parties, data, Refusal.COHORT_TOO_SMALL, match="3 devices are left")


@pytest.mark.parametrize("stage", ["opening", "survivors"])
@pytest.mark.parametrize(
    ("unlinked", "lost", "enough"),
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
def test_who_does_not_count_never_counts_again(stage, unlinked, lost, enough):
    parties, message = linked(PARAMS, unlinked)
    machine, members = parties.clients[VICTIM], without(parties, *lost)
    if stage == "opening":
        data = parties.encode(replace(message, members=members))
    else:
        parties.answer(VICTIM, parties.encode(message))
        assert machine.state is ClientState.MASKED
        data = parties.encode(ConsistencyCheck(0, members))
    if enough:
        machine.receive(data)
        assert machine.state is not ClientState.FAILED
    else:
        refuse(parties, data, Refusal.COHORT_TOO_SMALL, match="3 devices are left, fewer than 4")


# The holders of its shares.


def near_the_sparse_victim():
    parties = Parties(SPARSE)
    graph = Graph(9, SPARSE.degree, SPARSE.graph_seed)
    return [parties.roster[p] for p in graph.neighbours(parties.position(SPARSE_VICTIM)).tolist()]


NEAR = near_the_sparse_victim()


@every_lie
def test_threshold_many_neighbours_must_have_a_link_on_a_sparse_graph(how):
    assert len(NEAR) == SPARSE.threshold + 1
    parties, message = linked(SPARSE, NEAR[:1], how, SPARSE_VICTIM)
    parties.clients[SPARSE_VICTIM].receive(parties.encode(message))
    assert parties.clients[SPARSE_VICTIM].state is ClientState.OPENED
    parties, message = linked(SPARSE, NEAR[:2], how, SPARSE_VICTIM)
    left = "2 who hold its shares are left, fewer than t = 3"
    data = parties.encode(message)
    refuse(parties, data, Refusal.TOO_FEW_NEIGHBOURS, SPARSE_VICTIM, left)


def test_devices_far_away_show_no_tags_and_count():
    """All that a device knows of them is the roster, as in the published protocol."""
    params = replace(SPARSE, min_cohort=8)
    parties, message = linked(params, NEAR[:1], victim=SPARSE_VICTIM)
    parties.clients[SPARSE_VICTIM].receive(parties.encode(message))
    assert parties.clients[SPARSE_VICTIM].num_members == 9
    parties, message = linked(params, NEAR[:2], victim=SPARSE_VICTIM)
    data = parties.encode(message)
    refuse(parties, data, Refusal.COHORT_TOO_SMALL, SPARSE_VICTIM, "7 devices are left")


# The signers of the survivors.


def request(params, unlinked, signers, victim=VICTIM):
    """A session whose victim has signed that all survived, and a request with signatures."""
    parties, message = linked(params, unlinked, victim=victim)
    everybody = without(parties)
    parties.answer(victim, parties.encode(message))
    parties.clients[victim].receive(parties.encode(ConsistencyCheck(0, everybody)))
    signatures = {parties.position(c): parties.sign_survivors(c, everybody) for c in signers}
    return parties, parties.encode(UnmaskRequest(0, everybody, signatures))


@pytest.mark.parametrize("others", [OTHERS[1:2], OTHERS[1:3], OTHERS[1:]])
def test_the_signature_of_a_neighbour_without_a_link_is_not_wanted(others):
    """However many more have signed: no honest server sends it."""
    unlinked = OTHERS[0]
    parties, data = request(PARAMS, [unlinked], [unlinked, VICTIM, *others])
    position = parties.position(unlinked)
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR, match=f"position {position}, who has no say")
    # Control: it is a good one.
    parties, data = request(PARAMS, [], [unlinked, VICTIM, *OTHERS[1:]])
    assert parties.clients[VICTIM].receive(data) is not None


@pytest.mark.parametrize("own", [False, True])
def test_threshold_many_with_a_link_must_have_signed(own):
    """Its own signature is one of them."""
    signers = [VICTIM] if own else []
    fewer = PARAMS.threshold - 1 - own
    parties, data = request(PARAMS, OTHERS[:2], signers + OTHERS[2 : 2 + fewer])
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, match="2, fewer than t = 3")
    parties, data = request(PARAMS, OTHERS[:2], signers + OTHERS[2 : 3 + fewer])
    revealed = parties.decode(parties.clients[VICTIM].receive(data))
    # No share is given of those without a link.
    left = [VICTIM, *OTHERS[2:]]
    assert revealed.positions.tolist() == sorted(parties.position(c) for c in left)


def test_threshold_many_neighbours_with_a_link_must_have_signed_on_a_sparse_graph():
    parties, data = request(SPARSE, NEAR[:1], NEAR[1:], SPARSE_VICTIM)
    assert parties.clients[SPARSE_VICTIM].receive(data) is not None
    parties, data = request(SPARSE, NEAR[:1], NEAR[2:], SPARSE_VICTIM)
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, SPARSE_VICTIM)


# What the server makes of receipts, and the devices of what it passes on.


def neighbours(params, position):
    graph = Graph(params.num_invited, params.degree, params.graph_seed)
    return graph.neighbours(position).tolist()


HOW = {
    "a box does not open": lambda peers: (Stage.SHARE, lambda *say: seal_junk(*say, peers)),
    "no field elements": lambda peers: (Stage.SHARE, deal_outside_the_field(peers)),
    "not in the receipt": lambda peers: (Stage.RECEIPT, unread(peers)),
    "another tag": lambda peers: (Stage.RECEIPT, say_of_links(0, peers)),
    "another digest of the tags": lambda peers: (Stage.RECEIPT, say_of_links(16, peers)),
    "another digest of a first key": lambda peers: (Stage.RECEIPT, say_of_links(32, peers)),
    "another digest of a last key": lambda peers: (Stage.RECEIPT, say_of_links(80, peers)),
}
"""How a device comes to have no link with some neighbours, where both slots are tolerant."""


@every_kind
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("vanishes", [False, True])
def test_a_pair_that_does_not_agree_is_off_at_both_ends_and_the_sums_stand(params, how, vanishes):
    attacker, peers = device_at(params, 5), neighbours(params, 5)[:2]
    stage, change = HOW[how](peers)
    changes = {(attacker, stage): change}
    if vanishes:
        changes[attacker, Stage.MASK] = lambda *_: None
    parties = MaliciousClients(params, changes)
    for pending in parties.steps():
        for client, data in pending.items():
            message = parties.decode(data)
            if isinstance(message, OpenSlot) and message.slot == 0:
                position = parties.position(client)
                near = set(neighbours(params, position))
                off = set(peers) if position == 5 else {5} if position in peers else set()
                assert set(message.tags) == near - off
    assert parties.faults == ({attacker: Fault.TIMED_OUT} if vanishes else {})
    check_sums(parties)
    counted = [client for client in parties.roster if client != attacker or not vanishes]
    assert [list(result.contributors) for result in parties.sums] == [counted, counted]


@every_kind
def test_a_device_with_too_few_links_is_isolated_and_the_sums_of_the_others_stand(params):
    """With t − 1 holders that it has a link with; a sparse graph's device is none of its own."""
    attacker, near = device_at(params, 5), neighbours(params, 5)
    links = params.threshold - 1 - params.is_complete
    for left, isolated in ((links, True), (links + 1, False)):
        parties = MaliciousClients(params, {(attacker, Stage.RECEIPT): unread(near[left:])})
        sums = parties.finish()
        assert parties.faults == ({attacker: Fault.ISOLATED} if isolated else {})
        if isolated:
            assert parties.server.drops[attacker].step == Step(Stage.MASK)
        others = [c for c in parties.roster if c != attacker or not isolated]
        assert [list(result.contributors) for result in sums] == [others, others]


def test_too_few_devices_with_links_end_the_session_where_a_slot_is_opened():
    changes = {(device_at(COMPLETE, p), Stage.RECEIPT): unread(range(9)) for p in range(9 - 3)}
    parties = MaliciousClients(COMPLETE, changes)
    with pytest.raises(SessionAborted, match="devices are left and min_cohort is 4"):
        parties.finish()
    assert parties.sums == []


def test_in_a_session_of_whole_slots_a_pair_is_off_where_a_box_was_not_read():
    params = make_params(6, threshold=3, slots=((4, 16, True),))
    attacker = device_at(params, 5)
    for change, stage in (
        (unread([1]), Stage.RECEIPT),
        (lambda *s: seal_junk(*s, [1]), Stage.SHARE),
    ):
        parties = MaliciousClients(params, {(attacker, stage): change})
        [result] = parties.finish()
        linked = parties.server._linked
        assert np.flatnonzero(~linked.all(axis=1)).tolist() == [1, 5]
        assert result.vector.tolist() == plain_sum(params, 0, parties.inputs, parties.roster)
