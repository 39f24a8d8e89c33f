"""`deltafl plan`: every preset has a plan, and settings that cannot work are told what would."""

import json
from math import comb
from statistics import fmean

import pytest
from fresh_python import loaded_by
from records import events_of

from deltafl.sim.cli import main
from deltafl.sim.run.accounting import rounded_up
from deltafl.sim.run.arms import (
    fewest_devices,
    largest_dropout,
    with_cohort,
    with_dropout,
    works,
)
from deltafl.sim.settings.config_io import build_config, preset_names, preset_text, read_table

PARAMETERS = 640
HALF_VANISH = {
    "federation": {"cohort_size": 6, "theta": 1},
    "privacy": {"min_cohort": 5, "colluding": 0.4, "expected_dropout": 0.5},
}


def planned(capsys, *arguments):
    code = main(["plan", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def as_flags(settings):
    return [
        f"--set={section}.{key}={value}"
        for section, values in settings.items()
        for key, value in values.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_has_a_plan_that_fits_the_terminal(preset, capsys):
    code, out, err = planned(capsys, "--preset", preset)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    config = build_config([read_table(preset_text(preset), preset)])
    code, out, _ = planned(capsys, "--preset", preset, "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["cohort"] == config.federation.cohort_size
    session, costs = plan["session"], plan["costs"]
    assert session["survives"] == plan["cohort"] - session["quorum"] > 0
    assert session["quorum"] >= max(session["threshold"], config.privacy.min_cohort)
    for what in ("bytes_up", "secure_sums"):
        few, many, most = (costs[name][what] for name in ("few", "many", "most"))
        assert few <= many <= most


@pytest.mark.slow
def test_nothing_heavy_is_loaded():
    loaded = loaded_by("from deltafl.sim.cli import main\nmain(['plan'])\nprint()")
    assert "deltafl.sim.plan.plan" in loaded
    assert not {"torch", "pandas", "sklearn", "matplotlib"} & loaded


def test_without_settings_it_is_the_quickstart_as_of_run(capsys):
    assert planned(capsys) == planned(capsys, "--preset", "quickstart")


def test_data_of_ones_own_take_the_defaults_as_of_run(capsys):
    _, out, _ = planned(capsys, "--data", "own.csv", "--parameters", "9", "--json")
    plan, defaults = json.loads(out), build_config([]).federation
    assert (plan["rounds"], plan["parameters"]) == (defaults.rounds, 9)
    assert defaults.rounds != json.loads(planned(capsys, "--json")[1])["rounds"]


# --- what cannot work ----------------------------------------------------------------------------


def test_settings_that_cannot_work_are_refused_with_those_that_would(capsys):
    code, out, err = planned(capsys, *as_flags(HALF_VANISH))
    assert (code, out) == (2, "")
    assert "no threshold is both safe and reachable" in err
    config = build_config([read_table(preset_text("quickstart"), "quickstart"), HALF_VANISH])
    devices, dropout = fewest_devices(config, PARAMETERS), largest_dropout(config, PARAMETERS)
    assert f"privacy.expected_dropout = {dropout}" in err
    assert devices is None or f"federation.cohort_size = {devices}" in err
    code, _, _ = planned(
        capsys, *as_flags(HALF_VANISH), f"--set=privacy.expected_dropout={dropout}"
    )
    assert code == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"federation": {"algorithm": "fedavg"}, "experiment": {"baselines": "[]"}}, "in clear"),
        ({"federation": {"cohort_size": 6}}, "must be at least privacy.min_cohort = 10"),
        ({"policy": {"max_pivots": 3}}, "above policy.max_pivots = 3"),
        (
            {"privacy": {"max_weight": 9000}, "policy": {"max_weight": 8192}},
            "policy.max_weight = 8192",
        ),
        ({"data": {"source": "own.csv"}}, "--parameters N"),
        ({"policy": {"max_participations": 59}}, "in 60 rounds, a device is invited up to 60"),
        (
            {"dp": {"noise": 1}, "privacy": {"max_weight": 1}},
            "quantile.method = 'bracketed': must be 'noisy'",
        ),
    ],
)
def test_what_a_run_refuses_is_refused(settings, reason, capsys):
    code, out, err = planned(capsys, *as_flags(settings))
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_a_plan_says_which_limits_are_looser_than_usual(capsys):
    _, out, _ = planned(capsys, "--set=quantile.method=histogram")
    assert "max_pivots=320 (usually 32); others would refuse" in " ".join(out.split())
    assert "devices accept" not in planned(capsys)[1]


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many", "9" * 30])
def test_a_number_of_parameters_that_no_model_has_is_refused(number, capsys):
    try:
        code = main(["plan", "--parameters", number])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert number[:20] in capsys.readouterr().err


