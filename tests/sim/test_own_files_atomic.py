"""What has been written is found again after a power cut, down from the first folder."""

import os

import pytest
from doubles import Silent, run

from deltafl.sim.record.own_files import make_folder, write_file
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.settings.config_io import build_config


@pytest.fixture
def unsynced(monkeypatch):
    """Folders and files whose names are not on the disk yet."""
    names, mkdir, opened, fsync = set(), os.mkdir, os.open, os.fsync

    def make(path, *args, **more):
        mkdir(path, *args, **more)
        names.add(os.path.abspath(path))

    def sync(file):
        fsync(file)
        folder = os.readlink(f"/proc/self/fd/{file}")
        names.difference_update([name for name in names if os.path.dirname(name) == folder])

    def note(path, flags, *args, **more):
        is_new = flags & os.O_CREAT and not os.path.lexists(path)
        handle = opened(path, flags, *args, **more)
        if is_new:
            names.add(os.path.abspath(path))
        return handle

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "fsync", sync)
    return names


def test_a_folder_is_found_again_with_those_above_it(tmp_path, unsynced):
    os.mkdir(tmp_path / "above")
    assert len(unsynced) == 1  # the control
    make_folder(tmp_path / "above" / "a" / "b")
    make_folder(tmp_path / "above" / "a" / "b")
    assert (tmp_path / "above" / "a" / "b").is_dir()
    assert unsynced == {str(tmp_path / "above")}  # it was there, and is not this call's
    make_folder(tmp_path / "above")  # as a process may have ended before it was synced
    assert unsynced == set()


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a")


def test_a_left_over_is_replaced(tmp_path):
    (tmp_path / ".a.tmp").write_text("a left-over that is longer")
    write_file(tmp_path / "a", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_no_message_leaves_before_its_record_can_be_found_again(tmp_path, unsynced, monkeypatch):
    """In every run of an experiment: the file, its folder, and the folders above."""
    message, waiting = TranscriptWriter.message, []

    def note(self, **what):
        waiting.append({name for name in unsynced if name.startswith(str(tmp_path))})
        message(self, **what)

    monkeypatch.setattr(TranscriptWriter, "message", note)
    settings = {
        "data": {"num_devices": 24},
        "federation": {"algorithm": "private-fedavg", "rounds": 1, "cohort_size": 6},
        "training": {"batch_size": 64, "device": "cpu"},
        "privacy": {"min_cohort": 5, "transcript": "sums"},
        "experiment": {"num_seeds": 2},
    }
    run(build_config([settings]), tmp_path / "above" / "run", progress=Silent())
    assert len(waiting) > 50
    assert set().union(*waiting) == set()
