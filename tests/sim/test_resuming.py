"""A state is gone on with only by the run that it is of; what does not fit is left as it was."""

import shutil

import numpy as np
import pytest
from doubles import Killed, KilledAfter, run
from frames import of_records, records
from records import checkpoint_of, said_of

from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.record.transcript import Begin, read_transcript
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

ROUNDS = 3
LAST = "checkpoints/round-000002.npz"
BEGIN = 6


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
    (path / "checkpoints" / "round-000001.npz").unlink()
    return path


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """The directories of two runs that were stopped after the second round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        folder = tmp_path_factory.mktemp("left")
        return stopped(folder / "one"), stopped(folder / "other", experiment={"seed": 5})


def edit(path, **changes):
    """Change arrays of the last checkpoint."""
    with np.load(path / LAST) as archive:
        arrays = {**archive, **changes}
    np.savez(path / LAST, **arrays)


def contents(path):
    hidden = {".lock", "versions.json"}
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name not in hidden}


def refused(path, saying, capsys, config=None):
    """One line, exit code 2, and nothing is changed."""
    before = contents(path)
    with pytest.raises(UserError, match=saying):
        run(config or settings_of(), path, resume=True)
    assert contents(path) == before
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
        ({"round": np.int64(1)}, "round = 1 belongs to the name round-000001.npz"),
        ({"eta": np.float64(np.inf)}, "eta = inf is no threshold"),
        ({"eta": np.float64(-1e300)}, "eta = -1e.300 is no threshold"),
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
        ({"events_size": np.int64(5)}, "events.jsonl is damaged"),
        ({"events_size": np.int64(2**62)}, "events.jsonl is damaged"),
        ({"transcript_size": np.int64(40)}, "transcript.bin cannot be read .*another file"),
        ({"transcript_size": np.int64(2**62)}, "transcript.bin .*checkpoint knows of more"),
        ({"transcript_frames": np.int64(2**40)}, "transcript.bin cannot be read .*another file"),
        ({"transcript_digest": DIGEST}, "transcript.bin cannot be read .*another file"),
        ({"truth_digest": DIGEST}, "truth.bin cannot be read .*another file"),
        ({"truth_size": np.int64(5)}, "truth.bin cannot be read .*another file"),
        ({"truth_size": np.int64(2**62)}, "truth.bin .*checkpoint knows of more"),
    ],
)
def test_a_state_that_this_run_cannot_have_is_refused(left, tmp_path, capsys, changes, saying):
    path = shutil.copytree(left[0], tmp_path / "run")
    edit(path, **changes)
    refused(path, saying, capsys)


@pytest.mark.parametrize("number", [10, 2**62])
def test_a_round_beyond_the_last_is_refused(left, tmp_path, capsys, number):
    path = shutil.copytree(left[0], tmp_path / "run")
    edit(path, round=np.int64(number))
    (path / LAST).rename(path / "checkpoints" / f"round-{number:06}.npz")
    refused(path, f"round = {number}, and the run has 3 rounds", capsys)


def test_a_round_whose_devices_have_answered_is_not_begun_again(left, tmp_path, capsys):
    """A state of an earlier round, with the mark of a later one: a context would be used twice."""
    path = shutil.copytree(left[0], tmp_path / "run")
    size = len((path / "events.jsonl").read_bytes().splitlines(keepends=True)[0])
    edit(path, round=np.int64(1), events_size=np.int64(size))
    (path / LAST).rename(path / "checkpoints" / "round-000001.npz")
    refused(path, "after round 1, and by then the transcript begins 2", capsys)


def test_rounds_that_begin_twice_are_not_gone_on_with(left, tmp_path, capsys):
    """Under a chain that is right, and a checkpoint that vouches for it."""
    path = shutil.copytree(left[0], tmp_path / "run")
    found = records(path / "record.sqlite")
    for record in found:
        if record[0] == BEGIN:
            record[2] = 1
    content = of_records(found)
    (path / "record.sqlite").write_bytes(content)
    digest = np.frombuffer(content[-32:], np.uint8)
    edit(path, transcript_size=np.int64(len(content)), transcript_digest=digest)
    refused(path, "the round that begins is not round 2", capsys)


@pytest.mark.parametrize("name", ["checkpoints", "record.sqlite", "truth.sqlite", "events.jsonl"])
def test_a_file_of_another_run_is_refused(left, tmp_path, capsys, name):
    path = shutil.copytree(left[0], tmp_path / "run")
    copy = shutil.copytree if (path / name).is_dir() else shutil.copy
    if copy is shutil.copytree:
        shutil.rmtree(path / name)
    copy(left[1] / name, path / name)
    if name == "events.jsonl":  # none of whose lines may happen to end where the checkpoint's do
        content = (path / name).read_bytes()
        (path / name).write_bytes(content.replace(b"\n", b" " * len(content) + b"\n", 1))
    refused(path, "damaged|another file|checkpoint knows of more", capsys)


@pytest.mark.parametrize("name", ["record.sqlite", "truth.sqlite", "events.jsonl"])
def test_a_file_that_is_missing_is_refused(left, tmp_path, capsys, name):
    path = shutil.copytree(left[0], tmp_path / "run")
    (path / name).unlink()
    refused(path, f"{name} is damaged", capsys)


def test_a_record_before_the_checkpoint_that_was_edited_is_refused(left, tmp_path, capsys):
    path = shutil.copytree(left[0], tmp_path / "run")
    content = bytearray((path / "record.sqlite").read_bytes())
    begin = next(r for r in read_transcript(path / "record.sqlite") if isinstance(r, Begin))
    content[begin.offset + 10] ^= 1
    (path / "record.sqlite").write_bytes(content)
    refused(path, "it was edited", capsys)


@pytest.mark.slow
def test_an_ideal_run_is_held_to_its_files_too(tmp_path, capsys):
    ideal = {"privacy": {"sums": "ideal", "truth": False}}
    path = stopped(tmp_path / "run", **ideal)
    edit(path, transcript_digest=DIGEST)
    refused(path, "transcript.bin cannot be read", capsys, settings_of(**ideal))


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
    with np.load(path / LAST) as archive:
        arrays = dict(archive)
    name = next(name for name in arrays if name.startswith("memory."))
    np.savez(path / LAST, **{**arrays, name: np.zeros(3)})
    refused(path, f"{name} has the shape", capsys, settings_of(**changes))
    np.savez(path / LAST, **{key: array for key, array in arrays.items() if key != name})
    refused(path, f"{name} is missing", capsys, settings_of(**changes))
