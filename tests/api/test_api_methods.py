"""Methods, and the names that the package shows."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from api_network import FEW, network

import deltafl as dfl
from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.sim.cli import main
from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import ALGORITHMS
from deltafl.sim.settings.config_io import build_config


@pytest.mark.parametrize(
    "method", [dfl.PrivateDeltaFL("1/3"), dfl.DeltaFL(0.8), dfl.FedAvg(), dfl.FedAvg(private=True)]
)
def test_methods_are_algorithms_of_the_command_line(method):
    assert method.algorithm in ALGORITHMS
    config = build_config([{"federation": {"algorithm": method.algorithm}}, dict(method.settings)])
    theta = method.settings.get("federation", {}).get("theta")
    assert theta is None or str(theta) in str(method)
    assert config.federation.algorithm == method.algorithm


def test_a_method_is_called_as_one_likes():
    assert str(dfl.Method("private-q-ffl", {"strategy": {"q": 2.0}}, "q = 2")) == "q = 2"
    assert str(dfl.Method("afl")) == "afl"


def test_every_name_that_is_shown_is_there():
    for name in dfl.__all__:
        assert getattr(dfl, name) is not None
    assert dir(dfl) == sorted(dfl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        dfl.trian  # noqa: B018


def test_importing_the_package_loads_nothing_large():
    code = (
        "import sys, deltafl; "
        "print([one for one in ('torch', 'numpy', 'pandas', 'deltafl.sim') if one in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "[]\n"


class ByPower(dfl.WeightedMean):
    """A device of n samples weighs n^p: FedAvg for p = 1."""

    __slots__ = ("power",)

    def __init__(self, power):
        self.power = power

    @property
    def name(self):
        return f"power {self.power}"

    @property
    def has_whole_weights(self):
        return False

    def share(self, own, _):
        return dfl.Share(float(own.num_samples) ** self.power)


class Median:
    """The median of all updates, which takes a server that sees them."""

    name = "median"
    server_sees = Visibility.UPDATES

    def init(self, model, _):
        return TrainingState(model)

    def apply(self, state, cohort):
        updates = [one.result() for one in cohort.reveal_updates(state.model)]
        middle = np.median(updates, axis=0).astype(np.float32)
        report = RoundReport(
            kept_devices=len(updates), kept_weight=sum(cohort.weights.values()), secure_sums=0
        )
        return replace(state, model=state.model + middle, round=state.round + 1), report


@pytest.mark.parametrize("private", [False, True])
def test_a_mean_of_ones_own_is_trained_by_in_clear_and_by_secure_sums(
    federation, tmp_path, private
):
    model = network()
    usual = dfl.train(model, federation, "fedavg", out=tmp_path / "usual", **FEW)
    strategy = dfl.OwnMethod(ByPower(1.0), private=private)
    own = dfl.train(model, federation, strategy, out=tmp_path / "own", **FEW)
    assert own.label == ("private-power 1.0" if private else "power 1.0")
    ours, theirs = to_vector(own.module()), to_vector(usual.module())
    np.testing.assert_allclose(ours, theirs, atol=2e-3 if private else 0)
    assert np.abs(theirs - to_vector(model)).max() > 0.01
    assert own.summary["secure_sums"] == (3 if private else 0)


@pytest.mark.slow
def test_a_mean_by_secure_sums_passes_the_audit(federation, tmp_path):
    settings = {"privacy": {"transcript": "full"}}
    strategy = dfl.OwnMethod(ByPower(0.5), private=True)
    found = dfl.train(network, federation, strategy, settings=settings, out=tmp_path / "own", **FEW)
    assert found.audit().level in ("low", "open")


def test_a_strategy_that_sees_updates_is_trained_by_and_compared(federation, tmp_path):
    found = dfl.compare(network(), federation, [Median(), "fedavg"], out=tmp_path, **FEW)
    assert list(found.table().index) == ["median", "fedavg"]
    ours, theirs = (to_vector(one.module()) for one in found.results)
    assert not np.array_equal(ours, theirs)
    assert found["median"].audit().level != "clean"
    again = dfl.Comparison.open(tmp_path)["median"]  # its label, which no setting has
    assert np.array_equal(again.test_errors(), found["median"].test_errors())


@pytest.mark.parametrize(
    ("strategy", "options", "complaint"),
    [
        (Median(), {"private": True}, "Median is no WeightedMean, and only these can be private"),
        (Median, {}, "Median is a class: pass an object"),
        (3, {}, "int has no 'name': pass the name of an algorithm, a Method"),
    ],
)
def test_what_is_no_strategy_is_refused(strategy, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        dfl.OwnMethod(strategy, **options)


def test_the_command_line_cannot_make_a_strategy_that_nobody_names(tmp_path, capsys):
    arguments = ["--set", "federation.algorithm=own", "--set", "experiment.baselines=[]"]
    assert main(["run", "--out", str(tmp_path / "run"), *arguments]) == 2
    assert "passed to `deltafl.train`; name it (own.strategy" in capsys.readouterr().err
