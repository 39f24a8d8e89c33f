"""A server that is killed goes on with its round, in the same session."""

import errno
import os
import threading
import time
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from federations import Federation, play_killed, settings, wired
from records import events_of

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.randomness import system_randomness
from deltafl.sim.errors import RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.net.frames import TASK_SIZE, Reason
from deltafl.sim.net.post import Answer
from deltafl.sim.net.trips import ROUND, TRAINS, About, Journal, Waiting, is_kept
from deltafl.sim.record.chain import ChainWriter, read_chain
from deltafl.sim.record.rundir import read_json
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.engine import Stop
from deltafl.sim.run.simulated import first_model, spec_of
from deltafl.sim.settings.config_io import build_config, read_config_file

SMALL = {
    "data": {"num_devices": 8, "split": "samples"},
    "federation": {"rounds": 2, "cohort_size": 8, "evaluate_every": 2},
    "privacy": {"min_cohort": 5, "expected_dropout": 0.1},
    "quantile": {"max_queries": 4},
}
OPENING, ANSWER, CLOSED = range(3)
ABOUT = About(3, (1, 5, 9), "ab cd", "1.0")


def fleet(algorithm="private-fedavg", *more):
    """Two rounds, each of all devices that there are: none may be lost."""
    config = settings(algorithm, SMALL, *more)
    return Federation(config, waiting=Waiting(60.0, 30.0))


def found(path):
    return {(f.rule, f.detail) for f in audit(path).findings if f.severity >= Severity.MEDIUM}


def aborted(path):
    return [event.get("aborted") for event in events_of(path)]


def measured(path):
    return [read_json(one) for one in sorted((path / "measured").glob("*.json"))]


class Everywhere:
    """Dies at each end of a trip and once within it; torn records alternate with whole ones."""

    def __init__(self):
        self.died, self.about = set(), None

    def __call__(self, writer, kind, fields):
        name, number = writer._path.name, writer.num_frames - 1
        if name == "round.bin" and kind == OPENING:
            self.about = fields[:2]
        every = 9 if name == "round.bin" else 16
        moment = name, self.about, number
        if moment in self.died or (kind == ANSWER and number % every != 4):
            return None
        self.died.add(moment)
        return (0, 5, 10**6)[len(self.died) % 3]


def once(number, missing=0):
    """Dies with a record of the journal of the first round: 9 t + 9 is the end of trip t."""
    left = [True]
    trains = [False]

    def dies(writer, kind, fields):
        if writer._path.name != "round.bin":
            return None
        if kind == OPENING:
            trains[0] = fields[1] == TRAINS
        if not (left and trains[0] and writer.num_frames - 1 == number):
            return None
        left.clear()
        return missing

    return dies


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["private-fedavg", "private-delta-fl"])
def test_a_server_that_is_killed_everywhere_comes_to_the_same_model(
    tmp_path, monkeypatch, algorithm
):
    """Before and after each record that ends a trip, and in the middle of records and of trips."""
    untouched, killed = tmp_path / "untouched", tmp_path / "killed"
    federation = fleet(algorithm)
    with wired(federation):
        expected = federation.play(untouched)
    federation = fleet(algorithm)
    state, kills = play_killed(federation, killed, monkeypatch, Everywhere())
    assert kills > 60
    assert state.model.tobytes() == expected.model.tobytes()
    assert measured(killed) == measured(untouched)
    assert aborted(killed) == [None, None]
    assert found(killed) == found(untouched)
    assert not federation.declined
    assert not (killed / "round.bin").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [15, 33])  # where keys, and where masked vectors are due
def test_a_device_that_is_gone_when_the_server_is_back_is_lost_as_any(
    tmp_path, monkeypatch, number
):
    federation = fleet()

    def started_again():
        federation.sides[7] = federation.started(7)

    play_killed(federation, tmp_path, monkeypatch, once(number), started_again)
    assert federation.declined == [(7, Reason.UNKNOWN)]
    assert aborted(tmp_path) == [None, None]
    assert not found(tmp_path)


