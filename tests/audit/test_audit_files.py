"""Every file that a run leaves behind is in the table, and an audit names what it did not check."""

import pytest
from real_runs import leave

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.files import FILES, LOSSES, row_of, unchecked_files
from deltafl.sim.inspect.audit.options import Options


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A run with a baseline, figures, a truth file and attackers, and a run of several levels."""
    folder = tmp_path_factory.mktemp("files")
    assert leave(
        folder / "one",
        federation={"rounds": 1},
        privacy={"truth": True},
        experiment={"baselines": ("fedavg",)},
        attackers={"share": 0.2},
        data={"validation_fraction": 0.2},
    )
    assert leave(
        folder / "levels",
        federation={"rounds": 1, "levels": ("0.9", "0.5")},
        privacy={"min_honest_tail": 0},
        data={"validation_fraction": 0.2},
    )
    return folder


REMOTE = ("measured/*", "round.bin", "devices.txt")
"""Files of a federation's server."""


def names(path):
    return {one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()}


@pytest.mark.slow
def test_every_file_has_a_row_and_every_row_a_file(everything):
    left = names(everything / "one") | names(everything / "levels")
    assert [name for name in sorted(left) if row_of(name) is None] == []
    assert {row_of(name) for name in left} == {row for row in FILES if row.pattern not in REMOTE}


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "checkpoints/round-1.bin", "metrics/theta-0.5/more/x.csv", "bundle.npz.old"],
)
def test_a_file_that_no_run_writes_has_no_row(name):
    assert row_of(name) is None


@pytest.mark.slow
def test_a_file_that_no_run_writes_is_named(everything):
    (everything / "one" / "notes.txt").write_text("all is well")
    report = audit(everything / "one", Options())
    assert "notes.txt: no run writes such a file" in report.not_checked
    assert LOSSES in report.not_checked
    (everything / "one" / "notes.txt").unlink()
    assert not any("notes.txt" in one for one in unchecked_files(everything / "one"))


@pytest.mark.slow
def test_what_is_not_checked_is_named_by_its_file(everything):
    said = list(unchecked_files(everything / "one"))
    for row in FILES:
        of_levels = row.pattern.startswith("metrics/*/")
        if row.unchecked and not of_levels and row.pattern not in (".lock", *REMOTE):
            assert any(one.startswith(row.pattern) for one in said), row


def test_a_row_says_what_is_compared_or_what_is_not():
    assert all(row.compared or row.unchecked for row in FILES)
