"""What tables, pages and Python say of two methods: the same, and no gain that is chance."""

import json
import re

import numpy as np
import pytest
from records import change, note, toml_of, write_run

import deltafl as dfl
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.labels import write_comparison
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config_io import build_config
from deltafl.sim.view import page
from deltafl.sim.view.watch import Watched

DEVICES, SAMPLES = 60, 40
REPEATS = range(5)


def errors_of(repeat, method, seed, gain):
    """FedAvg under either name; a gain is planted in the fifth that is served worst."""
    truth = np.random.default_rng([repeat, 9]).uniform(0.1, 0.6, DEVICES)
    drawn = np.random.default_rng([repeat, method, seed]).binomial(SAMPLES, truth) / SAMPLES
    worst = truth >= np.sort(truth)[-DEVICES // 5]
    return np.clip(drawn - gain * worst * (method == 0), 0, 1)


def finish(directory, config, errors):
    devices = [
        DeviceMetrics(f"d{at}", SAMPLES, 1.0, float(error)) for at, error in enumerate(errors)
    ]
    evaluation = Evaluation(config.federation.rounds, devices, devices)
    write_run(directory.path, config, evaluation, versions={"data_sha256": "aa"})


def experiment(folder, repeat, gain, seeds):
    """A run with its baseline, as `deltafl run` leaves it."""
    settings = {
        "federation": {"algorithm": "q-ffl", "rounds": 2},
        "experiment": {"num_seeds": seeds, "baselines": ["fedavg"]},
    }
    top, config = RunDirectory(folder), build_config([settings])
    for number, arm in enumerate(config.arms()):
        seed = arm.experiment.seed
        directory = top.arm(arm.federation.algorithm, seed) if number else top
        own = arm if number else config
        finish(directory, own, errors_of(repeat, number // seeds, seed, gain))
    note(top.path, "summary", {"data": "made"})
    return folder


def comparison(folder, repeat, gain, seeds):
    """The same as `deltafl.compare` leaves it."""
    labels = {"0-q-ffl": "q-ffl", "1-fedavg": "fedavg"}
    for method, (run, algorithm) in enumerate(zip(labels, labels.values(), strict=True)):
        settings = {
            "federation": {"algorithm": algorithm, "rounds": 2},
            "experiment": {"num_seeds": seeds},
        }
        top, config = RunDirectory(folder / run), build_config([settings])
        for number, arm in enumerate(config.arms()):
            directory = top.arm(algorithm, arm.experiment.seed) if number else top
            own = arm if number else config
            finish(directory, own, errors_of(repeat, method, arm.experiment.seed, gain))
        note(top.path, "summary", {"data": "made"})
    write_comparison(folder, labels)
    return folder


def by_compare(capsys, folder):
    capsys.readouterr()
    assert main(["compare", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[1])


def by_page(text):
    """Differences, intervals and p over runs and over devices, of the 90th percentile."""
    row = re.search(r'<th scope="row">q-ffl</th>(.*?)</tr>', text.split("<caption>Final")[1], re.S)
    cells = re.findall(r'<td class="n">(.*?)</td>', row[1])
    return cells[1:]


def as_on_a_page(found, over):
    names = ("difference", "low", "high", "p_runs")
    if over == "devices":
        names = ("device_difference", "device_low", "device_high", "p_devices")
    values = [found[name] for name in names]
    if None in values:
        return ["—", "—"]
    middle, low, high = map(page.in_points, values[:3])
    return [f"{middle} [{low}, {high}]", page.p_value(values[3])]


@pytest.mark.parametrize("seeds", [1, 4])
def test_all_four_tell_the_same_of_one_pair_of_methods(tmp_path, capsys, seeds):
    ran = experiment(tmp_path / "run", 0, 0.1, seeds)
    compared = comparison(tmp_path / "cmp", 0, 0.1, seeds)
    found = by_compare(capsys, ran)
    assert by_compare(capsys, compared) == found
    wanted = [*as_on_a_page(found, "runs"), *as_on_a_page(found, "devices")]
    for place in (ran, compared):
        assert main(["report", str(place), "--out", str(tmp_path / "x.html")]) == 0
        assert by_page((tmp_path / "x.html").read_text("utf-8")) == wanted
    watched = page.state(Watched(ran).page())["sections"]
    assert by_page(watched["compared"]) == wanted
    ours = dfl.Comparison.open(compared).table().loc["q-ffl"]
    assert ours.equals(dfl.Comparison.open(ran).table().loc["q-ffl"])
    names = ("difference", "low", "high", "adjusted_p_runs")
    if seeds == 1:
        names = ("device_difference", "device_low", "device_high", "adjusted_p_devices")
    assert list(ours[["difference", "low", "high", "p"]]) == [found[name] for name in names]
    assert ours["over"] == ("devices" if seeds == 1 else "runs")


def claims(tmp_path, capsys, repeat, gain, seeds=5):
    """Whether a gain is told: of the percentile, of the mean, and of the worst served."""
    ran = experiment(tmp_path / f"{repeat}-{gain}", repeat, gain, seeds)
    found = by_compare(capsys, ran)
    capsys.readouterr()
    main(["compare", str(ran), "--json", "--mean"])
    mean = json.loads(capsys.readouterr().out.splitlines()[1])
    sections = page.state(Watched(ran).page())["sections"]
    (high,) = re.findall(r"interval over seeds: \S+ to (\S+)\)", sections["paired"])
    return found["high"] < 0, mean["high"] < 0, high.startswith("−")


@pytest.mark.slow
def test_chance_is_no_gain_and_a_gain_of_a_fifth_is(tmp_path, capsys):
    """FedAvg against FedAvg; and ten points in the fifth that is served worst."""
    null = np.array([claims(tmp_path, capsys, repeat, 0.0) for repeat in REPEATS])
    planted = np.array([claims(tmp_path, capsys, repeat, 0.1) for repeat in REPEATS])
    assert planted.all()
    assert null.sum() <= 1  # of fifteen intervals, 2.5 % are below zero by chance


def test_with_one_seed_nobody_is_said_to_be_served_worst(tmp_path, capsys):
    ran = experiment(tmp_path / "run", 0, 0.0, 1)
    sections = page.state(Watched(ran).page())["sections"]
    assert "cannot be told from who was unlucky" in sections["paired"]
    assert "tells two models apart, not two methods" in sections["compared"]
    assert main(["compare", str(ran)]) == 0
    assert "tells two models apart, not two methods" in capsys.readouterr().err
    several = experiment(tmp_path / "several", 0, 0.0, 2)  # control
    assert main(["compare", str(several)]) == 0
    assert "note" not in capsys.readouterr().err
    text = page.state(Watched(several).page())["sections"]["compared"]
    assert "two models apart" not in text
    assert "interval over seeds" not in sections["paired"]


def test_the_baseline_is_the_same_everywhere_and_in_any_order(tmp_path, capsys):
    compared = comparison(tmp_path / "cmp", 0, 0.1, 2)
    write_comparison(compared, {"1-fedavg": "fedavg", "0-q-ffl": "q-ffl"})
    opened = dfl.Comparison.open(compared)
    assert opened.baseline.label == "fedavg"
    found = by_compare(capsys, compared)
    assert found["method"] == "q-ffl"
    assert opened.table().loc["q-ffl", "difference"] == found["difference"]


def test_labels_that_are_damaged_are_refused(tmp_path, capsys):
    compared = comparison(tmp_path / "cmp", 0, 0.0, 1)
    for text in (
        "{",
        "[]",
        '{"": "a"}',
        '{"../run": "a"}',
        '{"..": "a"}',
        '{"/etc": "a"}',
        '{"0-q-ffl": 1}',
    ):
        (compared / "comparison.json").write_text(text)
        assert main(["compare", str(compared)]) == 2
        assert "comparison.json is damaged" in capsys.readouterr().err
    (compared / "comparison.json").write_text("{}")
    assert main(["report", str(compared), "--out", str(tmp_path / "x.html")]) == 2
    assert "cmp is not a run directory" in capsys.readouterr().err


def test_runs_that_a_callback_has_stopped_are_compared_as_in_python(tmp_path, capsys):
    """Early stopping ends each at a round of its own; nobody has to finish them."""
    compared = comparison(tmp_path / "cmp", 0, 0.1, 1)
    stopped = compared / "0-q-ffl"
    change(stopped, "UPDATE evaluations SET round = 1")
    toml = toml_of(stopped)
    assert "evaluate_every" in toml
    note(stopped, "settings", re.sub(r"evaluate_every = \d+", "evaluate_every = 1", toml))
    assert main(["compare", str(compared), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(
        f"deltafl: note: {stopped} stopped before round 2: compared is its model of round 1\n"
    )
    assert err.count("stopped before") == 1
    ours = dfl.Comparison.open(compared).table().loc["q-ffl"]
    assert ours["difference"] == json.loads(out.splitlines()[1])["device_difference"]
    (compared / "comparison.json").unlink()  # control: of runs that nobody compared in Python
    assert main(["compare", str(stopped), str(compared / "1-fedavg")]) == 2
    assert "was evaluated last after round 1 of 2" in capsys.readouterr().err


def test_a_run_of_a_comparison_keeps_its_label_by_itself(tmp_path, capsys):
    compared = comparison(tmp_path / "cmp", 0, 0.0, 1)
    (compared / "comparison.json").unlink()
    write_comparison(compared, {"0-q-ffl": "mine", "1-fedavg": "theirs"})
    assert [one.label for one in dfl.Comparison.open(compared).results] == ["mine", "theirs"]
    assert dfl.Result.open(compared / "0-q-ffl").label == "mine"
    runs = [str(compared / run) for run in ("0-q-ffl", "1-fedavg")]
    assert main(["compare", *runs, "--json", "--baseline", "mine"]) == 0
    told = [json.loads(line)["method"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["mine", "theirs"]
    assert main(["compare", f"a={compared}", "--json"]) == 0
    assert "a: mine" in capsys.readouterr().out
    assert main(["audit", str(compared)]) == 1
    assert "2 runs." in capsys.readouterr().out


def test_a_comparison_that_was_interrupted_has_what_began(tmp_path):
    compared = comparison(tmp_path / "cmp", 0, 0.0, 1)
    (compared / "comparison.json").unlink()
    write_comparison(compared, {"0-q-ffl": "mine", "1-fedavg": "theirs", "2-afl": "never begun"})
    assert len(dfl.Comparison.open(compared).results) == 2
    with pytest.raises(UserError, match="is not a run directory"):
        dfl.Comparison.open(tmp_path)
