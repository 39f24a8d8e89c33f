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

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from deltafl.sim.errors import (
    ChainError,
    ConfigError,
    Damage,
    RunDirectoryError,
    UserError,
    damaged,
)
from deltafl.sim.record.database import beside
from deltafl.sim.record.own_files import check_file, check_folder, make_folder, open_own
from deltafl.sim.record.record import SUMMARY, Record, open_record, write_record
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import first_difference, show

FEDERATED: Final = "run"
"""The run directory in the folder of a federation on this machine (`deltafl federation up`)."""

DEVICES: Final = "devices.txt"
"""The list of devices, in the same folder; and, in a run directory, all that were ever on it."""

_EARLIER: Final = "config.toml"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one run, or of an experiment with its first run at the top.

    Attributes:
        path: where it is, or will be.
    """

    path: Path

    @property
    def record(self) -> Path:
        """What the run has done."""
        return self.path / "record.sqlite"

    @property
    def truth(self) -> Path:
        """The devices' private values."""
        return self.path / "truth.sqlite"

    @property
    def bundle(self) -> Path:
        """The models of all conformity levels, .npz."""
        return self.path / "bundle.npz"

    @property
    def devices(self) -> Path:
        """Every device that was ever on the list of a federation, with its key."""
        return self.path / DEVICES

    @property
    def measured(self) -> Path:
        """Folder of the records by which a federation's devices measured models."""
        return self.path / "measured"

    @property
    def plots(self) -> Path:
        """Folder of figures."""
        return self.path / "plots"

    @property
    def lock(self) -> Path:
        """Held by the process that writes."""
        return self.path / ".lock"

    @property
    def arms(self) -> Path:
        """Folder of the other runs of the same experiment."""
        return self.path / "arms"

    def arm(self, algorithm: str, seed: int) -> "RunDirectory":
        """The directory of another run of the same experiment."""
        return RunDirectory(self.arms / f"{algorithm}-seed-{seed}")

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that a run writes at the top of its directory."""
        written = [
            one
            for path in (self.record, self.truth)
            for one in (path, *(beside(path, end) for end in ("-wal", "-shm", "-journal")))
        ]
        return (*written, self.bundle, self.devices, self.lock)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that a run makes at the top of its directory."""
        return self.plots, self.arms, self.measured

    @property
    def is_run(self) -> bool:
        """Whether a run has begun here.

        Raises:
            RunDirectoryError: one of an earlier version has.
            ChainError: its record is damaged.
        """
        if not self.record.exists():
            self.refuse_earlier()
            return False
        with self.read() as record:
            return record.has_begun()

    def refuse_earlier(self) -> None:
        """Refuse the directory of a run of an earlier version.

        Raises:
            RunDirectoryError: it is one.
        """
        if (self.path / _EARLIER).exists() and not self.record.exists():
            raise RunDirectoryError(
                f"{self.path} was written by an earlier version, in files of their own: read it "
                f"with that one, or run again (`deltafl run {self.path / _EARLIER}`)"
            )

    @contextmanager
    def read(self) -> Iterator[Record]:
        """Open its record to read one state of it.

        Raises:
            RunDirectoryError: there is no run, or one of an earlier version.
            ChainError: it is damaged.
        """
        self.refuse_earlier()
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
        if not self.record.exists():
            return None
        with self.read() as record:
            return record.json(SUMMARY)

    @property
    def has_states(self) -> bool:
        """Whether there is a run that has saved a state."""
        if not self.record.exists():
            return False
        with self.read() as record:
            return record.db.execute("SELECT 1 FROM arrays LIMIT 1").fetchone() is not None

    @property
    def is_finished(self) -> bool:
        """Whether there is a finished run, whose record can be read now."""
        try:
            return self.summary() is not None
        except UserError:
            return False

    def check(self, config: RunConfig, *, resume: bool) -> int | None:
        """Check that a run with `config` may start or go on here; changes nothing.

        Returns:
            How many rounds the run here has by its settings, if `config` makes it longer.

        Raises:
            RunDirectoryError: it is not empty and `resume` is off, or it is no run directory, or
                the run in it has other settings, apart from fewer rounds, or is of an earlier
                version.
            ChainError: its record is damaged.
        """
        is_folder = self.path.is_dir()
        if not self.path.exists() or (is_folder and not any(self.path.iterdir())):
            return None
        if not resume:
            raise RunDirectoryError(
                f"{self.path} already exists: add --resume (resume=True in Python) to continue "
                "it, or choose another --out"
            )
        if not is_folder:
            raise RunDirectoryError(f"{self.path} is not a directory: choose another --out")
        check_file(self.record)
        if not self.record.exists():
            self.refuse_earlier()
            # a run that was killed before it made its record leaves hidden files at most
            if any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise RunDirectoryError(
                    f"{self.path} is not a run directory (it has no {self.record.name}): "
                    f"choose another --out"
                )
            return None
        return self._check_settings(config)

    def _check_settings(self, config: RunConfig) -> int | None:
        try:
            if not self._is_made():
                return None
            present = self.config()
        except ConfigError as error:
            raise RunDirectoryError(f"{self.path} cannot be resumed: {error}") from error
        rounds = present.federation.rounds
        if rounds < config.federation.rounds and _with_rounds_of(config, present) == config:
            if config.federation.devices == REMOTE:
                raise RunDirectoryError(
                    f"{self.path} was started with federation.rounds = {rounds}, not "
                    f"{config.federation.rounds}: devices on machines of their own were told how "
                    "long the run is; resume with as many, or choose another --out"
                )
            return rounds
        beside_rounds = first_difference(config, _with_rounds_of(config, present))
        if difference := beside_rounds or first_difference(config, present):
            key, wanted, found = difference
            mend = "resume with the settings that it has, or choose another --out"
            if key == "federation.rounds":
                mend = "a run is made longer, never shorter; choose another --out"
            raise RunDirectoryError(
                f"{self.path} was started with {key} = {show(found)}, not {show(wanted)}: {mend}"
            )
        return None

    def _is_made(self) -> bool:
        """Whether its record is there as a whole: a process may have ended while it made it."""
        try:
            with self.read() as record:
                return record.has_begun()
        except ChainError as error:
            if error.damage is Damage.EMPTY:
                return False
            raise

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
            raise RunDirectoryError(
                f"{self.path} is in use by another process: wait for it, or choose another --out"
            ) from error

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
            raise RunDirectoryError(
                f"cannot write to {self.path}: {error.strerror}; choose another --out"
            ) from error
        with lock:
            self._hold(lock)
            is_longer = self.check(config, resume=True) is not None
            for file in self.files:
                check_file(file)
            for folder in self.folders:
                check_folder(folder)
            with write_record(self.record) as record:
                if is_longer:  # so it is not finished
                    record.note(SUMMARY, None)
                    self.bundle.unlink(missing_ok=True)
                if is_longer or not record.has_begun():
                    record.note_settings(config)
                    record.keep()
                yield record


def _with_rounds_of(config: RunConfig, present: RunConfig) -> RunConfig:
    """The settings of a run that is here, with the rounds of those that are wanted."""
    rounds = config.federation.rounds
    return replace(present, federation=replace(present.federation, rounds=rounds))


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


def check_output(output: Path, inputs: Iterable[Path]) -> None:
    """Check that a file that is to be written replaces nothing that a run has recorded.

    Args:
        output: The file.
        inputs: What is read for it.

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
    for folder in place.parents:
        directory = RunDirectory(folder)
        if directory.record.exists():  # the nearest: a run in `arms` has others around it
            owned = {*directory.files, *directory.folders}
            if not owned.isdisjoint((place, *place.parents)):
                raise UserError(f"{output} is a file of the run in {folder}: choose another file")
            return
