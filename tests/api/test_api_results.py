"""What is left of a run: tables, figures, and what a notebook shows."""

import numpy as np
import pytest

import deltafl as dfl


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    federation = dfl.Federation.load("digits", num_devices=30)
    out = tmp_path_factory.mktemp("results") / "run"
    return dfl.train(
        "linear", federation, seeds=2, rounds=4, cohort_size=10, progress=False, out=out
    )


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
    axes = found.plot().axes[0]
    assert [line.get_xdata()[-1] for line in axes.get_lines()] == [4, 4]
    tail, mean = (line.get_ydata() for line in axes.get_lines())
    assert (np.asarray(tail) >= np.asarray(mean)).all()


def test_the_audit_says_what_it_found(found):
    said = found.audit()
    assert said.sentence
    assert "checks made in full" in said.coverage


def test_there_is_a_module_for_every_seed_and_no_other(found):
    assert found.module(found.seeds[1]).training is False
    with pytest.raises(ValueError, match=r"seed=9: must be one of 1, 2"):
        found.module(9)
