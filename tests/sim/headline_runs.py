"""Runs of the headline that nobody has trained, with errors as told, for tests of its reports."""

import numpy as np
from records import due, write_run

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.declared import SMALL_STEPS
from deltafl.sim.reproduce.experiment import Finished


def played(tmp_path, made, shift_of):
    """Runs whose errors are those of their seed, and lower by what the method gains."""
    finished = []
    for number, cell in enumerate(made):
        evaluations = []
        for at in (0, 25, 50, 100):
            if at > cell.config.federation.rounds:
                continue
            drawn = np.random.default_rng([cell.seed, at]).uniform(0.1, 0.4, 20)
            own = np.random.default_rng([cell.seed, at, number]).normal(0, 0.002, 20)
            devices = [
                DeviceMetrics(f"d{k}", 50, 1.0, float(error))
                for k, error in enumerate(drawn + own + shift_of(cell, at))
            ]
            evaluations.append(Evaluation(at, devices, devices))
        place = write_run(tmp_path / str(number), due(cell.config), *evaluations)
        finished.append(Finished(cell, place))
    return finished


def gain(cell, at):
    return -0.02 if "Δ-FL θ=0.5" in cell.method and cell.method.startswith(SMALL_STEPS) else 0.0
