"""A verified search as its devices saw it: proofs, and what follows from them."""

from dataclasses import replace

import pytest
from staged_runs import Said, VerifiedStage, played

from deltafl.protocol import wire as round_wire
from deltafl.protocol.quantile.search import Query
from deltafl.sim.inspect.audit.proved import believed, flaw, has_all_keys, opens, proofs
from deltafl.sim.inspect.audit.views import RoundView, contributors
from deltafl.sim.record.transcript import Message


def session_of(entries, *, kept=None):
    """The first round's session, from what passed the server; of answers, so many bytes."""
    view = RoundView(1, True)
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, Said) and entry.round == 1:
            data = entry.data
            head = data if entry.sent else data[:kept]
            size = len(data)
            view.add(Message(number, number, 1, entry.sent, entry.peer, size, b"", head))
    (session,) = view.sessions.values()
    return session


@pytest.fixture(scope="module")
def session():
    return session_of(played(VerifiedStage).entries)


@pytest.mark.slow
def test_each_query_is_proved_once_to_all(session):
    assert [proof.slot.index for proof in proofs(session)] == [0, 1]
    assert [flaw(session, proof) for proof in proofs(session)] == ["", ""]


def test_a_proof_of_another_question_has_a_flaw(session):
    first, second = proofs(session)
    exchanged = replace(first, slot=second.slot)
    assert flaw(session, exchanged) == "the commitment of member 0"


def test_a_proof_of_a_slot_that_was_not_opened_has_a_flaw(session):
    (first, _) = proofs(session)
    unopened = replace(first.slot, opened=[])
    assert "no question" in flaw(session, replace(first, slot=unopened))


def test_what_cannot_be_examined_is_no_flaw():
    """A transcript may not have the keys; whether it has is counted."""
    session = session_of(played(VerifiedStage).entries, kept=60)
    assert not has_all_keys(session)
    assert [flaw(session, proof) for proof in proofs(session)] == ["", ""]


def test_honest_questions_are_believed(session):
    found = list(believed(session))
    assert [(one.slot.index, one.unproved, one.departure) for one in found] == [
        (index, False, "") for index in range(3)
    ]
    assert [one.tail is None for one in found] == [True, True, False]
    assert found[-1].tail.fewest >= len(played(VerifiedStage).passed(1)) > 0


def test_a_question_before_the_last_sum_is_proved_is_not(session):
    entries = list(played(VerifiedStage).entries)
    questions = [
        i
        for i, entry in enumerate(entries)
        if isinstance(entry, Said) and entry.round == 1 and entry.sent and _is_proving_query(entry)
    ]
    for index in questions:
        entries[index] = _without_proof(entries[index])
    found = list(believed(session_of(entries)))
    assert [one.unproved for one in found] == [False, True, False]
    # what it asks follows from sums that nobody has seen, and so does what comes after
    assert found[2].departure


def test_commitments_open_to_the_sum_of_the_vectors_alone(session):
    (first, _) = proofs(session)
    devices = contributors(session, first.slot.members)
    packed = first.opening.packed
    assert opens(session, first.slot, packed, devices)
    assert not opens(session, first.slot, bytes([packed[0] ^ 1]) + packed[1:], devices)
    assert not opens(session, first.slot, packed, devices[1:])


def _is_proving_query(entry):
    envelope = round_wire.decode(entry.data)
    return isinstance(getattr(envelope, "question", None), Query) and bool(envelope.opening)


def _without_proof(entry):
    envelope = round_wire.decode(entry.data)
    return replace(entry, data=round_wire.encode(replace(envelope, opening=b"")))
