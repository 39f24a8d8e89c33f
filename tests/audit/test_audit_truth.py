"""What a truth file must have: whatever is left out of it, or changed in it, is found."""

import hashlib
from collections import Counter

import pytest
from honest_runs import in_mode, play_honestly
from real_runs import leave
from reports import serious

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.truth import TruthFile
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.chain import ChainWriter, read_chain
from deltafl.sim.record.transcript import TRANSCRIPT, TranscriptWriter
from deltafl.sim.record.truth import TRUTH, TruthWriter

DEVICE, SECRETS = 1, 2  # kinds of records
ROUND, ID, LOSS, WEIGHT, PASSED, UPDATE = range(6)  # fields of a device's
DRAWN = 3  # field of the secrets'
OPTIONS = {"min_cohort": 5, "colluding": 0.1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return play_honestly(tmp_path_factory.mktemp("run"), rounds=2, batches=2, length=6)


def rewritten(path, into, change):
    """A truth file of other records, under a chain that is right.

    Args:
        path: The file.
        into: The file to write.
        change: Given kind and fields of a record, gives those to write in its place, any number.
    """
    with ChainWriter(into, TRUTH, TRUTH.start) as chain:
        for link in read_chain(path, TRUTH):
            for kind, fields in change(link.kind, list(link.fields)):
                chain.append(kind, *fields)
        chain.flush()
    return into


def report_on(run, tmp_path, change, transcript=None):
    truth = rewritten(run.truth, tmp_path / "changed.bin", change)
    return audit(transcript or run.transcript, Options(truth=truth, **OPTIONS))


def of_truth(report):
    return {rule for rule in serious(report) if rule.startswith("truth.")}


def first_of(run, number):
    return min(run.told[number - 1].losses)


@pytest.mark.slow
def test_the_truth_file_of_a_simulation_has_all(run, tmp_path):
    report = report_on(run, tmp_path, lambda kind, fields: [(kind, fields)])
    assert of_truth(report) == set()
    (made,) = (check for check in report.checks if check.name == TruthFile.name)
    assert made.detail == "20 records of devices and 20 of secrets, in 2 of 2 rounds"


@pytest.mark.parametrize("kinds", [(DEVICE,), (SECRETS,), (DEVICE, SECRETS)])
def test_a_device_that_is_left_out_of_a_round_is_found(run, tmp_path, kinds):
    def change(kind, fields):
        left_out = kind in kinds and fields[:2] == [1, first_of(run, 1)]
        return [] if left_out else [(kind, fields)]

    report = report_on(run, tmp_path, change)
    assert of_truth(report) == {"truth.missing"}
    places = {
        place.round
        for finding in report.findings
        if finding.rule == "truth.missing"
        for place in finding.evidence
    }
    assert places == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1])
def test_a_secret_that_is_left_out_is_found(run, tmp_path, kept):
    """`kept`: only the sealing key's secret, or none of the device."""

    def change(kind, fields):
        if kind == SECRETS and fields[:2] == [2, first_of(run, 2)]:
            fields[DRAWN] = fields[DRAWN][: 32 * kept]
        return [(kind, fields)]

    assert of_truth(report_on(run, tmp_path, change)) == {"truth.missing"}


def test_the_last_secret_of_a_device_is_due_as_well(run, tmp_path):
    def change(kind, fields):
        if kind == SECRETS and fields[:2] == [2, first_of(run, 2)]:
            fields[DRAWN] = fields[DRAWN][:-32]
        return [(kind, fields)]

    assert of_truth(report_on(run, tmp_path, change)) == {"truth.missing"}


@pytest.mark.slow
def test_an_update_that_is_left_out_is_found(run, tmp_path):
    report = report_on(
        run,
        tmp_path,
        lambda kind, fields: [(kind, [*fields[:UPDATE], None] if kind == DEVICE else fields)],
    )
    assert of_truth(report) == {"truth.missing"}


