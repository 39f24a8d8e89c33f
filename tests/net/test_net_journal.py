"""A server that is killed goes on with its round, in the same session."""

import sqlite3
import threading
import time
from dataclasses import replace
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from federations import Federation, play_killed, settings, wired
from records import change as record_change
from records import events_of, note, rows_of, said_of, write_rows

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.randomness import system_randomness
from deltafl.sim.errors import RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.net.frames import TASK_SIZE, Reason
from deltafl.sim.net.post import Answer
from deltafl.sim.net.trips import TRAINS, Journal, Waiting
from deltafl.sim.record.chain import Chain
from deltafl.sim.record.record import read_measured, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import INTERRUPTED, TranscriptWriter
from deltafl.sim.run.engine import Stop
from deltafl.sim.run.simulated import first_model, spec_of

SMALL = {
    "data": {"num_devices": 8, "split": "samples"},
    "federation": {"rounds": 2, "cohort_size": 8, "evaluate_every": 2},
    "privacy": {"min_cohort": 5, "expected_dropout": 0.1},
    "quantile": {"max_queries": 4},
}
ABOUT = {
    "round_index": 3,
    "cohort": [1, 5, 9],
    "level": TRAINS,
    "listed": "ab cd",
    "program": "1.0",
}


def fleet(algorithm="private-fedavg", *more):
    """Two rounds, each of all devices that there are: none may be lost."""
    config = settings(algorithm, SMALL, *more)
    return Federation(config, waiting=Waiting(60.0, 30.0))


def found(path):
    return {(f.rule, f.detail) for f in audit(path).findings if f.severity >= Severity.MEDIUM}


def aborted(path):
    return [event.get("aborted") for event in events_of(path)]


def measured(path):
    with RunDirectory(path).read() as record:
        return list(read_measured(record))


def ends_with(record):
    """What the last row notes, if it is none of a message or a sum."""
    last = "SELECT what FROM rounds WHERE number = ?"
    return record.db.execute(last, (record.chain.mark.num_frames - 1,)).fetchone()


class Everywhere:
    """Dies at each end of a trip and once within it; before and after what is there is kept."""

    def __init__(self):
        self.died = set()

    def __call__(self, record):
        number = record.chain.mark.num_frames
        moment = record.path.name, number, record.text("round")
        if moment in self.died or (ends_with(record) is None and number % 9 != 4):
            return None
        self.died.add(moment)
        return ("before", "after")[len(self.died) % 2]


def once(trip, answers, moment="after"):
    """Dies when so many have answered in a trip of the first round, which eight devices are in."""
    left = [True]
    row = 2 + 17 * trip + 8 + answers  # after opening, begin, and the trips before

    def dies(record):
        is_it = record.path.name == "record.sqlite" and record.chain.mark.num_frames == row
        if not (left and is_it):
            return None
        left.clear()
        return moment

    return dies


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["private-fedavg", "private-delta-fl"])
def test_a_server_that_is_killed_everywhere_comes_to_the_same_model(
    tmp_path, monkeypatch, algorithm
):
    """Before and after each row that ends a trip is kept, and in the middle of trips."""
    untouched, killed = tmp_path / "untouched", tmp_path / "killed"
    federation = fleet(algorithm)
    with wired(federation):
        expected = federation.play(untouched)
    federation = fleet(algorithm)
    state, kills = play_killed(federation, killed, monkeypatch, Everywhere())
    assert kills > 40
    assert state.model.tobytes() == expected.model.tobytes()
    assert measured(killed) == measured(untouched)
    assert aborted(killed) == [None, None]
    assert found(killed) == found(untouched)
    assert not federation.declined


