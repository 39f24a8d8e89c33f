"""A run that is stopped goes on to the same bits: in clear anywhere, masked between two rounds."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from doubles import Killed, Silent, run
from records import change, checkpoint_of, note, rows_of, said_of
from resumed import kill_at_write, result

from deltafl.fl.strategies.base import TrainingState
from deltafl.protocol.round import LostSearch
from deltafl.secagg import ClientId
from deltafl.sim.errors import RunDirectoryError, RunError, UserError
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import (
    Checkpoint,
    LostRound,
    load_checkpoint,
    save_checkpoint,
)
from deltafl.sim.record.record import saved_rounds, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import Message, read_transcript, read_with_digests
from deltafl.sim.settings.config import ExperimentConfig
from deltafl.sim.settings.config_io import build_config, to_toml

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Results of uninterrupted runs, by configuration."""
    known = {}

    def of(config):
        if config not in known:
            path = tmp_path_factory.mktemp("reference") / "run"
            run(config, path)
            known[config] = result(path)
        return known[config]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "delta-fl"])
def test_the_same_settings_give_the_same_bits(algorithm, tiny, tmp_path, reference):
    config = replace(tiny, federation=replace(tiny.federation, algorithm=algorithm))
    run(config, tmp_path / "again")
    assert result(tmp_path / "again") == reference(config)
    other = replace(config, experiment=ExperimentConfig(seed=2))
    assert reference(other)["model"] != reference(config)["model"]


def test_cohorts_and_initial_weights_do_not_depend_on_the_algorithm(tiny, reference):
    clear = reference(tiny)
    plain = reference(replace(tiny, federation=replace(tiny.federation, algorithm="fedavg")))
    assert [e["cohort"] for e in clear["events"]] == [e["cohort"] for e in plain["events"]]
    assert clear["metrics"][0] == plain["metrics"][0]
    assert clear["model"] != plain["model"]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_it_goes_on_to_the_same_bits(
    after, tiny, tmp_path, monkeypatch, reference
):
    wanted = reference(tiny)
    number, died = 0, True
    while died:
        number += 1
        path = tmp_path / str(number)
        with monkeypatch.context() as patch:
            kill_at_write(patch, number, after=after)
            try:
                run(tiny, path)
                died = False
            except Killed:
                pass
        run(tiny, path, resume=True)
        assert result(path) == wanted, f"killed at write {number}"
    # settings, versions, opening; evaluation, checkpoint; four rounds, two evaluations; end
    assert number - 1 == 3 + 2 + 4 + 2 + 1


SUMS = (np.arange(5, dtype=np.uint32), np.arange(5, dtype=np.uint32) + 2**31)


@pytest.mark.parametrize(
    "searches",
    [
        (LostSearch(),),
        (LostSearch((ClientId(1), ClientId(9)), SUMS), LostSearch()),
        (LostSearch((ClientId(1),), (np.full(3, 2**64 - 1, np.uint64),)),),
    ],
)
def test_checkpoints_hold_a_lost_round_exactly(tmp_path, searches):
    state, lost = TrainingState(np.zeros(3, np.float32), 1), LostRound((1, 4, 9), 2, searches)
    with write_record(tmp_path / "record.sqlite") as record:
        save_checkpoint(record, Checkpoint(state, MARK, (frozenset({1}),), lost))
        loaded = load_checkpoint(record).lost
    assert (loaded.cohort, loaded.rounds) == ((1, 4, 9), 2)
    for read, written in zip(loaded.searches, searches, strict=True):
        assert read.devices == written.devices
        assert [one.tolist() for one in read.sums] == [one.tolist() for one in written.sums]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (LostRound((0, 1), 1, (LostSearch(), LostSearch())), "2 levels, and the settings 1"),
        (LostRound((0, 1), 1, (LostSearch((ClientId(2),), SUMS),)), "other devices"),
        (LostRound((0, 10**6), 1, (LostSearch(),)), "other devices"),
        (LostRound((1, 0), 1, (LostSearch(),)), "other devices"),
        (LostRound((0, 1), 1, (LostSearch((), SUMS),)), "sums over nobody"),
    ],
)
def test_a_lost_round_that_cannot_have_been_is_named(tiny, tmp_path, lost, said):
    path = tmp_path / "run"
    run(tiny, path)
    note(path, "summary", None)
    kept = checkpoint_of(path)
    with write_record(path / "record.sqlite") as record:
        save_checkpoint(record, replace(kept, lost=lost))
        record.keep()
    with pytest.raises(RunDirectoryError, match=said):
        run(tiny, path, resume=True)


