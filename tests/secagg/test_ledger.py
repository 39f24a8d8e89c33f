"""A device answers in one signed session of a context, and announcements cost it nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import ENTRIES, Model, capacities, histories, play
from parties import (
    BINDING,
    POLICY,
    Parties,
    make_ids,
    make_inputs,
    make_params,
    reachable_secrets,
)

from deltafl.secagg import (
    Client,
    ClientId,
    Enrolment,
    LedgerError,
    PeerError,
    Refusal,
    UsageError,
    run_session,
    wire,
)
from deltafl.secagg.ledger import CAPACITY, MemoryLedger
from deltafl.secagg.messages import SessionOpen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState

DEVICE = ClientId(3)
SIGNED = make_params(6, threshold=3, signed=True)
UNSIGNED = make_params(6, threshold=3)
WHOLE = make_params(6, threshold=3, slots=((4, 16, True), (3, 40)), signed=True)
OTHER = b"\1" * 32


def enrolment():
    return Enrolment(SeededRandomness(bytes(32)))


def device(devices, policy=POLICY, client=DEVICE, ledger=None):
    """A device of an enrolment, with the ledger that it has there or another."""
    ledger = devices.ledger(client) if ledger is None else ledger
    credentials = devices.credentials(client)
    return Client(client, policy, SeededRandomness(bytes(32)), credentials, ledger=ledger)


def opening(params):
    return wire.encode(SessionOpen(params), params)


def asked(params, devices, policy=POLICY):
    """A session of devices of an enrolment, which are asked for their first vector."""
    parties = Parties(params, policy=policy, enrolment=devices)
    last = ClientState.READY
    if params.signed and params.slots[0].whole:
        last = ClientState.LISTED
    for client, data in parties.advance(last).items():
        parties.clients[client].receive(data)
    return parties


def answered(params, devices, client=DEVICE):
    """The same, in which a device has answered."""
    parties = asked(params, devices)
    parties.contribute(client)
    return parties


def takes_part(params, devices, client=DEVICE):
    """Whether a device answers in a session; if it does not, that must be for its ledger."""
    try:
        answered(params, devices, client)
    except PeerError as refused:
        if refused.reason is not Refusal.SESSION_REPEATED:
            raise
        return False
    return True


# The ledger.


@pytest.mark.slow
@given(history=histories, capacity=capacities)
def test_a_ledger_does_what_the_model_does(history, capacity):
    assert play(history, MemoryLedger(capacity)) == play(history, Model(capacity))


@given(said=st.lists(st.sampled_from(ENTRIES)))
def test_each_entry_is_admitted_once(said):
    ledger = MemoryLedger()
    admitted = [entry for entry in said if ledger.admit([entry])]
    assert admitted == list(dict.fromkeys(said))
    assert {entry for entry in ENTRIES if ledger.knows(entry)} == set(said)


def test_entries_are_admitted_together_or_not_at_all():
    ledger = MemoryLedger()
    assert ledger.admit([ENTRIES[0], ENTRIES[1]])
    assert not ledger.admit([ENTRIES[2], ENTRIES[1]])
    assert not ledger.knows(ENTRIES[2])
    assert ledger.admit([ENTRIES[2], ENTRIES[2]])
    assert ledger.admit([])


def test_a_full_ledger_forgets_nothing_and_admits_nothing():
    ledger = MemoryLedger(capacity=2)
    with pytest.raises(LedgerError, match="3 more entries after 0 exceed its capacity of 2"):
        ledger.admit(ENTRIES[3:6])
    assert ledger.admit([ENTRIES[2]])
    with pytest.raises(LedgerError, match=r"the ledger is full.*new identity and a new ledger"):
        ledger.admit([ENTRIES[1], ENTRIES[0]])
    assert ledger.admit([ENTRIES[1]] * 3)
    with pytest.raises(LedgerError, match="1 more entries after 2"):
        ledger.admit([ENTRIES[0]])
    assert not ledger.admit([ENTRIES[0], ENTRIES[1]])
    assert [ledger.knows(entry) for entry in ENTRIES[:3]] == [False, True, True]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ledger_remembers_something(capacity):
    with pytest.raises(UsageError, match=f"{capacity} entries"):
        MemoryLedger(capacity)


@pytest.mark.slow
def test_a_ledger_has_room_for_a_quarter_of_a_million_entries():
    ledger = MemoryLedger()
    numbers = [number.to_bytes(32, "little") for number in range(CAPACITY + 1)]
    assert ledger.admit(numbers[:-1])
    with pytest.raises(LedgerError):
        ledger.admit(numbers[-1:])
    assert all(map(ledger.knows, numbers[:-1]))
    assert CAPACITY == 2**18


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33), "a" * 32, bytearray(32)])
def test_only_32_bytes_are_an_entry(wrong):
    ledger = MemoryLedger()
    with pytest.raises(UsageError, match="32 bytes"):
        ledger.admit([OTHER, wrong])
    with pytest.raises(UsageError, match="32 bytes"):
        ledger.knows(wrong)
    assert not ledger.knows(OTHER)


def test_a_ledger_is_nobody_elses():
    first, second = MemoryLedger(), MemoryLedger()
    assert first.admit([OTHER])
    assert second.admit([OTHER])


# The device.


def test_devices_begin_with_empty_ledgers_of_their_own():
    """Whoever gives them none is remembered by nobody."""
    known = answered(SIGNED, enrolment()).enrolment
    assert known.ledger(DEVICE).knows(SIGNED.context)
    nameless = Client(DEVICE, POLICY, credentials=known.credentials(DEVICE))
    assert nameless.receive(opening(SIGNED)) is not None
    assert not takes_part(SIGNED, known)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="the same session again"),
        pytest.param({"num_invited": 7, "degree": 6}, id="another cohort"),
        pytest.param({"threshold": 2}, id="another threshold"),
        pytest.param({"graph_seed": OTHER}, id="another graph"),
    ],
)
def test_a_second_session_of_one_context_is_refused(changes):
    devices = answered(SIGNED, enrolment()).enrolment
    machine = device(devices)
    with pytest.raises(PeerError) as refused:
        machine.receive(opening(replace(SIGNED, **changes)))
    assert refused.value.reason is Refusal.SESSION_REPEATED
    assert machine.state is ClientState.FAILED
    # Controls: another context, and a device that has not been there.
    assert takes_part(replace(SIGNED, context=OTHER, **changes), devices)
    assert takes_part(replace(SIGNED, **changes), enrolment())


@pytest.mark.parametrize("params", [SIGNED, WHOLE], ids=["tolerant", "whole"])
def test_of_two_sessions_at_once_one_is_answered(params):
    """Both are set up, and in a whole slot the device has signed its list in both."""
    devices = enrolment()
    first, second = asked(params, devices), asked(params, devices)
    first.contribute(DEVICE)
    machine = second.clients[DEVICE]
    with pytest.raises(PeerError, match="took part in one of the same context") as refused:
        second.contribute(DEVICE)
    assert refused.value.reason is Refusal.SESSION_REPEATED
    assert machine.state is ClientState.FAILED
    assert reachable_secrets(machine, second.randomness[DEVICE]) == set()
    # Controls: a device that has answered in neither, and sessions of other contexts.
    second.contribute(second.ids[0])
    asked(replace(params, context=OTHER), devices).contribute(DEVICE)


def test_what_is_only_announced_or_set_up_is_not_in_the_ledger():
    """However often it is: this costs the server nothing, and would fill the ledger."""
    devices, ledger = enrolment(), MemoryLedger(capacity=2)
    for number in range(300):
        context = number.to_bytes(32, "little")
        device(devices, ledger=ledger).receive(opening(replace(SIGNED, context=context)))
        assert not ledger.knows(context)
    for number in range(3):
        asked(replace(SIGNED, context=bytes([number]) * 32), devices)
        assert not devices.ledger(DEVICE).knows(bytes([number]) * 32)
    assert ledger.admit(ENTRIES[:2])


def test_later_vectors_of_a_session_admit_nothing_more():
    devices = enrolment()
    parties = Parties(SIGNED, enrolment=devices)
    ledger, said = devices.ledger(DEVICE), []
    parties.clients[DEVICE]._ledger = Watched(ledger, said)
    for _ in parties.steps():
        pass
    assert len(parties.sums) == 2
    assert said == [[SIGNED.context]]


class Watched:
    """A ledger that notes what it was asked to admit, and stands before another."""

    def __init__(self, ledger, said):
        self.ledger, self.said = ledger, said

    def admit(self, entries):
        self.said.append(list(entries))
        return self.ledger.admit(entries)

    def knows(self, entry):
        return self.ledger.knows(entry)


def test_a_session_that_failed_was_one_if_the_device_had_answered():
    """Its server knows what the device said in it."""
    devices = enrolment()
    asked(SIGNED, devices).clients[DEVICE].close()
    parties = answered(SIGNED, devices)
    parties.clients[DEVICE].close()
    assert not takes_part(SIGNED, devices)


def test_a_refusal_spends_nothing_but_the_session():
    """What the policy refuses is no session: a better one of the same context may follow."""
    devices = enrolment()
    strict = replace(POLICY, min_cohort=4)
    with pytest.raises(PeerError) as refused:
        device(devices, strict).receive(opening(SIGNED))
    assert refused.value.reason is Refusal.POLICY
    assert not devices.ledger(DEVICE).knows(SIGNED.context)
    assert takes_part(replace(SIGNED, threshold=4, min_cohort=4), devices)
    # Having refused it for its ledger, it remembers it no less.
    assert not takes_part(SIGNED, devices)
    assert not takes_part(SIGNED, devices)


def test_the_same_opening_twice_is_a_repetition_and_no_second_session():
    machine = device(enrolment())
    assert machine.receive(opening(SIGNED)) is not None
    assert machine.receive(opening(SIGNED)) is None
    assert machine.state is ClientState.ADVERTISED


def test_unsigned_sessions_are_not_in_the_ledger():
    """Who trusts the server trusts it with this too."""
    devices = enrolment()
    assert takes_part(UNSIGNED, devices)
    assert takes_part(UNSIGNED, devices)
    assert not devices.ledger(DEVICE).knows(UNSIGNED.context)
    assert takes_part(SIGNED, devices)


def test_devices_of_one_enrolment_each_take_part_once():
    devices = enrolment()
    parties = answered(SIGNED, devices)
    parties.contribute(ClientId(10))
    for client in (DEVICE, ClientId(10)):
        assert not takes_part(SIGNED, devices, client)


def test_a_full_ledger_ends_nothing_and_no_vector_leaves():
    devices = enrolment()
    parties = asked(SIGNED, devices)
    machine = parties.clients[DEVICE]
    machine._ledger = full = MemoryLedger(capacity=1)
    full.admit([OTHER])
    with pytest.raises(LedgerError, match="its capacity of 1"):
        parties.contribute(DEVICE)
    assert machine.state is ClientState.OPENED
    machine._ledger = MemoryLedger(capacity=1)  # there is room again
    assert parties.contribute(DEVICE)


# Entries of the caller's own.


@pytest.mark.parametrize("params", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_a_callers_entries_are_admitted_with_the_context_or_not_at_all(params):
    devices = enrolment()
    ledger = devices.ledger(DEVICE)
    ledger.admit([ENTRIES[0]])
    machine = (parties := asked(params, devices)).clients[DEVICE]
    assert not machine.admit([ENTRIES[1], ENTRIES[0]])
    assert not any(map(ledger.knows, [ENTRIES[1], params.context]))
    assert machine.state is ClientState.OPENED
    assert machine.admit([ENTRIES[1]])
    assert ledger.knows(ENTRIES[1])
    assert ledger.knows(params.context) is params.signed
    assert machine.admit([ENTRIES[2]])
    assert not machine.admit([ENTRIES[2]])
    assert parties.contribute(DEVICE)


def test_a_context_that_is_known_ends_the_session_whatever_else_is_to_be_admitted():
    devices = enrolment()
    first = asked(SIGNED, devices)
    assert first.clients[DEVICE].admit([ENTRIES[0]])
    for entry in (ENTRIES[0], ENTRIES[1]):
        machine = asked(SIGNED, enrolment()).clients[DEVICE]
        machine._ledger = devices.ledger(DEVICE)
        with pytest.raises(PeerError) as refused:
            machine.admit([entry])
        assert refused.value.reason is Refusal.SESSION_REPEATED
        assert machine.state is ClientState.FAILED
    assert not devices.ledger(DEVICE).knows(ENTRIES[1])


def test_nothing_is_admitted_where_no_slot_is_open():
    machine = device(enrolment())
    with pytest.raises(UsageError, match="admit in state idle: no slot is open"):
        machine.admit([OTHER])


def test_a_ledger_that_neither_admits_nor_knows_gets_no_vector():
    class Closed(MemoryLedger):
        def admit(self, entries):
            del entries
            return False

    parties = asked(SIGNED, enrolment())
    parties.clients[DEVICE]._ledger = Closed()
    with pytest.raises(PeerError):
        parties.contribute(DEVICE)


def test_one_enrolment_runs_each_signed_session_once():
    devices = enrolment()

    def run(params):
        inputs = make_inputs(params, make_ids(6))
        return run_session(params, inputs, [BINDING] * 2, policy=POLICY, enrolment=devices)

    assert len(run(SIGNED)) == 2
    with pytest.raises(PeerError) as refused:
        run(SIGNED)
    assert refused.value.reason is Refusal.SESSION_REPEATED
    assert len(run(replace(SIGNED, context=OTHER))) == 2
    assert len(run(UNSIGNED)) == len(run(UNSIGNED)) == 2
