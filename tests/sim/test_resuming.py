"""A state is gone on with only by the run that it is of; what does not fit is left as it was."""

import shutil

import numpy as np
import pytest
from doubles import Killed, KilledAfter, run
from records import change, checkpoint_of, rows_of, said_of, write_rows

from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.record.checkpoint import read_arrays, write_arrays
from deltafl.sim.record.record import write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

ROUNDS = 3
LAST = "round 2"


def settings_of(**changes):
    settings = {
        "data": {"num_devices": 96},
        "federation": {
            "algorithm": "private-delta-fl",
            "theta": "4/5",
            "rounds": ROUNDS,
            "cohort_size": 6,
            "evaluate_every": 2,
        },
        "training": {"batch_size": 64, "device": "cpu"},
        "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
        "privacy": {"min_cohort": 5, "transcript": "sums", "truth": True},
    }
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values}
    return build_config([settings])


def stopped(path, **changes):
    with pytest.raises(Killed):
        run(settings_of(**changes), path, progress=KilledAfter(2))
    change(path, "DELETE FROM arrays WHERE owner = 'round 1'")
    return path


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """The directories of two runs that were stopped after the second round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        folder = tmp_path_factory.mktemp("left")
        return stopped(folder / "one"), stopped(folder / "other", experiment={"seed": 5})


def edit(path, *, owner=LAST, **changes):
    """Change arrays of the last checkpoint."""
    with write_record(RunDirectory(path).record) as record:
        arrays = {**read_arrays(record, LAST), **changes}
        write_arrays(record, LAST, {})
        write_arrays(record, owner, arrays)
        record.keep()


def contents(path):
    with RunDirectory(path).read() as record:
        tables = [name for (name,) in record.db.execute("SELECT name FROM sqlite_master")]
        return {
            name: record.db.execute(f"SELECT * FROM {name}").fetchall()  # noqa: S608
            for name in tables
            if not name.startswith("sqlite_")
        }


def refused(path, saying, capsys, config=None):
    """One line, exit code 2, and nothing is changed."""
    before = contents(path)
    with pytest.raises(UserError, match=saying):
        run(config or settings_of(), path, resume=True)
    assert {**contents(path), "about": before["about"]} == before  # it may tell other versions
    capsys.readouterr()
    assert main(["run", "--out", str(path), "--resume", "--quiet"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)


@pytest.mark.slow
def test_what_is_not_changed_is_gone_on_with(left, tmp_path):
    """The control of all that follows."""
    path = shutil.copytree(left[0], tmp_path / "run")
    edit(path)
    assert run(settings_of(), path, resume=True)["rounds"] == ROUNDS


DIGEST = np.zeros(32, np.uint8)


@pytest.mark.parametrize(
    ("changes", "saying"),
    [
        ({"model": np.zeros(7, np.float32)}, "the model has 7 numbers"),
        ({"model": np.zeros(7)}, "its last checkpoint: model is float64"),
        ({"round": np.array(1)}, "the state of round 2 says that it is of another"),
        ({"eta": np.array(np.inf)}, "eta = inf is no threshold"),
        ({"eta": np.array(-1e300)}, "eta = -1e.300 is no threshold"),
        ({f"answered.{n}": np.arange(3) for n in range(9)}, "answered has 9 levels"),
        ({"answered.0": np.array([47])}, "device 47 has answered, and there are 47"),
        ({"memory.zzz": np.zeros(5)}, "memory.'zzz' is nothing that"),
        ({"memory.0/masked.mean_weight": np.zeros(2)}, "is nothing that the strategy remembers"),
        ({"memory.masked.mean_weight": np.zeros(3)}, "is nothing that the strategy remembers"),
        ({"memory.server_optimizer.m": np.zeros(3)}, "is nothing that the strategy remembers"),
        ({"memory.robust.radius": np.ones(2)}, "is nothing that the strategy remembers"),
        ({"memory.robust.radius": np.array([np.nan])}, "robust.radius = .nan. is no length"),
        ({"memory.robust.smoothing": np.array([np.inf])}, "robust.smoothing = .inf. is no length"),
        ({"memory.robust.smoothing": np.zeros(1)}, "robust.smoothing = .0.0. is no length"),
        ({"record_rows": np.array(5)}, "its last checkpoint is of another record"),
        ({"record_rows": np.array(2**62)}, "its last checkpoint is of another record"),
        ({"record_rows": np.array(-1)}, "record_rows = -1 is negative"),
        ({"record_digest": DIGEST}, "its last checkpoint is of another record"),
        ({"record_digest": DIGEST[1:]}, "record_digest has 31 bytes"),
    ],
)
def test_a_state_that_this_run_cannot_have_is_refused(left, tmp_path, capsys, changes, saying):
    path = shutil.copytree(left[0], tmp_path / "run")
    edit(path, **changes)
    refused(path, saying, capsys)


@pytest.mark.parametrize("number", [10, 2**62])
def test_a_round_beyond_the_last_is_refused(left, tmp_path, capsys, number):
    path = shutil.copytree(left[0], tmp_path / "run")
    edit(path, owner=f"round {number}", round=np.array(number))
    refused(path, f"round = {number}, and the run has 3 rounds", capsys)


def test_a_round_whose_devices_have_answered_is_not_begun_again(left, tmp_path, capsys):
    """A state of an earlier round, with the mark of a later one: a context would be used twice."""
    path = shutil.copytree(left[0], tmp_path / "run")
    edit(path, owner="round 1", round=np.array(1))
    refused(path, "after round 1, and by then it has 2", capsys)


def test_rounds_that_are_there_twice_are_not_gone_on_with(left, tmp_path, capsys):
    """Under a chain that is right, and a checkpoint that vouches for it."""
    path = shutil.copytree(left[0], tmp_path / "run")
    rows = rows_of(path / "record.sqlite")
    for row in rows:
        if row[0] == "events":
            row[2]["round"] = 1
    digest = write_rows(path / "record.sqlite", rows)
    edit(path, record_digest=np.frombuffer(digest, np.uint8), record_rows=np.array(len(rows)))
    refused(path, "an event is of round 1, not 2", capsys)


@pytest.mark.parametrize("name", ["checkpoint", "rows", "truth.sqlite"])
def test_what_is_of_another_run_is_refused(left, tmp_path, capsys, name):
    path = shutil.copytree(left[0], tmp_path / "run")
    if name == "truth.sqlite":
        shutil.copy(left[1] / name, path / name)
    elif name == "rows":
        write_rows(path / "record.sqlite", rows_of(left[1] / "record.sqlite"))
    else:
        with RunDirectory(left[1]).read() as record:
            edit(path, **read_arrays(record, LAST))
    refused(path, "another record|truth of run", capsys)


def test_a_truth_that_is_missing_is_refused(left, tmp_path, capsys):
    path = shutil.copytree(left[0], tmp_path / "run")
    (path / "truth.sqlite").unlink()
    refused(path, "truth.sqlite cannot be read .*goes on otherwise", capsys)


def test_a_row_before_the_checkpoint_that_was_edited_is_refused(left, tmp_path, capsys):
    path = shutil.copytree(left[0], tmp_path / "run")
    change(path, "UPDATE rounds SET data = x'00000000' WHERE what = 'begin' AND round = 1")
    refused(path, "it was edited", capsys)


@pytest.mark.slow
def test_an_ideal_run_is_held_to_its_record_too(tmp_path, capsys):
    ideal = {"privacy": {"sums": "ideal", "truth": False}}
    path = stopped(tmp_path / "run", **ideal)
    edit(path, record_digest=DIGEST)
    refused(path, "of another record", capsys, settings_of(**ideal))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"federation": {"algorithm": "private-q-ffl"}, "privacy": {"truth": False}},
        {"strategy": {"server_optimizer": "adam"}},
        {
            "federation": {"levels": ["4/5", "2/5"]},
            "privacy": {"truth": False},
            "policy": {"max_pivots": 64},
        },
        {"federation": {"algorithm": "afl"}, "privacy": {"truth": False}},
    ],
)
def test_what_strategies_remember_is_gone_on_with(changes, tmp_path):
    path = stopped(tmp_path / "run", **changes)
    assert checkpoint_of(path).state.memory
    run(settings_of(**changes), path, resume=True)
    assert said_of(path, "summary")["rounds"] == ROUNDS


@pytest.mark.slow
def test_what_a_strategy_remembers_may_not_be_missing(tmp_path, capsys):
    changes = {"federation": {"algorithm": "afl"}, "privacy": {"truth": False}}
    path = stopped(tmp_path / "run", **changes)
    with RunDirectory(path).read() as record:
        arrays = read_arrays(record, LAST)
    name = next(name for name in arrays if name.startswith("memory."))
    edit(path, **{name: np.zeros(3)})
    refused(path, f"{name} has the shape", capsys, settings_of(**changes))
    change(path, ("DELETE FROM arrays WHERE name = ?", (name,)))
    refused(path, f"{name} is missing", capsys, settings_of(**changes))
