"""Run directories: what a run says of itself is compared with what its server received."""

import json
import shutil

import pytest
from doubles import Killed, Silent, run
from records import checkpoint_of, said_of
from reports import serious

from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.source import find_source
from deltafl.sim.settings.config_io import build_config, to_toml

SETTINGS = {
    "data": {"num_devices": 12},
    "federation": {"rounds": 3, "cohort_size": 6, "evaluate_every": 3},
    "privacy": {"min_cohort": 5, "transcript": "full", "truth": True, "signed": True},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed", "max_queries": 3},
    "training": {"batch_size": 64, "device": "cpu"},
    "faults": {"dropout": 0},
}


class StopInSecondRound(Silent):
    def played(self, event):
        if event["round"] == 2:
            raise Killed


def play(path, *, resume=False, progress=None, **changes):
    sections = {key: SETTINGS[key] | changes.get(key, {}) for key in SETTINGS}
    run(build_config([sections]), path, resume=resume, progress=progress)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was killed, as it lay there and resumed; of ideal sums; in clear."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        with pytest.raises(Killed):
            play(folder / "resumed", progress=StopInSecondRound())
        shutil.copytree(folder / "resumed", folder / "killed")
        play(folder / "resumed", resume=True)
        play(folder / "ideal", privacy={"sums": "ideal"}, federation={"rounds": 1})
        clear = {"algorithm": "delta-fl", "rounds": 1}
        play(folder / "clear", federation=clear, privacy={"truth": False})
    return folder


@pytest.fixture
def resumed(runs, tmp_path):
    """A copy to be damaged."""
    shutil.copytree(runs / "resumed", tmp_path / "run")
    return tmp_path / "run"


def lenient(**options):
    return Options(**options)


@pytest.mark.slow
def test_a_killed_run_that_was_resumed_is_clean(runs):
    """Its sums, events, digest and truth agree, and everything was checked."""
    path = runs / "resumed"
    report = audit(path, lenient(truth=path / "truth.sqlite"))
    assert serious(report) == set()
    assert report.sums_replayed == report.sums_released > 3
    assert {check.outcome for check in report.checks} <= {Outcome.PASSED, Outcome.EMPTY}
    assert dict(report.facts)["algorithm"] == "private-delta-fl"
    changed = [f for f in report.findings if f.rule == "keys.identity-changed"]
    assert {f.severity for f in changed} <= {Severity.LOW}


@pytest.mark.slow
def test_a_run_that_was_killed_is_unfinished_and_nothing_else(runs):
    report = audit(runs / "killed", lenient())
    assert serious(report) == {"record.unfinished"}
    assert report.rounds == 2


@pytest.mark.slow
@pytest.mark.parametrize("tail", [b"\x00", b"the beginning of a round that was lost"])
def test_what_a_killed_run_wrote_after_its_checkpoint_is_no_damage(runs, tmp_path, tail):
    shutil.copytree(runs / "killed", tmp_path / "run")
    with (tmp_path / "run" / "record.sqlite").open("ab") as file:
        file.write(tail)
    assert serious(audit(tmp_path / "run", lenient())) == {"record.unfinished"}


def test_events_after_the_checkpoint_do_not_count(runs, tmp_path):
    shutil.copytree(runs / "killed", tmp_path / "run")
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write('{"round": 3}\n')
    assert serious(audit(tmp_path / "run", lenient())) == {"record.unfinished"}


@pytest.mark.slow
def test_the_limits_are_those_of_the_settings(runs):
    facts = dict(audit(runs / "resumed", lenient()).facts)
    assert facts["adversary"] == "curious"
    assert "cohort.below-floor" in serious(audit(runs / "resumed", lenient(min_cohort=7)))
    bare = dict(audit(runs / "resumed" / "record.sqlite", lenient()).facts)
    assert "algorithm" not in bare


def test_a_run_of_ideal_sums_has_no_messages(runs):
    report = audit(runs / "ideal")
    assert serious(report) == {"record.no-messages"}
    assert report.records == 2 + 2


def test_a_run_in_clear_is_condemned_by_design(runs):
    report = audit(runs / "clear")
    assert [(f.rule, f.severity) for f in report.findings] == [
        ("clear.by-design", Severity.CRITICAL)
    ]
    assert (report.rounds, report.records) == (1, 0)


def change_event(path, **changes):
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    events[1] |= changes
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


LIES = {
    "secure_sums": 99,
    "kept_devices": 99,
    "kept_weight": 1,
    "train_loss": 0.0,
    "clipped": 5,
    "num_queries": 99,
    "certified": None,
    "eta": 99.0,
    "half_width": 99.0,
    "aborted": "nobody was left",
}


