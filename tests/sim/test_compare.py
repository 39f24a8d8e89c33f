"""`deltafl compare`: which runs are a method, which two are a pair, and what is printed of them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import records

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.cli import main
from deltafl.sim.compare.runs import Method, Run, compare_in_pairs, read_methods
from deltafl.sim.errors import UserError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.comparison import comparison_table
from deltafl.sim.reproduce.output import as_latex
from deltafl.sim.reproduce.statistics import compare_over_seeds, holm
from deltafl.sim.settings.config_io import build_config

DEVICES = 30


def errors_of(seed, shift):
    drawn = np.random.default_rng(seed).uniform(0.1, 0.5, DEVICES)
    return drawn + shift + np.random.default_rng([seed, 1]).normal(0, 0.003, DEVICES) * bool(shift)


def write_run(
    directory,
    algorithm,
    seed,
    shift=0.0,
    *,
    split=0,
    by="devices",
    prefix="d",
    data="aa",
    **sections,
):
    layers = [
        {
            "federation": {"algorithm": algorithm},
            "experiment": {"seed": seed},
            "data": {"split_seed": split, "split": by},
        },
        sections,
    ]
    config = build_config(layers)
    devices = [
        DeviceMetrics(f"{prefix}{number}", 10, 1.0, float(error))
        for number, error in enumerate(errors_of(seed, shift))
    ]
    evaluation = Evaluation(config.federation.rounds, devices, devices)
    return records.write_run(directory.path, config, evaluation, versions={"data_sha256": data})


@pytest.fixture
def experiment(tmp_path):
    """Three seeds of Δ-FL, which is lower by five points, and of FedAvg."""
    top = RunDirectory(tmp_path / "run")
    write_run(top, "delta-fl", 1, -0.05)
    for seed in (2, 3):
        write_run(top.arm("delta-fl", seed), "delta-fl", seed, -0.05)
    for seed in (1, 2, 3):
        write_run(top.arm("fedavg", seed), "fedavg", seed)
    return top


def call(capsys, *arguments):
    code = main(["compare", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_an_experiment_is_compared_over_its_seeds_and_devices(experiment, capsys):
    code, out, _ = call(capsys, experiment.path, "--json")
    assert code == 0
    base, ours = map(json.loads, out.splitlines())
    assert (base["method"], ours["method"]) == ("fedavg", "delta-fl, θ = 0.5")
    assert (base["pairs"], ours["pairs"]) == (3, 3)
    tails = [[np.percentile(errors_of(seed, by), 90) for seed in (1, 2, 3)] for by in (-0.05, 0)]
    expected = compare_over_seeds(*tails)
    assert ours["difference"] == pytest.approx(expected.mean)
    assert ours["p_runs"] == pytest.approx(expected.p)
    assert ours["effect"] == pytest.approx(expected.effect)
    assert ours["device_difference"] == pytest.approx(expected.mean)
    assert ours["device_high"] < 0
    assert ours["p_new_devices"] is None  # one split


def test_means_are_compared_if_asked_for(experiment, capsys):
    _, out, _ = call(capsys, experiment.path, "--json", "--mean")
    ours = json.loads(out.splitlines()[1])
    means = [np.mean([errors_of(seed, by) for seed in (1, 2, 3)]) for by in (-0.05, 0)]
    assert ours["difference"] == pytest.approx(means[0] - means[1])


def test_methods_of_several_directories_are_corrected_together(experiment, tmp_path):
    for seed in (1, 2, 3):
        write_run(RunDirectory(tmp_path / f"prox{seed}"), "fedprox", seed, 0.001)
    methods = read_methods(
        [str(experiment.path), *(str(tmp_path / f"prox{seed}") for seed in (1, 2, 3))]
    )
    assert [method.label for method in methods] == ["delta-fl, θ = 0.5", "fedavg", "fedprox"]
    _, *found = compare_in_pairs(methods, methods[1])
    assert [one.adjusted_p_seeds for one in found] == list(holm([one.seeds.p for one in found]))
    assert found[0].adjusted_p_seeds == pytest.approx(2 * found[0].seeds.p)


def test_only_runs_with_the_same_seeds_are_pairs(experiment, tmp_path):
    write_run(RunDirectory(tmp_path / "more"), "fedprox", 2)
    write_run(RunDirectory(tmp_path / "most"), "fedprox", 9)
    methods = read_methods([str(experiment.path), f"{tmp_path}/more", f"{tmp_path}/most"])
    found = compare_in_pairs(methods, methods[1])
    assert [one.pairs for one in found] == [3, 3, 1]
    assert found[2].seeds is None
    assert found[2].devices is not None
    none = read_methods([str(experiment.path), f"{tmp_path}/most"])
    with pytest.raises(UserError, match="fedprox and fedavg have no seed in common"):
        compare_in_pairs(none, none[1])


def test_the_baselines_mean_is_over_the_runs_of_pairs(experiment, tmp_path, capsys):
    """Else a difference is not that of the two means beside it."""
    write_run(RunDirectory(tmp_path / "two"), "fedprox", 2)
    write_run(RunDirectory(tmp_path / "nine"), "fedprox", 9)
    (two,) = read_methods([str(tmp_path / "two")])
    fedavg = fedavg_of(read_methods([str(experiment.path)]))
    first, found = compare_in_pairs([two, fedavg], fedavg)
    tail = np.percentile(errors_of(2, 0), 90)
    assert (first.pairs, first.mean, found.baseline_mean) == (1, tail, tail)

    _, out, err = call(capsys, experiment.path, tmp_path / "two", tmp_path / "nine", "--json")
    first, ours, prox = map(json.loads, out.splitlines())
    tails = [np.percentile(errors_of(seed, 0), 90) for seed in (1, 2, 3)]
    assert first["mean"] == ours["baseline_mean"] == pytest.approx(np.mean(tails))
    assert prox["baseline_mean"] == pytest.approx(tail)
    assert first["baseline_mean"] is None
    assert "fedprox: 1 of the 2 runs of fedprox and 2 of the 3 runs of fedavg have no pair" in err
    assert err.count("do not count") == 1

    methods = read_methods([str(experiment.path), str(tmp_path / "two")])
    table = comparison_table("t", "T", compare_in_pairs(methods, fedavg_of(methods)))
    place = table.columns.index("fedavg, same pairs (%)")
    assert [row[place] for row in table.rows] == ["–", "–", f"{100 * tail:.2f}"]
    alike = read_methods([str(experiment.path)])
    columns = comparison_table("t", "T", compare_in_pairs(alike, fedavg_of(alike))).columns
    assert "fedavg, same pairs (%)" not in columns


def fedavg_of(methods):
    return next(method for method in methods if method.label == "fedavg")


@pytest.mark.parametrize("by", ["devices", "samples"])
def test_splits_of_their_own_give_a_p_value_for_new_devices_and_no_bootstrap(tmp_path, by):
    """Where the samples of every device are split, no device is new."""
    for seed in (1, 2, 3):
        for algorithm, shift in (("fedavg", 0.0), ("fedprox", -0.05)):
            place = RunDirectory(tmp_path / f"{algorithm}{seed}")
            write_run(place, algorithm, seed, shift, split=seed, by=by)
    methods = read_methods([str(path) for path in sorted(tmp_path.iterdir())])
    _, found = compare_in_pairs(methods, methods[0])
    assert found.devices is None
    tails = [[np.percentile(errors_of(seed, by), 90) for seed in (1, 2, 3)] for by in (-0.05, 0)]
    share = 0.5 if by == "devices" else None
    expected = compare_over_seeds(*tails, test_share=share)
    assert found.seeds.p_new_devices == pytest.approx(expected.p_new_devices)


def test_runs_of_one_algorithm_are_told_apart_by_what_differs(tmp_path):
    for rate in (0.1, 0.2):
        write_run(
            RunDirectory(tmp_path / f"r{rate}"), "fedavg", 1, training={"learning_rate": rate}
        )
    paths = [str(tmp_path / "r0.1"), str(tmp_path / "r0.2")]
    assert [method.label for method in read_methods(paths)] == [
        "fedavg, training.learning_rate=0.1",
        "fedavg, training.learning_rate=0.2",
    ]
    named = read_methods([f"slow={paths[0]}", f"fast={paths[1]}"])
    assert [method.label for method in named] == ["slow", "fast"]


def test_each_level_of_a_run_is_a_method(tmp_path):
    write_run(RunDirectory(tmp_path / "a"), "delta-fl", 1, federation={"levels": ["0.8", "0.5"]})
    assert [method.label for method in read_methods([str(tmp_path / "a")])] == [
        "delta-fl, θ = 0.8",
        "delta-fl, θ = 0.5",
    ]


def test_equal_runs_count_once_and_contradictions_are_refused(experiment, tmp_path):
    write_run(RunDirectory(tmp_path / "again"), "fedavg", 1)
    methods = read_methods([str(experiment.path), str(tmp_path / "again")])
    assert len(methods[1].runs) == 3
    write_run(RunDirectory(tmp_path / "other"), "fedavg", 1, 0.1)
    with pytest.raises(UserError, match="same settings and seed and different results"):
        read_methods([str(experiment.path), str(tmp_path / "other")])


def test_a_run_is_not_compared_with_itself(experiment, tmp_path):
    top, arm = experiment.path, experiment.arm("fedavg", 2).path
    (tmp_path / "link").symlink_to(top)
    for words in ([f"a={top}", f"b={top}"], [tmp_path / "link", top], [f"b={arm}", top]):
        with pytest.raises(UserError, match=r"is named twice: name each run once"):
            read_methods([str(word) for word in words])
    assert len(read_methods([str(top), str(arm), str(top)])) == 2


def test_levels_of_one_run_are_methods_of_their_own(tmp_path):
    write_run(RunDirectory(tmp_path / "a"), "delta-fl", 1, federation={"levels": ["0.8", "0.5"]})
    methods = read_methods([f"a={tmp_path}/a", f"a={tmp_path}/a/"])
    assert [method.label for method in methods] == ["a: delta-fl, θ = 0.8", "a: delta-fl, θ = 0.5"]


def test_other_devices_are_no_pairs(experiment, tmp_path):
    write_run(RunDirectory(tmp_path / "other"), "fedprox", 1, prefix="e")
    methods = read_methods([str(experiment.path), str(tmp_path / "other")])
    with pytest.raises(UserError, match="their test devices are not the same"):
        compare_in_pairs(methods, methods[1])


def test_tables_are_printed_and_written(experiment, tmp_path, capsys):
    files = tmp_path / "t.csv", tmp_path / "t.tex"
    code, out, err = call(capsys, experiment.path, "--csv", files[0], "--latex", files[1])
    assert code == 0
    assert "delta-fl, θ = 0.5" in out
    assert "t.tex is written" in err
    rows = list(csv.DictReader(files[0].read_text(encoding="utf-8").splitlines()))
    assert [row["method"] for row in rows] == ["fedavg", "delta-fl, θ = 0.5"]
    latex = files[1].read_text(encoding="utf-8")
    assert latex.count(r"\\") == 3
    head, body = latex.splitlines()[3], latex.splitlines()[6]
    assert head == (
        r"method & p90 (\%) & mean (\%) & difference (points) [95\%] & p over runs (two-sided) \\"
    )
    ours = rows[1]
    cells = [
        f"{100 * float(ours['difference']):+.2f} [{100 * float(ours['low']):+.2f}, "
        f"{100 * float(ours['high']):+.2f}]",
        f"{float(ours['adjusted_p_runs']):.4f} \\\\",
    ]
    assert body.startswith(r"delta-fl, $\theta$ = 0.5 & ")
    assert body.split(" & ")[3:] == cells
    assert "new devices" not in out  # a column that nobody has


def test_two_equal_differences_are_no_proof(tmp_path, capsys):
    """Errors of few samples are coarse: both pairs are often apart by exactly as much."""
    for seed in (1, 2):
        write_run(RunDirectory(tmp_path / f"b{seed}"), "fedavg", seed)
        ours = write_run(RunDirectory(tmp_path / f"a{seed}"), "fedprox", seed)
        devices = [
            DeviceMetrics(f"d{number}", 10, 1.0, float(error) - 0.05)
            for number, error in enumerate(errors_of(seed, 0))
        ]
        number = build_config([]).federation.rounds
        records.evaluate(ours.path, Evaluation(number, devices, devices))
    runs = [tmp_path / name for name in ("a1", "a2", "b1", "b2")]
    _, out, _ = call(capsys, *runs, "--json")
    found = json.loads(out.splitlines()[1])
    assert found["p_runs"] == found["p_signed_rank"] == found["smallest_p"] == 0.5
    assert found["low"] is found["high"] is None  # infinite
    assert found["difference"] == pytest.approx(-0.05)
    tex = tmp_path / "t.tex"
    _, out, _ = call(capsys, *runs, "--latex", tex)
    assert "-5.00 [-∞, +∞]" in out
    assert r"-5.00 [-$\infty$, +$\infty$] & 0.5000" in tex.read_text("utf-8")


def test_signs_of_latex_are_escaped():
    methods = compare_in_pairs_of("a_b & 50 %")
    assert r"a\_b \& 50 \%" in as_latex(comparison_table("t", "T", methods))


def compare_in_pairs_of(label):
    device = DeviceMetrics("d", 1, 1.0, 0.5)
    evaluation = Evaluation(1, [device], [device])
    runs = {(0, 1): Run("", build_config([]), Path(), evaluation, None)}
    methods = [Method(name, runs) for name in ("fedavg", label)]
    return compare_in_pairs(methods, methods[0], percentile=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["--baseline", "fedav"], "there is no 'fedav': did you mean 'fedavg'"),
        (["--csv", "{run}/record.sqlite"], "record.sqlite is a file of the run"),
    ],
)
def test_what_cannot_be_done_is_said(experiment, capsys, arguments, message):
    words = [word.format(run=experiment.path) for word in arguments]
    code, _, err = call(capsys, experiment.path, *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(("flag", "number"), [("--percentile", "101"), ("--level", "1")])
def test_shares_out_of_range_are_refused(experiment, capsys, flag, number):
    with pytest.raises(SystemExit, match="2"):
        call(capsys, experiment.path, flag, number)
    assert f"{flag}: {number} must be a number, and lie in" in capsys.readouterr().err


def test_one_method_alone_is_not_compared(tmp_path, capsys):
    write_run(RunDirectory(tmp_path / "one"), "fedavg", 1)
    code, _, err = call(capsys, tmp_path / "one")
    assert code == 2
    assert "there is one method only, fedavg" in err


def test_runs_that_are_not_finished_are_not_compared(experiment, capsys):
    """An evaluation on the way, or the first one, is no result."""
    records.change(experiment.arm("fedavg", 2).path, "UPDATE evaluations SET round = 0")
    code, _, err = call(capsys, experiment.path)
    assert code == 2
    assert "was evaluated last after round" in err
    assert "(resume=True in Python)" in err


def test_runs_without_evaluations_of_single_devices_are_not_compared(experiment, capsys):
    records.change(experiment.arm("fedavg", 2).path, "DELETE FROM evaluations")
    code, _, err = call(capsys, experiment.path)
    assert code == 2
    assert "fedavg-seed-2 has no evaluation of single devices" in err


def test_an_experiment_of_which_runs_are_missing_is_not_compared(tmp_path, capsys):
    top = RunDirectory(tmp_path / "run")
    write_run(top, "delta-fl", 1, experiment={"seed": 1, "num_seeds": 2, "baselines": ["fedavg"]})
    for algorithm, seed in (("delta-fl", 2), ("fedavg", 1)):
        write_run(top.arm(algorithm, seed), algorithm, seed)
    (top.arms / ".DS_Store").write_text("no run")
    assert "has 3 of the 4 runs of its experiment" in call(capsys, top.path)[2]
    write_run(top.arm("fedavg", 2), "fedavg", 2)
    assert call(capsys, top.path)[0] == 0


def test_other_data_are_no_pair(experiment, tmp_path, capsys):
    write_run(RunDirectory(tmp_path / "other"), "fedprox", 1, data="bb")
    code, _, err = call(capsys, experiment.path, tmp_path / "other")
    assert code == 2
    assert "fedprox and fedavg, seed 1: their data are not the same" in err


def test_what_else_differs_is_noted(experiment, tmp_path, capsys):
    for seed in (1, 2, 3):
        place = RunDirectory(tmp_path / f"prox{seed}")
        write_run(place, "fedprox", seed, training={"learning_rate": 0.75})
    code, _, err = call(capsys, experiment.path, *sorted(tmp_path.glob("prox?")))
    assert code == 0
    assert err.startswith("deltafl: note: fedprox has training.learning_rate = 0.75, not ")
    assert err.count("\n") == 1


def test_of_several_fedavgs_the_last_is_the_baseline(experiment, tmp_path, capsys):
    write_run(RunDirectory(tmp_path / "slow"), "fedavg", 1, training={"learning_rate": 0.75})
    words = experiment.path, tmp_path / "slow"
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    told = [json.loads(line)["method"] for line in out.splitlines()]
    last = "fedavg, training.learning_rate=0.75"
    assert told[0] == last
    other = next(one for one in told if one.startswith("fedavg") and one != last)
    _, out, _ = call(capsys, *words, "--json", "--baseline", other)
    assert json.loads(out.splitlines()[0])["method"] == other


def test_methods_have_names_of_their_own(experiment, tmp_path, capsys):
    for seed in (1, 2):
        write_run(RunDirectory(tmp_path / str(seed)), "fedprox", seed)
    code, _, err = call(capsys, experiment.path, tmp_path / "1", f"fedprox={tmp_path / '2'}")
    assert code == 2
    assert "two methods have one name" in err


def test_what_is_no_file_is_not_replaced(experiment, capsys):
    code, _, err = call(capsys, experiment.path, "--csv", "/dev/null")
    assert code == 2
    assert "/dev/null exists and is no table" in err


def test_one_file_is_not_written_twice(experiment, tmp_path, capsys):
    file = tmp_path / "table"
    code, _, err = call(capsys, experiment.path, "--csv", file, "--latex", file)
    assert code == 2
    assert "name two files" in err
    assert not file.exists()


@pytest.mark.parametrize("flag", ["--csv", "--latex"])
def test_only_a_table_is_replaced(flag, experiment, tmp_path, capsys):
    file = tmp_path / "table"
    for text in ("", "method,theta\n", "% of mine\n"):
        file.write_text(text)
        code, out, err = call(capsys, experiment.path, flag, file)
        assert (code, out) == (2, "")
        assert f"{file} exists and is no table of `deltafl compare`" in err
        assert file.read_text() == text
    file.unlink()
    assert call(capsys, experiment.path, flag, file, "--mean")[0] == 0
    before = file.read_text()
    assert call(capsys, experiment.path, flag, file)[0] == 0
    assert file.read_text() != before
    assert file.read_text().count("\n") == before.count("\n")


def test_names_do_not_end_the_lines_of_latex(experiment, tmp_path, capsys):
    file = tmp_path / "t.tex"
    named = f"a\nb\x1b={experiment.path}"
    assert call(capsys, named, "--latex", file)[0] == 0
    text = file.read_text()
    assert "\x1b" not in text
    assert len(text.splitlines()) == 9


def test_what_is_no_share_is_not_printed_in_percent(tmp_path, capsys):
    for seed in (1, 2):
        for number, name in enumerate(("fedavg", "fedprox")):
            place = RunDirectory(tmp_path / f"{name}{seed}")
            write_run(place, name, seed, 0.05 * number, training={"metric": "mae"})
    code, out, _ = call(capsys, *sorted(tmp_path.iterdir()))
    assert code == 0
    assert "test mae over devices" in out
    assert "%)" not in out
    assert "points" not in out
    tails = [[np.percentile(errors_of(seed, by), 90) for seed in (1, 2)] for by in (0.05, 0)]
    assert f"+{compare_over_seeds(*tails).mean:.4g} [" in out
    write_run(RunDirectory(tmp_path / "share"), "fedprox", 1)
    assert "compare runs of one metric" in call(capsys, *sorted(tmp_path.iterdir()))[2]
