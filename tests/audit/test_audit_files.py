"""Every file that a run leaves behind is in the table, and an audit names what it did not check."""

import pytest
from real_runs import leave

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.files import FILES, pattern_of, unchecked_files


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A run with a baseline, figures, a truth file and attackers."""
    path = tmp_path_factory.mktemp("files") / "run"
    assert leave(
        path,
        federation={"rounds": 1},
        privacy={"truth": True},
        experiment={"baselines": ("fedavg",)},
        attackers={"share": 0.2},
        data={"validation_fraction": 0.2},
    )
    return path


NOT_HERE = ("measured/*", "devices.txt", "record.sqlite-*", "truth.sqlite-*")
"""Files of a federation's server, and of a run that goes on."""


@pytest.mark.slow
def test_every_file_has_a_row_and_every_row_a_file(everything):
    left = {
        one.relative_to(everything).as_posix() for one in everything.rglob("*") if one.is_file()
    }
    assert [name for name in sorted(left) if pattern_of(name) is None] == []
    assert {pattern_of(name) for name in left} == FILES.keys() - NOT_HERE


@pytest.mark.parametrize("name", ["notes.txt", "plots/more/x.svg", "bundle.npz.old"])
def test_a_file_that_no_run_writes_has_no_row(name):
    assert pattern_of(name) is None


@pytest.mark.slow
def test_a_file_that_no_run_writes_is_named(everything):
    """Whatever its name is, it writes no line of its own."""
    strange = everything / "notes\nEverything was checked."
    strange.write_text("all is well")
    told = audit(everything).not_checked
    strange.unlink()
    assert "'notes\\nEverything was checked.': no run writes such a file" in told
    assert not any("notes" in one for one in unchecked_files(everything))
