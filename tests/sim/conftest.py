"""A federation that plays in a fraction of a second."""

import pytest

from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config

TINY = {
    "data": {"num_devices": 8},
    "federation": {
        "algorithm": "delta-fl",
        "rounds": 4,
        "cohort_size": 3,
        "evaluate_every": 2,
    },
    "training": {"batch_size": 64, "device": "cpu"},
}


@pytest.fixture
def tiny() -> RunConfig:
    return build_config([TINY])


@pytest.fixture
def tiny_arguments() -> list[str]:
    return [
        f"--set={section}.{key}={value}"
        for section, values in TINY.items()
        for key, value in values.items()
    ] + ["--set=experiment.baselines=[]", "--set=experiment.num_seeds=1", "--quiet"]


@pytest.fixture
def no_figures(monkeypatch):
    """Leave out the figures, which take longer than all the rest of a tiny run."""
    monkeypatch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
