"""The exchange: what a device gets and may send, whatever becomes of its connections."""

import threading
from dataclasses import replace
from threading import Event

import pytest

from deltafl.secagg import ClientId, DecodeError
from deltafl.sim.net.frames import Carry, Challenge, Decline, Over, Reason, Task, Welcome, decode
from deltafl.sim.net.frames import encode as raw
from deltafl.sim.net.post import Answer, Post

A, B = ClientId(1), ClientId(2)
TASK = Task(b"t" * 16, 0, 0, b"")
OTHER = b"u" * 16


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.fixture
def post():
    return Post(Clock(), 5)


def connect(post, client=A):
    return post.connect(client, lambda: None)


def sent(post, line):
    """All frames that are due on a line."""
    frames = []
    while (frame := post.take(line)) is not None:
        frames.append(decode(frame))
    return frames


def carry(trip, data=b"x", task=TASK.task):
    return raw(Carry(task, trip, data))


def arrived(post, *clients, seconds=0.01):
    return list(post.answers(clients, seconds))


def begun(post, *clients):
    lines = [connect(post, client) for client in clients]
    post.begin(TASK, clients)
    for line in lines:
        sent(post, line)
    return lines


def test_a_device_is_welcomed_and_gets_its_task_and_envelopes_in_order(post):
    line = connect(post)
    assert sent(post, line) == [Welcome(0, 5)]
    post.begin(TASK, [A])
    post.send(A, 0, carry(0))
    assert sent(post, line) == [TASK, Carry(TASK.task, 0, b"x")]
    post.received(line, carry(0, b"answer"))
    assert arrived(post, A) == [Answer(A, b"answer", trip=0)]
    post.end(1)
    assert sent(post, line) == [Over(TASK.task, 1)]


def test_who_is_not_in_the_round_hears_how_far_the_run_is(post):
    outside = connect(post, B)
    begun(post, A)
    sent(post, outside)
    post.end(1)
    assert sent(post, outside) == [Welcome(1, 5)]


def test_who_connects_in_the_middle_of_a_round_gets_what_it_owes(post):
    post.begin(TASK, [A, B])
    post.send(A, 0, carry(0))
    post.send(B, 0, carry(0))
    line = connect(post)
    assert sent(post, line) == [Welcome(0, 5), TASK, Carry(TASK.task, 0, b"x")]
    post.received(line, carry(0, b"answer"))
    post.disconnect(line)
    assert sent(post, connect(post)) == [Welcome(0, 5), TASK]  # nothing is owed


def test_a_second_connection_replaces_the_first(post):
    (first,) = begun(post, A)
    post.send(A, 0, carry(0))
    second = connect(post)
    assert not first.is_open
    assert post.take(first) is None
    assert sent(post, second)[-1] == Carry(TASK.task, 0, b"x")
    post.disconnect(first)  # which is noticed late
    assert post.connected == {A}
    post.disconnect(second)
    assert post.connected == frozenset()


def test_devices_that_are_admitted_no_more_are_closed(post):
    woken = []
    line = post.connect(A, lambda: woken.append(line.is_open))
    kept = connect(post, B)
    post.keep_only([B])
    assert woken == [False]
    assert post.take(line) is None
    assert post.connected == {B}
    post.disconnect(line)
    assert sent(post, kept) == [Welcome(0, 5)]


def test_an_answer_counts_once(post):
    (line,) = begun(post, A)
    post.send(A, 0, carry(0))
    for data in (b"first", b"first", b"second"):
        post.received(line, carry(0, data))
    assert arrived(post, A) == [Answer(A, b"first", trip=0)]


def test_a_late_answer_arrives_in_the_next_trip(post):
    first, second = begun(post, A, B)
    for client in (A, B):
        post.send(client, 0, carry(0))
    post.received(second, carry(0, b"in time"))
    assert arrived(post, A, B) == [Answer(B, b"in time", trip=0)]
    post.send(B, 1, carry(1))
    post.received(first, carry(0, b"late"))
    post.received(second, carry(1, b"next"))
    assert arrived(post, B) == [Answer(A, b"late", trip=0), Answer(B, b"next", trip=1)]


def test_what_belongs_to_another_round_is_ignored(post):
    (line,) = begun(post, A)
    post.send(A, 0, carry(0))
    post.received(line, carry(0, task=OTHER))
    post.received(line, raw(Decline(OTHER, Reason.UNKNOWN)))
    assert arrived(post, A) == []
    post.end(1)
    post.received(line, carry(0))
    assert arrived(post) == []


def test_who_declines_is_not_waited_for_and_is_asked_nothing_more(post):
    (line,) = begun(post, A)
    post.send(A, 0, carry(0))
    for _ in range(2):
        post.received(line, raw(Decline(TASK.task, Reason.LEDGER)))
    assert arrived(post, A, seconds=1e9) == [Answer(A, declined=Reason.LEDGER)]
    sent(post, line)
    post.send(A, 1, carry(1))
    assert sent(post, line) == []
    assert sent(post, connect(post)) == [Welcome(0, 5)]


