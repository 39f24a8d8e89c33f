"""From which states an interrupted run can have gone on, and what the audit holds it to."""

import json
import shutil
from dataclasses import replace
from hashlib import sha256

import pytest
from deltafl.sim.inspect.audit.saved_states import SavedStates
from doubles import Killed, run
from frames import of_records, records
from records import checkpoint_of, events_of, said_of
from reports import serious

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import write_json
from deltafl.sim.record.transcript import INTERRUPTED, TranscriptWriter
from deltafl.sim.settings.config_io import build_config

MESSAGE, BEGIN, RESUMED = 1, 6, 5
SETTINGS = {
    "data": {"num_devices": 96},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 5,
        "cohort_size": 6,
        "evaluate_every": 4,
    },
    "training": {"batch_size": 64, "device": "cpu"},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "privacy": {"min_cohort": 5, "transcript": "full"},
}


def states_after(num_rounds):
    states = SavedStates("first")
    for number in range(1, num_rounds + 1):
        states.save(number, f"after {number}")
    return states


def test_the_last_two_that_were_saved_and_the_one_that_was_to_be():
    assert states_after(5).numbers == (3, 4, 5)
    assert states_after(1).numbers == (0, 1)
    for kept in (3, 4, 5):
        assert states_after(5).go_back(kept, 6) == f"after {kept}"
    for kept in (0, 2, 6):
        assert states_after(5).go_back(kept, 6) is None


def test_rounds_that_are_lost_leave_the_state_before_them():
    states = states_after(5)
    assert states.go_back(4, 6) == "after 4"
    assert states.numbers == (3, 4, 6)
    assert states.go_back(6, 6) == "after 4"  # the next process saved it, and lost nothing
    assert states.go_back(5, 6) is None


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The directory of a run that was killed in round 3, and lost round 2 to a damaged disk."""
    path, config = tmp_path_factory.mktemp("resumed") / "run", build_config([SETTINGS])
    end_round = TranscriptWriter.end_round

    def die_in_the_third(self, aborted):
        dies = checkpoint_of(path).state.round == 2
        end_round(self, aborted)
        if dies:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        with pytest.MonkeyPatch.context() as death:
            death.setattr(TranscriptWriter, "end_round", die_in_the_third)
            with pytest.raises(Killed):
                run(config, path)
        shutil.copy(path / "events.jsonl", path.parent / "before.jsonl")
        (path / "checkpoints" / "round-000002.npz").write_bytes(b"")
        run(config, path, resume=True)
    return path


def audited(resumed, folder, change=None, events=None):
    """What is found in a directory whose transcript was changed under a chain that is right."""
    path = folder / "run"
    shutil.copytree(resumed, path)
    found = records(resumed / "record.sqlite")
    if change is not None:
        change(found)
    content = of_records(found)
    (path / "record.sqlite").write_bytes(content)
    summary = said_of(path, "summary")
    summary["transcript_sha256"] = content[-32:].hex()
    write_json(path / "summary.json", summary)
    if events is not None:
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (path / "events.jsonl").write_text(lines, encoding="utf-8")
    return audit(path, Options())


def assert_says(report, sentence):
    assert any(sentence in finding.detail for finding in report.findings), report.findings


@pytest.mark.slow
def test_a_run_that_went_back_is_clean(resumed, tmp_path):
    assert [event["aborted"] for event in events_of(resumed)] == [
        None,
        INTERRUPTED,
        INTERRUPTED,
        None,
        None,
    ]
    assert serious(audited(resumed, tmp_path)) == set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 5])
def test_another_model_after_an_interruption_is_found(resumed, tmp_path, number):
    """The next round begins with the model of before, and later ones follow from it."""

    def announce_another(found):
        for record in found:
            if record[0] != MESSAGE or record[2] != number or not record[3]:
                continue
            if isinstance(record[-1], bytes):
                envelope = round_wire.decode(record[-1])
                if isinstance(envelope, Announce):
                    models = bytearray(envelope.models)
                    models[2] ^= 1
                    data = round_wire.encode(replace(envelope, models=bytes(models)))
                    record[-3:] = [len(data), sha256(data).digest(), data]

    found = audited(resumed, tmp_path, announce_another).findings
    rounds = {one.evidence[0].round for one in found if one.rule == "model.unfounded"}
    assert min(rounds) == number


@pytest.mark.slow
def test_a_round_that_only_the_events_call_lost_is_found(resumed, tmp_path):
    events = events_of(resumed)
    events[3]["aborted"] = INTERRUPTED
    report = audited(resumed, tmp_path, events=events)
    assert serious(report) == {"record.disagrees"}
    assert_says(report, "round 4 is lost by the run's events, and has ended by its records")


@pytest.mark.slow
@pytest.mark.parametrize("kept", [5, 0])
def test_a_state_that_is_too_old_to_go_on_from_is_found(resumed, tmp_path, kept):
    """And the last state is not."""

    def go_back(found):
        found.insert(-1, [RESUMED, 0, kept, b""])

    events = events_of(resumed)
    for event in events:
        event["aborted"] = event["aborted"] if kept else INTERRUPTED
    found = audited(resumed, tmp_path, go_back, events).findings
    assert any("can only have kept" in one.detail for one in found) == (kept == 0)


@pytest.mark.slow
def test_an_event_of_a_round_that_was_lost_later_is_found(resumed, tmp_path):
    events = events_of(resumed)
    events[1] = read_events(resumed.parent / "before.jsonl")[1]
    assert (events[1]["round"], events[1]["aborted"]) == (2, None)
    report = audited(resumed, tmp_path, events=events)
    assert serious(report) == {"record.disagrees"}
    assert_says(report, "round 2 is lost by this record, and not by the run's events")


@pytest.mark.slow
def test_devices_that_a_round_began_without_are_found(resumed, tmp_path):
    def leave_one_out(found):
        begin = next(record for record in found if record[0] == BEGIN and record[2] == 4)
        begin[3] = begin[3][4:]

    report = audited(resumed, tmp_path, leave_one_out)
    assert serious(report) == {"record.disagrees"}
    assert_says(report, "round 4 was announced to 1 devices that it began without")