@pytest.mark.parametrize("flags", [(True,), (False,), (True, False)])
@pytest.mark.parametrize("mode", ["full", "headers"])
def test_whether_a_device_passed_follows_from_its_loss(run, tmp_path, flags, mode):
    """One that passed is said not to have, one that did not is said to have, and all of them."""

    def change(kind, fields):
        if kind == SECRETS and mode == "headers":
            return []
        if kind == DEVICE and fields[PASSED] in flags:
            fields[PASSED] = not fields[PASSED]
        return [(kind, fields)]

    transcript = None
    if mode == "headers":
        transcript = tmp_path / "headers.bin"
        in_mode(run.transcript, transcript, mode)
    report = report_on(run, tmp_path, change, transcript)
    assert "truth.disagrees" in of_truth(report)
    assert Counter(fields[PASSED] for fields in devices_of(run)).keys() == {True, False}


def devices_of(run):
    return [list(link.fields) for link in read_chain(run.truth, TRUTH) if link.kind == DEVICE]


@pytest.mark.parametrize("kind_of", [DEVICE, SECRETS])
def test_a_second_record_of_a_device_is_found(run, tmp_path, kind_of):
    def change(kind, fields):
        return [(kind, fields)] * (1 + (kind == kind_of and fields[:2] == [1, first_of(run, 1)]))

    assert of_truth(report_on(run, tmp_path, change)) == {"truth.disagrees"}


@pytest.mark.slow
@pytest.mark.parametrize("kind_of", [DEVICE, SECRETS])
def test_a_record_of_a_device_that_was_not_there_is_found(run, tmp_path, kind_of):
    def change(kind, fields):
        other = [fields[0], 9999, *fields[2:]]
        return [(kind, fields)] + [(kind, other)] * (kind == kind_of)

    assert of_truth(report_on(run, tmp_path, change)) == {"truth.disagrees"}


@pytest.mark.slow
def test_secrets_of_another_session_are_found(run, tmp_path):
    def change(kind, fields):
        if kind == SECRETS and fields[0] == 1:
            fields[2] = hashlib.sha256(fields[2]).digest()[:16]
        return [(kind, fields)]

    assert of_truth(report_on(run, tmp_path, change)) == {"truth.disagrees", "truth.missing"}


@pytest.mark.slow
def test_a_file_without_any_secrets_is_said_to_have_none(run, tmp_path):
    def change(kind, fields):
        return [] if kind == SECRETS else [(kind, fields)]

    report = report_on(run, tmp_path, change)
    assert of_truth(report) == set()
    assert any(one.startswith("secrets of devices: the truth") for one in report.not_checked)
    whole = report_on(run, tmp_path, lambda kind, fields: [(kind, fields)])
    assert not any(one.startswith("secrets of devices: the truth") for one in whole.not_checked)


@pytest.mark.slow
def test_rounds_by_headers_need_no_secrets_and_are_counted(tmp_path):
    run = play_honestly(tmp_path, rounds=2, batches=2, length=6, mode="every=2")
    report = audit(run.transcript, Options(truth=run.truth, **OPTIONS))
    assert of_truth(report) == set()
    assert any("1 rounds are recorded by headers only" in one for one in report.not_checked)


@pytest.mark.slow
def test_devices_that_vanish_need_only_have_what_they_came_to_tell(tmp_path):
    run = play_honestly(
        tmp_path,
        rounds=4,
        batches=2,
        length=6,
        dropout=0.3,
        privacy={"expected_dropout": 0.3, "colluding": 0.0},
    )
    assert sum(run.lost_at.values()) > 5
    report = audit(run.transcript, Options(truth=run.truth, **OPTIONS))
    assert of_truth(report) == set()


# --- runs that were stopped ----------------------------------------------------------------------


def cut_after(path, into, form, number):
    """The first records of a file."""
    with ChainWriter(into, form, form.start) as chain:
        for link in read_chain(path, form):
            if link.number < number:
                chain.append(link.kind, *link.fields)
        return chain.flush()


