"""A device takes part in one signed session of a context, whatever else is said about it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import ENTRIES, Model, capacities, histories, play
from parties import BINDING, POLICY, make_ids, make_inputs, make_params

from deltafl.secagg import (
    Client,
    ClientId,
    Credentials,
    Enrolment,
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
OTHER = b"\1" * 32


def enrolment():
    return Enrolment(SeededRandomness(bytes(32)))


def device(credentials, policy=POLICY, client=DEVICE):
    return Client(client, policy, SeededRandomness(bytes(32)), credentials)


def opening(params):
    return wire.encode(SessionOpen(params), params)


def takes_part(machine, params):
    """Whether a device answers an opening; if it does not, that must be for its ledger."""
    try:
        machine.receive(opening(params))
    except PeerError as refused:
        if refused.reason is not Refusal.SESSION_REPEATED:
            raise
        return False
    return machine.state is ClientState.ADVERTISED


# The ledger.


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


def test_the_oldest_entries_are_forgotten():
    ledger = MemoryLedger(capacity=2)
    assert ledger.admit([ENTRIES[1]])
    assert ledger.admit([ENTRIES[2], ENTRIES[0]])
    assert [ledger.knows(entry) for entry in ENTRIES[:3]] == [True, False, True]
    # What would be forgotten at once is not admitted.
    with pytest.raises(UsageError, match="3 entries for a ledger that remembers 2"):
        ledger.admit(ENTRIES[3:6])
    assert [ledger.knows(entry) for entry in ENTRIES[:3]] == [True, False, True]
    assert ledger.admit([ENTRIES[3]] * 3)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ledger_remembers_something(capacity):
    with pytest.raises(UsageError, match=f"{capacity} entries"):
        MemoryLedger(capacity)


@pytest.mark.slow
def test_a_ledger_remembers_a_quarter_of_a_million_entries():
    ledger = MemoryLedger()
    numbers = [number.to_bytes(32, "little") for number in range(CAPACITY + 1)]
    assert ledger.admit(numbers[:-1])
    assert ledger.knows(numbers[0])
    assert ledger.admit(numbers[-1:])
    assert not ledger.knows(numbers[0])
    assert ledger.knows(numbers[1])
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


def test_credentials_begin_with_an_empty_ledger_of_their_own():
    given_out = enrolment().credentials(DEVICE)
    first = Credentials(given_out.identity, given_out.directory)
    second = Credentials(given_out.identity, given_out.directory)
    assert first.ledger is not second.ledger
    assert first.ledger.admit([OTHER])
    assert not second.ledger.knows(OTHER)


# The device.


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
    credentials = enrolment().credentials(DEVICE)
    assert takes_part(device(credentials), SIGNED)
    machine = device(credentials)
    with pytest.raises(PeerError) as refused:
        machine.receive(opening(replace(SIGNED, **changes)))
    assert refused.value.reason is Refusal.SESSION_REPEATED
    assert machine.state is ClientState.FAILED
    # Controls: another context, and a device that has not been there.
    assert takes_part(device(credentials), replace(SIGNED, context=OTHER, **changes))
    assert takes_part(device(enrolment().credentials(DEVICE)), replace(SIGNED, **changes))


def test_a_session_that_failed_was_one_all_the_same():
    """Its server knows what the device said in it."""
    credentials = enrolment().credentials(DEVICE)
    machine = device(credentials)
    assert takes_part(machine, SIGNED)
    machine.close()
    assert not takes_part(device(credentials), SIGNED)


def test_a_refusal_spends_nothing_but_the_session():
    """What the policy refuses is no session: a better one of the same context may follow."""
    credentials = enrolment().credentials(DEVICE)
    strict = replace(POLICY, min_threshold=4)
    with pytest.raises(PeerError) as refused:
        device(credentials, strict).receive(opening(SIGNED))
    assert refused.value.reason is Refusal.POLICY
    assert not credentials.ledger.knows(SIGNED.context)
    assert takes_part(device(credentials, strict), replace(SIGNED, threshold=4, min_cohort=4))
    # Having refused it for its ledger, it remembers it no less.
    assert not takes_part(device(credentials), SIGNED)
    assert not takes_part(device(credentials), SIGNED)


def test_the_same_opening_twice_is_a_repetition_and_no_second_session():
    machine = device(enrolment().credentials(DEVICE))
    assert takes_part(machine, SIGNED)
    assert machine.receive(opening(SIGNED)) is None
    assert machine.state is ClientState.ADVERTISED


def test_unsigned_sessions_are_not_in_the_ledger():
    """Who trusts the server trusts it with this too."""
    credentials = enrolment().credentials(DEVICE)
    assert takes_part(device(credentials), UNSIGNED)
    assert takes_part(device(credentials), UNSIGNED)
    assert not credentials.ledger.knows(UNSIGNED.context)
    assert takes_part(device(credentials), SIGNED)


def test_a_ledger_outlives_what_used_it():
    before = enrolment().credentials(DEVICE)
    assert takes_part(device(before), SIGNED)
    kept = Credentials(before.identity, before.directory, before.ledger)
    assert not takes_part(device(kept), SIGNED)
    # Control: without it, a device that starts again does not know.
    forgetful = Credentials(before.identity, before.directory)
    assert takes_part(device(forgetful), SIGNED)


def test_devices_of_one_enrolment_each_take_part_once():
    devices = enrolment()
    for client in (DEVICE, ClientId(4)):
        assert takes_part(device(devices.credentials(client), client=client), SIGNED)
        assert not takes_part(device(devices.credentials(client), client=client), SIGNED)


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
