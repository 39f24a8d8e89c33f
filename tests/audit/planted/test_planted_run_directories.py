"""A run directory is held to what the run says of itself: events, checkpoint, summary, settings."""

from dataclasses import replace

import numpy as np
import plants_of_servers
import pytest
from frames import MAGIC, whole_frames
from planted_runs import Edit, Stage, played, write

from deltafl.fl.strategies.base import ServerState
from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import Checkpoint, save_checkpoint
from deltafl.sim.record.events import EventLog
from deltafl.sim.record.rundir import RunDirectory, write_json
from deltafl.sim.record.truth import TRUTH
from deltafl.sim.settings.config import FederationConfig, PrivacyConfig, QuantileConfig, RunConfig

CONFIG = RunConfig(
    federation=FederationConfig(algorithm="private-delta-fl", rounds=2),
    quantile=QuantileConfig(method="bracketed", max_queries=2),
    privacy=PrivacyConfig(min_cohort=5, transcript="full"),
)


def event_of(number, outcome):
    search = outcome.search
    return {
        "round": number,
        "kept_devices": outcome.kept_devices,
        "kept_weight": outcome.kept_weight,
        "train_loss": outcome.train_loss,
        "secure_sums": outcome.secure_sums,
        "num_queries": search.num_queries,
        "certified": search.certified,
        "clipped": outcome.clipped,
        "aborted": outcome.aborted,
    }


def directory_of(path, *, config=CONFIG, entries=None, finished=True, change=None, **written):
    """The directory of a run of two rounds.

    Args:
        path: Where.
        config: Its settings.
        entries: What the transcript says in place of what happened.
        finished: Whether it has a summary.
        change: Changes its events.
        written: Of `write`.
    """
    run, directory = played(Stage), RunDirectory(path)
    directory.prepare(config)
    events = [event_of(number, outcome) for number, outcome in run.outcomes.items()]
    if change is not None:
        change(events)
    with EventLog(directory.events) as log:
        for event in events:
            log.append(event)
        size = log.flush()
    mark = write(run.entries if entries is None else entries, directory.transcript, **written)
    save(directory, mark, size)
    if finished:
        write_json(directory.summary, {"transcript_sha256": mark.digest.hex()})
    return directory


def save(directory, mark: Mark, events_size: int, number: int = 2):
    state = ServerState(np.zeros(60, np.float32), number, None)
    checkpoint = Checkpoint(state, events_size, mark, TRUTH.start)
    save_checkpoint(directory.checkpoints, checkpoint)


def serious(directory):
    findings = audit(directory.path).findings
    return {finding.rule for finding in findings if finding.severity >= Severity.MEDIUM}


def test_a_directory_as_the_run_left_it_is_clean(tmp_path):
    directory = directory_of(tmp_path / "run")
    assert serious(directory) == set()
    assert main(["audit", str(directory.path), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kept_devices", 7),
        ("kept_weight", 1),
        ("train_loss", 0.5),
        ("secure_sums", 2),
        ("num_queries", 3),
        ("certified", "nearly"),
        ("clipped", 1),
        ("aborted", "it did not please the server"),
    ],
)
def test_an_event_that_does_not_follow_from_the_sums_is_found(tmp_path, key, value):
    directory = directory_of(tmp_path / "run", change=lambda events: events[1].update({key: value}))
    assert "record.disagrees" in serious(directory)
    places = [
        place.round
        for finding in audit(directory.path).findings
        if finding.rule == "record.disagrees"
        for place in finding.evidence
    ]
    assert places == [2]


def test_a_round_of_the_events_that_no_message_knows_of_is_found(tmp_path):
    entries = [entry for entry in played(Stage).entries if entry.round == 1]
    assert "record.disagrees" in serious(directory_of(tmp_path / "run", entries=entries))


def test_another_run_s_transcript_is_found(tmp_path):
    directory = directory_of(tmp_path / "run")
    other = Edit(played(Stage))
    plants_of_servers.a_round_given_up_by_a_server_that_had_its_sums(other)
    write(other.entries, directory.transcript)
    assert "record.head-differs" in serious(directory)


def test_records_that_the_checkpoint_knows_of_are_missed(tmp_path):
    directory = directory_of(tmp_path / "run")
    whole = whole_frames(directory.transcript)
    directory.transcript.write_bytes(MAGIC + b"".join(whole[:-20]))
    assert "record.cut" in serious(directory)


def test_what_came_after_the_last_checkpoint_is_no_forgery(tmp_path):
    """A run that was killed leaves more than its checkpoint knows of."""
    directory = directory_of(tmp_path / "run", closed=0, finished=False)
    first = [entry for entry in played(Stage).entries if entry.round == 1]
    mark = write(first, tmp_path / "first.bin", closed=0)
    for old in directory.checkpoints.iterdir():
        old.unlink()
    save(directory, mark, 0, number=1)
    assert serious(directory) <= {"record.unfinished"}


def test_the_directory_s_settings_are_the_policy(tmp_path):
    active = replace(CONFIG, privacy=replace(CONFIG.privacy, adversary="active"))
    assert "keys.unsigned" in serious(directory_of(tmp_path / "active", config=active))
    large = replace(CONFIG, privacy=replace(CONFIG.privacy, min_cohort=8))
    assert "cohort.below-floor" in serious(directory_of(tmp_path / "large", config=large))


@pytest.mark.parametrize("algorithm", ["delta-fl", "fedavg"])
def test_a_run_in_clear_is_in_clear(tmp_path, algorithm):
    config = replace(CONFIG, federation=replace(CONFIG.federation, algorithm=algorithm))
    directory = directory_of(tmp_path / "run", config=config)
    assert serious(directory) == {"clear.by-design"}
    assert main(["audit", str(directory.path), "--quiet"]) == 1


def test_a_run_without_messages_shows_nothing(tmp_path):
    ends = [played(Stage).entries[-1]]
    run = replace(CONFIG, federation=replace(CONFIG.federation, rounds=1))
    directory = directory_of(tmp_path / "run", config=run, entries=ends)
    assert "record.no-messages" in serious(directory)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"\xff\xfe"),
        ("summary.json", b"{"),
        ("summary.json", b"[]"),
        ("summary.json", b'{"transcript_sha256": "none"}'),
        ("events.jsonl", b"{\n"),
        ("events.jsonl", b"[]\n"),
        ("events.jsonl", b'{"loss": 1}\n'),
        ("events.jsonl", b'{"round": "first"}\n'),
        ("checkpoints/round-000002.npz", b"PK"),
    ],
)
def test_a_file_of_the_directory_that_is_damaged_is_named(tmp_path, capsys, name, content):
    directory = directory_of(tmp_path / "run")
    (directory.path / name).write_bytes(content)
    with pytest.raises(UserError, match=name.partition("/")[0]):
        audit(directory.path)
    assert main(["audit", str(directory.path), "--quiet"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_directory_without_its_transcript_is_refused(tmp_path):
    directory = directory_of(tmp_path / "run")
    directory.transcript.unlink()
    with pytest.raises(UserError, match=r"transcript\.bin"):
        audit(directory.path)


def test_a_directory_with_an_empty_transcript_is_refused(tmp_path):
    directory = directory_of(tmp_path / "run")
    directory.transcript.write_bytes(b"")
    with pytest.raises(UserError, match="empty"):
        audit(directory.path)
