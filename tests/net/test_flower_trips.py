"""Trips as messages of Flower's: one at a time to a node, and what comes of bad answers."""

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")

import logging
from types import SimpleNamespace

from flwr.app import Array, ArrayRecord, Error, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from deltafl.secagg import ClientId
from deltafl.sim.net.flower.messages import frames_of, record_of
from deltafl.sim.net.flower.trips import ByMessages, Invited
from deltafl.sim.net.frames import Carry, Decline, Reason, Task, decode, encode
from deltafl.sim.net.post import Post

TASK = b"t" * 16
IDS = [ClientId(0), ClientId(1)]


@pytest.fixture(autouse=True)
def identity():
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0


class Grid:
    """Keeps what is sent; a test says what nodes answer."""

    def __init__(self):
        self.sent, self.ready = {}, {}

    def push_messages(self, messages):
        names = [str(len(self.sent) + i) for i in range(len(messages))]
        self.sent |= dict(zip(names, messages, strict=True))
        return names

    def pull_messages(self, names):
        found = [self.ready.pop(name) for name in names if name in self.ready]
        return [SimpleNamespace(**vars(one)) for one in found]

    def answer(self, name, content=None, error=None):
        metadata = SimpleNamespace(reply_to_message_id=name, src_node_id=100)
        self.ready[name] = SimpleNamespace(
            metadata=metadata, content=content, error=error, has_error=lambda: error is not None
        )


@pytest.fixture
def round_of_two():
    post, grid = Post(lambda: 0.0, 0), Grid()
    trips = ByMessages(post, grid, longest=1000)
    post.begin(Task(TASK, 0, 0, b""), IDS)
    trips.invite([Invited(client, 100 + client, {}) for client in IDS])
    return post, grid, trips


def carried(message):
    return [decode(one) for one in frames_of(message.content, most=9, longest=10**6)]


def reply(*frames):
    return RecordDict(record_of([encode(one) for one in frames]))


def arrived(post):
    return [(one.client, one.data) for one in post.answers(IDS, 0.0)]


def test_a_node_gets_all_that_is_due_in_one_message(round_of_two):
    post, grid, trips = round_of_two
    post.send(IDS[0], 0, encode(Carry(TASK, 0, b"first")))
    assert not trips.look()
    kinds = {
        m.metadata.dst_node_id: [type(f).__name__ for f in carried(m)] for m in grid.sent.values()
    }
    assert kinds == {100: ["Welcome", "Task", "Carry"], 101: ["Welcome", "Task"]}


def test_a_node_has_one_message_at_a_time(round_of_two):
    post, grid, trips = round_of_two
    trips.look()
    post.send(IDS[0], 0, encode(Carry(TASK, 0, b"first")))
    trips.look()
    assert len(grid.sent) == 2
    grid.answer("0", reply())
    trips.look()
    assert [frame.data for frame in carried(grid.sent["2"])] == [b"first"]
    grid.answer("2", reply(Carry(TASK, 0, b"answer")))
    trips.look()
    assert arrived(post) == [(IDS[0], b"answer")]


def test_a_node_that_declines_says_so(round_of_two):
    post, grid, trips = round_of_two
    trips.look()
    grid.answer("1", reply(Decline(TASK, Reason.REFUSED)))
    assert not trips.look()
    assert arrived(post) == [(IDS[1], b"")]


BAD = {
    "nothing": RecordDict({}),
    "long": RecordDict(record_of([bytes(1001)])),
    "many": RecordDict(record_of([b""] * 9)),
    "no frame": RecordDict(record_of([b"\xc1"])),
    "a frame of the server's": reply(Task(TASK, 0, 0, b"")),
    "an answer to what was not asked": reply(Carry(TASK, 5, b"")),
    "an array": RecordDict(
        {"deltafl-frames": ArrayRecord({"0": Array("float32", (9,), "numpy", b"12")})}
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_node_whose_answer_is_nonsense_is_lost_and_nobody_else(round_of_two, case):
    post, grid, trips = round_of_two
    trips.look()
    grid.answer("0", BAD[case])
    grid.answer("1", reply())
    assert trips.look() == [IDS[0]]
    post.send(IDS[0], 0, encode(Carry(TASK, 0, b"more")))
    post.send(IDS[1], 0, encode(Carry(TASK, 0, b"more")))
    trips.look()
    assert [m.metadata.dst_node_id for m in grid.sent.values()] == [100, 101, 101]


def test_a_node_of_which_flower_says_that_it_is_gone(round_of_two):
    _, grid, trips = round_of_two
    trips.look()
    grid.answer("1", error=Error(5, "Node Unavailable"))
    assert trips.look() == [IDS[1]]


def test_a_nodes_own_words_are_one_short_line_of_the_log(round_of_two, caplog):
    _, grid, trips = round_of_two
    trips.look()
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        grid.answer("1", error=Error(0, "out\nWARNING: node 7 is left out" + "x" * 10**6))
        trips.look()
    finally:
        logger.removeHandler(caplog.handler)
    (said,) = {record.getMessage() for record in caplog.records}
    assert "is gone: 'out\\nWARNING" in said
    assert "\n" not in said
    assert len(said) < 300


def test_after_the_end_nothing_is_taken(round_of_two):
    post, grid, trips = round_of_two
    trips.look()
    trips.end()
    assert not post.connected
    grid.answer("0", reply(Decline(TASK, Reason.REFUSED)))
    trips.look()
    assert arrived(post) == []


def test_frames_come_back_in_order():
    frames = [bytes([i]) * i for i in range(12)]
    content = RecordDict(record_of(frames))
    assert frames_of(content, most=12, longest=66) == frames
    with pytest.raises(ValueError, match="more than 11 frames"):
        frames_of(content, most=11, longest=66)
    with pytest.raises(ValueError, match="more than 65 bytes"):
        frames_of(content, most=12, longest=65)
