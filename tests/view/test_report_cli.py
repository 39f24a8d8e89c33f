"""`deltafl report`: a page of results, and figures; what it refuses."""

import json

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
    baseline = ["--baseline", "delta-fl, θ = 0.5 (a)"]
    assert main(["report", *runs, "--out", str(out), *baseline]) == 0
    against = "delta-fl, θ = 0.5 (b) against delta-fl, θ = 0.5 (a)"
    assert against in out.read_text(encoding="utf-8")


def test_a_method_has_one_label_in_reports_and_comparisons(tmp_path, capsys):
    """Given, or made of what differs; and --baseline takes it in both."""
    for name, size in (("a", 7), ("b", 10)):
        settings = {"training": {"batch_size": size}}
        make_run(
            tmp_path / name, algorithm="fedavg", baselines=(), finished=True, seeds=1, **settings
        )
    places = [tmp_path / "a", tmp_path / "b"]
    made = [f"fedavg, training.batch_size={size}" for size in (7, 10)]
    for words, labels in ((places, made), ([f"few={places[0]}", places[1]], ["few", "fedavg"])):
        runs = [str(word) for word in words]
        for baseline in labels:
            more = ["--baseline", baseline]
            assert main(["report", *runs, "--out", str(tmp_path / "x.html"), *more]) == 0
            (other,) = {*labels} - {baseline}
            text = (tmp_path / "x.html").read_text("utf-8")
            assert f"Differences are a method less {baseline}, " in text
            assert f'<th scope="row">{other}</th>' in text
            capsys.readouterr()
            assert main(["compare", *runs, "--json", *more]) == 0
            told = [json.loads(line)["method"] for line in capsys.readouterr().out.splitlines()]
            assert told == [baseline, other]


@pytest.mark.slow
def test_figures_are_written_beside_it(tmp_path):
    make_run(tmp_path / "run", finished=True, seeds=1)
    more = ["--out", str(tmp_path / "x.html"), "--figures", str(tmp_path / "new" / "figures")]
    assert main(["report", str(tmp_path / "run"), *more]) == 0
    assert (tmp_path / "new" / "figures" / "error-one-column.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{folder}/none", "--out", "{folder}/x.html"], "it has no record.sqlite"),
        (["x={folder}/run", "y={folder}/run", "--out", "{folder}/x.html"], "is named twice"),
        (["{folder}/run", "{folder}/run/../run", "--out", "{folder}/x.html"], "is named twice"),
        (["{folder}/run", "--out", "{folder}/run/record.sqlite"], "choose another file"),
        (["{folder}/run", "--out", "{folder}/run/arms/x.html"], "is a file of the run"),
        (["{folder}/run", "--out", "{folder}/run"], "is a folder"),
        (
            ["{folder}/run", "--out", "{folder}/x.html", "--baseline", "q-ffl"],
            "'q-ffl' is not one of the methods: delta-fl, θ = 0.5, fedavg",
        ),
        (
            ["{folder}/run", "--out", "{folder}/x.html", "--figures", "{folder}/run/arms"],
            "is a file of the run",
        ),
        (
            ["{folder}/run", "--out", "{folder}/x.html", "--figures", "{folder}/run/record.sqlite"],
            "not a folder",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, capsys, arguments, words):
    make_run(tmp_path / "run", finished=True)
    assert main(["report", *(one.format(folder=tmp_path) for one in arguments)]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
