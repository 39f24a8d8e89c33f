"""What is left of a run: tables, figures, and what a notebook shows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from api_network import FEW
from made_runs import make_run
from matplotlib.backends.backend_agg import FigureCanvasAgg
from records import evaluate, evaluations_of
from torch import nn

import deltafl as dfl
from deltafl.fl.errors import DataError
from deltafl.sim.errors import RunError


def line():
    return nn.Linear(4, 1)


def silent():
    """One that says 0 at first, so that no loss is large."""
    module = line()
    nn.init.zeros_(module.weight)
    return module


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    federation = dfl.Federation.load("digits", num_devices=30)
    out = tmp_path_factory.mktemp("results") / "run"
    return dfl.train(
        "linear", federation, seeds=2, rounds=4, cohort_size=10, progress=False, out=out
    )


@pytest.mark.slow
def test_the_table_of_devices_is_that_of_the_last_evaluation(found):
    table, errors = found.devices(), found.test_errors()
    assert list(table.columns) == ["seed", "split", "device", "num_samples", "loss", "error"]
    assert set(table["split"]) == {"train", "test"}
    test = table[table["split"] == "test"]
    assert errors.shape == (2, 15)
    assert np.array_equal(test["error"].to_numpy().reshape(2, 15), errors)
    means = [
        one["test_error"]["mean"] for one in found.summary["seeds"]["private-delta-fl"].values()
    ]
    assert errors.mean(axis=1) == pytest.approx(means)


def test_the_history_has_every_evaluation(found):
    assert sorted(set(found.history()["round"])) == [0, 1, 2, 3, 4]


def test_what_is_shown_names_the_tail(found):
    tail = np.percentile(found.test_errors(), 90, axis=1).mean()
    for shown in (repr(found), found._repr_html_()):
        assert f"{tail:.1%} at the 90th percentile" in shown
        assert "over 15 devices and 2 seeds" in shown
    assert "<script" not in found._repr_html_()


def test_the_figure_has_both_lines_of_every_method(found):
    tail, mean = found.plot().axes
    (upper,), (lower,) = tail.get_lines(), mean.get_lines()
    assert list(upper.get_xdata()) == [0, 1, 2, 3, 4]
    assert (np.asarray(upper.get_ydata()) >= np.asarray(lower.get_ydata())).all()
    assert tail.get_ylim() == mean.get_ylim()
    assert tail.get_ylim()[0] == 0
    assert [tick % 1 for tick in tail.get_xticks()] == [0] * len(tail.get_xticks())


def test_nothing_of_a_figure_is_cut_off(found):
    """Neither as it is, nor with a long label."""
    drawn = [found.plot(), dfl.Comparison([found, replace(found, label="a" * 40)]).plot()]
    for figure in drawn:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        texts = [
            text
            for axes in figure.axes
            for text in (axes.title, axes.xaxis.label, axes.yaxis.label)
        ]
        texts += figure.legends[0].get_texts()
        assert len(texts) > 6
        for text in texts:
            box = text.get_window_extent(renderer)
            assert figure.bbox.contains(box.x0, box.y0), text
            assert figure.bbox.contains(box.x1, box.y1), text


def test_of_nothing_there_is_no_figure(tmp_path):
    make_run(tmp_path / "run", baselines=(), played=[None, None])
    with pytest.raises(RunError, match="nothing was measured yet"):
        dfl.Result.open(tmp_path / "run").plot()


@pytest.mark.slow
def test_the_audit_says_what_it_found(found):
    said = found.audit()
    assert said.sentence
    assert "checks made in full" in said.coverage


def test_there_is_a_module_for_every_seed_and_no_other(found):
    assert found.module(found.seeds[1]).training is False
    with pytest.raises(ValueError, match=r"seed=9: must be one of 1, 2"):
        found.module(9)


def test_the_directory_knows_a_model_of_the_papers(found):
    opened = dfl.Result.open(found.path)
    weights = {seed: [*opened.module(seed).parameters()] for seed in found.seeds}
    for seed, ours in weights.items():
        for one, other in zip(ours, found.module(seed).parameters(), strict=True):
            assert torch.equal(one, other)
    first, second = weights.values()
    assert not torch.equal(first[0], second[0])


def between_both(outputs, targets):
    return (outputs.squeeze(1) - targets).abs() ** 1.5


def far_off(outputs, targets):
    return ((outputs.squeeze(1) - targets).abs() > 1).float()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "column", "title"),
    [
        ({}, "mae", "mean absolute error of tests"),
        ({"loss": "mae"}, "mae", "mean absolute error of tests"),
        ({"loss": between_both, "metric": far_off}, "metric", "metric"),
    ],
)
def test_of_numbers_nobody_speaks_of_errors_of_classes(numbers, tmp_path, options, column, title):
    found = dfl.train(silent, numbers, out=tmp_path / "run", **FEW, **options)
    assert column in found.devices().columns
    assert "error" not in found.devices().columns
    assert repr(found).startswith(f"<Result private-delta-fl: {title} ")
    assert "%" not in repr(found)
    axes = found.plot().axes[0]
    assert axes.get_ylabel() == title
    assert found.summary["metric"] == ("own" if "metric" in options else "mae")
    mean = found.summary["test_error"]["mean"]
    assert found.test_errors().mean() == pytest.approx(mean)
    module, (first, *_) = found.module(), numbers.dataset.test
    with torch.inference_mode():
        missed = np.abs(module(torch.tensor(first.x)).squeeze(1).numpy() - first.y)
    wanted = (missed > 1).mean() if "metric" in options else missed.mean()
    assert found.test_errors()[0, 0] == pytest.approx(wanted)


@pytest.mark.slow
def test_a_run_of_numbers_passes_the_audit_and_one_with_impossible_ones_does_not(numbers, tmp_path):
    out = tmp_path / "run"
    found = dfl.train(line, numbers, out=out, **FEW)
    assert found.audit().level == "open"
    (last,) = found.final()
    first, *others = last.test
    evaluate(out, replace(last, test=[replace(first, error=2.0e9), *others]))
    assert found.audit().level not in ("low", "open", "clean")


@pytest.mark.slow
def test_several_numbers_are_predicted_together(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = x @ rng.normal(size=(3, 2))
    federation = dfl.Federation.from_arrays(x, y, np.arange(300) % 30, targets="numbers")
    found = dfl.train(
        lambda: nn.Linear(3, 2), federation, "fedavg", out=tmp_path / "run", **FEW | {"rounds": 30}
    )
    history = found.history().groupby("round")["loss"].mean()
    assert history.iloc[-1] < history.iloc[0] / 20


def test_bars_say_what_was_measured(numbers, tmp_path, capsys):
    dfl.train(line, numbers, "fedavg", out=tmp_path / "run", **FEW | {"progress": True})
    said = capsys.readouterr().err
    assert ", mae " in said
    assert "error" not in said


def test_a_label_that_is_none_is_told_with_those_there_are(found):
    with pytest.raises(KeyError, match="'fedavg' is no method: they are 'private-delta-fl'"):
        dfl.Comparison([found])["fedavg"]


def test_of_a_run_with_baselines_it_is_the_main_algorithm(tmp_path):
    make_run(tmp_path, baselines=("fedavg",))
    wanted = evaluations_of(tmp_path)[-1]
    found = dfl.Result.open(tmp_path).final()
    assert (found[0], len(found)) == (wanted, 2)


def test_what_a_notebook_shows_is_escaped(found):
    shown = replace(found, label="<b>&")._repr_html_()
    assert "&lt;b&gt;&amp;" in shown
    assert "<b><b>" not in shown
    assert "4 (seed 1), 4 (seed 2)" in shown


def test_a_module_that_is_not_there_is_an_error(found, tmp_path):
    with pytest.raises(ValueError, match="seed=7: must be one of 1, 2"):
        found.module(7)
    (found.path / "bundle.npz").rename(tmp_path / "bundle.npz")
    with pytest.raises(RunError, match=r"pass Result\.open the `model` .* no such file"):
        dfl.Result.open(found.path).module()
    (tmp_path / "bundle.npz").rename(found.path / "bundle.npz")
    make_run(tmp_path / "run", baselines=())  # without checkpoints
    with pytest.raises(RunError, match="has no checkpoint of any seed"):
        dfl.Result.open(tmp_path / "run", line).module()


def test_of_a_run_that_has_not_begun_nothing_was_measured(tmp_path):
    make_run(tmp_path / "run", baselines=(), played=[None, None])
    assert "nothing was measured yet" in repr(dfl.Result.open(tmp_path / "run"))


def test_a_comparison_is_shown_as_its_table(found):
    both = dfl.Comparison([found, replace(found, label="other")])
    assert repr(both) == both.table().to_string()
    assert "..." not in repr(both)  # whatever the terminal is
    assert "<table" in both._repr_html_()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))

    def forward(self, tokens):
        return self.layers(tokens)


def test_inputs_that_the_module_does_not_take_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    devices = {f"d{n}": (rng.integers(0, 5, (6, 2)), np.array([0, 1] * 3)) for n in range(12)}
    federation = dfl.Federation.from_devices(devices)
    found = dfl.train(Words, federation, "fedavg", rounds=1, out=tmp_path / "run", progress=False)
    assert found.predict(np.array([[0, 4]])).shape == (1,)
    for wrong in (np.array([[0, 5]]), np.array([[0.5, 1.0]])):
        with pytest.raises(DataError, match="the module does not take it"):
            found.predict(wrong)
