"""Records whose chain is not right, and run directories that say something else than they must.

The other leaks stand under a chain that is right.
"""

from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import records
import run_directories
from leaks import as_transcript, leak
from leaks_by_devices import UPDATE, VICTIM
from staged_runs import Kind, Over, TinyStage, write

from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.run import engine, simulated

ROUNDS = run_directories.SMALL["federation"]["rounds"]
AT = 30  # a row in the middle of the tiny run


def rewritten(*statements, change=None):
    """A record of which somebody has changed rows: by SQL, or all of them under a right chain."""

    def laid(run, entries, folder):
        path = as_transcript(run, entries, folder)
        records.change_record(path, *statements)
        if change is not None:
            rows = records.rows_of(path)
            change(rows)
            records.write_rows(path, rows)
        return path

    return laid


def without_a_closing(_run, entries, folder):
    write(entries, folder / "t.sqlite", closed=0)
    return folder / "t.sqlite"


def in_a_directory(_run, entries, folder):
    """With the settings of the run."""
    return run_directories.directory_of(folder / "run", entries).path


def closed_after_a_round_beside_its_truth(_run, entries, folder):
    write([entry for entry in entries if entry.round == 1], folder / "t.sqlite")
    return folder / "t.sqlite"


def real(change=None, patched=None, **sections):
    """What a small run has left, changed."""

    def laid(_run, _entries, folder):
        return run_directories.real(folder / "run", change, patched, **sections).path

    return laid


HONEST = real()


def another_kind(rows):
    (fields,) = [fields for table, number, fields, _ in rows if number == AT]
    fields["size"] = -1


TAKEN_OUT = "DELETE FROM messages WHERE number = ?", (AT,)
EDITED = "UPDATE messages SET peer = peer + 1 WHERE number = ?", (AT,)
TWICE = (
    "INSERT INTO events SELECT number, digest, round, '{}' FROM messages WHERE number = ?",
    (AT,),
)