@pytest.mark.slow
@pytest.mark.parametrize("trip", [1, 3])  # where keys, and where masked vectors are due
def test_a_device_that_is_gone_when_the_server_is_back_is_lost_as_any(tmp_path, monkeypatch, trip):
    federation = fleet()

    def started_again():
        federation.sides[7] = federation.started(7)

    play_killed(federation, tmp_path, monkeypatch, once(trip, 6), started_again)
    assert federation.declined == [(7, Reason.UNKNOWN)]
    assert aborted(tmp_path) == [None, None]
    assert not found(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_last_answer_may_be_missing(tmp_path, monkeypatch, moment):
    """What it had of the trip that was open is asked for again, and comes again."""
    federation = fleet()
    play_killed(federation, tmp_path / "run", monkeypatch, once(1, 6, moment))
    assert aborted(tmp_path / "run") == [None, None]
    assert not federation.declined
    assert not found(tmp_path / "run")
    assert federation.warned == ["round 1 goes on where it was"]


@pytest.mark.parametrize("change", ["missing", "other", "listed"])
def test_a_round_that_cannot_be_gone_on_with_is_given_up(tmp_path, monkeypatch, change):
    """Of the whole fleet: nobody is left who has not answered for the model."""
    federation = fleet()

    def changed():
        if change == "missing":
            note(tmp_path / "run", "round", None)
        elif change == "other":
            note(tmp_path / "run", "round", {**said_of(tmp_path / "run", "round"), "program": "0"})
        else:
            keys = {**federation.trusted.keys, ClientId(7): bytes(32)}
            site = replace(federation.site, devices=TrustedKeys(keys))
            federation.site = site

    with pytest.raises(RunError, match="may have answered"):
        play_killed(federation, tmp_path / "run", monkeypatch, once(4, 4), changed)
    assert aborted(tmp_path / "run") == [INTERRUPTED]
    (said,) = federation.warned
    assert said.startswith("round 1 is given up: ")


@pytest.mark.slow
def test_a_server_sends_nothing_else_than_is_recorded(tmp_path, monkeypatch):
    """Here what a device had sent is something else, under a chain that is right."""
    federation = fleet()

    def changed():
        rows = rows_of(tmp_path / "run" / "record.sqlite")
        received = next(r for r in rows if r[0] == "messages" and not r[2]["sent"])
        received[2] |= {"sha256": sha256(b"other").digest(), "size": 5}
        write_rows(tmp_path / "run" / "record.sqlite", rows)
        body = "UPDATE bodies SET data = ? WHERE number = ?"
        record_change(tmp_path / "run", (body, (b"other", received[1])))

    with pytest.raises(RunError, match=r"to give the round up, delete what the record says of it"):
        play_killed(federation, tmp_path / "run", monkeypatch, once(1, 6), changed)
    note(tmp_path / "run", "round", None)
    federation.begin_server()
    with wired(federation), pytest.raises(RunError, match="may have answered"):
        federation.play(tmp_path / "run")
    assert aborted(tmp_path / "run") == [INTERRUPTED]


def test_a_full_disk_loses_no_round_once_there_is_room(tmp_path, monkeypatch):
    federation, append = fleet(), Chain.append

    def full(chain, table, *fields, **more):
        if chain.path.name == "record.sqlite" and chain.mark.num_frames > 60:  # in the first round
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return append(chain, table, *fields, **more)

    with monkeypatch.context() as patched, wired(federation):
        patched.setattr(Chain, "append", full)
        with pytest.raises(OSError, match="disk is full"):
            federation.play(tmp_path)
    federation.begin_server()
    with wired(federation):
        federation.play(tmp_path)
    assert aborted(tmp_path) == [None, None]
    assert not federation.declined
    assert not found(tmp_path)


@pytest.fixture
def writer(tmp_path):
    with write_record(tmp_path / "record.sqlite") as record:
        yield TranscriptWriter(record, "sums", keeps_open=True)


def written(writer, about=ABOUT):
    """A round of two trips, the second of which is open."""
    journal = Journal(writer, about, system_randomness)
    mark = writer.record.chain.mark
    writer.begin_round(1, ABOUT["cohort"])
    for client, data, trip in ((1, b"a", 0), (5, b"b", 0), (9, b"late", 0), (1, b"c", 1)):
        journal.takes(Answer(ClientId(client), data, trip=trip))
        writer.message(sent=False, peer=client, data=data)
        journal.keep()
        if client == 5:
            writer.closed()
    return journal.task, mark


def test_another_process_gets_what_the_first_received(writer):
    task, mark = written(writer)
    for _ in range(2):
        journal = Journal(writer, ABOUT, lambda _size: pytest.fail("a name is there"), mark)
        assert (journal.task, journal.closed, journal.answered) == (task, 1, {1})
        assert [(a.client, a.data, a.trip) for a in journal.again()] == [(1, b"a", 0), (5, b"b", 0)]
        assert [a.data for a in journal.again()] == [b"late", b"c"]
        assert not list(journal.again())


@pytest.mark.parametrize(
    "other",
    [
        {"round_index": 4},
        {"cohort": [1, 5]},
        {"listed": "ab ce"},
        {"program": "1.1"},
        {"level": 0},
    ],
)
def test_another_round_is_not_gone_on_with(writer, other):
    task, mark = written(writer)
    assert Journal.task_in(writer.record, ABOUT) == task
    about = {**ABOUT, **other}
    assert Journal.task_in(writer.record, about) is None
    journal = Journal(writer, about, system_randomness, mark)
    assert journal.task != task
    assert not list(journal.again())
    assert Journal.task_in(writer.record, about) == journal.task


@pytest.mark.parametrize("task", [None, 7, "no hex", ["00" * TASK_SIZE], "00"])
def test_a_task_that_has_no_name_is_not_gone_on_with(writer, task):
    writer.record.note("round", {**ABOUT, "task": task})
    assert Journal.task_in(writer.record, ABOUT) is None


def test_where_nothing_is_kept_nothing_is_written():
    journal = Journal(None, ABOUT, system_randomness)
    journal.takes(Answer(ClientId(5), b"answer", trip=0))
    journal.keep()
    assert not list(journal.again())
    assert len(journal.task) == TASK_SIZE


def test_a_server_that_is_told_to_stop_ends_its_round_and_no_other_begins(tmp_path):
    federation = fleet()
    with wired(federation):
        expected = federation.play(tmp_path / "untouched")
    federation = fleet()
    trains = []

    def stage(server, _asked):
        if server.awaits_updates and not federation.post._task.measures:
            trains.append(server)
            federation.site.stop.set()

    object.__setattr__(federation.site, "stage", stage)
    with wired(federation), pytest.raises(Stop):
        federation.play(tmp_path / "run")
    assert aborted(tmp_path / "run") == [None]
    assert len(trains) == 1
    federation.begin_server()
    with wired(federation):
        state = federation.play(tmp_path / "run")
    assert state.model.tobytes() == expected.model.tobytes()
    assert not federation.declined
    assert not found(tmp_path / "run")


def test_a_server_that_waits_for_devices_stops_soon(tmp_path):
    federation = fleet()
    object.__setattr__(federation.site, "patience", 60.0)
    timer = threading.Timer(0.05, federation.site.stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Stop):
        federation.play(tmp_path)
    assert time.monotonic() - began < 30
    timer.join()


def test_who_has_answered_for_a_model_says_that_it_was_repeated(tmp_path):
    """As in a second run of the same devices, from the same first model."""
    federation = fleet()
    with wired(federation):
        federation.play(tmp_path / "first")
    federation.begin_server()
    other = replace(federation.config.privacy, update_clip=1.0)  # else, it may be a lost round
    federation.config = replace(federation.config, privacy=other)
    with wired(federation), pytest.raises(RunError, match="gave up after round") as refused:
        federation.play(tmp_path / "second")
    assert set(federation.declined) == {(client, Reason.REPEATED) for client in range(8)}
    assert "faults.dropout" not in str(refused.value)
    assert "--most-wait" in str(refused.value)


def test_a_fleet_takes_part_in_one_experiment_after_the_other(tmp_path):
    federation, models = fleet(), []
    same = replace(federation.config.experiment, nonce="")
    federation.config = replace(federation.config, experiment=same)
    for number in range(3):
        federation.begin_server()
        with wired(federation):
            federation.play(tmp_path / str(number))
        assert aborted(tmp_path / str(number)) == [None, None]
        config = RunDirectory(tmp_path / str(number)).config()
        models.append(first_model(config, spec_of(config, federation.dataset)))
    assert not federation.declined
    shares = [np.abs(one - other).mean() for one, other in combinations(models, 2)]
    assert min(shares) > np.abs(models[0]).mean() / 2  # nothing that is nearly the same
