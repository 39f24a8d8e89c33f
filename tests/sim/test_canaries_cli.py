"""`deltafl audit canaries`: what it prints, and its exit codes."""

import json

import numpy as np
import pytest

from deltafl.sim.cli import main
from deltafl.sim.inspect.canaries.cli import describe
from deltafl.sim.inspect.canaries.experiment import Comparison, Measured, guesses_to_make

PRESET = ["audit", "canaries", "--preset", "population-100k-dp", "--sums", "ideal"]
SMALL = [
    *PRESET,
    *("--set", "data.num_devices=400", "--set", "federation.cohort_size=50"),
    *("--set", "privacy.min_cohort=40", "--set", "federation.rounds=4"),
]


def no_noise(_deviation, size, _randomness):
    return np.zeros(size, dtype=np.int64)


def run(capsys, *more):
    code = main([*SMALL, *more])
    return code, capsys.readouterr()


def test_nothing_refutes_a_run_with_noise_and_the_control_would_have(capsys):
    code, told = run(capsys, "--json")
    found = json.loads(told.out)
    assert code == 0
    assert found["holds"]
    assert found["control"]
    assert found["with_noise"]["epsilon"] <= found["claimed"] < found["without_noise"]["epsilon"]
    assert found["with_noise"]["canaries"] == found["without_noise"]["right"] == 200
    # from the settings alone: chosen by what was seen, their number would make bounds too high
    assert found["with_noise"]["guesses"] == guesses_to_make(0.2028, 200, 1e-6)
    assert (found["rounds"], found["participations"], found["delta"]) == (4, 1, 1e-6)
    assert told.err == ""


@pytest.mark.slow
def test_noise_that_is_missing_is_found(capsys, monkeypatch):
    monkeypatch.setattr("deltafl.protocol.update_noise.discrete_gaussians", no_noise)
    code, told = run(capsys, "--quiet")
    assert code == 1
    assert "tell more than the settings claim" in told.out


def test_too_few_canaries_are_no_control(capsys):
    less = ["--set", "dp.noise=1", "--set", "policy.min_update_noise=1"]
    code, told = run(capsys, "--rounds", "1", *less, *SMALL[-2:])  # flags win
    assert code == 1
    assert "nothing could" in told.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "dp.noise=0", "--set", "dp.epsilon_budget=0"], "dp.noise = 0"),
        (["--set", "dp.epsilon_budget=1"], "not enough for a single round"),
        (["--set", "federation.cohort_size=500"], "more than the 200 training devices"),
        (["--set", "dp.noise=1"], "min_update_noise"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_sentence(capsys, more, said):
    code, told = run(capsys, *more)
    assert (code, told.out) == (2, "")
    assert said in told.err
    assert told.err.count("\n") == 1


def test_people_read_both_bounds_beside_the_claim():
    measured, bare = Measured(1000, 125, 89, 0.567), Measured(1000, 1000, 1000, 5.81)
    found = Comparison(2.521, 1e-6, 0.95, 20, 1, measured, bare)
    assert describe(found).splitlines()[:3] == [
        "claimed        ε = 2.53 at δ = 1e-06, by the accountant",
        "measured       ε ≥ 0.56: 89 of 125 guesses right, of 1,000 canaries",
        "without noise  ε ≥ 5.81: 1,000 of 1,000 guesses right, of 1,000 canaries",
    ]
    assert (found.holds, found.control) == (True, True)
    assert not Comparison(0.5, 1e-6, 0.95, 20, 1, measured, bare).holds
    assert not Comparison(5.9, 1e-6, 0.95, 20, 1, measured, bare).control
