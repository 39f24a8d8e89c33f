"""`deltafl report`: a page of results, and figures; what it refuses."""

import pytest
from made_runs import make_run

from deltafl.sim.cli import main


def test_a_page_of_results_is_written(tmp_path, capsys):
    make_run(tmp_path / "run", finished=True)
    before = sorted((tmp_path / "run").rglob("*"))
    out = tmp_path / "results.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    for expected in ("Methods, with paired differences", "What was run", "Settings and versions"):
        assert expected in text
    assert "<script" not in text
    assert str(out) in capsys.readouterr().err
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_several_runs_are_on_one_page(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, baselines=(), finished=True)
    runs = [str(tmp_path / name) for name in ("a", "b")]
    out = tmp_path / "both.html"
    baseline = ["--baseline", "delta-fl (a)"]
    assert main(["report", *runs, "--out", str(out), *baseline]) == 0
    assert "delta-fl (b) against delta-fl (a)" in out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_figures_are_written_beside_it(tmp_path):
    make_run(tmp_path / "run", finished=True, seeds=1)
    more = ["--out", str(tmp_path / "x.html"), "--figures", str(tmp_path / "new" / "figures")]
    assert main(["report", str(tmp_path / "run"), *more]) == 0
    assert (tmp_path / "new" / "figures" / "error-one-column.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{folder}/none", "--out", "{folder}/x.html"], "it has no config.toml"),
        (["{folder}/run", "--out", "{folder}/run/config.toml"], "choose another file"),
        (["{folder}/run", "--out", "{folder}/run/metrics/x.html"], "is a file of the run"),
        (["{folder}/run", "--out", "{folder}/run"], "is a folder"),
        (
            ["{folder}/run", "--out", "{folder}/x.html", "--baseline", "q-ffl"],
            "'q-ffl' is not one of the methods: delta-fl, fedavg",
        ),
        (
            ["{folder}/run", "--out", "{folder}/x.html", "--figures", "{folder}/run/metrics"],
            "is a file of the run",
        ),
        (
            ["{folder}/run", "--out", "{folder}/x.html", "--figures", "{folder}/run/config.toml"],
            "not a folder",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, capsys, arguments, words):
    make_run(tmp_path / "run", finished=True)
    assert main(["report", *(one.format(folder=tmp_path) for one in arguments)]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
