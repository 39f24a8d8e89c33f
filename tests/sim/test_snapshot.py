"""What a run directory holds: while it is being written, and where it is damaged."""

import json
import shutil

import numpy as np
import pytest
from made_runs import error_of, event, make_run

from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.snapshot import MAX_PROBLEMS, Reader, _Log
from deltafl.sim.view.sections import Page


def test_methods_have_runs_by_seed_with_events_and_evaluations(tmp_path):
    make_run(tmp_path / "run", finished=True)
    found = Reader(tmp_path / "run").read()
    assert [one.label for one in found.methods] == ["delta-fl, θ = 0.5", "fedavg"]
    assert [[run.seed for run in one.runs] for one in found.methods] == [[1, 2], [1, 2]]
    assert len(found.runs) == 4
    assert (found.is_finished, found.problems) == (True, ())
    for method, one in enumerate(found.methods):
        for seed, run in enumerate(one.runs):
            assert [e["round"] for e in run.events] == [1, 2, 3, 4]
            assert [tested.round for tested in run.tested] == [0, 2, 4]
            expected = [error_of(method, seed, 4, device) for device in range(8)]
            assert np.array_equal(run.tested[-1].errors, expected)
            assert run.tested[0].devices is run.tested[1].devices


def test_levels_are_methods_of_their_own_and_one_run(tmp_path):
    def of_levels(number):
        own = {"0.8": {"eta": 1.0, "kept_devices": 3}, "0.5": {"eta": 2.0, "kept_devices": 1}}
        return event(number, levels=own)

    levels = {"levels": ["0.8", "0.5"]}
    make_run(tmp_path / "run", make_event=of_levels, federation=levels, baselines=(), seeds=1)
    found = Reader(tmp_path / "run").read()
    assert [one.label for one in found.methods] == ["delta-fl, θ = 0.8", "delta-fl, θ = 0.5"]
    assert [one.runs[0].events[0]["eta"] for one in found.methods] == [1.0, 2.0]
    assert [one.runs[0].events[0]["wall_s"] for one in found.methods] == [1.0, 1.0]
    assert len(found.runs) == 1


def test_a_directory_that_is_not_there_yet_is_no_problem(tmp_path):
    found = Reader(tmp_path / "later").read()
    assert (found.config, found.methods, found.problems, found.is_finished) == (None, (), (), False)


def test_a_line_counts_once_it_is_whole(tmp_path):
    make_run(tmp_path / "run", played=[1, None, None, None])
    events = RunDirectory(tmp_path / "run").events
    reader = Reader(tmp_path / "run")
    line = json.dumps(event(2)).encode()
    for end, expected in ((0, 1), (7, 1), (len(line), 1), (len(line) + 1, 2)):
        events.write_bytes(json.dumps(event(1)).encode() + b"\n" + (line + b"\n")[:end])
        found = reader.read()
        assert (len(found.methods[0].runs[0].events), found.problems) == (expected, ())


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    reader = Reader(tmp_path / "run")
    reader.read()
    read = []
    monkeypatch.setattr("deltafl.sim.record.snapshot.read_evaluation", read.append)
    monkeypatch.setattr("deltafl.sim.record.events.parse_json", read.append)
    assert len(reader.read().methods[0].runs[0].events) == 4
    assert read == []