def torn(path):
    path.write_bytes(path.read_bytes()[:-3])


def never_written(path):
    """As a power cut leaves it."""
    path.write_bytes(path.read_bytes() + bytes(500))


@pytest.mark.slow
@pytest.mark.parametrize("left", [torn, never_written])
def test_the_end_of_a_journal_may_be_missing(tmp_path, monkeypatch, left):
    """What it had of the trip that was open is asked for again, and comes again."""
    federation, path = fleet(), tmp_path / "run" / "round.bin"
    play_killed(federation, tmp_path / "run", monkeypatch, once(15), lambda: left(path))
    assert aborted(tmp_path / "run") == [None, None]
    assert not federation.declined
    assert not found(tmp_path / "run")
    assert federation.warned == ["round 1 goes on where it was"]


def edited(path):
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", ["missing", "damaged", "listed"])
def test_a_round_that_cannot_be_gone_on_with_is_given_up(tmp_path, monkeypatch, change):
    """Of the whole fleet: nobody is left who has not answered for the model."""
    federation, path = fleet(), tmp_path / "run" / "round.bin"

    def changed():
        if change == "missing":
            path.unlink()
        elif change == "damaged":
            edited(path)
        else:
            keys = {**federation.trusted.keys, ClientId(7): bytes(32)}
            site = replace(federation.site, devices=TrustedKeys(keys))
            federation.site = site

    with pytest.raises(RunError, match="may have answered"):
        play_killed(federation, tmp_path / "run", monkeypatch, once(40), changed)
    assert aborted(tmp_path / "run") == [INTERRUPTED]
    (said,) = federation.warned
    assert said.startswith("round 1 is given up: ")
    assert not path.exists()


@pytest.mark.slow
def test_a_server_sends_nothing_else_than_is_recorded(tmp_path, monkeypatch):
    """Here the journal of the round is another one, and in itself whole."""
    federation, path = fleet(), tmp_path / "run" / "round.bin"

    def changed():
        links = list(read_chain(path, ROUND))
        with ChainWriter(path, ROUND, ROUND.start) as writer:
            for link in links:
                swapped = link.fields if link.kind != ANSWER else [*link.fields[:2], b"other"]
                writer.append(link.kind, *(swapped if link.number == 3 else link.fields))

    with pytest.raises(RunError, match=r"to give the round up, remove .*round\.bin"):
        play_killed(federation, tmp_path / "run", monkeypatch, once(15), changed)
    path.unlink()
    federation.begin_server()
    with wired(federation), pytest.raises(RunError, match="may have answered"):
        federation.play(tmp_path / "run")
    assert aborted(tmp_path / "run") == [INTERRUPTED]


def test_a_full_disk_loses_no_round_once_there_is_room(tmp_path, monkeypatch):
    federation, append = fleet(), ChainWriter.append

    def full(writer, kind, *fields):
        if writer._path.name == "record.sqlite" and writer.num_frames > 60:  # in the first round
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(writer, kind, *fields)

    with monkeypatch.context() as patched, wired(federation):
        patched.setattr(ChainWriter, "append", full)
        with pytest.raises(OSError, match="No space left"):
            federation.play(tmp_path)
    federation.begin_server()
    with wired(federation):
        federation.play(tmp_path)
    assert aborted(tmp_path) == [None, None]
    assert not federation.declined
    assert not found(tmp_path)


def test_a_trip_is_on_the_disk_before_anything_follows_from_it(tmp_path, monkeypatch):
    path, synced = tmp_path / "round.bin", []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    journal = Journal(path, ABOUT, system_randomness)
    assert synced[-1] == path.stat().st_size
    journal.received(Answer(ClientId(5), b"answer", trip=0))
    assert synced[-1] < path.stat().st_size  # soon enough when the trip ends
    journal.close_trip(0)
    assert synced[-1] == path.stat().st_size
    journal.close()


