"""Whole runs in tests, and stand-ins for what follows a run."""

import pytest

from deltafl.sim.run.experiment import run_experiment


class Silent:
    """Follows a run and says nothing."""

    def begin(self, config, rounds_done):
        pass

    def played(self, event):
        pass

    def evaluated(self, round_number, errors):
        pass


class Killed(BaseException):
    """Nothing in the product catches it, like SIGKILL."""


class KilledAfter(Silent):
    """Follows a run and ends it after some rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def played(self, event):
        if event["round"] == self.rounds:
            raise Killed


def run(config, path, *, resume=False, progress=None):
    """The summary of a run; a warning fails the test."""
    return run_experiment(
        config, path, resume=resume, progress=progress or Silent(), warn=pytest.fail
    )
