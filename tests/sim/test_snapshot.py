"""What a run directory holds: while it is being written, and where it is damaged."""

import shutil

import numpy as np
import pytest
from made_runs import error_of, event, make_run
from records import change, note

from deltafl.sim.record.events import add_event
from deltafl.sim.record.record import note_measured, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.snapshot import MAX_PROBLEMS, Reader
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


def test_an_event_counts_once_it_is_kept(tmp_path):
    make_run(tmp_path / "run", played=[1, None, None, None])
    reader = Reader(tmp_path / "run")
    with write_record(RunDirectory(tmp_path / "run").record) as record:
        add_event(record, event(2))
        assert len(reader.read().methods[0].runs[0].events) == 1
        record.keep()
        assert len(reader.read().methods[0].runs[0].events) == 2
    assert reader.read().problems == ()


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    reader = Reader(tmp_path / "run")
    reader.read()
    read = []
    monkeypatch.setattr("deltafl.sim.record.evaluations._evaluation", read.append)
    monkeypatch.setattr("deltafl.sim.record.events.json_object", read.append)
    assert len(reader.read().methods[0].runs[0].events) == 4
    assert read == []


DAMAGED = {
    "an event that is no object": ("UPDATE events SET event = '[]' WHERE round = 4", "object"),
    "an event that is no JSON": ("UPDATE events SET event = '{' WHERE round = 4", "damaged"),
    "an event of another kind": (
        """UPDATE events SET event = '{"round": "one"}' WHERE round = 4""",
        "round",
    ),
    "a time that is none": (
        """UPDATE events SET event = '{"round": 4, "wall_s": "long"}' WHERE round = 4""",
        "wall_s",
    ),
    "an evaluation": ("UPDATE evaluations SET split = 'all' WHERE round = 4", "no evaluation"),
    "another evaluation": ("UPDATE evaluations SET error = 'all' WHERE round = 4", "is no error"),
    "the summary": ("UPDATE about SET value = '[1]' WHERE name = 'summary'", "JSON object"),
    "the versions": ("UPDATE about SET value = x'ff' WHERE name = 'versions'", "no text"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_a_sentence_and_the_rest_is_there(tmp_path, name):
    statement, word = DAMAGED[name]
    make_run(tmp_path / "run", finished=True)
    change(tmp_path / "run", statement)
    reader = Reader(tmp_path / "run")
    for _ in range(2):
        found = reader.read()
        assert len(found.problems) == 1
        assert word in found.problems[0]
        assert [len(one.runs) for one in found.methods] == [2, 2]
        assert len(found.methods[0].runs[0].events) == (3 if "event" in statement[:13] else 4)
        assert len(found.methods[0].runs[1].events) == 4


def test_a_run_of_an_experiment_that_is_damaged_costs_itself(tmp_path):
    make_run(tmp_path / "run")
    RunDirectory(tmp_path / "run" / "arms" / "fedavg-seed-1").record.write_bytes(b"nonsense" * 100)
    found = Reader(tmp_path / "run").read()
    assert "fedavg-seed-1" in found.problems[0]
    assert [len(one.events) for method in found.methods for one in method.runs] == [4, 4, 0, 4]


def test_settings_that_cannot_be_read_are_a_sentence(tmp_path):
    make_run(tmp_path / "run")
    note(tmp_path / "run", "settings", "nonsense")
    found = Reader(tmp_path / "run").read()
    assert found.config is None
    assert len(found.problems) == 1


def test_errors_that_are_no_shares_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("made_runs.error_of", lambda *_: 2.0)
    make_run(tmp_path / "run", seeds=1, baselines=())
    found = Reader(tmp_path / "run").read()
    assert found.methods[0].runs[0].tested == []
    assert "share from 0 to 1" in found.problems[0]


def test_there_are_never_more_sentences_than_fit(tmp_path):
    make_run(tmp_path / "run", rounds=2, seeds=15)
    for one in (tmp_path / "run" / "arms").iterdir():
        RunDirectory(one).record.write_bytes(b"")
    assert len(Reader(tmp_path / "run").read().problems) == MAX_PROBLEMS


def test_of_a_federation_there_is_what_its_devices_measured_together(tmp_path):
    make_run(
        tmp_path / "run",
        algorithm="private-delta-fl",
        baselines=(),
        seeds=1,
        federation={"devices": "remote", "cohort_size": 10},
    )
    good = {"round": 2, "error": 0.25, "devices": 9}
    bad = {**good, "round": 6, "error": 2.0}
    with write_record(RunDirectory(tmp_path / "run").record) as record:
        for number, table in ((2, good), (4, {**good, "error": None}), (6, bad)):
            note_measured(record, number, 0, table)
        record.keep()
    found = Reader(tmp_path / "run").read()
    (run,) = found.methods[0].runs
    assert run.summed == {2: 0.25}
    assert run.tested == []
    assert len(found.problems) == 1
    assert "round 6" in found.problems[0]


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


LIES = {"share": "0.1"}


@pytest.mark.parametrize(
    "row",
    [
        (None, None, None),
        (5, "corrupted_share", 1.1),
        (5, "corrupted_share", -0.1),
        (5, "corrupted_share", "<script>"),
        (5, "kept_share", 0.1),
        (5, None, 0.1),
        (-1, "corrupted_share", 0.1),
        (1 << 32, "corrupted_share", 0.1),
        ("five", "corrupted_share", 0.1),
        (5.5, "corrupted_share", 0.1),
        (5, "backdoor_success", 1.5),
        (5, "backdoor_success", None),
    ],
)
def test_what_is_noted_of_attackers_may_be_damaged(tmp_path, row):
    make_run(tmp_path / "run", seeds=1, baselines=("fedavg",), attackers=LIES)
    reader = Reader(tmp_path / "run")
    assert reader.read().runs[0].attacked.shares == pytest.approx(dict.fromkeys(range(1, 5), 0.1))
    change(tmp_path / "run", ("INSERT INTO attackers VALUES (99, ?, ?, ?)", row))
    found = reader.read()
    assert found.runs[0].attacked is None
    assert len(found.problems) == 1
    assert "record.sqlite is damaged" in found.problems[0]
    assert found.runs[1].attacked.backdoor == {4: 0.75}
    assert len(found.runs[0].events) == 4


def test_a_directory_that_may_not_be_entered_is_a_sentence(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    make_run(tmp_path / "run")
    monkeypatch.setattr("deltafl.sim.record.rundir.Path.exists", refused)
    found = Reader(tmp_path / "run").read()
    assert found.problems == (f"{tmp_path / 'run'}: Permission denied",)
    assert Page([found]).state.title == "Cannot be read"


@pytest.mark.parametrize("stages", [dict.fromkeys(map(str, range(65)), 1), {"x" * 61: 1}])
def test_names_of_stages_are_bounded(tmp_path, stages):
    make_run(tmp_path / "run", make_event=lambda n: event(n, dropped_by_stage=stages), rounds=1)
    found = Reader(tmp_path / "run").read()
    assert "dropped_by_stage has more entries than any run" in found.problems[0]
    assert found.runs[0].events == []