def stopped(run, tmp_path):
    """The transcript, stopped in its second round, and the record at which that begins."""
    begins = [link.number for link in read_chain(run.transcript, TRANSCRIPT) if link.kind == 6]
    mark = cut_after(run.transcript, tmp_path / "stopped.bin", TRANSCRIPT, begins[1] + 9)
    return tmp_path / "stopped.bin", mark


@pytest.mark.slow
def test_a_round_that_has_no_end_need_not_be_in_the_truth(run, tmp_path):
    transcript, _ = stopped(run, tmp_path)
    first = rewritten(run.truth, tmp_path / "first.bin", only_round(1))
    report = audit(transcript, Options(truth=first, **OPTIONS))
    assert of_truth(report) == set()
    assert any("1 rounds were lost or have no end" in one for one in report.not_checked)
    none = rewritten(run.truth, tmp_path / "none.bin", only_round(0))
    assert of_truth(audit(transcript, Options(truth=none, **OPTIONS))) == {"truth.missing"}


def only_round(number):
    return lambda kind, fields: [(kind, fields)] if not kind or fields[0] <= number else []


def test_a_round_that_was_lost_later_need_not_be_in_the_truth(run, tmp_path):
    """A run that goes on from an earlier state has cut its truth file back."""
    transcript, mark = stopped(run, tmp_path)
    with TranscriptWriter(transcript, "full", mark) as writer:
        writer.resume(0, b"")
    none = rewritten(run.truth, tmp_path / "none.bin", only_round(0))
    assert of_truth(audit(transcript, Options(truth=none, **OPTIONS))) == set()


def test_a_truth_file_may_end_inside_a_record_if_the_run_was_stopped(run, tmp_path):
    transcript, _ = stopped(run, tmp_path)
    torn = tmp_path / "torn.bin"
    torn.write_bytes(rewritten(run.truth, tmp_path / "first.bin", only_round(1)).read_bytes())
    with torn.open("ab") as file:
        file.write(bytes(3))
    assert of_truth(audit(transcript, Options(truth=torn, **OPTIONS))) == set()
    with pytest.raises(UserError, match="ends inside"):
        audit(run.transcript, Options(truth=torn, **OPTIONS))


# --- run directories -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "run"
    assert leave(path, federation={"rounds": 2}, privacy={"truth": True})
    return path


def judged(directory, truth):
    return of_truth(audit(directory, Options(truth=truth)))


@pytest.mark.slow
def test_the_checkpoints_know_how_far_the_truth_goes(directory, tmp_path):
    truth = directory / "truth.sqlite"
    assert judged(directory, truth) == set()
    same = rewritten(truth, tmp_path / "same.bin", lambda kind, fields: [(kind, fields)])
    assert judged(directory, same) == set()

    def lose_all_secrets(kind, fields):
        return [] if kind == SECRETS else [(kind, fields)]

    shorter = rewritten(truth, tmp_path / "shorter.bin", lose_all_secrets)
    assert judged(directory, shorter) == {"truth.disagrees"}


def test_a_loss_that_was_changed_a_little_is_found_by_the_checkpoint(directory, tmp_path):
    def change(kind, fields):
        if kind == DEVICE:
            fields[LOSS] *= 1 + 1e-15
        return [(kind, fields)]

    changed = rewritten(directory / "truth.sqlite", tmp_path / "changed.bin", change)
    assert judged(directory, changed) == {"truth.disagrees"}


def test_records_behind_those_that_the_last_checkpoint_knows_are_found(directory, tmp_path):
    truth = directory / "truth.sqlite"
    links = list(read_chain(truth, TRUTH))
    longer = tmp_path / "longer.bin"
    longer.write_bytes(truth.read_bytes())
    run_id = links[0].fields[0]
    with TruthWriter(longer, run_id, "full", links[-1].mark) as chain:
        chain.append(DEVICE, 9, 1, 0.5, 3, False, None)
    assert "truth.disagrees" in judged(directory, longer)