def test_a_finished_run_is_only_read(tiny, tmp_path):
    first = run(tiny, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    assert run(tiny, tmp_path / "run", resume=True) == json.loads(json.dumps(first))
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}


@pytest.mark.slow
def test_arms_are_resumed_too(tiny, tmp_path):
    config = replace(tiny, experiment=ExperimentConfig(seed=3, num_seeds=2, baselines=("fedavg",)))

    class StopInThirdArm(Silent):
        def played(self, event):
            if self.arms == 3 and event["round"] == 2:
                raise Killed

        arms = 0

        def begin(self, *_):
            self.arms += 1

    whole = run(config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(config, tmp_path / "run", progress=StopInThirdArm())
    assert said_of(tmp_path / "run", "summary") is None
    resumed = run(config, tmp_path / "run", resume=True)
    assert resumed["seeds"] == whole["seeds"]
    for arm in (".", "arms/delta-fl-seed-4", "arms/fedavg-seed-3", "arms/fedavg-seed-4"):
        assert result(tmp_path / "run" / arm) == result(tmp_path / "whole" / arm)
    # an arm is a run directory of its own: its settings give the same model
    alone = RunDirectory(tmp_path / "whole/arms/fedavg-seed-4").config()
    run(alone, tmp_path / "alone")
    assert result(tmp_path / "alone") == result(tmp_path / "whole" / "arms/fedavg-seed-4")


def reached(out, number):
    try:
        checkpoint = checkpoint_of(out)
    except UserError:  # it is being made
        return False
    return checkpoint is not None and checkpoint.state.round >= number


@pytest.mark.slow
def test_sigkill_from_outside(tiny, tmp_path, reference):
    config = replace(tiny, federation=replace(tiny.federation, rounds=60, evaluate_every=20))
    (tmp_path / "tiny.toml").write_text(to_toml(config))
    out = tmp_path / "run"
    command = [sys.executable, "-m", "deltafl", "run", str(tmp_path / "tiny.toml"), f"--out={out}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(  # noqa: S603 (ourselves)
        command, env=environment, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 60
        while not (out / "record.sqlite").exists() or not reached(out, 3):
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert said_of(out, "summary") is None
    assert 3 <= checkpoint_of(out).state.round < 60
    run(config, out, resume=True)
    assert result(out) == reference(config)


MARK = Mark(67, bytes(range(32)))


def test_checkpoints_hold_the_state_exactly(tmp_path):
    model = np.random.default_rng(0).normal(size=100).astype(np.float32)
    with write_record(tmp_path / "record.sqlite") as record:
        for number, eta in enumerate((None, 0.1 + 0.2, 0.3)):
            save_checkpoint(record, Checkpoint(TrainingState(model, number, eta), MARK))
            loaded = load_checkpoint(record)
            assert loaded.state.model.tobytes() == model.tobytes()
            assert loaded.state.model.dtype == np.float32
            assert (loaded.state.round, loaded.state.eta) == (number, eta)
            assert loaded.mark == MARK
        assert saved_rounds(record) == [1, 2]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE arrays SET dtype = '|O8'",
        "UPDATE arrays SET dtype = NULL",
        "UPDATE arrays SET shape = '[1'",
        "UPDATE arrays SET shape = '[-1]'",
        "UPDATE arrays SET shape = '[true]'",
        "UPDATE arrays SET shape = '3'",
        "UPDATE arrays SET shape = '[1000000000000, 1000000000000]'",
        "UPDATE arrays SET data = x'00'",
        "UPDATE arrays SET data = 'text'",
        "UPDATE arrays SET name = 'model2' WHERE name = 'model'",
    ],
)
def test_arrays_that_are_none_are_damage(tmp_path, statement):
    with write_record(tmp_path / "record.sqlite") as record:
        state = TrainingState(np.zeros(3, np.float32), 1)
        save_checkpoint(record, Checkpoint(state, MARK))
        record.db.execute(statement)
        with pytest.raises(RunDirectoryError, match="its last checkpoint"):
            load_checkpoint(record)


