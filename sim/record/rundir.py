"""A run directory: what is in it, which process may write, and whether a run may continue.

record.sqlite    all that the run has done, and what it says about itself (`deltafl.sim.record`)
truth.sqlite     what the devices had to hide, for audits (privacy.truth)
bundle.npz       the final models of Δ-FL by level, for `deltafl predict`
devices.txt      all devices that were ever on the list of a federation
measured/        the records by which devices of a federation measured models together
plots/           PNG and SVG
tensorboard/     event files (`deltafl run --tensorboard`)
arms/            the other runs of an experiment, each a run directory of this shape

But for the list of devices, the others are made from the record.
"""

import contextlib
import fcntl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Final, TypeVar

from deltafl.sim.errors import (
    ChainError,
    ConfigError,
    Damage,
    RunDirectoryError,
    UserError,
    damaged,
)
from deltafl.sim.record.database import with_journals
from deltafl.sim.record.own_files import check_file, check_folder, make_folder, open_own
from deltafl.sim.record.record import SUMMARY, Record, open_record, write_record
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import first_difference, show

T = TypeVar("T")

FEDERATED: Final = "run"
"""The run directory in the folder of a federation on this machine (`deltafl federation up`)."""

DEVICES: Final = "devices.txt"
"""The list of devices, in the same folder; and, in a run directory, all that were ever on it."""

_ROUNDS: Final = "federation.rounds"


