"""A device over connections that break, servers that repeat themselves, and its own restarts."""

import sqlite3
from collections import Counter, deque
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from federations import Federation, settings, simulate, wired
from hypothesis import given
from hypothesis import strategies as st
from records import events_of

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.protocol.participations import limits_of
from deltafl.secagg import ClientId
from deltafl.secagg.errors import LedgerError
from deltafl.secagg.ledger import SqliteLedger
from deltafl.secagg.wire import Kind
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.backends.in_process import InProcess
from deltafl.sim.cohort.sampling import drawn_of, others
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.net import device, own_work, trips
from deltafl.sim.net.device import Notes
from deltafl.sim.net.frames import (
    Carry,
    Challenge,
    Decline,
    Over,
    Reason,
    Task,
    Welcome,
    decode,
    encode,
)
from deltafl.sim.net.own_work import OwnData, within, work_on
from deltafl.sim.record.transcript import Begin, Message, read_transcript
from deltafl.sim.run.algorithms import policy_of
from deltafl.sim.run.simulated import spec_of, training_in
from deltafl.sim.settings.config_io import to_toml

TASK = b"t" * 16


@pytest.fixture
def federation():
    return Federation(settings())


def messages(path, kind):
    """How often each device sent such a message in each session, by what the server saw."""
    joined, decoder, last = Counter(), Decoder(), 0
    for record in read_transcript(path / "record.sqlite"):
        if isinstance(record, Message):
            if record.round != last:
                decoder, last = Decoder(), record.round
            content = decoder.decode(record).content
            if not record.sent and content.kind is kind:
                joined[record.peer, content.tag] += 1
    return joined


def clean(path):
    return not [f for f in audit(path).findings if f.severity >= Severity.MEDIUM]


