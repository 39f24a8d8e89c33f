"""The server's step is computed again: by the optimiser that the run's settings name."""

import json
from dataclasses import replace

import numpy as np
import pytest
from honest_runs import config_of, in_mode, play_honestly

from deltafl.secagg import Stage, Step, Vanish
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.events import to_json
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import strategy_of
from deltafl.sim.run.engine import report_as_dict

LIMITS = Options(min_cohort=5)
STEPS = {
    "sgd": {"server_optimizer": "sgd", "server_learning_rate": 0.5},
    "momentum": {"server_optimizer": "momentum"},
    "adam": {"server_optimizer": "adam", "server_learning_rate": 0.01},
    "yogi": {"server_optimizer": "yogi", "server_learning_rate": 0.01},
    "adagrad": {"server_optimizer": "adagrad", "server_learning_rate": 0.01},
}
AVERAGING = {"federation": {"theta": 1}}
LEVELS = {
    "federation": {"levels": ["0.8", "0.5", "0.2"]},
    "policy": {"max_pivots": 960},
    "privacy": {"min_honest_tail": 0},
}


def directory_of(path, transcript, **settings):
    """The directory of a run that has its settings and its transcript."""
    directory = RunDirectory(path)
    directory.prepare(config_of(**settings))
    directory.transcript.write_bytes(transcript.read_bytes())
    return path


def rules_of(report):
    return {finding.rule for finding in report.findings if finding.rule.startswith("model.")}


def models_of(report):
    return next(check for check in report.checks if check.name == "models from sums")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run of three rounds with each optimiser; played once."""
    runs = {}

    def play(name):
        if name not in runs:
            settings = AVERAGING | {"strategy": STEPS[name]}
            runs[name] = play_honestly(tmp_path_factory.mktemp("run"), rounds=3, **settings)
        return runs[name]

    return play


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_the_settings_name_is_computed_again(played, name, tmp_path):
    run = played(name)
    settings = AVERAGING | {"strategy": STEPS[name]}
    report = audit(directory_of(tmp_path / "run", run.transcript, **settings), LIMITS)
    assert rules_of(report) == set()
    assert models_of(report).outcome is Outcome.PASSED
    assert "optimiser" in models_of(report).detail
    assert any(fact == "server optimiser" for fact, _ in report.facts)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_another_step_than_the_settings_name_is_found(played, name, tmp_path):
    run, other = played(name), STEPS["adam" if name != "adam" else "yogi"]
    for strategy in (other, STEPS[name] | {"server_learning_rate": 0.02}):
        settings = AVERAGING | {"strategy": strategy}
        path = directory_of(tmp_path / str(strategy), run.transcript, **settings)
        assert rules_of(audit(path, LIMITS)) == {"model.unfounded"}


@pytest.mark.slow
def test_a_bare_transcript_does_not_name_an_optimiser(played):
    report = audit(played("adam").transcript, LIMITS)
    assert rules_of(report) == {"model.unfounded"}
    assert models_of(report).outcome is Outcome.FAILED
    assert "server_optimizer" in RULES["model.unfounded"].remedy


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "momentum", "adam"])
def test_a_model_of_the_server_s_own_is_found_under_any_optimiser(name, tmp_path):
    def meddle(number, state):
        return replace(state, model=state.model + np.float32(1e-3)) if number == 3 else state

    settings = AVERAGING | ({} if name is None else {"strategy": STEPS[name]})
    run = play_honestly(tmp_path, rounds=3, meddle=meddle, **settings)
    report = audit(directory_of(tmp_path / "run", run.transcript, **settings), LIMITS)
    places = {f.evidence[0].round for f in report.findings if f.rule == "model.unfounded"}
    assert places == {3}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_rounds_that_were_given_up_leave_the_moments(name, tmp_path):
    settings = AVERAGING | {"strategy": STEPS[name]}
    run = play_honestly(tmp_path, rounds=4, dropout=0.35, batches=2, length=9, **settings)
    aborted = [report.aborted is not None for report in run.reports]
    assert any(aborted[:-1])
    assert not all(aborted)
    report = audit(directory_of(tmp_path / "run", run.transcript, **settings), LIMITS)
    assert rules_of(report) == set()
    assert models_of(report).outcome is Outcome.PASSED


@pytest.mark.slow
def test_a_weighted_mean_with_an_optimiser_is_computed_again(tmp_path):
    settings = {"federation": {"algorithm": "private-q-ffl"}, "strategy": STEPS["adam"]}
    run = play_honestly(tmp_path, rounds=3, **settings)
    report = audit(directory_of(tmp_path / "run", run.transcript, **settings), LIMITS)
    assert rules_of(report) == set()
    assert models_of(report).outcome is Outcome.PASSED
    assert rules_of(audit(run.transcript, LIMITS)) == {"model.unfounded"}


@pytest.mark.parametrize("name", STEPS)
def test_models_are_not_said_to_be_checked_where_the_round_before_is_not_whole(
    played, name, tmp_path
):
    in_mode(played(name).transcript, tmp_path / "t.bin", "every=2")
    settings = AVERAGING | {"strategy": STEPS[name]}
    report = audit(directory_of(tmp_path / "run", tmp_path / "t.bin", **settings), LIMITS)
    assert report.full_rounds == 1
    assert rules_of(report) == set()
    assert models_of(report).outcome is Outcome.SKIPPED


@pytest.mark.slow
def test_the_model_of_every_level_follows_from_its_sums(tmp_path):
    def meddle(number, state):
        model = state.model.copy()
        model[len(model) // 3] += np.float32(1e-3) * (number == 3)  # of the second level
        return replace(state, model=model)

    played = {"rounds": 3, "length": 30, "build": strategy_of}
    settings = LEVELS | {"quantile": {"max_queries": 12}}  # so that no tail is empty
    run = play_honestly(tmp_path, **played, **settings)
    report = audit(directory_of(tmp_path / "run", run.transcript, **settings), LIMITS)
    assert rules_of(report) == set()
    assert models_of(report).outcome is Outcome.PASSED
    (tmp_path / "lied").mkdir()
    run = play_honestly(tmp_path / "lied", meddle=meddle, **played, **settings)
    report = audit(directory_of(tmp_path / "lied" / "run", run.transcript, **settings), LIMITS)
    assert sum(f.rule == "model.unfounded" for f in report.findings) == 1


@pytest.mark.slow
def test_a_level_that_was_over_when_the_session_ended_is_compared_with_the_events(tmp_path):
    first_of_the_second = 4  # three queries and the update come before

    def dropouts(_round, ids, _slots):
        step = Step(Stage.MASK, first_of_the_second)
        return {device: Vanish(step) for device in ids[1:]}

    run = play_honestly(
        tmp_path, rounds=1, length=30, dropouts=dropouts, build=strategy_of, **LEVELS
    )
    assert run.reports[0].aborted is not None
    path = directory_of(tmp_path / "run", run.transcript, **LEVELS)
    event = {"round": 1} | to_json(report_as_dict(run.reports[0]))
    event["levels"]["0.8"]["kept_devices"] += 1
    RunDirectory(path).events.write_text(json.dumps(event) + "\n")
    details = [f.detail for f in audit(path, LIMITS).findings if f.rule == "record.disagrees"]
    assert any("kept_devices at θ = 0.8" in detail for detail in details)
    assert not any("at θ = 0.5" in detail for detail in details)