def test_a_log_that_was_cut_back_is_read_again(tmp_path):
    make_run(tmp_path / "run")
    events = RunDirectory(tmp_path / "run").events
    reader = Reader(tmp_path / "run")
    assert len(reader.read().methods[0].runs[0].events) == 4
    lines = events.read_bytes().splitlines(keepends=True)
    for kept in (lines[:2], [lines[0], json.dumps(event(2, note="x" * 2000)).encode() + b"\n"]):
        events.write_bytes(b"".join(kept))  # shorter, then longer than what had been read
        found = reader.read()
        assert (len(found.methods[0].runs[0].events), found.problems) == (2, ())


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("events.jsonl", b'{"round": 1}\nnonsense\n', "events.jsonl"),
        ("events.jsonl", b'{"round": "one"}\n', "round"),
        ("events.jsonl", b'{"round": 1, "wall_s": "long"}\n', "wall_s"),
        ("metrics/round-000004.csv", b"PAR1 nonsense PAR1", "round-000004.csv"),
        ("metrics/round-000004.parquet", b"PAR1", "an earlier version wrote it"),
        ("summary.json", b"[1, 2]", "summary.json"),
        ("versions.json", b"\xff", "versions.json"),
        ("arms/fedavg-seed-1/events.jsonl", b"[]\n", "fedavg-seed-1"),
    ],
)
def test_a_damaged_file_is_a_sentence_and_the_rest_is_there(tmp_path, name, content, word):
    make_run(tmp_path / "run", finished=True)
    (tmp_path / "run" / name).write_bytes(content)
    reader = Reader(tmp_path / "run")
    for _ in range(2):
        found = reader.read()
        assert len(found.problems) == 1
        assert word in found.problems[0]
        assert [len(one.runs) for one in found.methods] == [2, 2]
        assert len(found.methods[0].runs[1].events) == 4


def test_settings_that_cannot_be_read_are_a_sentence(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("nonsense")
    found = Reader(tmp_path / "run").read()
    assert found.config is None
    assert len(found.problems) == 1


def test_errors_that_are_no_shares_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("made_runs.error_of", lambda *_: float("nan"))
    make_run(tmp_path / "run", seeds=1, baselines=())
    found = Reader(tmp_path / "run").read()
    assert found.methods[0].runs[0].tested == ()
    assert "share from 0 to 1" in found.problems[0]


def test_there_are_never_more_sentences_than_fit(tmp_path):
    make_run(tmp_path / "run", rounds=100, seeds=1, baselines=())
    for path in (tmp_path / "run" / "metrics").iterdir():
        path.write_bytes(b"")
    assert len(Reader(tmp_path / "run").read().problems) == MAX_PROBLEMS


def test_of_a_federation_there_is_what_its_devices_measured_together(tmp_path):
    make_run(
        tmp_path / "run",
        algorithm="private-delta-fl",
        baselines=(),
        seeds=1,
        federation={"devices": "remote", "cohort_size": 10},
    )
    folder = RunDirectory(tmp_path / "run").measured
    folder.mkdir()
    good = {"round": 2, "error": 0.25, "devices": 9}
    for number, table in ((2, good), (4, {**good, "error": None}), (6, {**good, "error": 2.0})):
        (folder / f"round-{number:06}-level-0.json").write_text(json.dumps(table))
    found = Reader(tmp_path / "run").read()
    (run,) = found.methods[0].runs
    assert [(one.round, one.error, one.devices) for one in run.summed] == [(2, 0.25, 9)]
    assert run.tested == ()
    assert len(found.problems) == 1
    assert "round-000006" in found.problems[0]


def test_another_run_in_the_same_place_is_read_from_its_beginning(tmp_path):
    """Its lines may be as long as those of the first."""
    path, what = tmp_path / "run", {"seeds": 1, "baselines": ()}
    make_run(path, played=[2], **what)
    reader = Reader(path)
    reader.read()
    shutil.rmtree(path)
    make_run(path, make_event=lambda n: event(n, wall_s=9.0), **what)
    events = reader.read().methods[0].runs[0].events
    assert [one["wall_s"] for one in events] == [9.0] * 4


def test_a_damaged_line_does_not_cost_those_before_it(tmp_path):
    make_run(tmp_path / "run", seeds=1, baselines=(), played=[2])
    reader, log = Reader(tmp_path / "run"), tmp_path / "run" / "events.jsonl"
    with log.open("ab") as file:
        file.write(b"[]\n")
    for _ in range(2):
        found = reader.read()
        assert [one["round"] for one in found.runs[0].events] == [1, 2]
        assert len(found.problems) == 1


LIES = {"share": "0.1"}


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"round": 5, "kept_weight": 10, "corrupted_weight": 11}',
        '{"round": 5, "kept_weight": -10, "corrupted_weight": 1}',
        '{"round": 5, "kept_weight": 1, "corrupted_weight": "<script>"}',
        '{"round": 5, "kept_weight": 1e-300, "corrupted_weight": 1e300}',
        '{"round": -1, "kept_weight": 10, "corrupted_weight": 1}',
        '{"round": 4294967296, "kept_weight": 10, "corrupted_weight": 1}',
        '{"round": 5, "backdoor_success": 1.5}',
        '{"round": 5, "backdoor_success": null}',
    ],
)
def test_what_is_noted_of_attackers_may_be_damaged(tmp_path, line):
    make_run(tmp_path / "run", seeds=1, baselines=("fedavg",), attackers=LIES)
    noted = tmp_path / "run" / "attackers.jsonl"
    reader = Reader(tmp_path / "run")
    assert reader.read().runs[0].attacked.shares == pytest.approx(dict.fromkeys(range(1, 5), 0.1))
    with noted.open("a") as file:
        file.write(f"{line}\n")
    found = reader.read()
    assert found.runs[0].attacked is None
    assert len(found.problems) == 1
    assert "attackers.jsonl is damaged" in found.problems[0]
    assert found.runs[1].attacked.backdoor == {4: 0.75}
    assert len(found.runs[0].events) == 4