@pytest.mark.slow
def test_every_frame_twice_and_in_any_order_changes_nothing(tmp_path, federation):
    held = {}

    def doubled(index, frame):
        earlier = held.get(index)
        held[index] = frame
        return [frame, frame] if earlier is None else [frame, earlier, frame]

    with wired(federation, doubled):
        state = federation.play(tmp_path / "net")
    expected = simulate(federation.config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()
    assert clean(tmp_path / "net")


@pytest.mark.slow
def test_connections_that_break_in_every_round_change_nothing(tmp_path, federation):
    count = Counter()

    def broken(index, frame):
        count[index] += 1
        if index % 3 == 0 and count[index] % 4 == 0:  # the frame is lost with the connection
            federation.wires.connect(index)
            return []
        return [frame]

    with wired(federation, broken) as federation.wires:
        state = federation.play(tmp_path / "net")
    expected = simulate(federation.config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()
    assert not federation.declined
    assert clean(tmp_path / "net")


@pytest.mark.slow
@pytest.mark.parametrize("trip", range(5))
def test_a_device_that_was_started_again_joins_the_next_round(tmp_path, trip):
    federation, restarted = Federation(settings("private-delta-fl")), []

    def killed(index, frame):
        carried = decode(frame)
        is_it = isinstance(carried, Carry) and carried.trip == trip
        if is_it and not restarted:
            restarted.append(index)
            federation.sides[index].receive(frame)  # its answer is lost
            federation.sides[index] = federation.started(index)
            federation.wires.connect(index)
            return []
        return [frame]

    with wired(federation, killed) as federation.wires:
        federation.play(tmp_path / "net")
    (victim,) = restarted
    if trip:
        assert federation.declined == [(victim, Reason.UNKNOWN)]
    else:  # nobody has seen anything of it, and it has answered nothing
        assert not federation.declined
    assert max(messages(tmp_path / "net", Kind.ADVERTISE).values()) == 1
    assert clean(tmp_path / "net")


@pytest.mark.slow
def test_a_server_that_was_started_again_asks_nothing_twice(tmp_path, federation):
    """In the middle of the second round, all that is left of the server is its directory."""

    class Killed(BaseException):
        pass

    trips = 0

    def dying(server, _asked):
        nonlocal trips
        trips += 1
        if trips == 12:
            raise Killed

    original, federation.site = federation.site, federation.site
    object.__setattr__(federation.site, "stage", dying)
    with wired(federation), pytest.raises(Killed):
        federation.play(tmp_path / "net")
    federation.begin_server()
    with wired(federation):
        state = federation.play(tmp_path / "net")
    assert state.round == 3
    assert max(messages(tmp_path / "net", Kind.ADVERTISE).values()) == 1
    assert clean(tmp_path / "net")
    assert original is not federation.site


@pytest.mark.slow
def test_a_device_whose_ledger_cannot_be_written_takes_no_part(tmp_path, federation):
    class Full:
        def knows(self, _):
            return False

        def admit(self, _):
            raise LedgerError("the disk is full")

    first = Seeds(1).generator(Purpose.COHORT, round_index=0)
    victim, *_ = drawn_of(first, others(30), 10)
    federation.ledgers[victim] = Full()
    federation.sides[victim] = federation.started(victim)
    with wired(federation):
        federation.play(tmp_path / "net")
    assert set(federation.declined) == {(victim, Reason.LEDGER)}
    assert all("the disk is full" in detail for _, _, detail in federation.said)
    masked = messages(tmp_path / "net", Kind.MASKED)
    assert masked
    assert not {key for key in masked if key[0] == victim}


@pytest.mark.slow
@pytest.mark.parametrize("today", [7, 8])
def test_a_device_counts_the_rounds_of_a_day_and_says_when_they_are_many(
    tmp_path, federation, today
):
    """All rounds of day 7 were answered before; day 8 is another day."""
    victim, *_ = drawn_of(Seeds(1).generator(Purpose.COHORT, round_index=0), others(30), 10)
    side, told = federation.sides[victim], []
    side.policy = replace(side.policy, max_rounds_per_day=10)
    side.today, side.notes = (
        lambda: today,
        replace(side.notes, near=lambda *near: told.append(near)),
    )
    (before,), (now,) = (limits_of(side.policy, day) for day in (7, today))
    assert side.ledger.admit([before.entry(number) for number in range(10)])
    with wired(federation):
        federation.play(tmp_path / "net")
    if today == 7:
        assert set(federation.declined) == {(victim, Reason.REFUSED)}
        assert all("exceed the policy.max_rounds_per_day = 10" in one[2] for one in federation.said)
        assert set(told) == {("max_rounds_per_day", 10)}
    else:
        assert not federation.declined + told
        assert 1 <= now.counted(side.ledger) <= 3


def test_a_device_whose_ledger_cannot_be_read_declines(federation):
    class Unreadable:
        def knows(self, _):
            raise LedgerError("the disk is gone")

    side = federation.sides[0]
    side.ledger = Unreadable()
    told = decode(side.receive(task(to_toml(federation.config).encode())))
    assert told == Decline(TASK, Reason.LEDGER)
    assert federation.said == [(0, Reason.LEDGER, "the disk is gone")]


def test_a_day_is_one_of_utc_and_never_before_1970(monkeypatch):
    for now, day in ((0.0, 0), (86399.9, 0), (86400.0, 1), (-1.0, 0), (1795651200.0, 20783)):
        monkeypatch.setattr(device.time, "time", lambda now=now: now)
        assert device.today() == day


@pytest.mark.slow
def test_a_round_below_the_devices_policy_is_refused(tmp_path):
    federation = Federation(settings())
    more = {"privacy": {"min_cohort": 11}, "federation": {"cohort_size": 11}}
    federation.policy = policy_of(settings("private-delta-fl", more))
    federation.sides = [federation.started(i) for i in range(len(federation.sides))]
    with wired(federation), pytest.raises(RunError, match="3 rounds in a row were lost"):
        federation.play(tmp_path / "net")
    assert len(federation.declined) == 30
    assert {reason for _, reason in federation.declined} == {Reason.REFUSED}
    assert all("min_cohort" in detail for _, _, detail in federation.said)


def task(settings_text, index=0, unit=0):
    return encode(Task(TASK, index, unit, settings_text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"\xff", "UTF-8"),
        (b"x", "not valid TOML"),
        (b"[training]\nepochs = 0\n", "training.epochs"),
        (b"[federation]\nalgorithm = 'fedavg'\n", "must be a private one"),
    ],
)
def test_settings_that_a_device_cannot_train_by_are_declined(federation, text, complaint):
    device = federation.started(0)
    assert decode(device.receive(task(text))) == Decline(TASK, Reason.SETTINGS)
    assert complaint in federation.said[-1][2]
    # and it stays so, whatever comes
    again = device.receive(encode(Carry(TASK, 0, b"")))
    assert decode(again) == Decline(TASK, Reason.SETTINGS)


def test_every_device_of_a_cohort_trains_even_if_it_does_not_pass(
    tmp_path, federation, monkeypatch
):
    trained = Counter()

    class Counting(Learner):
        def updates(self, vector, devices, *args, **options):
            trained.update(device.id for device in devices)
            return super().updates(vector, devices, *args, **options)

    def counting(name, spec, device):
        return InProcess(name, Counting(spec.build(), device=device))

    monkeypatch.setattr(own_work, "open_in_process", counting)
    with wired(federation):
        federation.play(tmp_path / "net")
    asked = [
        record.cohort
        for record in read_transcript(tmp_path / "net" / "record.sqlite")
        if isinstance(record, Begin)
    ]
    ids = [federation.dataset.train[index].id for cohort in asked for index in cohort]
    assert trained == Counter(ids)
    kept = [event["kept_devices"] for event in events_of(tmp_path / "net")]
    assert sum(kept) < len(ids)


def limited(max_steps):
    """Devices that take so many steps in a round; their samples are fewer than 64 each."""
    made = Federation(settings("private-delta-fl", {"training": {"batch_size": 1, "epochs": 3}}))
    shapes = spec_of(made.config, made.dataset)
    for index, side in enumerate(made.sides):
        data = OwnData(made.dataset.train[index], shapes, max_steps)
        side.work_of = work_on(data, side.own.client)
    return made


@pytest.mark.slow
def test_a_device_trains_no_longer_than_it_will_and_nobody_is_told(tmp_path):
    """Who declined would tell the server how many samples it has."""
    long, short = limited(10**6), limited(1)
    for name, federation in {"long": long, "short": short}.items():
        with wired(federation):
            federation.last = federation.play(tmp_path / name).model
        assert not federation.declined
        assert not federation.said
    first = Federation(settings("private-delta-fl", {"training": {"batch_size": 64}}))
    with wired(first):
        whole = first.play(tmp_path / "whole").model
    assert short.last.tobytes() == whole.tobytes()  # one step of all samples
    assert long.last.tobytes() != whole.tobytes()


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 10**6))
def test_training_stays_within_the_steps(samples, batch, epochs, most):
    asked = LocalTraining(0.1, batch, epochs)
    kept = within(asked, samples, most)
    assert kept.epochs * -(-samples // kept.batch_size) <= most
    assert (kept.learning_rate, kept.l2) == (asked.learning_rate, asked.l2)
    if epochs * -(-samples // batch) <= most:
        assert kept == asked


@pytest.mark.parametrize(("asked", "kept"), [(0, 0), (7, 7), (900, 10)])
def test_a_number_of_steps_stays_within_the_steps(asked, kept):
    training = LocalTraining(0.1, 16, steps=asked)
    assert within(training, num_samples=100, max_steps=10).steps == kept


OTHERWISE = {
    "settings": {"settings": b"[training]\nepochs = 7\n"},
    "data": {"settings": b'[data]\nclasses = ["yes", "no"]\n'},
    "unit": {"unit": -20},
    "round": {"round_index": 9},
    "measuring": {"measures": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERWISE)
def test_a_device_that_is_told_otherwise_than_the_others_takes_no_part(tmp_path, case):
    """The session's parameters say what all of them were told."""
    federation = Federation(settings("private-delta-fl"))
    told = []

    def one_otherwise(index, frame):
        said = decode(frame)
        if isinstance(said, Task) and not said.measures and told in ([], [index]):
            told[:] = [index]
            return [encode(replace(said, **OTHERWISE[case]))]
        return [frame]

    with wired(federation, one_otherwise):
        state = federation.play(tmp_path / "net")
    assert state.round == 3
    assert {client for client, _ in federation.declined} == set(told)
    assert {reason for _, reason in federation.declined} == {Reason.REFUSED}
    assert all("graph seed" in detail for _, _, detail in federation.said)
    assert clean(tmp_path / "net")


class ToldOtherwise:
    """A device whose server rewrites what passes, as if its session were that of another task."""

    def __init__(self, side, sessions):
        self.side, self.sessions, self.swaps = side, sessions, []

    def receive(self, frame):
        said = decode(frame)
        if isinstance(said, Task) and not said.measures:
            other = replace(said, settings=said.settings + b"\n# other data")
            true = self.sessions[said.graph_seed]
            false = replace(true, graph_seed=other.graph_seed)
            self.swaps = [(true.graph_seed, false.graph_seed), (true.tag, false.tag)]
            frame = encode(other)
        elif isinstance(said, Carry):
            frame = self.rewritten(said, self.swaps)
        reply = self.side.receive(frame)
        answer = reply and decode(reply)
        if isinstance(answer, Carry):
            return self.rewritten(answer, [(to, was) for was, to in self.swaps])
        return reply

    def rewritten(self, carry, swaps):
        data = carry.data
        for was, to in swaps:
            data = data.replace(was, to)
        return encode(replace(carry, data=data))

    def __getattr__(self, name):
        return getattr(self.side, name)


@pytest.mark.slow
def test_devices_that_are_told_of_other_data_come_to_no_common_sum(tmp_path, monkeypatch):
    """Nor if the server has each half believe that its own task is that of the session."""
    few = {"federation": {"rounds": 1, "evaluate_every": 1}}
    config = settings("private-delta-fl", few)
    federation, sessions, begun = Federation(config), {}, trips.RoundServer

    def noted(levels, models, params, *others, **options):
        sessions[params.graph_seed] = params
        return begun(levels, models, params, *others, **options)

    monkeypatch.setattr(trips, "RoundServer", noted)
    federation.sides[::2] = [ToldOtherwise(side, sessions) for side in federation.sides[::2]]
    with wired(federation), pytest.raises(RunError, match="gave up after round 1"):
        federation.play(tmp_path / "net")
    (event,) = events_of(tmp_path / "net")
    assert sum(number % 2 for number in event["cohort"]) == len(event["cohort"]) / 2
    assert event["secure_sums"] == 0
    assert not messages(tmp_path / "net", Kind.MASKED)


def test_all_that_a_task_says_is_bound_to_the_session():
    task = Task(TASK, 1, 2, b"text")
    others = [replace(task, **case) for case in OTHERWISE.values()]
    others.append(replace(task, task=b"u" * 16))
    assert len({one.graph_seed for one in (task, *others)}) == 1 + len(others)


def test_a_learning_rate_of_zero_is_declined(federation):
    device = federation.started(0)
    text = b"[training]\ndecay = 0.5\ndecay_every = 1\n[federation]\nrounds = 2\n"
    assert device.receive(task(text, index=1)) is None
    late = encode(Task(b"u" * 16, 1 << 50, 0, text))
    assert decode(device.receive(late)) == Decline(b"u" * 16, Reason.SETTINGS)


def test_envelopes_of_an_unknown_round_are_declined(federation):
    device = federation.started(0)
    assert decode(device.receive(encode(Carry(TASK, 0, b"")))) == Decline(TASK, Reason.UNKNOWN)
    device.receive(task(b""))
    assert decode(device.receive(encode(Carry(TASK, 1, b"")))) == Decline(TASK, Reason.UNKNOWN)


def test_an_envelope_that_is_none_ends_the_round(federation):
    device = federation.started(0)
    device.receive(task(b""))
    told = Decline(TASK, Reason.REFUSED, b"malformed")
    assert decode(device.receive(encode(Carry(TASK, 0, b"no")))) == told


@pytest.mark.slow
def test_a_trip_is_answered_once_whatever_comes_under_its_number(tmp_path, federation):
    """The same bytes again, not even a refusal."""
    seen = {}

    def tried(index, frame):
        carried = decode(frame)
        if isinstance(carried, Carry):
            side = federation.sides[index]
            first = side.receive(frame)
            if first is not None:
                other = encode(replace(carried, data=b"something else"))
                seen[index, carried.trip] = side.receive(other) == first
        return [frame]

    with wired(federation, tried):
        federation.play(tmp_path / "net")
    assert seen
    assert all(seen.values())
    assert not federation.declined


def test_steps_are_those_of_all_levels_together():
    changed = {"federation": {"levels": ["1", "1/2"]}, "training": {"batch_size": 1}}
    config = settings("private-delta-fl", changed)
    own = build_dataset(config.data).train[0]
    shapes = ModelSpec("linear", (8, 8), 10)
    task = Task(TASK, 0, 0, to_toml(config).encode())
    found = {}
    for most in (1, 4, 2 * own.num_samples):
        work = work_on(OwnData(own, shapes, most), ClientId(0))(task, None)
        found[most] = [work._devices(levels).training for levels in (1, 2)]
    assert found[2 * own.num_samples] == [training_in(config.training, 0)] * 2
    assert [one.batch_size for one in found[1]] == [own.num_samples] * 2
    halved = [-(-own.num_samples // steps) for steps in (4, 2)]
    assert [one.batch_size for one in found[4]] == halved


@pytest.mark.parametrize(("model", "kind"), [("linear", "float32"), ("gru", "int64")])
def test_whole_numbers_are_what_the_server_s_model_takes(model, kind):
    config = settings("private-delta-fl", {"model": {"name": model}})
    own = DeviceData("a", np.arange(12).reshape(4, 3), np.array([0, 1, 0, 1]))
    data = OwnData(own, ModelSpec("linear", (3,), 12), test=own)
    for measures in (False, True):
        task = Task(TASK, 0, 0, to_toml(config).encode(), measures=measures)
        work = work_on(data, ClientId(0))(task, None)
        held = work._samples if measures else work._devices(1).refs[ClientId(0)].data()
        assert (str(held.x.dtype), held.x.tolist()) == (kind, own.x.tolist())


def test_frames_of_no_meaning_to_a_device_are_ignored(federation):
    device = federation.started(0)
    for frame in (Challenge(bytes(32)), Decline(TASK, Reason.LEDGER), Over(TASK, 1)):
        assert device.receive(encode(frame)) is None


def test_a_device_knows_when_the_run_has_ended(federation):
    device = federation.started(0)
    device.receive(encode(Welcome(1, 3)))
    device.receive(encode(Over(TASK, 3)))
    assert not device.has_ended()  # the last model may be measured yet
    device.receive(encode(Welcome(3, 3, is_over=True)))
    assert device.has_ended()
    device.receive(encode(Welcome(0, 3)))
    assert not device.has_ended()


def test_a_server_that_does_not_begin_with_a_challenge_is_left(federation):
    with pytest.raises(ConfigError, match="began with a Welcome"):
        federation.started(0).hello(encode(Welcome(0, 1)), b"")


def test_a_device_tells_of_rounds_in_which_it_trains(federation):
    side, told = federation.sides[0], []
    side.notes = Notes(began=lambda number: told.append(number), over=told.append)
    text = to_toml(federation.config).encode()
    for task, measures in ((b"m" * 16, True), (TASK, False)):
        side.receive(encode(Task(task, 4, 0, text, measures=measures)))
        side.receive(encode(Over(task, 5)))
    assert told == [5, 5]  # rounds are counted from 1: the fifth begins and ends


@pytest.mark.slow
def test_a_device_goes_on_once_there_is_room_for_its_ledger(tmp_path):
    """On a full disk it answers nothing, says why, and loses nothing that it had written down."""
    few = {"data": {"num_devices": 8}, "federation": {"rounds": 5, "cohort_size": 4}}
    federation = Federation(settings("private-fedavg", few, {"privacy": {"min_cohort": 4}}))
    path, entries, full = tmp_path / "device.ledger", [], []
    with SqliteLedger(path) as ledger:
        federation.ledgers[2] = ledger
        side = federation.sides[2] = federation.started(2)

        def pages(number):
            ledger._connection.execute(f"PRAGMA max_page_count = {number}")

        def held():
            with sqlite3.connect(path) as other:
                return other.execute("SELECT entry FROM entries ORDER BY position").fetchall()

        def begins(number):
            entries.append(held())
            if number == 2:
                pages(1)  # no more than there are
                filled = (ledger.admit([one.to_bytes(32, "big")]) for one in range(1000))
                with pytest.raises(LedgerError):  # until there is no room for one more
                    deque(filled, maxlen=0)
                full.append(held())
            if number == 4:
                pages(1000)

        side.notes = replace(side.notes, began=begins)
        with wired(federation):
            assert federation.play(tmp_path / "net").round == 5
        entries.append(held())
    told = [detail for index, reason, detail in federation.said if reason is Reason.LEDGER]
    assert told
    assert all(
        "device.ledger cannot be used: database or disk is full; make room" in x for x in told
    )
    assert set(federation.declined) == {(2, Reason.LEDGER)}
    events = events_of(tmp_path / "net")
    assert [bool(event["aborted"]) for event in events] == [False, True, True, False, False]
    for before, after in pairwise(entries):
        assert after[: len(before)] == before
    assert full == [entries[2]] == [entries[3]]
    assert len(entries[5]) > len(entries[4]) > len(entries[3])
    assert clean(tmp_path / "net")
