"""The Ray backend gives what a backend on this machine gives."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"
)
def test_answers_are_those_of_the_learner_to_the_bit():
    script = Path(__file__).with_name("ray_answers.py")
    done = subprocess.run(  # noqa: S603 (a script of ours)
        [sys.executable, script], capture_output=True, text=True, timeout=300
    )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    refused, misfit = said.pop("refused"), said.pop("misfit")
    assert "training.address = '127.0.0.1:1': no Ray cluster" in refused
    assert "does not fit" in misfit
    assert said == {
        "losses": "True",
        "updates": "True",
        "control": "False",
        "evaluation": "True",
        "elsewhere": "True",
        "own": "True",
    }
