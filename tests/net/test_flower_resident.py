"""A node's process between messages: what passes, what it forgets, and when it ends."""

import os
import socket
import stat
import threading
import time
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from federations import settings

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary, ClientId
from deltafl.sim.net.flower import resident
from deltafl.sim.net.flower.member import Member
from deltafl.sim.net.frames import Carry, Decline, Reason, Task, Welcome, decode, encode
from deltafl.sim.settings.config_io import to_toml

TASK = b"t" * 16


class App:
    def measure(self, model):
        return float(model.sum()), 3

    def train(self, model):
        return model + 1


class FailingApp:
    def measure(self, _model):
        raise RuntimeError("no loss")

    def train(self, _model):
        raise RuntimeError("no training")


def member(folder, token=bytes(32), **policy):
    ledger = str(folder / "node.ledger")
    return Member(ClientId(3), token, "", "", ledger, RoundPolicy(**policy))


@contextmanager
def serving(folder, idle=60.0):
    """A resident in a thread of this process."""
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        thread = threading.Thread(target=resident.serve, args=(listener, idle))
        thread.start()
        yield thread
        resident.end(str(folder))
        thread.join(20.0)
        assert not thread.is_alive()


@pytest.fixture
def short(tmp_path_factory):
    """A folder with a short path, as sockets need it."""
    return Path(tmp_path_factory.mktemp("r"))


def test_a_member_is_read_as_it_was_written(tmp_path):
    one = member(
        tmp_path, min_noise=Fraction(1, 3), adversary=Adversary.ACTIVE, colluding_rate=0.25
    )
    assert Member.of_json(one.to_json()) == one


def test_frames_are_answered_by_one_device_over_several_messages(short):
    said = []
    task = encode(Task(TASK, 0, 0, to_toml(settings()).encode()))
    other = encode(Carry(b"x" * 16, 0, b""))
    with serving(short):
        one = member(short)
        replies = resident.exchange(
            str(short), one, [encode(Welcome(0, 3)), task], App(), said.append
        )
        assert replies == []
        # it knows the task still: what it refuses is the envelope
        broken = encode(Carry(TASK, 0, b"no envelope"))
        (reply,) = resident.exchange(str(short), one, [broken], App(), said.append)
        assert decode(reply) == Decline(TASK, Reason.REFUSED)
        (reply,) = resident.exchange(str(short), one, [other], App(), said.append)
        assert decode(reply) == Decline(b"x" * 16, Reason.UNKNOWN)
    assert any("not in this round (refused)" in one for one in said)


def test_another_token_is_another_device(short):
    task = encode(Task(TASK, 0, 0, to_toml(settings()).encode()))
    with serving(short):
        resident.exchange(str(short), member(short), [task], App(), print)
        carry = encode(Carry(TASK, 0, b""))
        new = member(short, token=b"n" * 32)
        (reply,) = resident.exchange(str(short), new, [carry], App(), print)
        assert decode(reply).reason is Reason.UNKNOWN


def test_a_process_that_ends_in_the_middle_does_not_end_the_resident(short):
    with serving(short):
        resident._reached(str(short)).close()
        assert resident.is_there(str(short))
        assert resident.exchange(str(short), member(short), [], App(), print) == []


def test_a_resident_ends_when_nobody_comes(short):
    with serving(short, idle=0.2) as thread:
        thread.join(20.0)
        assert not thread.is_alive()


def test_where_nobody_is_nothing_can_be_reached(tmp_path):
    assert not resident.is_there(str(tmp_path))
    resident.end(str(tmp_path))
    with pytest.raises(OSError, match="No such file"):
        resident.exchange(str(tmp_path), member(tmp_path), [], App(), print)


@pytest.mark.parametrize(("app", "works"), [(App(), True), (FailingApp(), False)])
def test_the_app_works_in_the_process_of_the_message(app, works):
    model = np.arange(3, dtype="<f4").tobytes()
    measured = resident._worked(app, resident._Kind.MEASURE, model)
    trained = resident._worked(app, resident._Kind.TRAIN, model)
    if works:
        assert measured[2] == b"3"
        assert np.frombuffer(trained[1], "<f4").tolist() == [1, 2, 3]
    else:
        assert [measured[0], trained[0]] == [resident._Kind.FAILED] * 2
        assert b"no loss" in measured[1]


@pytest.mark.slow
def test_a_process_of_its_own_that_only_its_user_can_reach(tmp_path):
    folder = resident.start()
    try:
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert resident.is_there(folder)
        assert resident.exchange(folder, member(tmp_path), [], App(), print) == []
        resident.exchange(folder, member(tmp_path), [], App(), print)
    finally:
        resident.end(folder)
    limit = time.monotonic() + 30.0
    while Path(folder).exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    resident._STARTED.pop().wait(30.0)


@pytest.mark.slow
def test_why_a_resident_ends_is_said(tmp_path):
    said = []
    folder = resident.start()
    lost = Member(ClientId(3), bytes(32), "", "", str(tmp_path / "no" / "ledger"), RoundPolicy())
    with pytest.raises(RuntimeError, match="the node's log says why"):
        resident.exchange(folder, lost, [], App(), said.append)
    assert "cannot take part: the ledger" in said[0]
    resident._STARTED.pop().wait(30.0)
