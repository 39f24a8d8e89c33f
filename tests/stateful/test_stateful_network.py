"""Whole sessions over a bad network: a sum that comes out is right, and is what the model says.

The model is `IdealSession`, given the drop-outs that happened.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network import KINDS, Faults, Network
from parties import make_params, plain_sum

from deltafl.secagg import Fault, IdealSession, SessionAborted, Vanish, server
from deltafl.secagg.states import ClientState
from deltafl.secagg.unmasking import Promises

SLOTS = {"tolerant": ((2, 16), (3, 40)), "whole": ((2, 16, True), (3, 40), (1, 9, True))}
GRAPHS = {"complete": (6, None, 3), "sparse": (9, 6, 3)}
INNOCENT = {Fault.TIMED_OUT, Fault.ISOLATED}
HARMLESS_STATES = {
    ClientState.IDLE,
    ClientState.ADVERTISED,
    ClientState.SHARED,
    ClientState.READY,
    ClientState.LINKED,
    ClientState.MASKED,
    ClientState.CONFIRMED,
}

rates = st.sampled_from([0.0, 0.02, 0.1])
graphs = st.sampled_from(sorted(GRAPHS))
layouts = st.sampled_from(sorted(SLOTS))
seeds = st.integers(0, 2**16)


def params_of(graph, slots):
    num_invited, degree, threshold = GRAPHS[graph]
    return make_params(num_invited, degree=degree, threshold=threshold, slots=SLOTS[slots])


def check_sums(network, outcome, contributors_that_count):
    """Every sum over devices that count is the plain sum of their vectors."""
    parties = network.parties
    for taken in outcome.sums:
        assert len(taken.contributors) >= parties.params.min_cohort
        if contributors_that_count(set(taken.contributors)):
            expected = plain_sum(parties.params, taken.slot, parties.inputs, taken.contributors)
            assert taken.vector.tolist() == expected, "the sum is wrong"


def check_model(network, outcome):
    """The ideal session, given the same time-outs, loses and sums the same."""
    parties = network.parties
    vanishing = {
        client: Vanish(drop.step)
        for client, drop in outcome.drops.items()
        if drop.fault is Fault.TIMED_OUT
    }
    ideal = IdealSession(parties.params, parties.ids, vanishing)
    sums, skipped, aborted = [], [], False
    try:
        ideal.set_up()
        for slot in range(len(parties.params.slots)):
            if not ideal.can_sum(slot):
                skipped.append(slot)
                continue
            ideal.open_slot(slot)
            sums.append(ideal.sum(slot, lambda client, slot=slot: parties.inputs[client][slot]))
    except SessionAborted:
        aborted = True
    assert (aborted, skipped) == (outcome.aborted, outcome.skipped)
    assert ideal.drops == outcome.drops
    known = [theirs for theirs in sums if theirs is not None]
    for theirs, ours in zip(known, outcome.sums, strict=True):
        assert theirs.slot == ours.slot
        assert theirs.vector.tolist() == ours.vector.tolist()
        assert (theirs.contributors, theirs.remaining) == (ours.contributors, ours.remaining)


def play_honestly(seed, graph, slots, faults):
    network = Network(params_of(graph, slots), faults, seed)
    outcome = network.run()
    check_sums(network, outcome, lambda _: True)
    blamed = {c: drop for c, drop in outcome.drops.items() if drop.fault not in INNOCENT}
    assert not blamed, f"somebody was blamed: {blamed}"
    assert outcome.stopped == {}, "a device refused an honest server"
    assert {machine.state for machine in network.parties.clients.values()} <= HARMLESS_STATES
    check_model(network, outcome)
    return outcome


@pytest.mark.slow
@settings(max_examples=90)
@given(
    seed=seeds,
    graph=graphs,
    slots=layouts,
    late=rates,
    lost=rates,
    doubled=rates,
)
def test_delays_losses_and_repetitions_cost_devices_only(seed, graph, slots, late, lost, doubled):
    play_honestly(seed, graph, slots, Faults(late=late, lost=lost, doubled=doubled))


def play_corruptly(seed, graph, slots, faults):
    """Some links corrupt what they carry, as if there were no authenticated channels."""
    network = Network(params_of(graph, slots), faults, seed)
    outcome = network.run()
    # Keys that nobody signed, the cohort of a slot and masked vectors are believed as they come.
    believed = {KINDS["SLOT"], KINDS["MASKED"]}
    spoilt = {client for client, kind in outcome.spoilt if kind in believed}
    check_sums(network, outcome, lambda contributors: not contributors & spoilt)
    assert set(outcome.stopped) <= network.corrupted, "a device on a good link refused"
    for client, machine in network.parties.clients.items():
        expected = {ClientState.FAILED} if client in outcome.stopped else HARMLESS_STATES
        assert machine.state in expected
    return outcome


@pytest.mark.slow
@settings(max_examples=90)
@given(
    seed=seeds,
    graph=graphs,
    slots=layouts,
    doubled=rates,
    corrupt=st.sampled_from([0.05, 0.2]),
    corrupted=st.frozensets(st.integers(0, 5), min_size=1, max_size=2),
)
def test_corruption_costs_the_devices_on_its_links(seed, graph, slots, doubled, corrupt, corrupted):
    faults = Faults(late=0.02, doubled=doubled, corrupt=corrupt, corrupted=corrupted)
    play_corruptly(seed, graph, slots, faults)


@pytest.mark.slow
@pytest.mark.parametrize("slots", SLOTS)
def test_the_network_does_all_of_it(slots):
    faults = Faults(late=0.02, lost=0.01, doubled=0.1, corrupt=0.05, corrupted=frozenset({1}))
    params = params_of("complete", True, slots)
    outcomes = [Network(params, faults, seed).run() for seed in range(20)]
    assert set().union(*(outcome.did for outcome in outcomes)) == {
        "sent",
        "late",
        "lost",
        "doubled",
        "corrupt",
    }
    assert any(outcome.aborted for outcome in outcomes)
    assert any(len(outcome.sums) == len(params.slots) for outcome in outcomes)
    assert any(outcome.skipped for outcome in outcomes) == (slots == "whole")
    assert any(outcome.drops and outcome.sums for outcome in outcomes)


# Controls.


def try_seeds(play, *session, most=200):
    for seed in range(most):
        play(seed, *session)


def test_a_vector_that_counts_twice_is_found(monkeypatch):
    honest = server.Server.receive

    def receive(machine, sender, data):
        heard = machine._heard
        machine._heard = {}
        honest(machine, sender, data)
        machine._heard = heard | machine._heard

    monkeypatch.setattr(server.Server, "receive", receive)
    with pytest.raises(AssertionError, match=r"the sum is wrong|somebody was blamed"):
        try_seeds(play_honestly, True, "complete", "whole", Faults(doubled=0.1))


def test_a_late_message_that_is_blamed_is_found(monkeypatch):
    monkeypatch.setattr(server, "is_late", lambda *_: False)
    with pytest.raises(AssertionError, match="somebody was blamed"):
        try_seeds(play_honestly, True, "complete", "tolerant", Faults(late=0.05, doubled=0.3))


@pytest.mark.slow
def test_a_wrong_share_that_is_believed_is_found(monkeypatch):
    monkeypatch.setattr(Promises, "is_seed", lambda *_: True)
    faults = Faults(corrupt=0.2, corrupted=frozenset({0, 5}))
    with pytest.raises(AssertionError, match="the sum is wrong"):
        try_seeds(play_corruptly, True, "complete", "tolerant", faults)


def test_a_model_that_loses_others_is_found(monkeypatch):
    monkeypatch.setattr(Vanish, "answers", lambda *_: True)
    with pytest.raises(AssertionError):
        try_seeds(play_honestly, False, "complete", "whole", Faults(lost=0.05))
