"""Methods, and the names that the package shows."""

import subprocess
import sys

import pytest

import deltafl as dfl
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