class RunDirectory:
    """The directory of one run, or of an experiment with its first run at the top.

    Args:
        path: where it is, or will be.

    Attributes:
        path: the same.
        record: what the run has done.
        truth: the devices' private values.
        bundle: the models of all conformity levels, .npz.
        devices: every device that was ever on the list of a federation, with its key.
        lock: held by the process that writes.
        measured: folder of the records by which a federation's devices measured models.
        plots: folder of figures.
        arms: folder of the other runs of the same experiment.
        files: every file that a run writes at the top of its directory.
        folders: every folder that it makes there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record, self.truth = path / "record.sqlite", path / "truth.sqlite"
        self.bundle, self.devices, self.lock = path / "bundle.npz", path / DEVICES, path / ".lock"
        self.measured, self.plots, self.arms = path / "measured", path / "plots", path / "arms"
        written = (*with_journals(self.record), *with_journals(self.truth))
        self.files = (*written, self.bundle, self.devices, self.lock)
        self.folders = self.plots, self.arms, self.measured

    def arm(self, algorithm: str, seed: int) -> "RunDirectory":
        """The directory of another run of the same experiment."""
        return RunDirectory(self.arms / f"{algorithm}-seed-{seed}")

    def runs(self, arms: Iterable[RunConfig]) -> Iterator[tuple[RunConfig, "RunDirectory"]]:
        """The runs of an experiment, each with its directory; the first is at the top."""
        for number, one in enumerate(arms):
            own = self.arm(one.federation.algorithm, one.experiment.seed) if number else self
            yield one, own

    @property
    def is_run(self) -> bool:
        """Whether a run has begun here.

        Raises:
            ChainError: its record is damaged.
        """
        return bool(self.ask(Record.has_begun))

    @contextmanager
    def read(self) -> Iterator[Record]:
        """Open its record to read one state of it.

        Raises:
            RunDirectoryError: there is no run.
            ChainError: it is damaged.
        """
        try:
            with open_record(self.record) as record:
                yield record
        except FileNotFoundError as error:
            raise RunDirectoryError(
                f"{self.path} is not a run directory (it has no {self.record.name})"
            ) from error
        except OSError as error:
            raise damaged(self.record, error.strerror) from error

    def config(self) -> RunConfig:
        """The settings of the run.

        Raises:
            UserError: as `read`; or they are none.
        """
        with self.read() as record:
            return record.config()

    def finished(self, config: RunConfig, *, resume: bool) -> dict[str, object] | None:
        """The summary of the run with `config`, if it is finished; None if there is work to do.

        Raises:
            RunDirectoryError: as `check`.
        """
        return None if self.check(config, resume=resume) else self.summary()

    def summary(self) -> dict[str, object] | None:
        """What a finished run has found; None if it is not finished, or there is none.

        Raises:
            UserError: its record cannot be read.
        """
        return self.ask(lambda record: record.json(SUMMARY))

    def ask(self, question: Callable[[Record], T]) -> T | None:
        """What the record says; None where there is none, or it was not made to its end.

        Raises:
            UserError: it cannot be read.
        """
        if not self.record.exists():
            return None
        try:
            with self.read() as record:
                return question(record)
        except ChainError as error:
            if error.damage is Damage.EMPTY:  # its process ended, or is about to go on
                return None
            raise

    @property
    def is_finished(self) -> bool:
        """Whether there is a finished run, whose record can be read now."""
        with contextlib.suppress(UserError):
            return self.summary() is not None
        return False

    def check(self, config: RunConfig, *, resume: bool) -> int | None:
        """Check that a run with `config` may start or go on here; changes nothing.

        Returns:
            How many rounds the run here has by its settings, if `config` makes it longer.

        Raises:
            RunDirectoryError: it is not empty and `resume` is off, or it is no run directory, or
                the run in it has other settings, apart from fewer rounds.
            ChainError: its record is damaged.
        """
        is_folder = self.path.is_dir()
        names = [one.name for one in self.path.iterdir()] if is_folder else []
        if not (names if is_folder else self.path.exists()):
            return None
        if not resume:
            raise self._refusal("already exists: add --resume (resume=True in Python) to go on")
        if not is_folder:
            raise self._refusal("is not a directory")
        check_file(self.record)
        if self.record.exists():
            return self._check_settings(config)
        # a run that was killed before it made its record leaves hidden files at most
        if not all(name.startswith(".") for name in names):
            raise self._refusal(f"is not a run directory (it has no {self.record.name})")
        return None

    def _refusal(self, why: str) -> RunDirectoryError:
        return RunDirectoryError(f"{self.path} {why}; or choose another --out")

    def _check_settings(self, config: RunConfig) -> int | None:
        try:
            present = self.ask(lambda record: record.config() if record.has_begun() else None)
        except ConfigError as error:
            raise RunDirectoryError(f"{self.path} cannot be resumed: {error}") from error
        if present is None:
            return None
        rounds, wanted = present.federation.rounds, config.federation.rounds
        longer = replace(present, federation=replace(present.federation, rounds=wanted))
        difference = first_difference(config, longer) or first_difference(config, present)
        if difference is None:
            return None
        key, now, then = difference
        if key != _ROUNDS:
            mend = "resume with the settings that it has"
        elif rounds > wanted:
            mend = "a run is made longer, never shorter"
        elif config.federation.devices == REMOTE:
            mend = "devices on machines of their own were told how long the run is"
        else:
            return rounds
        raise self._refusal(f"was started with {key} = {show(then)}, not {show(now)}: {mend}")

    def check_unused(self) -> None:
        """Check that no other process writes here now.

        Raises:
            RunDirectoryError: one does.
        """
        if self.lock.exists():
            with open_own(self.lock) as lock:
                self._hold(lock)

    def _hold(self, lock: IO[bytes]) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise self._refusal("is in use by another process: wait for it") from error

    @contextmanager
    def claim(self, config: RunConfig, *, resume: bool) -> Iterator[Record]:
        """Be the only writer of its record, which is made where it is not there.

        Raises:
            RunDirectoryError: as `check`; or another process is writing, or what is there is not
                the run's own.
            ChainError: as `check`.
        """
        self.check(config, resume=resume)
        try:
            make_folder(self.path)
            lock = open_own(self.lock)
        except OSError as error:
            cannot = f"cannot write to {self.path}: {error.strerror}; choose another --out"
            raise RunDirectoryError(cannot) from error
        with lock:
            self._hold(lock)
            is_longer = self.check(config, resume=True) is not None
            for one in self.files:
                check_file(one)
            for one in self.folders:
                check_folder(one)
            with write_record(self.record) as record:
                if is_longer:  # so it is not finished
                    record.note(SUMMARY, None)
                    self.bundle.unlink(missing_ok=True)
                if is_longer or not record.has_begun():
                    record.note_settings(config)
                    record.keep()
                yield record


def settings_in(path: Path) -> str:
    """The settings of a run, TOML, by its directory or its record.

    Raises:
        UserError: there is none.
    """
    directory = RunDirectory(path if path.is_dir() else path.parent)
    if not path.is_dir() and path.name != directory.record.name:
        raise RunDirectoryError(f"{path} is neither a run directory nor its record")
    with directory.read() as record:
        return record.settings


def check_output(output: Path, inputs: Iterable[Path] = ()) -> None:
    """Check that a file that is to be written replaces nothing that a run has recorded.

    Args:
        output: The file.
        inputs: What is read for it, beside run directories.

    Raises:
        UserError: it is one of these, a file that a run writes to its directory, or a folder; or
            there is no folder to put it in.
    """
    if output.is_dir():
        raise UserError(f"{output} is a folder: name a file in it to write to")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}: make it, or name another")
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise UserError(f"{output} is what is read: choose another file to write to")
    place = output.parent.resolve() / output.name  # a link is replaced, not what it leads to
    around = (one for one in map(RunDirectory, place.parents) if one.record.exists())
    for run in islice(around, 1):  # the nearest: a run in `arms` has others around it
        if not {*run.files, *run.folders}.isdisjoint((place, *place.parents)):
            raise UserError(f"{output} is a file of the run in {run.path}: choose another file")