def test_events_that_the_sums_do_not_lead_to_are_found(resumed):
    change_event(resumed, **LIES)
    found = [f for f in audit(resumed, lenient()).findings if f.rule == "record.disagrees"]
    of_round = {f.detail.partition(" is ")[0] for f in found if f.evidence[0].round == 2}
    assert of_round == set(LIES)
    beside = [f.detail for f in found if f.evidence[0].round is None]
    assert any("events" in detail for detail in beside)  # the checkpoints vouch for their length
    assert any("clipped is" in detail for detail in beside)  # and the summary adds them up


@pytest.mark.slow
def test_what_events_say_beside_is_not_compared(resumed):
    """Control: not every edit of the events is a contradiction."""
    log = (resumed / "events.jsonl").read_text()
    said = json.dumps(json.loads(log.splitlines()[1])["wall_s"])
    digits, e, exponent = said.partition("e")  # not every number of 17 digits is one as written
    others = (f"{digits[:-2]}{last:02}{e}{exponent}" for last in range(1, 100))
    other = next(one for one in others if one != said and repr(float(one)) == one)
    (resumed / "events.jsonl").write_text(log.replace(said, other))
    assert serious(audit(resumed, lenient())) == set()


@pytest.mark.slow
def test_events_of_rounds_that_nobody_recorded_are_found(runs, tmp_path):
    """A transcript that ends with its second round, beside the events of three."""
    shutil.copytree(runs / "killed", tmp_path / "run")
    for name in ("checkpoints", "summary.json", "events.jsonl"):
        source, target = runs / "resumed" / name, tmp_path / "run" / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    found = {f.rule: f for f in audit(tmp_path / "run", lenient()).findings}
    assert {"record.cut", "record.disagrees"} <= set(found)
    disagrees = [f for f in audit(tmp_path / "run", lenient()).findings if f.rule in found]
    assert any(f.evidence[0].round == 3 for f in disagrees if f.rule == "record.disagrees")


def test_another_transcript_under_a_right_chain_is_not_the_run_s(runs, resumed):
    """The digest that the run states vouches for every byte."""
    summary = said_of(resumed, "summary")
    summary["transcript_sha256"] = bytes(32).hex()
    (resumed / "summary.json").write_text(json.dumps(summary))
    report = audit(resumed, lenient())
    assert serious(report) == {"record.head-differs", "record.disagrees"}
    head = bytes.fromhex(report.head)
    assert serious(audit(resumed, lenient(head=head))) == {"record.disagrees"}


def test_a_source_knows_what_vouches_for_it(runs):
    source = find_source(runs / "killed")
    mark = checkpoint_of(runs / "killed").transcript
    assert (source.head, source.num_records) == (mark.digest, mark.num_frames)
    assert sorted(source.events) == [1, 2]
    assert not source.is_in_clear
    bare = find_source(runs / "killed" / "record.sqlite")
    assert (bare.config, bare.events, bare.head, bare.num_records) == (None,) * 4
    assert find_source(runs / "clear").is_in_clear


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "federation = 3"),
        ("config.toml", "[[["),
        ("summary.json", "{"),
        ("summary.json", '{"transcript_sha256": "not hex"}'),
        ("checkpoints/round-000003.npz", "no checkpoint"),
        ("metrics/round-000003.parquet", "of an earlier version"),
    ],
)
def test_a_damaged_run_directory_is_refused_by_the_name_of_the_file(resumed, capsys, name, content):
    if name.startswith("checkpoints"):
        for other in (resumed / "checkpoints").iterdir():
            other.write_text(content)
    (resumed / name).write_text(content)
    assert main(["audit", str(resumed), "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (sentence,) = captured.err.splitlines()
    assert name.partition("/")[0] in sentence


@pytest.mark.parametrize("content", ["{}\n", "no json\n", "[1]\n", '{"round": "first"}\n'])
def test_damaged_events_are_a_finding(resumed, content):
    """The transcript is audited all the same."""
    (resumed / "events.jsonl").write_text(content)
    report = audit(resumed, lenient())
    assert any("events.jsonl is damaged" in finding.detail for finding in report.findings)


def test_a_run_without_a_transcript_is_refused(resumed):
    (resumed / "record.sqlite").unlink()
    with pytest.raises(UserError, match=r"no transcript\.bin"):
        audit(resumed)


def test_further_runs_of_an_experiment_are_counted(tmp_path):
    settings = {"experiment": {"num_seeds": 2, "baselines": ["fedavg"]}}
    (tmp_path / "config.toml").write_text(to_toml(build_config([settings])), encoding="utf-8")
    (tmp_path / "record.sqlite").touch()
    assert find_source(tmp_path).num_others == 3