@pytest.mark.slow
def test_what_hangs_on_the_devices_takes_their_number(capsys):
    lying = "--set=attackers.share=0.01"
    assert planned(capsys, lying)[0] == 0
    code, out, err = planned(capsys, lying, "--devices", "30")
    assert (code, out) == (2, "")
    assert "0 of the 30 training devices of digits" in err
    assert planned(capsys, lying, "--devices", "100")[0] == 0


def test_a_delta_that_promises_next_to_nothing_is_noted(capsys):
    noisy = {
        "quantile": {"method": "noisy", "weights": "equal", "noise": 4},
        "privacy": {"colluding": 0.0, "max_weight": 1},
        "dp": {"noise": 2.0, "delta": 0.05},
        "experiment": {"baselines": "[]"},
    }
    code, out, err = planned(capsys, *as_flags(noisy), "--json")
    assert code == json.loads(out)["privacy"]["delta"] - 0.05 == 0
    assert err.startswith("deltafl: note: dp.delta = 0.05: should be far below 1/20 (0.05)")
    code, _, err = planned(capsys, *as_flags(noisy), "--devices", "30")
    assert (code, err.partition(" (")[0][-4:]) == (0, "1/30")


# --- what would be reachable ---------------------------------------------------------------------


def test_what_is_said_to_be_reachable_is_and_one_more_is_not():
    config = build_config([read_table(preset_text("quickstart"), "quickstart")])
    devices, dropout = fewest_devices(config, PARAMETERS), largest_dropout(config, PARAMETERS)
    assert works(with_cohort(config, devices), PARAMETERS)
    assert not works(with_cohort(config, devices - 1), PARAMETERS)
    assert works(with_dropout(config, dropout), PARAMETERS)
    assert not any(
        works(with_dropout(config, k / 100), PARAMETERS)
        for k in range(round(100 * dropout) + 1, 100)
    )


def test_devices_that_are_expected_to_stay_must_be_a_quorum():
    settings = {"federation": {"cohort_size": 12}, "privacy": {"min_cohort": 11}}
    assert works(with_dropout(config := build_config([settings]), 0.08), PARAMETERS)
    assert not works(with_dropout(config, 0.2), PARAMETERS)


@pytest.mark.slow
def test_a_sparse_graph_is_lost_where_more_than_the_expected_share_is_missing(capsys):
    changed = {"federation": {"cohort_size": 400}, "privacy": {"min_cohort": 100}}
    plan = json.loads(planned(capsys, *as_flags(changed), "--json")[1])["session"]
    assert plan["graph"] == "sparse"
    assert plan["survives"] == 40
    assert 0.4 < plan["loss"] < 0.5  # if each is missing with just that probability
    assert (
        "a round survives 40; at the expected rate of 0.1" in planned(capsys, *as_flags(changed))[1]
    )
    changed["privacy"]["graph"] = "complete"
    complete = json.loads(planned(capsys, *as_flags(changed), "--json")[1])["session"]
    assert complete["survives"] > 150
    assert complete["loss"] < 1e-9


def test_the_probability_of_losing_too_many_devices_is_the_binomial_one(capsys):
    session = json.loads(planned(capsys, "--json")[1])["session"]
    n, rate = session["neighbours"] + 1, session["expected_dropout"]
    few = [comb(n, k) * (1 - rate) ** k * rate ** (n - k) for k in range(session["quorum"])]
    assert session["loss"] == pytest.approx(sum(few), rel=1e-9)


