"""A record holds nothing of what devices had to hide; the truth is a file of its own."""

import struct
from contextlib import closing

import pytest
from doubles import run
from records import read_truth

from deltafl.sim.cli import main
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import read_transcript
from deltafl.sim.record.truth import DeviceSeed, DeviceTruth
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS = {
    "data": {"num_devices": 24},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 2,
        "cohort_size": 8,
        "evaluate_every": 2,
    },
    "training": {"batch_size": 64, "device": "cpu"},
    "privacy": {"min_cohort": 5, "truth": True, "transcript": "full"},
}


def words_of(one):
    """The secrets of a row of the truth, as they could stand in a record."""
    if isinstance(one, DeviceSeed):
        return [one.seed, one.identity]
    found = [struct.pack(form, one.loss) for form in ("<d", ">d")]
    found.append(repr(one.loss).encode())
    if one.update is not None:
        found += [one.update.astype(form).tobytes()[400:440] for form in ("<f4", ">f4", "<f8")]
    return found


def told(record, tables):
    rows = (row for table in tables for row in record.db.execute(f"SELECT * FROM {table}"))  # noqa: S608
    values = (value for row in rows for value in row)
    return b"\n".join(one if isinstance(one, bytes) else str(one).encode() for one in values)


@pytest.mark.slow
def test_no_seed_no_loss_and_no_update_is_in_a_record(tmp_path):
    """But for evaluations, which a simulation makes of all devices, whoever trains."""
    path = RunDirectory(tmp_path / "run")
    run(build_config([SETTINGS]), path.path)
    with path.read() as record:
        tables = ("rounds", "messages", "bodies", "sums", "events", "about", "arrays")
        said = told(record, tables)
        names = {
            row[1]
            for table in (*tables, "evaluations", "measured", "attackers")
            for row in record.db.execute(f"PRAGMA table_info({table})")
        }
    assert not names & {"seed", "weight", "update", "identity", "salt"}
    whole = path.record.read_bytes()
    opening = next(read_transcript(path.record))
    with closing(read_truth(path.truth, opening.run_id, DeviceSeed | DeviceTruth)) as rows:
        found = list(rows)
    assert {type(one) for one in found} == {DeviceSeed, DeviceTruth}
    for one in found:
        for word in words_of(one):
            assert word not in said, one
            assert isinstance(one, DeviceTruth) or word not in whole
    truth = path.truth.read_bytes()
    assert all(word in truth for one in found for word in words_of(one)[:1] if len(word) == 32)
    path.truth.unlink()
    with path.read() as record:  # and nobody needs it to read the record
        assert len(list(record.chain.read())) == record.chain.mark.num_frames


@pytest.mark.slow
def test_the_audit_of_sums_says_first_that_no_message_was_played_again(tmp_path, capsys):
    settings = {**SETTINGS, "privacy": {**SETTINGS["privacy"], "transcript": "sums"}}
    run(build_config([settings]), tmp_path / "run")
    assert main(["audit", str(tmp_path / "run"), "--quiet"]) == 0
    box = capsys.readouterr().out.partition("└")[0]
    assert "No message was played again" in " ".join(box.replace("│", "").split())
