"""Who is invited and who comes: the same refusals by the server and the ideal functionality."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parties import POLICY, STRICT

from deltafl.secagg import (
    Client,
    ClientId,
    DevicePolicy,
    Enrolment,
    GraphKind,
    IdealSession,
    PeerError,
    Refusal,
    Server,
    SessionAborted,
    SessionParams,
    SlotSpec,
    Stage,
    Step,
    ThreatModel,
    UsageError,
    Vanish,
    wire,
)
from deltafl.secagg.graph import Graph
from deltafl.secagg.messages import RosterMessage, SessionOpen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import run_session
from deltafl.secagg.survival import settle

SLOTS = (SlotSpec("sum", 2, 16),)


def params(num_invited=6, **changes) -> SessionParams:
    fields = {
        "slots": SLOTS,
        "num_invited": num_invited,
        "degree": num_invited - 1,
        "threshold": 3,
        "min_cohort": 3,
        "graph_seed": bytes(32),
        "context": bytes(32),
    }
    return SessionParams(**(fields | changes))


@pytest.mark.parametrize("ids", [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 5], [*range(5), 2**32], range(7)])
def test_both_refuse_to_invite_others_than_the_parameters_say(ids):
    with pytest.raises(UsageError):
        Server(params(), [ClientId(i) for i in ids])
    with pytest.raises(UsageError):
        IdealSession(params(), [ClientId(i) for i in ids], {})


@pytest.mark.parametrize("wrong", ["5", 5.0, None])
def test_ids_that_are_no_whole_numbers_are_named(wrong):
    with pytest.raises(UsageError, match=f"id {wrong!r} of a device is no whole number"):
        Server(params(), [*range(5), wrong])


@pytest.mark.parametrize("name", ["num_invited", "degree", "threshold", "min_cohort", "min_roster"])
def test_parameters_are_whole_numbers_and_may_be_of_numpy(name):
    value = getattr(params(), name)
    assert params(**{name: np.int64(value)}).canonical() == params().canonical()
    with pytest.raises(UsageError, match=rf"{name}={value}\.5 is not a whole number"):
        params(**{name: value + 0.5})


def test_slots_are_checked_and_may_have_numbers_of_numpy():
    of_numpy = SlotSpec("x", np.int64(3), np.uint8(16))
    assert of_numpy.canonical == SlotSpec("x", 3, 16).canonical
    with pytest.raises(UsageError, match="slots are a tuple of `SlotSpec`, not a list"):
        params(slots=[of_numpy])
    for wrong, message in (
        (("x", 2.5, 16), r"slot 'x': length=2\.5 is not a whole number"),
        (("x", 2, 16.5), r"slot 'x': ring_bits=16\.5 is not"),
        ((b"x", 2, 16), "slot label b'x' is not a string"),
    ):
        with pytest.raises(UsageError, match=message):
            SlotSpec(*wrong)


@pytest.mark.parametrize("name", ["graph_seed", "context"])
@pytest.mark.parametrize("wrong", ["0" * 32, None, bytearray(32)])
def test_seed_and_context_are_bytes(name, wrong):
    with pytest.raises(UsageError, match=f"{name} is 32 bytes, not a {type(wrong).__name__}"):
        params(**{name: wrong})


@pytest.mark.parametrize(("num_gone", "aborts"), [(1, False), (2, True)])
def test_both_abort_when_too_few_devices_come(num_gone, aborts):
    strict = params(min_roster=5)
    gone = {ClientId(i): Vanish(Step(Stage.ADVERTISE)) for i in range(num_gone)}
    inputs = {ClientId(i): [np.ones(2, dtype=np.uint32)] for i in range(6)}
    ideal = IdealSession(strict, inputs, gone)
    if aborts:
        with pytest.raises(SessionAborted, match="min_roster is 5"):
            ideal.set_up()
        with pytest.raises(SessionAborted, match="min_roster is 5"):
            run_session(strict, inputs, [b""], vanishing=gone, policy=POLICY)
    else:
        ideal.set_up()
        (total,) = run_session(strict, inputs, [b""], vanishing=gone, policy=POLICY)
        assert total.vector.tolist() == [5, 5]


def test_isolated_devices_do_not_count_for_min_cohort():
    ring = params(20, degree=2, threshold=2, min_cohort=18)
    graph = Graph(20, 2, bytes(32))
    everybody = np.ones(20, dtype=np.bool_)
    assert settle(graph, ring, everybody).all()
    gap = everybody.copy()
    gap[7] = False  # whose neighbours are two, theirs two, and so on around the ring
    with pytest.raises(SessionAborted, match="0 devices are left"):
        settle(graph, ring, gap)


def test_a_device_refuses_a_roster_below_min_roster():
    strict = params(min_roster=5)
    client = Client(ClientId(0), POLICY)
    client.receive(wire.encode(SessionOpen(strict), strict))
    roster = RosterMessage(np.arange(4, dtype=np.uint32), {})
    with pytest.raises(PeerError, match="fewer than 5") as refused:
        client.receive(wire.encode(roster, strict))
    assert refused.value.reason is Refusal.COHORT_TOO_SMALL


def test_sparse_sessions_end_where_more_are_missing_than_expected():
    threat = ThreatModel(0.2, 0.2)
    computed = SessionParams.for_threat(
        1000, SLOTS, threat=threat, graph=GraphKind.SPARSE, graph_seed=bytes(32), context=bytes(32)
    )
    assert computed.min_cohort >= threat.num_colluding(1000) + 2
    assert computed.min_cohort == computed.min_roster == 800


def test_a_device_refuses_more_neighbours_than_it_can_serve():
    huge = params(2**15, degree=2**14, threshold=2**13, min_cohort=2**13)
    client = Client(ClientId(0), DevicePolicy())
    with pytest.raises(PeerError, match="degree=16384 is above the device's 4096") as refused:
        client.receive(wire.encode(SessionOpen(huge), huge))
    assert refused.value.reason is Refusal.POLICY


def ready_for_a_roster(policy, **changes):
    """A device with an identity that has advertised its keys, and the session's parameters."""
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    credentials = [enrolment.credentials(ClientId(i)) for i in range(8)]
    signed = params(8, **changes)
    client = Client(ClientId(0), policy, credentials=credentials[0])
    client.receive(wire.encode(SessionOpen(signed), signed))
    return client, signed


