"""Devices that defer their answers: the server gets the same messages in the same order."""

from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg.session import NoObserver, run_round
from deltafl.secagg.stages import Stage, Step, Vanish

STEP = Step(Stage.MASK)
LATER = Step(Stage.UNMASK)


class Log(NoObserver):
    """Notes what passes, and is the server as well."""

    def __init__(self):
        self.received, self.seen, self.worked = [], [], []

    def message(self, *, sent, peer, data):
        self.seen.append((sent, peer, data))

    @contextmanager
    def working(self, party, step):
        self.worked.append((party, step))
        yield

    def receive(self, sender, data):
        self.received.append((sender, data))

    def close_round(self):
        self.received.append("closed")
        return {}


def play(deferring, vanishing, silent, count):
    log = Log()
    waited = []

    def answer(client, data):
        def made():
            waited.append(client)
            return None if client in silent else bytes([client]) + data

        return made if client in deferring else made()

    outgoing = {client: b"to %d" % client for client in range(count)}
    run_round(log, outgoing, answer, STEP, vanishing, log)
    return log, waited


vanishes = st.sampled_from(
    [Vanish(STEP, late=False), Vanish(STEP, late=True), Vanish(LATER, late=False)]
)
devices = st.integers(0, 6)


@given(st.sets(devices), st.dictionaries(devices, vanishes), st.sets(devices))
def test_the_server_gets_the_same_whoever_defers(deferring, vanishing, silent):
    log, _ = play(deferring, vanishing, silent, 7)
    plain, _ = play((), vanishing, silent, 7)
    assert log.received == plain.received
    assert sorted(log.seen) == sorted(plain.seen)
    for sent in (True, False):
        of = [[entry for entry in one.seen if entry[0] == sent] for one in (log, plain)]
        assert of[0] == of[1]


def test_answers_are_asked_for_when_everybody_has_got_their_message():
    log, waited = play({0, 1, 2}, {}, (), 3)
    assert [sent for sent, _, _ in log.seen] == [True] * 3 + [False] * 3
    assert waited == [0, 1, 2]


@pytest.mark.parametrize("deferring", [(), {0, 2}])
def test_a_late_device_works_and_is_not_heard_in_time(deferring):
    log, waited = play(deferring, {0: Vanish(STEP, late=True)}, (), 3)
    assert [entry if entry == "closed" else entry[0] for entry in log.received] == [
        1,
        2,
        "closed",
        0,
    ]
    assert 0 in waited