def test_attackers_are_looked_for_only_where_the_settings_have_any(tmp_path):
    make_run(tmp_path / "run", seeds=1, baselines=())
    (tmp_path / "run" / "attackers.jsonl").write_text("nonsense\n")
    found = Reader(tmp_path / "run").read()
    assert (found.problems, found.runs[0].attacked) == ((), None)


def test_links_that_lead_nowhere_are_a_sentence(tmp_path):
    make_run(tmp_path / "run")
    link = tmp_path / "run" / "metrics" / "round-000003.csv"
    link.symlink_to(link)
    (problem,) = Reader(tmp_path / "run").read().problems
    assert "round-000003.csv is damaged (Too many levels of symbolic links)" in problem


def test_a_directory_that_may_not_be_entered_is_a_sentence(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    make_run(tmp_path / "run")
    monkeypatch.setattr("deltafl.sim.record.snapshot.Path.exists", refused)
    found = Reader(tmp_path / "run").read()
    assert found.problems == (f"{tmp_path / 'run'}: Permission denied",)
    assert Page([found]).state.title == "Cannot be read"


@pytest.mark.slow
def test_names_of_stages_are_bounded(tmp_path):
    stages = {f"{number}{'x' * 10_000}": 1 for number in range(1000)}
    make_run(tmp_path / "run", make_event=lambda n: event(n, dropped_by_stage=stages), rounds=2)
    dropped = Reader(tmp_path / "run").read().runs[0].events[0]["dropped_by_stage"]
    assert len(dropped) == 16
    assert max(map(len, dropped)) == 60


# a log is known again by its last line that was read

TWO = b'{"round": 1}\n{"round": 2}\n'


@pytest.fixture
def log(tmp_path):
    """A log that was read, and its file."""
    path, log = tmp_path / "events.jsonl", _Log()
    path.write_bytes(TWO)
    log.read_on(path)
    return log, path


@pytest.mark.parametrize("content", [TWO, TWO + b'{"rou', TWO.replace(b"1", b"9")])
def test_what_has_grown_or_begins_otherwise_is_the_same(log, content):
    log, path = log
    path.write_bytes(content)
    log.read_on(path)
    assert log.events == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize(
    ("content", "rounds"),
    [(TWO.replace(b"2", b"9"), [1, 9]), (TWO[:-1], [1]), (TWO[:13], [1]), (b"", [])],
)
def test_what_was_cut_back_or_replaced_is_another(log, content, rounds):
    log, path = log
    path.write_bytes(content)
    log.read_on(path)
    assert [event["round"] for event in log.events] == rounds


def test_a_log_that_is_gone_has_no_events(log):
    log, path = log
    path.unlink()
    log.read_on(path)
    assert log.events == []
