"""A run directory from elsewhere: a run writes to its own files, and to no others."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import Silent, run
from records import note

from deltafl.sim.charts.files import write_figures
from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.record.own_files import check_file, check_folder, open_own
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.settings.config import ExperimentConfig

TEMPORARY = (".bundle.npz.tmp",)
JOURNALS = tuple(f"record.sqlite{end}" for end in ("-wal", "-shm", "-journal"))
WRITTEN = ("record.sqlite", *JOURNALS, "truth.sqlite", "bundle.npz", ".lock")
FOLDERS = ("plots", "arms", "measured")


@pytest.fixture
def unfinished(tiny, tmp_path, no_figures):
    """The directory of a run that lacks its summary, and a file and a folder of the user."""
    path = tmp_path / "run"
    run(tiny, path)
    note(path, "summary", None)
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "error.png").write_text("precious")
    (tmp_path / "photos" / "error.svg").write_text("precious")
    return path


def precious(path):
    """What the user has beside a run directory."""
    files = [path / "precious", *sorted((path / "photos").iterdir())]
    return [file.read_text() for file in files]


@pytest.mark.parametrize("name", TEMPORARY)
def test_temporary_files_are_not_written_through_links(name, unfinished, tiny, tmp_path):
    (unfinished / name).symlink_to("../precious")
    assert run(tiny, unfinished, resume=True)["rounds"] == 4
    assert precious(tmp_path) == ["precious"] * 3
    assert not os.path.lexists(unfinished / name)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("target", ["../precious", "../not-there"])
def test_a_link_in_the_place_of_a_file_is_refused(name, target, unfinished, tiny, tmp_path):
    (unfinished / name).unlink(missing_ok=True)
    (unfinished / name).symlink_to(target)
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged .it is not a regular file"):
        run(tiny, unfinished, resume=True)
    assert precious(tmp_path) == ["precious"] * 3
    assert not (tmp_path / "not-there").exists()


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_gone_on_with(name, make, unfinished, tiny):
    """A pipe would wait for a writer, for ever."""
    (unfinished / name).unlink(missing_ok=True)
    make(unfinished / name)
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged .*not a regular file"):
        run(tiny, unfinished, resume=True)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("put", [lambda path: path.symlink_to("../photos"), Path.touch])
def test_a_link_in_the_place_of_a_folder_is_refused(name, put, unfinished, tiny, tmp_path):
    """A run replaces its figures."""
    if (unfinished / name).exists():
        (unfinished / name).rename(unfinished / "moved")
    put(unfinished / name)
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged .it is not a folder"):
        run(tiny, unfinished, resume=True)
    assert precious(tmp_path) == ["precious"] * 3


@pytest.mark.slow
def test_figures_are_not_drawn_through_links(unfinished, tmp_path):
    (unfinished / "plots").mkdir()
    for name in ("error.png", "error.svg"):
        (unfinished / "plots" / name).symlink_to(tmp_path / "precious")
    write_figures(unfinished / "plots", Reader(unfinished).read().methods)
    assert precious(tmp_path) == ["precious"] * 3
    assert (unfinished / "plots" / "error.png").read_bytes().startswith(b"\x89PNG")
    assert (unfinished / "plots" / "error.svg").read_bytes().startswith(b"<?xml")


def test_a_lock_keeps_what_it_holds(tmp_path, tiny):
    """It is taken, and nothing is written to it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("kept")
    with RunDirectory(tmp_path / "run").claim(tiny, resume=True):
        assert (tmp_path / "run" / ".lock").read_text() == "kept"


def test_an_arm_is_locked_while_it_is_played(tiny, tmp_path, no_figures):
    """Otherwise two processes could write one transcript."""
    config = replace(tiny, experiment=ExperimentConfig(seed=1, num_seeds=2))
    arm = config.arms()[1]
    directory = RunDirectory(tmp_path / "run").arm(arm.federation.algorithm, 2)

    class Intruder(Silent):
        def __init__(self):
            self.tried = []

        def played(self, event):
            if directory.record.exists():
                with pytest.raises(RunDirectoryError, match="in use by another process"):
                    run(arm, directory.path, resume=True)
                self.tried.append(event["round"])

    intruder = Intruder()
    run(config, tmp_path / "run", progress=intruder)
    assert intruder.tried == [1, 2, 3, 4]
    assert run(arm, directory.path, resume=True)["rounds"] == 4  # and not longer


def test_an_arm_that_is_resumed_by_itself_is_left_alone(tiny, tmp_path, no_figures):
    config = replace(tiny, experiment=ExperimentConfig(seed=1, num_seeds=2))
    arm = config.arms()[1]
    directory = RunDirectory(tmp_path / "run").arm(arm.federation.algorithm, 2)
    with RunDirectory(tmp_path / "run").claim(config, resume=False):
        pass
    with directory.claim(arm, resume=False) as record:
        before = record.chain.mark_at(), record.settings
        with pytest.raises(RunDirectoryError, match="in use by another process"):
            run(config, tmp_path / "run", resume=True)
        assert (record.chain.mark_at(), record.settings) == before


def test_what_is_checked_need_not_be_there(tmp_path):
    check_file(tmp_path / "a")
    check_folder(tmp_path / "a")
    with open_own(tmp_path / "a") as file:
        file.write(b"kept")
    with open_own(tmp_path / "a") as file:
        assert file.read() == b"kept"
    check_file(tmp_path / "a")
    check_folder(tmp_path)
