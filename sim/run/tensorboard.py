"""Event files for TensorBoard: numbers of each round and evaluation, histograms of device errors.

They are written beside the files of the run, in RUN/tensorboard, a folder for each algorithm and
seed. All that is in them comes from the run directory. So when a run is resumed, its event files
are written anew: they are complete, also for rounds that were played without them.
"""

from collections.abc import Mapping
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from deltafl.fl.metrics import Summary, summarise_test_error
from deltafl.sim.record.evaluations import Evaluation, read_evaluations, read_last_evaluation
from deltafl.sim.record.events import Event, dropped, read_events
from deltafl.sim.record.own_files import check_folder, make_folder
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import show

FOLDER: Final = "tensorboard"
"""The folder of event files in a run directory."""

_EDGES: Final = np.linspace(0.0, 1.0, 21)
_FILES: Final = "events.out.tfevents.*"


class TensorBoard:
    """Writes event files while an experiment is played; a `Progress`.

    Args:
        path: the run directory of the experiment.

    Raises:
        ModuleNotFoundError: the package tensorboardX is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._make: Any = import_module("tensorboardX").SummaryWriter
        self._top = RunDirectory(path)
        self._writer: Any = None
        self._directory = self._top
        self._levels: dict[str, Fraction] = {}
        self._known: set[tuple[str, int]] = set()

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """Begin the files of a run, with all that it has come to so far.

        Raises:
            RunDirectoryError: something else has the name of a folder.
        """
        self.close()
        algorithm, seed = config.federation.algorithm, config.experiment.seed
        directory = self._top
        if directory.arm(algorithm, seed).path.exists():
            directory = directory.arm(algorithm, seed)
        folder = self._top.path / FOLDER
        for one in (folder, folder / f"{algorithm}-seed-{seed}"):
            check_folder(one)
            make_folder(one)
        for old in one.glob(_FILES):
            old.unlink()
        self._writer = self._make(str(one))
        self._directory, levels = directory, config.federation.thetas
        self._levels = {
            f"theta-{show(theta)}/" if len(levels) > 1 else "": theta for theta in levels
        }
        self._known = set()
        with directory.read() as record:
            for event in read_events(record)[:rounds_done]:
                self._note_round(event)
            for prefix, theta in self._levels.items():
                for evaluation in read_evaluations(record, theta):
                    self._note(prefix, evaluation)

    def played(self, event: Event) -> None:
        """Write the scalars of a round."""
        self._note_round(event)
        self._writer.flush()

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """Write the scalars and the histogram of an evaluation, which is on the disk by now."""
        del errors
        with self._directory.read() as record:
            for prefix, theta in self._levels.items():
                last = read_last_evaluation(record, theta)
                if last is not None and last.round == round_number:
                    self._note(prefix, last)
        self._writer.flush()

    def close(self) -> None:
        """End the files of the current run."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _note_round(self, event: Event) -> None:
        number = int(cast("float", event["round"]))
        levels = cast("Mapping[str, Event]", event.get("levels") or {})
        for prefix, values in (("", event), *((f"theta-{one}/", levels[one]) for one in levels)):
            for name, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._writer.add_scalar(f"{prefix}round/{name}", value, number)
        stages = cast("Mapping[str, float]", event.get("stage_s") or {})
        for stage, seconds in stages.items():
            self._writer.add_scalar(f"round/stage_s/{stage}", seconds, number)
        self._writer.add_scalar("round/dropped_devices", dropped([event]).total(), number)
        self._writer.add_scalar("round/lost", int(bool(event.get("aborted"))), number)

    def _note(self, prefix: str, evaluation: Evaluation) -> None:
        number = evaluation.round
        if (prefix, number) in self._known or not evaluation.test:
            return
        self._known.add((prefix, number))
        error = summarise_test_error(evaluation.test)
        self._writer.add_scalar(f"{prefix}test_error/mean", error.mean, number)
        for percentile, value in error.percentiles.items():
            self._writer.add_scalar(f"{prefix}test_error/p{percentile}", value, number)
        errors = np.array([device.error for device in evaluation.test])
        self._writer.add_histogram(f"{prefix}test_error/devices", errors, number, bins=_EDGES)