@pytest.mark.parametrize(
    "data",
    [b"", b"x", raw(Welcome(0, 1)), raw(Challenge(bytes(32))), raw(TASK), carry(1)],
)
def test_who_breaks_the_rules_is_to_be_disconnected(post, data):
    (line,) = begun(post, A)
    post.send(A, 0, carry(0))
    with pytest.raises(DecodeError):
        post.received(line, data)


def test_a_device_that_reads_nothing_takes_no_more_memory_with_time(post):
    line = connect(post)
    for number in range(100):
        post.begin(TASK, [A])
        post.send(A, 0, carry(0, bytes(1000)))
        post.end(number + 1)
    assert len(line.pending) <= 3


def test_all_are_waited_for_until_the_time_is_up(post):
    begun(post, A, B)
    for client in (A, B):
        post.send(client, 0, carry(0))
    before = post._clock.now
    assert arrived(post, A, B, seconds=0.05) == []
    assert post._clock.now >= before + 0.05


def there(post):
    return post.wait_for(lambda _: False, 0.01, Event())


def test_who_was_waited_for_in_vain_counts_as_away_until_he_has_sent_something(post):
    """One of two devices answers late, and what is asked of it when the round is over."""
    line, other = begun(post, A, B)
    for client in (A, B):
        post.send(client, 0, carry(0))
    post.received(other, carry(0))
    assert there(post) == {A, B}
    assert len(arrived(post, A, B)) == 1
    assert (there(post), post.silent([A, B]), post.silent([B])) == ({B}, {A}, set())
    post.received(line, carry(0, b"late"))
    assert there(post) == {A, B}

    post.send(A, 1, carry(1))
    assert len(arrived(post, A)) == 1  # the late one
    assert there(post) == {B}
    assert connect(post) is not line
    assert there(post) == {A, B}  # it is asked again


def test_a_device_that_is_only_slow_says_so_when_the_round_is_over(post):
    line, other = begun(post, A, B)
    for client in (A, B):
        post.send(client, 0, carry(0))
    post.received(other, carry(0))
    arrived(post, A, B)
    post.end(1)
    assert sent(post, other) == [Over(TASK.task, 1)]
    assert sent(post, line) == [Over(TASK.task, 1), Carry(TASK.task, 0, b"")]
    assert there(post) == {B}
    post.received(line, raw(Decline(TASK.task, Reason.UNKNOWN)))
    assert there(post) == {A, B}
    assert arrived(post) == []


def test_an_answer_from_another_thread_is_not_missed():
    import time

    post = Post(time.monotonic, 5)
    line = connect(post)
    post.begin(TASK, [A])
    post.send(A, 0, carry(0))
    timer = threading.Timer(0.05, post.received, (line, carry(0, b"answer")))
    timer.start()
    assert arrived(post, A, seconds=30) == [Answer(A, b"answer", trip=0)]


def test_enough_devices_are_waited_for(post):
    import time

    post = Post(time.monotonic, 5)
    assert post.wait_for(lambda connected: len(connected) == 1, 0.01, Event()) == frozenset()
    timer = threading.Timer(0.05, connect, (post,))
    timer.start()
    assert post.wait_for(lambda connected: len(connected) == 1, 30, Event()) == {A}


@pytest.mark.parametrize(
    ("reason", "is_there"), [(one, one is not Reason.SETTINGS) for one in Reason]
)
def test_whom_the_settings_do_not_fit_is_not_there(post, reason, is_there):
    """Others that decline may take part in the next round."""
    line, _ = begun(post, A, B)
    post.received(line, raw(Decline(TASK.task, reason, b"why")))
    assert there(post) == ({A, B} if is_there else {B})
    assert post.connected == {A, B}
    assert post.declined == {A: Answer(A, declined=reason, detail="why")}
    post.end(1)
    assert there(post) == ({A, B} if is_there else {B})
    connect(post)
    assert there(post) == {A, B}
    assert not post.declined


def test_who_declined_is_asked_again_once_the_list_is_read_again(post):
    line, _ = begun(post, A, B)
    post.received(line, raw(Decline(TASK.task, Reason.SETTINGS)))
    post.keep_only([A, B])
    assert there(post) == {A, B}


def test_who_answers_again_has_not_declined(post):
    line, _ = begun(post, A, B)
    post.received(line, raw(Decline(TASK.task, Reason.LEDGER)))
    post.begin(replace(TASK, task=OTHER), [A])
    post.send(A, 0, carry(0))
    post.received(line, carry(0, task=OTHER))
    assert not post.declined


def test_it_is_known_when_all_has_been_taken(post):
    line = connect(post)
    assert not post.is_drained()
    sent(post, line)
    assert post.is_drained()