@pytest.mark.parametrize(
    ("num_came", "reason"), [(5, Refusal.COHORT_TOO_SMALL), (6, Refusal.MISSING_NEIGHBOUR)]
)
def test_a_server_cannot_complete_a_sparse_graph_with_a_small_roster(num_came, reason):
    """Over k + 1 devices the graph would be complete, and two of its quorums need not overlap."""
    client, sparse = ready_for_a_roster(POLICY, degree=4, min_roster=6, signed=True)
    # One of them colludes, so that 2t = 6 is enough for k holders and one too few for k + 1.
    holders = Graph(num_came, 4, bytes(32)).num_holders
    assert (2 * sparse.threshold > holders + 1) == (num_came == 6)
    with pytest.raises(PeerError) as refused:
        client.receive(wire.encode(RosterMessage(np.arange(num_came, dtype=np.uint32), {}), sparse))
    assert refused.value.reason is reason


def test_a_roster_that_could_complete_a_sparse_graph_is_refused_at_the_opening():
    with pytest.raises(PeerError, match="smallest roster of a sparse graph=5 is below") as refused:
        ready_for_a_roster(STRICT, degree=4, min_cohort=5, min_roster=5, signed=True)
    assert refused.value.reason is Refusal.POLICY
    ready_for_a_roster(STRICT, degree=4, min_cohort=5, min_roster=6, signed=True)
    ready_for_a_roster(STRICT, degree=4, min_cohort=6, min_roster=5, signed=True)


@given(st.integers(6, 40), st.sampled_from([2, 4]), st.binary(min_size=32, max_size=32))
def test_one_row_of_the_graph_is_that_of_the_whole_table(num_devices, degree, seed):
    graph = Graph(num_devices, degree, seed)
    for position in range(num_devices):
        near = graph.neighbours(position)
        assert near.tolist() == graph._holder_table[position].tolist()