def written(path):
    """A journal of two trips, the second of which is open."""
    journal = Journal(path, ABOUT, system_randomness)
    for client, data, trip in ((1, b"a", 0), (5, b"b", 0), (9, b"late", 0), (1, b"c", 1)):
        journal.received(Answer(ClientId(client), data, trip=trip))
        if client == 5:
            journal.close_trip(0)
    journal.close()
    return journal.task


def test_another_process_gets_what_the_first_received(tmp_path):
    path = tmp_path / "round.bin"
    task = written(path)
    for _ in range(2):
        journal = Journal(path, ABOUT, lambda _size: pytest.fail("a name is there"))
        assert (journal.task, journal.closed, journal.answered) == (task, 1, {1})
        assert [(a.client, a.data, a.trip) for a in journal.again()] == [(1, b"a", 0), (5, b"b", 0)]
        assert [a.data for a in journal.again()] == [b"late", b"c"]
        assert not list(journal.again())
        journal.close()


def test_a_journal_may_be_cut_off_anywhere(tmp_path):
    """As by the end of its process before it wrote anything."""
    path = tmp_path / "round.bin"
    task = written(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        kept = is_kept(path, ABOUT)
        journal = Journal(path, ABOUT, system_randomness)
        assert kept == (journal.task == task)
        journal.close()
    assert kept


@pytest.mark.parametrize(
    "other",
    [
        {"round_index": 4},
        {"cohort": (1, 5)},
        {"listed": "ab ce"},
        {"program": "1.1"},
        {"level": 0},
    ],
)
def test_the_journal_of_another_round_is_replaced(tmp_path, other):
    path = tmp_path / "round.bin"
    task = written(path)
    assert is_kept(path, ABOUT)
    about = replace(ABOUT, **other)
    assert not is_kept(path, about)
    journal = Journal(path, about, system_randomness)
    assert journal.task != task
    assert not list(journal.again())
    journal.close()
    assert is_kept(path, about)


@pytest.mark.parametrize(
    "record",
    [
        (CLOSED, 0),
        (CLOSED, 2),
        (CLOSED,),
        (ANSWER, 1, 1),
        (ANSWER, 1, 1, "text"),
        (ANSWER, True, 1, b"data"),
        (ANSWER, 2, 1, b"of nobody"),
        (OPENING, *ABOUT.fields, bytes(TASK_SIZE)),
        (3, 1),
    ],
)
def test_a_journal_with_a_record_that_is_none_is_not_gone_on_with(tmp_path, record):
    path = tmp_path / "round.bin"
    written(path)
    *_, last = read_chain(path, ROUND)
    with ChainWriter(path, ROUND, last.mark) as writer:
        writer.append(*record)
    assert not is_kept(path, ABOUT)


@pytest.mark.parametrize(
    "task", [[], [b"short"], [bytes(TASK_SIZE), b"more"], ["a text of 16 b."]], ids=str
)
def test_a_journal_that_does_not_begin_as_one_is_not_gone_on_with(tmp_path, task):
    path = tmp_path / "round.bin"
    with ChainWriter(path, ROUND, ROUND.start) as writer:
        writer.append(OPENING, *ABOUT.fields, *task)
    assert not is_kept(path, ABOUT)


def test_where_nothing_is_kept_nothing_is_written(tmp_path):
    journal = Journal(None, ABOUT, system_randomness)
    journal.received(Answer(ClientId(5), b"answer", trip=0))
    journal.close_trip(0)
    assert not list(journal.again())
    journal.close()
    assert len(journal.task) == TASK_SIZE
    assert not is_kept(tmp_path / "round.bin", ABOUT)


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
        config = build_config([read_config_file(tmp_path / str(number) / "config.toml")])
        models.append(first_model(config, spec_of(config, federation.dataset)))
    assert not federation.declined
    shares = [np.abs(one - other).mean() for one, other in combinations(models, 2)]
    assert min(shares) > np.abs(models[0]).mean() / 2  # nothing that is nearly the same
