"""Files that are not as they were written, and directories that say something else than theirs.

The other leaks stand under a chain that is right; these are about the chain, or beside it.
"""

from dataclasses import replace

from frames import MAGIC, chained, frames_of, starts_of, whole_frames
from leaks import as_transcript, leak
from leaks_by_devices import UPDATE, VICTIM
from run_directories import CONFIG, directory_of
from staged_runs import DrawnStage, Kind, Over, StartedStage, TinyStage, write

from deltafl.sim.record.versions import decide_first_model

AT = 30  # a record in the middle of the tiny run, which has 54


def rewritten(change):
    """A transcript of which somebody has changed the bytes, given its path, once it was written."""

    def laid(run, entries, folder, mode):
        path = as_transcript(run, entries, folder, mode)
        path.write_bytes(change(path))
        return path

    return laid


def without_its_end(path):
    return path.read_bytes()[:-1]


def with_an_edited_byte(path):
    content = bytearray(path.read_bytes())
    content[starts_of(path)[AT] + 9] ^= 1  # behind the length, in the record's fields
    return bytes(content)


def without_a_record(path):
    whole = whole_frames(path)
    return MAGIC + b"".join([*whole[:AT], *whole[AT + 1 :]])


def with_a_record_twice(path):
    whole = whole_frames(path)
    return MAGIC + b"".join([*whole[: AT + 1], *whole[AT:]])


def without_a_record_under_a_new_chain(path):
    frames = frames_of(path)
    return chained([*frames[:AT], *frames[AT + 1 :]])


def without_a_closing(_run, entries, folder, mode):
    write(entries, folder / "t.sqlite", mode, closed=0)
    return folder / "t.sqlite"


def in_a_directory(_run, entries, folder, mode):
    """With the settings and events of the run."""
    return directory_of(folder / "run", entries=entries, mode=mode).path


def closed_after_a_round(_run, entries, folder, mode):
    """The end is cut off, and what is left has a closing record; the settings say two rounds."""
    first = [entry for entry in entries if entry.round == 1]
    directory = directory_of(folder / "run", entries=first, mode=mode, finished=False)
    for path in (directory.events, *directory.checkpoints.iterdir()):
        path.unlink()  # only the settings are left to say how long the run is
    return directory.path


def closed_after_a_round_beside_its_truth(_run, entries, folder, mode):
    write([entry for entry in entries if entry.round == 1], folder / "t.sqlite", mode)
    return folder / "t.sqlite"


def beside_events_of_another_result(_run, entries, folder, mode):
    def change(events):
        events[0]["kept_devices"] += 1

    return directory_of(folder / "run", entries=entries, mode=mode, change=change).path


def in_place_of_what_was_written(run, entries, folder, mode):
    """The summary has the digest of what was."""
    directory = directory_of(folder / "run", entries=run.entries, mode=mode)
    write(entries, directory.transcript, mode)
    return directory.path


def in_a_directory_of_fedavg(_run, entries, folder, mode):
    config = replace(CONFIG, federation=replace(CONFIG.federation, algorithm="fedavg"))
    return directory_of(folder / "run", config=config, entries=entries, mode=mode).path


@leak("record.cut", stage=TinyStage, round=None, laid=rewritten(without_its_end))
def a_file_that_ends_inside_a_record(edit):
    assert edit.entries


@leak("record.edited", stage=TinyStage, laid=rewritten(with_an_edited_byte))
def a_byte_that_was_changed(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak("record.missing", stage=TinyStage, laid=rewritten(without_a_record))
def a_record_that_was_taken_out(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak("record.missing")
def the_end_of_a_round_that_was_taken_out(edit):
    edit.remove(edit.end(1))


@leak("record.reordered", stage=TinyStage, laid=rewritten(with_a_record_twice))
def a_record_that_was_repeated(edit):
    edit.touched = [edit.entries[AT - 1]]


@leak("record.malformed", stage=TinyStage, laid=rewritten(without_a_record_under_a_new_chain))
def a_record_that_was_taken_out_under_a_new_chain(edit):
    edit.touched = [edit.entries[AT - 2]]


@leak(
    "record.cut",
    stage=DrawnStage,
    round=None,
    laid=closed_after_a_round,
    twin_laid=in_a_directory,
)
def a_record_that_is_closed_after_the_first_of_two_rounds(edit):
    assert edit.entries


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


def in_a_directory_without_a_summary(_run, entries, folder, mode):
    return directory_of(folder / "run", entries=entries, mode=mode, finished=False).path


@leak(
    "run.unfinished",
    stage=DrawnStage,
    round=None,
    laid=in_a_directory_without_a_summary,
    twin_laid=in_a_directory,
)
def a_finished_run_without_its_summary(edit):
    assert edit.entries


def in_a_directory_of_this_platform(run, entries, folder, mode):
    """The first model can be built again."""
    own = {"stage": type(run.stage), "platform": decide_first_model()}
    return directory_of(folder / "run", entries=entries, mode=mode, **own).path


@leak(
    "model.first-differs",
    stage=DrawnStage,
    twin=StartedStage,
    laid=in_a_directory_of_this_platform,
    twin_laid=in_a_directory_of_this_platform,
)
def a_run_that_starts_from_another_model(edit):
    edit.touched = edit.find(1, Kind.OPEN)


def with_settings_that_no_run_can_have(_run, entries, folder, mode):
    impossible = replace(CONFIG, strategy=replace(CONFIG.strategy, eta_every=2))
    return directory_of(folder / "run", config=impossible, entries=entries, mode=mode).path


@leak(
    "settings.impossible",
    stage=DrawnStage,
    round=None,
    laid=with_settings_that_no_run_can_have,
    twin_laid=in_a_directory,
)
def settings_that_only_an_algorithm_in_clear_can_have(edit):
    assert edit.entries


@leak("truth.missing", with_truth=True, retold=without_a_device)
def a_device_that_is_left_out_of_the_truth(edit):
    edit.touched = [edit.end(1)]


@leak("truth.disagrees", with_truth=True, retold=without_an_update)
def a_device_that_did_not_train_by_the_truth(edit):
    edit.touched = [edit.end(1)]


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


@leak("record.unasked")
def a_question_that_was_taken_out(edit):
    edit.remove(*edit.find(1, Kind.SLOT, slot=UPDATE, peer=VICTIM))


@leak(
    "record.disagrees",
    stage=DrawnStage,
    laid=beside_events_of_another_result,
    twin_laid=in_a_directory,
)
def events_that_the_sums_do_not_lead_to(edit):
    edit.touched = [edit.end(1)]


@leak(
    "record.head-differs",
    stage=DrawnStage,
    round=None,
    laid=in_place_of_what_was_written,
    twin_laid=in_a_directory,
)
def another_record_under_a_right_chain(edit):
    edit.put(edit.end(1), replace(edit.end(1), aborted="it did not please the server"))
    edit.touched = []


@leak(
    "clear.by-design",
    stage=DrawnStage,
    round=None,
    laid=in_a_directory_of_fedavg,
    twin_laid=in_a_directory,
)
def an_algorithm_without_masks(edit):
    assert type(edit.run.stage) is DrawnStage
