"""A round trip: the server gets the same messages in the same order, whoever has work to do."""

from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.protocol.client import LocalWork
from deltafl.secagg.session import NoObserver, Trip
from deltafl.secagg.states import Stage, Step, Vanish
from deltafl.sim.cohort.masked import WorkingDevices

STEP = Step(Stage.MASK)
LATER = Step(Stage.UNMASK)


class Log(NoObserver):
    """Notes what passes, and is the server as well."""

    step = STEP

    def __init__(self):
        self.received, self.seen = [], []

    def message(self, *, sent, peer, data):
        self.seen.append((sent, peer, data))

    @contextmanager
    def working(self, party, step):
        del party
        assert step == STEP
        yield

    def receive(self, sender, data):
        self.received.append((sender, data))

    def close_round(self):
        self.received.append("closed")
        return {}


class Machine:
    """A device's: it answers at once, or first has a task."""

    level = 0

    def __init__(self, number, task, *, silent):
        self.number, self.task, self.silent = number, task, silent

    def answer(self):
        return bytes([self.number]) + b"!"

    def receive(self, data):
        assert data == b"to %d" % self.number
        if self.task is not None:
            return self.task
        return None if self.silent else self.answer()

    def supply_losses(self, losses, weight):
        assert (losses, weight) == ([self.number / 2], 3)
        return self.answer()

    def supply_update(self, update):
        assert update == -self.number
        return self.answer()

    def supply_zeros(self):
        return self.answer()


class Work:
    models, told = (None,), None

    def __init__(self):
        self.begun, self.waited = [], []

    def begin_losses(self, device, levels):
        assert list(levels) == [0]
        self.begun.append(device)

    def begin_update(self, device, level):
        assert level == 0
        self.begun.append(device)

    def loss(self, device, level):
        assert level == 0
        self.waited.append(device)
        return device / 2

    def weight(self, device):
        assert device in self.begun
        return 3

    def update(self, device, level):
        assert level == 0
        self.waited.append(device)
        return -device


def play(tasks, vanishing, silent, count):
    log, work = Log(), Work()
    machines = {n: Machine(n, tasks.get(n), silent=n in silent) for n in range(count)}
    return log, work, carried(log, machines, work, vanishing)


def carried(log, machines, work, vanishing):
    """The bytes that devices send in one trip."""
    trip = Trip(log, vanishing, log)
    WorkingDevices(machines, work).answer(trip, {n: b"to %d" % n for n in machines})
    assert trip.close() == {}
    return trip.received


vanishes = st.sampled_from(
    [Vanish(STEP, late=False), Vanish(STEP, late=True), Vanish(LATER, late=False)]
)
devices = st.integers(0, 6)


@given(
    st.dictionaries(devices, st.sampled_from(list(LocalWork))),
    st.dictionaries(devices, vanishes),
    st.sets(devices),
)
def test_the_server_gets_the_same_whoever_has_work(tasks, vanishing, silent):
    silent -= tasks.keys()  # who has a task answers
    log, _, bytes_up = play(tasks, vanishing, silent, 7)
    plain, _, others = play({}, vanishing, silent, 7)
    assert log.received == plain.received
    assert sorted(log.seen) == sorted(plain.seen)
    assert bytes_up == others == 2 * (len(log.received) - 1)
    for sent in (True, False):
        of = [[entry for entry in one.seen if entry[0] == sent] for one in (log, plain)]
        assert of[0] == of[1]


@given(st.lists(st.sampled_from([LocalWork.TRAIN, LocalWork.WAIT]), min_size=7, max_size=7))
def test_no_order_tells_who_trains(tasks):
    log, work, _ = play(dict(enumerate(tasks)), {}, (), 7)
    assert [(sent, peer) for sent, peer, _ in log.seen] == [
        *((True, peer) for peer in range(7)),
        *((False, peer) for peer in range(7)),
    ]
    assert work.begun == work.waited == [n for n in range(7) if tasks[n] is LocalWork.TRAIN]


@pytest.mark.parametrize("task", [LocalWork.MEASURE_LOSS, LocalWork.TRAIN])
def test_all_begin_before_the_first_is_waited_for(task):
    order = []
    log, work = Log(), Work()
    work.begun = work.waited = order
    machines = {n: Machine(n, task, silent=False) for n in range(3)}
    carried(log, machines, work, {})
    assert order == [0, 1, 2, 0, 1, 2]
    assert [sent for sent, _, _ in log.seen] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("tasks", [{}, {0: LocalWork.MEASURE_LOSS, 2: LocalWork.TRAIN}])
def test_a_late_device_works_and_is_not_heard_in_time(tasks):
    log, work, _ = play(tasks, {0: Vanish(STEP, late=True)}, (), 3)
    assert [entry if entry == "closed" else entry[0] for entry in log.received] == [
        1,
        2,
        "closed",
        0,
    ]
    assert (0 in work.waited) == bool(tasks)