@leak("record.edited", stage=TinyStage, laid=rewritten(EDITED))
def a_row_that_was_changed(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak("record.missing", stage=TinyStage, laid=rewritten(TAKEN_OUT))
def a_row_that_was_taken_out(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak("record.missing")
def the_end_of_a_round_that_was_taken_out(edit):
    edit.remove(edit.end(1))


@leak("record.reordered", stage=TinyStage, laid=rewritten(TWICE))
def a_row_that_is_there_twice(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak("record.malformed", stage=TinyStage, laid=rewritten(change=another_kind))
def a_row_that_no_run_writes(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak("record.cut", round=2, with_truth=True, laid=closed_after_a_round_beside_its_truth)
def a_record_that_is_closed_before_the_end_of_its_truth(edit):
    assert edit.entries


def without_a_device(run):
    """A truth file without all records of a device."""
    return replace(run, truths=[one for one in run.truths if one[1].id != VICTIM])


def without_an_update(run):
    """A truth file by which a device that passed did not train."""
    number, device = next(one for one in run.truths if one[1].noted_update is not None)
    others = [one for one in run.truths if one[1] is not device]
    return replace(run, truths=[(number, replace(device, noted_update=None)), *others])


def of_a_directory(*rules, number=None, laid, twin_laid=HONEST, **more):
    """Leaks in what a small run has left, whatever is staged."""
    return leak(*rules, stage=TinyStage, round=number, laid=laid, twin_laid=twin_laid, **more)


def of_one_round(rows):
    """The end is cut off, and what is left is closed, as a run of one round is."""
    for _, _, fields, _ in rows:
        if fields.get("what") == "closing":
            fields["round"] = ROUNDS - 1
    rows[:] = [row for row in rows if row[2]["round"] != ROUNDS]


@of_a_directory("record.cut", laid=real(run_directories.lie(of_one_round)))
def a_record_that_is_closed_after_the_first_of_two_rounds(edit):
    assert edit.entries


def without_summary(directory):
    records.note(directory.path, "summary", None)


@of_a_directory("run.unfinished", laid=real(without_summary))
def a_finished_run_without_its_summary(edit):
    assert edit.entries


def with_another_model(index):
    """The server shows the devices of a round another model than it must."""
    honest = SimulatedCohort.secure_round

    def secure_round(self, levels, models, weighing=None):
        if levels.common.round_index == index:
            models = [one + np.float32(0.25) for one in models]
        return honest(self, levels, models, weighing)

    return mock.patch.object(SimulatedCohort, "secure_round", secure_round)


ANOTHER_FIRST, ANOTHER_SECOND = (partial(with_another_model, index) for index in (0, 1))


@of_a_directory("model.first-differs", number=1, laid=real(patched=ANOTHER_FIRST))
def a_run_that_starts_from_another_model(edit):
    assert edit.entries


@of_a_directory("model.unfounded", number=2, laid=real(patched=ANOTHER_SECOND))
def a_model_of_the_server_s_own(edit):
    assert edit.entries


def losing(step, which, rounds=range(ROUNDS)):
    """The server says that some devices are gone, which, by the settings, answer."""

    def lost(number, ids, slots):
        gone = Vanish(Step(Sending.MASK, step % slots))
        return dict.fromkeys(ids[which], gone) if number in rounds else {}

    return mock.patch.object(simulated, "dropouts_of", return_value=lost)


LAST = -1  # the slot of the updates
ONE_AT_ONCE = partial(losing, 1, slice(1), range(1))
ONE_IN_EACH_SEARCH = partial(losing, 1, slice(-1, None))
ONE_AFTER_EACH_SEARCH = partial(losing, LAST, slice(2, 3))
TOO_MANY = partial(losing, LAST, slice(4))


@of_a_directory("answers.vanished", number=1, laid=real(patched=ONE_AT_ONCE))
def a_device_that_is_called_silent(edit):
    assert edit.entries


@of_a_directory("answers.vanished", number=2, laid=real(patched=ONE_IN_EACH_SEARCH))
def searches_that_are_ended_by_losing_a_device(edit):
    assert edit.entries


@of_a_directory("answers.vanished", number=2, laid=real(patched=ONE_AFTER_EACH_SEARCH))
def a_chosen_device_that_is_lost_after_each_search(edit):
    assert edit.entries


@of_a_directory("answers.vanished", number=1, laid=real(patched=TOO_MANY))
def a_round_that_is_given_up_by_losing_half_of_it(edit):
    assert edit.entries


TOLD = {"privacy": {"truth": True}}
TRUE = real(**TOLD)
ONE_AT_ONCE_TOLD = real(patched=ONE_AT_ONCE, **TOLD)


@of_a_directory(
    "answers.vanished", number=1, laid=ONE_AT_ONCE_TOLD, twin_laid=TRUE, with_truth=True
)
def a_device_that_is_called_silent_beside_the_truth(edit):
    assert edit.entries


def another_version(directory):
    run_directories.in_said("versions", torch="2.12.0+cpu")(directory)


ANOTHER_FIRST_ONE = real(another_version, patched=ANOTHER_FIRST)


@of_a_directory("model.first-differs", number=1, laid=ANOTHER_FIRST_ONE)
def a_version_that_would_explain_another_first_model(edit):
    assert edit.entries


def rounded_otherwise():
    """A processor that rounds the first model otherwise."""
    honest = engine.first_model
    return mock.patch.object(
        engine, "first_model", lambda *of: np.nextafter(honest(*of), np.float32(9))
    )


@of_a_directory("run.rounding", number=1, laid=real(patched=rounded_otherwise))
def a_first_model_with_other_last_bits(edit):
    assert edit.entries


def without_truth(directory):
    directory.truth.unlink()


@of_a_directory("truth.absent", laid=real(without_truth, **TOLD), twin_laid=TRUE)
def a_truth_that_is_gone(edit):
    assert edit.entries


def without_digests(rows):
    for _, _, fields, _ in rows:
        if fields.get("what") == "end":
            fields["data"] = None


A_LITTLE = "UPDATE devices SET loss = loss * (1 + 1e-15) WHERE round = 2"
OTHER_LOSSES = real(run_directories.lie_in_truth(A_LITTLE), **TOLD)
NO_DIGESTS = real(run_directories.lie(without_digests), **TOLD)


@of_a_directory("truth.disagrees", number=2, laid=OTHER_LOSSES, twin_laid=TRUE, with_truth=True)
def losses_that_are_a_little_different_in_the_truth(edit):
    assert edit.entries


@of_a_directory("truth.disagrees", number=1, laid=NO_DIGESTS, twin_laid=TRUE, with_truth=True)
def a_record_that_does_not_vouch_for_its_truth(edit):
    assert edit.entries


@of_a_directory("record.disagrees", laid=real(lambda one: one.bundle.unlink()))
def a_finished_run_without_its_models(edit):
    assert edit.entries


IMPOSSIBLE = real(run_directories.in_settings("eta_every = 1", "eta_every = 2"))


@of_a_directory("settings.impossible", laid=IMPOSSIBLE)
def settings_that_only_an_algorithm_in_clear_can_have(edit):
    assert edit.entries


@of_a_directory(
    "record.disagrees", number=1, laid=real(run_directories.in_event(1, kept_devices=7))
)
def events_that_the_sums_do_not_lead_to(edit):
    assert edit.entries


def another_device(rows):
    """A liar who keeps the summary as it was."""
    end = next(f for table, _, f, _ in rows if table == "rounds" and f["what"] == "end")
    end["said"] = "it did not please the server"


def under_another_chain(directory):
    rows = records.rows_of(directory.record)
    another_device(rows)
    records.write_rows(directory.record, rows)


@of_a_directory("record.head-differs", laid=real(under_another_chain))
def another_record_under_a_right_chain(edit):
    assert edit.entries


@of_a_directory("clear.by-design", laid=real(federation={"algorithm": "fedavg", "rounds": 1}))
def an_algorithm_without_masks(edit):
    assert edit.entries


@leak("truth.missing", with_truth=True, retold=without_a_device)
def a_device_that_is_left_out_of_the_truth(edit):
    edit.touched = edit.find(1, Kind.OPEN, peer=VICTIM)


@leak("truth.disagrees", with_truth=True, retold=without_an_update)
def a_device_that_did_not_train_by_the_truth(edit):
    number, device = next(one for one in edit.run.truths if one[1].noted_update is not None)
    edit.touched = edit.find(number, Kind.MASKED, slot=UPDATE, peer=device.id)


@leak("record.reordered")
def a_round_that_goes_on_after_its_end(edit):
    over = edit.end(1)
    edit.remove(over)
    edit.entries.insert(40, over)
    edit.touched = [edit.entries[41]]


@leak("record.unfinished", stage=TinyStage, round=None, laid=without_a_closing)
def a_record_that_was_never_closed(edit):
    assert edit.entries


@leak("record.no-messages", stage=TinyStage, round=None)
def a_round_of_which_nothing_is_recorded_but_its_end(edit):
    edit.remove(*[entry for entry in edit.entries if not isinstance(entry, Over)])


@leak("spec.answers")
def a_question_that_was_taken_out(edit):
    edit.remove(*edit.find(1, Kind.SLOT, slot=UPDATE, peer=VICTIM))
