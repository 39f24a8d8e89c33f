"""A node's process between messages: what passes, what it forgets, and when it ends."""

import os
import socket
import stat
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from multiprocessing import Pipe
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
TOLD = b"d" * 32


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
    return Member(ClientId(3), token, "", "", ledger, RoundPolicy(**policy), TOLD)


@contextmanager
def serving(folder, idle=60.0):
    """A resident in a thread of this process."""
    folder.chmod(0o700)
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
    task = encode(Task(TASK, 0, 0, to_toml(settings()).encode(), beside=TOLD))
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
    task = encode(Task(TASK, 0, 0, to_toml(settings()).encode(), beside=TOLD))
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
    lost = replace(member(tmp_path), ledger=str(tmp_path / "no" / "ledger"))
    with pytest.raises(RuntimeError, match="its log says why"):
        resident.exchange(folder, lost, [], App(), said.append)
    assert "cannot take part: the ledger" in said[0]
    assert resident.is_there(folder)
    resident.end(folder)
    resident._STARTED.pop().wait(30.0)


@pytest.mark.slow
def test_what_lies_in_the_current_folder_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    folder = resident.start()
    assert resident.is_there(folder)
    resident.end(folder)
    resident._STARTED.pop().wait(30.0)


def test_in_the_place_of_a_resident_nobody_else_is_talked_to(short):
    """Somebody else makes its folder once it is gone; here, one that others may enter."""
    with serving(short):
        assert resident.is_there(str(short))
        short.chmod(0o755)
        assert not resident.is_there(str(short))
        with pytest.raises(PermissionError, match="only this user"):
            resident.exchange(str(short), member(short), [], App(), print)
        short.chmod(0o700)


def test_a_folder_of_somebody_else_is_none(short, monkeypatch):
    with serving(short):
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            assert not resident.is_there(str(short))
        assert resident.is_there(str(short))


def test_who_says_nothing_does_not_stay(short, monkeypatch):
    monkeypatch.setattr(resident, "IDLE_S", 0.3)
    monkeypatch.setattr(resident, "_THERE_S", 0.05)
    with serving(short), resident._reached(str(short)):
        assert not resident.is_there(str(short))
        monkeypatch.setattr(resident, "_THERE_S", 20.0)
        assert resident.is_there(str(short))


def test_an_app_that_says_nothing_counts_as_one_that_failed(monkeypatch):
    monkeypatch.setattr(resident, "IDLE_S", 0.2)
    app = resident._AppElsewhere()
    mine, other = Pipe()
    app.connection = mine
    with mine, other, pytest.raises(EOFError):
        app.measure(np.zeros(3, np.float32))


def test_frames_that_are_none_end_the_round_and_not_the_resident(short):
    said = []
    with serving(short):
        with pytest.raises(RuntimeError, match="its log says why"):
            resident.exchange(str(short), member(short), [b"garbage"], App(), said.append)
        assert "cannot take part" in said[0]
        assert resident.exchange(str(short), member(short), [], App(), print) == []


def test_what_nobody_expects_is_said_too(short, monkeypatch):
    """A resident that ended by it would take its log with it."""
    said = []

    def broken(*_):
        raise RecursionError("too deep")

    with serving(short):
        with monkeypatch.context() as patch:
            patch.setattr(Member, "side", broken)
            with pytest.raises(RuntimeError, match="its log says why"):
                resident.exchange(str(short), member(short), [], App(), said.append)
        assert "cannot take part: RecursionError('too deep')" in said[0]
        assert resident.exchange(str(short), member(short), [], App(), print) == []


def test_a_resident_ends_with_the_run(short):
    with serving(short) as thread:
        over = encode(Welcome(3, 3, is_over=True))
        assert resident.exchange(str(short), member(short), [over], App(), print) == []
        thread.join(20.0)
        assert not thread.is_alive()


def test_what_the_session_is_not_about_is_declined(short):
    said = []
    task = encode(Task(TASK, 0, 0, to_toml(settings()).encode(), beside=b"x" * 32))
    with serving(short):
        (reply,) = resident.exchange(str(short), member(short), [task], App(), said.append)
    assert decode(reply) == Decline(TASK, Reason.SETTINGS)


def test_a_node_that_is_told_something_else_in_the_middle_is_another(short):
    task = encode(Task(TASK, 0, 0, to_toml(settings()).encode(), beside=TOLD))
    with serving(short):
        resident.exchange(str(short), member(short), [task], App(), print)
        other = replace(member(short), told=b"x" * 32)
        carry = encode(Carry(TASK, 0, b""))
        (reply,) = resident.exchange(str(short), other, [carry], App(), print)
    assert decode(reply).reason is Reason.UNKNOWN


def test_an_exception_that_cannot_be_said_is_one_all_the_same():
    class MuteError(Exception):
        def __repr__(self):
            raise RuntimeError

    class MuteApp:
        def measure(self, _model):
            raise MuteError

    assert resident._worked(MuteApp(), resident._Kind.MEASURE, b"")[1] == b"MuteError"


def test_where_no_socket_can_be_nothing_is_left(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(RuntimeError, match="set TMPDIR"):
        resident.start()
    assert list(long.iterdir()) == []
