"""Small runs of the program, with everything that they leave behind."""

from doubles import run

from deltafl.sim.errors import RunError
from deltafl.sim.settings.config_io import build_config

SETTINGS = {
    "data": {"num_devices": 24},
    "federation": {"rounds": 3, "cohort_size": 8, "evaluate_every": 2},
    "privacy": {"min_cohort": 5, "transcript": "full"},
    "quantile": {"resolution_bits": 10, "loss_bound": 8, "method": "bracketed", "max_queries": 4},
    "training": {"batch_size": 64, "device": "cpu", "backend": "reference"},
}


def settings(**changes):
    """Settings of a run, with changes in dictionaries by section."""
    names = SETTINGS.keys() | changes.keys()
    return build_config([{name: SETTINGS.get(name, {}) | changes.get(name, {}) for name in names}])


def leave(path, *, resume=False, progress=None, **changes):
    """Run to the end, or until too many rounds were lost."""
    try:
        run(settings(**changes), path, resume=resume, progress=progress)
    except RunError:
        return False
    return True
