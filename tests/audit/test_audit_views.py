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
SETTINGS = {
    "federation": {"cohort_size": len(COHORT)},
    "quantile": {"method": "mm", "max_queries": UPDATE_SLOT},
    "policy": {"max_mm_pivots_per_device": 1},
    "privacy": {"signed": True},
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
        index: (
            slot.question,
            None if slot.members is None else slot.members.tolist(),
            len(slot.opened),
            sorted(seen.record.peer for seen in slot.inputs),
            len(slot.requests),
            sorted(seen.record.peer for seen in slot.shares),
        )
        for index, slot in session.slots.items()
    }
    return slots, session.ids.tolist(), session.session_id, len(view.strange)


def kind_of(data):
    """The kind of a device's message."""
    return Kind(data[2])


def test_a_round_is_known_as_it_was_played():
    view = view_of(said())
    session = session_of(view)
    assert session.ids.tolist() == COHORT
    assert session.positions == {device: place for place, device in enumerate(COHORT)}
    assert session.context == session.params.context
    assert session.config.cohort_size == len(COHORT)
    assert sorted(session.slots) == [0, 1, 2, UPDATE_SLOT]
    assert [type(session.slots[i].question) for i in range(4)] == [*[Query] * 3, Threshold]
    assert len(session.rosters) == len(COHORT)
    assert view.strange == []
    for slot in session.slots.values():
        assert slot.members.all()
        assert [seen.record.peer for seen in slot.inputs] == COHORT
        assert bool(slot.requests and slot.shares) == (slot.index not in (1, 2))


def test_a_session_id_is_that_under_which_devices_masked():
    """Control of what the replay is bound to: another roster has another id."""
    view = view_of(said())
    session = session_of(view)
    assert session.session_id == session.params.session_id(np.array(COHORT, "<u4").tobytes())
    without = [m for m in said() if not (m[0] and m[1] == COHORT[-1])]
    assert session_of(view_of(without)).session_id != session.session_id


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
    kept, before = session.advertisements[4], first.advertisements[4]
    assert kept.record.sha256 == before.record.sha256


def total(slot, *, number=900):
    words = np.zeros(3, np.uint64)
    return Sum(number, 1, slot, 3, b"", np.array(COHORT, np.uint32), words)


def test_a_sum_belongs_to_its_slot_once():
    view = view_of(said())
    session, slot = view.add_sum(total(1))
    assert (session, slot) == (session_of(view), session.slots[1])
    assert view.add_sum(total(1, number=901)) is None
    assert view.add_sum(total(4)) is None
    assert [released.number for released in view.sums] == [900, 901, 900]
    assert RoundView(1).add_sum(total(0)) is None


def test_nothing_long_is_kept():
    session = session_of(view_of(said()))
    light = [
        *session.rosters,
        *(seen for slot in session.slots.values() for seen in slot.inputs),
    ]
    assert {(seen.record.head, seen.content.message) for seen in light} == {(b"", None)}
    assert all(seen.record.size for seen in light)


def test_what_came_is_not_hidden_by_a_slot_that_was_never_opened():
    unopened = [m for m in said() if not m[0] or step_of(True, m[2])[0] is not Kind.SLOT]
    session = session_of(view_of(unopened))
    assert [slot.question for slot in session.slots.values()] == [None] * 4
    assert [slot.members for slot in session.slots.values()] == [None] * 4
    assert [len(slot.inputs) for slot in session.slots.values()] == [len(COHORT)] * 4