@pytest.mark.slow
def test_noise_is_accounted_for(capsys):
    noisy = {
        "quantile": {"method": "noisy", "weights": "equal", "noise": 4},
        "privacy": {"colluding": 0.0},
    }
    _, out, _ = planned(capsys, *as_flags(noisy), "--json")
    plan = json.loads(out)
    assert plan["costs"]["few"]["queries"] == plan["costs"]["most"]["queries"] == 1
    assert 0 < plan["privacy"]["epsilon"] < float("inf")
    _, out, _ = planned(capsys, *as_flags(noisy))
    assert f"and {rounded_up(plan['privacy']['epsilon'])} for one that is in all" in " ".join(
        out.split()
    )
    assert "sums of updates are not part of it" in " ".join(out.split())
    hidden = {"dp": {"noise": 2.0, "clip": 1.0}, "experiment": {"baselines": "[]"}}
    noisy["privacy"]["max_weight"] = 1
    _, out, _ = planned(capsys, *as_flags({**noisy, **hidden}), "--json")
    with_updates = json.loads(out)["privacy"]
    assert with_updates["updates"]
    assert not plan["privacy"]["updates"]
    assert with_updates["epsilon"] > with_updates["epsilon_once"]
    assert with_updates["epsilon_once"] > plan["privacy"]["epsilon_once"]


def test_a_budget_below_the_price_of_one_round_is_refused(capsys):
    settings = {
        "quantile": {"method": "noisy", "weights": "equal", "noise": 4},
        "privacy": {"colluding": 0.0, "max_weight": 1},
        "dp": {"noise": 2.0, "clip": 1.0, "epsilon_budget": 0.01},
        "experiment": {"baselines": "[]"},
    }
    code, out, err = planned(capsys, *as_flags(settings))
    assert (code, out) == (2, "")
    assert "1 round would spend" in err
    assert "dp.epsilon_budget is 0.01, which is not enough for a single round" in err


ONCE = ("--set", "policy.max_rounds_per_model=1")


@pytest.mark.parametrize(
    ("devices", "lost", "said"),
    [
        ((), None, None),
        (("--devices", "30", *ONCE), 0, "none may be lost"),
        (("--devices", "51", *ONCE), 2, "2 in a row leave enough devices"),
        (("--devices", "30"), 7, "7 in a row leave enough devices"),
        (("--devices", "30", "--set", "privacy.adversary=active"), 0, "none may be lost"),
    ],
)
def test_a_plan_says_how_many_rounds_may_be_lost(capsys, devices, lost, said):
    """Eleven devices of twenty are needed; a round may be repeated seven times, or not at all."""
    code, told, _ = planned(capsys, "--preset", "quickstart", *devices)
    assert code == 0
    assert ("lost rounds" in told) == (said is not None)
    assert said is None or said in told
    _, told, _ = planned(capsys, "--preset", "quickstart", "--json", *devices)
    assert json.loads(told)["session"]["losable_rounds"] == lost


PLAYED = {
    "quickstart": ["--preset", "quickstart", "--rounds", "12"],
    "by writer": ["--preset", "digits-by-writer", "--rounds", "8"],
    "mm": ["--set", "quantile.method=mm", "--rounds", "6"],
    "histogram": ["--set", "quantile.method=histogram", "--rounds", "6"],
    "a large tail": ["--set", "federation.theta=0.8", "--rounds", "6"],
    "levels": ["--set", 'federation.levels=["0.9","0.4"]', "--rounds", "6"],
}


@pytest.mark.slow
@pytest.mark.parametrize("words", PLAYED.values(), ids=PLAYED)
def test_runs_take_as_many_sums_and_bytes_as_were_planned(words, tmp_path, capsys):
    words = [*words, "--set", "experiment.num_seeds=1", "--set", "experiment.baselines=[]"]
    code, out, _ = planned(capsys, *words, "--json")
    assert code == 0
    plan = json.loads(out)
    assert main(["run", *words, "--quiet", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    events = events_of(tmp_path / "run")
    costs = plan["costs"]
    later = max(0, costs["first"]["secure_sums"] - costs["many"]["secure_sums"])
    for what, name in (("secure_sums", "secure_sums"), ("bytes_up", "bytes_up_per_device")):
        mean = fmean(event[name] for event in events)
        few, many = costs["few"][what], costs["many"][what]
        slack = later / len(events) if what == "secure_sums" else 0
        assert 0.85 * few <= mean <= 1.15 * many + slack