@pytest.mark.slow
def test_a_private_run_goes_on_with_a_whole_transcript(tmp_path):
    def config(sums):
        return build_config(
            [
                {
                    "data": {"num_devices": 24},
                    "federation": {
                        "algorithm": "private-delta-fl",
                        "rounds": 3,
                        "cohort_size": 10,
                        "evaluate_every": 3,
                    },
                    "training": {"batch_size": 64, "device": "cpu"},
                    "quantile": {"method": "bracketed"},
                    "privacy": {"sums": sums, "transcript": "full"},
                    "faults": {"dropout": 0.05},
                }
            ]
        )

    class StopInSecondRound(Silent):
        def played(self, event):
            if event["round"] == 2:
                raise Killed

    with pytest.raises(Killed):
        run(config("masked"), tmp_path / "masked", progress=StopInSecondRound())
    masked = run(config("masked"), tmp_path / "masked", resume=True)
    ideal = run(config("ideal"), tmp_path / "ideal")
    assert masked["final_model_sha256"] == ideal["final_model_sha256"]
    assert (masked["sums"], ideal["sums"]) == ("masked", "ideal")
    rows = list(read_with_digests(tmp_path / "masked" / "record.sqlite"))
    records = [record for record, _ in rows]
    assert rows[-1][1].hex() == masked["record_sha256"]
    messages = [record for record in records if isinstance(record, Message)]
    assert {message.round for message in messages} == {1, 2, 3}
    assert all(message.is_whole for message in messages)
    assert masked["bytes_up_per_device_round"] > 0
    assert not [
        record
        for record in read_transcript(tmp_path / "ideal" / "record.sqlite")
        if isinstance(record, Message)
    ]


def test_a_checkpoint_that_cannot_be_read_does_not_start_the_run_again(tiny, tmp_path):
    path = tmp_path / "run"
    run(tiny, path)
    note(path, "summary", None)
    change(path, "UPDATE arrays SET data = x''")
    before = rows_of(path / "record.sqlite")
    with pytest.raises(RunDirectoryError, match="its last checkpoint"):
        run(tiny, path, resume=True)
    assert rows_of(path / "record.sqlite") == before


def test_a_run_that_gave_up_tries_again_when_it_is_resumed(tiny, tmp_path):
    federation = replace(tiny.federation, rounds=8)
    hopeless = replace(tiny, federation=federation, faults=replace(tiny.faults, dropout=0.999))
    for resume, last in ((False, 3), (True, 6)):
        with pytest.raises(RunError, match=f"gave up after round {last}: 3 rounds in a row"):
            run(hopeless, tmp_path / "run", resume=resume)
    assert said_of(tmp_path / "run", "summary") is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE about SET value = '{' WHERE name = 'versions'",
        "UPDATE about SET value = '[1]' WHERE name = 'versions'",
        "UPDATE about SET value = 7 WHERE name = 'settings'",
        "UPDATE events SET event = 'no json' WHERE round = 2",
        "UPDATE evaluations SET error = 'none' WHERE round = 4",
        "INSERT INTO about VALUES ('summary', '{')",
    ],
)
def test_a_damaged_record_is_named(tiny, tmp_path, statement):
    path = tmp_path / "run"
    run(tiny, path)
    note(path, "summary", None)
    change(path, statement)
    with pytest.raises(UserError, match=r"record\.sqlite"):
        run(tiny, path, resume=True)
