"""A round put together from its messages: who was told and said what, in any order that passes."""

import functools
from hashlib import sha256

import numpy as np
import pytest
from honest_runs import messages_of
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Sum

COHORT = [1, 4, 7, 10, 13, 16, 19]
UPDATE_SLOT = 3
OF_SLOTS = (Kind.SLOT, Kind.MASKED, Kind.REQUEST, Kind.SHARES)
SETTINGS = {
    "federation": {"cohort_size": len(COHORT)},
    "quantile": {"method": "mm", "max_queries": UPDATE_SLOT},
    "policy": {"max_mm_pivots_per_device": 1},
}
QUICK = {"federation": {"cohort_size": len(COHORT), "theta": 1}}


@functools.cache
def said():
    """The messages of an honest round."""
    return tuple(messages_of(length=600, **SETTINGS))


def records(messages):
    """The rows of messages, as a writer makes them."""
    return [
        Message(number, 1, sent, peer, len(data), sha256(data).digest(), data)
        for number, (sent, peer, data) in enumerate(messages, start=1)
    ]


def view_of(messages):
    view = RoundView(1)
    for record in records(messages):
        view.add(record)
    return view


def session_of(view):
    (session,) = view.sessions.values()
    return session


def facts(view):
    """What is known of a round, apart from where it stands."""
    session = session_of(view)
    slots = {
        slot: (
            session.question(slot),
            session.members(slot).tolist(),
            *(sorted(seen.peer for seen in session.of(kind, slot)) for kind in OF_SLOTS),
        )
        for slot in session.slots
    }
    return slots, session.ids, session.session_id


def kind_of(data):
    """The kind of a device's message."""
    return Kind(data[2])


def test_a_round_is_known_as_it_was_played():
    view = view_of(said())
    session = session_of(view)
    assert session.ids == COHORT
    assert session.positions == {device: place for place, device in enumerate(COHORT)}
    (level,) = session.by_level()
    assert level.config.cohort_size == len(COHORT)
    assert level.update_slot == UPDATE_SLOT
    assert session.slots == level.slots == [0, 1, 2, UPDATE_SLOT]
    assert [type(session.question(slot)) for slot in range(4)] == [*[Query] * 3, Threshold]
    assert len(session.of(Kind.ROSTER)) == len(COHORT)
    for slot in session.slots:
        assert session.members(slot).all()
        assert list(session.first(Kind.MASKED, slot)) == COHORT
        has_shares = session.of(Kind.REQUEST, slot) and session.of(Kind.SHARES, slot)
        assert bool(has_shares) == (slot not in (1, 2))


def test_a_session_id_is_that_under_which_devices_masked():
    """Control of what the replay is bound to: another roster has another id."""
    session = session_of(view_of(said()))
    assert session.session_id == session.params.session_id(np.array(COHORT, "<u4").tobytes())
    session.ids = COHORT[:-1]
    assert session.session_id != session.params.session_id(np.array(COHORT, "<u4").tobytes())


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_the_order_within_a_step_changes_nothing(data):
    """A network delivers the messages of a step in any order."""
    steps = {}
    for sent, peer, message in said():
        steps.setdefault((sent, step_of(sent, message)), []).append((sent, peer, message))
    shuffled = [m for step in steps.values() for m in data.draw(st.permutations(step))]
    assert facts(view_of(shuffled)) == facts(view_of(said()))


@functools.cache
def step_of(sent, message):
    """Kind and slot of a message."""
    view = view_of([said()[0]])
    content = view.add(records([(sent, 1, message)])[0]).content
    return content.kind, content.slot


def test_the_first_of_two_answers_of_a_device_counts():
    kind = Kind.ADVERTISE
    (index,) = [i for i, m in enumerate(said()) if not m[0] and m[1] == 4 and kind_of(m[2]) is kind]
    (other,) = [i for i, m in enumerate(said()) if not m[0] and m[1] == 7 and kind_of(m[2]) is kind]
    first = session_of(view_of(said()))
    with_another = [*said()[: index + 1], (False, 4, said()[other][2]), *said()[index + 1 :]]
    session = session_of(view_of(with_another))
    kept, before = session.first(Kind.ADVERTISE)[4], first.first(Kind.ADVERTISE)[4]
    assert kept.record.sha256 == before.record.sha256


def total(slot, *, number=900):
    words = np.zeros(3, np.uint64)
    return Sum(number, 1, slot, 3, b"", np.array(COHORT, np.uint32), words)


def test_a_sum_belongs_to_its_slot_once():
    view = view_of(said())
    session = view.add_sum(total(1))
    assert session is session_of(view)
    assert view.add_sum(total(1, number=901)) is None
    assert session.sum_of(1).number == 900
    assert [learnt.number for learnt in session.sums] == [900, 901]
    assert view.add_sum(total(4)) is None
    assert [released.number for released in view.sums] == [900, 901, 900]
    assert RoundView(1).add_sum(total(0)) is None


def test_nothing_long_is_kept():
    session = session_of(view_of(said()))
    every = [seen for group in session.by.values() for seen in group]
    assert {(seen.record.head, seen.data) for seen in every} == {(b"", b"")}
    assert all(seen.record.size for seen in every)
    for kind in (Kind.ROSTER, Kind.DELIVERY):
        assert {seen.content.message for seen in session.of(kind)} == {None}
    boxes = session.said(COHORT[0], Kind.SHARE_KEYS).boxes.values()
    assert {len(box) for box in boxes} == {8}
    masked = [session.said(device, Kind.MASKED, slot) for device in COHORT for slot in range(4)]
    assert {(message.packed, message.proof) for message in masked} == {(b"", b"")}


def test_what_came_is_not_hidden_by_a_slot_that_was_never_opened():
    unopened = [m for m in said() if not m[0] or step_of(True, m[2])[0] is not Kind.SLOT]
    session = session_of(view_of(unopened))
    assert [session.question(slot) for slot in session.slots] == [None] * 4
    assert [session.members(slot) for slot in session.slots] == [None] * 4
    assert [len(session.of(Kind.MASKED, slot)) for slot in session.slots] == [len(COHORT)] * 4
