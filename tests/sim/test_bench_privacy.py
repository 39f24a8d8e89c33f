import argparse
import json
from dataclasses import replace
from fractions import Fraction

import pytest

from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.protocol.errors import ConfigurationError
from deltafl.secagg import GraphKind
from deltafl.sim.bench import sim_flags
from deltafl.sim.bench.peers.tasks import TASKS
from deltafl.sim.bench.privacy import check_filter, config_of, measure
from deltafl.sim.errors import RunError
from deltafl.sim.run.algorithms import sessions_of, strategy_of

TASK = replace(TASKS["linear"], clients=24, samples=12, seed=2)


def measured_by(*methods, repeats=2):
    return measure(TASK, methods, repeats, "reference")


def test_private_rounds_are_measured_beside_the_same_rounds_in_clear():
    measured = measured_by("histogram", "mm")
    clear, *methods = measured["rounds"].values()
    assert len(clear["round_s"]) == 2
    assert 12 <= measured["kept_devices"] < 24
    for method in methods:
        assert len(method["round_s"]) == 2
        assert method["over_clear"]["lowest"] <= method["over_clear"]["median"]
        assert method["protocol_cpu_s"] > 0
        assert method["kept_weight"] == 12 * measured["kept_devices"]
        assert method["secure_sums"] > 1
        assert method["certified"]
    json.dumps(measured)


def test_the_strategy_is_the_engine_s_on_a_sparse_graph():
    config = config_of(TASK, "mm")
    strategy = strategy_of(config)
    assert isinstance(strategy, PrivateDeltaFL)
    assert strategy.theta == Fraction(1, 2)
    assert sessions_of(config).graph is GraphKind.SPARSE


def test_a_method_that_wants_noise_is_refused():
    with pytest.raises(ConfigurationError, match="noise"):
        measured_by("noisy")


def test_another_filter_is_found_out(monkeypatch):
    """A private round that kept others than the round in clear is not timed against it."""
    kept = {}
    real = check_filter

    def wrong(name, private, clear):
        kept[name] = private
        real(name, replace(private, kept_weight=private.kept_weight + 1), clear)

    monkeypatch.setattr("deltafl.sim.bench.privacy.check_filter", wrong)
    with pytest.raises(RunError, match="not the same round"):
        measured_by("mm", repeats=1)
    aborted = replace(kept["mm"], aborted="too few")
    with pytest.raises(RunError, match="given up: too few"):
        real("mm", aborted, kept["mm"])


def test_the_command_prints_either_form(capsys):
    parser = argparse.ArgumentParser()
    sim_flags.add_arguments(parser)
    words = ["--task", "linear", "--private", "--clients", "24", "--samples", "12"]
    words += ["--repeats", "1", "--methods", "histogram", "--backend", "reference"]
    assert sim_flags.main(parser.parse_args(words)) == 0
    assert "protocol cpu s" in capsys.readouterr().out
    assert sim_flags.main(parser.parse_args([*words, "--json"])) == 0
    measured = json.loads(capsys.readouterr().out)
    assert list(measured["rounds"]) == ["clear", "histogram"]
    assert measured["machine"]["cores"] >= 1
