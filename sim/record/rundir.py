"""A run directory: where its files are, which process may write, and whether a run may continue.

config.toml      all settings; `deltafl run config.toml` runs the same again
versions.json    software, machine, threads, and the digest of the data
events.jsonl     one line of JSON per round
metrics/         CSV, one file per evaluation, one row per device; with several conformity
                 levels in a folder of each, such as metrics/theta-0.5
bundle.npz       the final models of Δ-FL by level, for `deltafl predict`
checkpoints/     the last two states (.npz)
round.bin        what devices of a federation have sent in the current round
transcript.bin   what the server sent and received, and which rounds it began (private algorithms)
truth.bin        what the devices had to hide, for audits (privacy.truth)
attackers.jsonl  who lies, and what came of it, which only a simulation knows (attackers.share)
measured/        what devices of a federation measured together, with the messages that told it
plots/           PNG and SVG
tensorboard/     event files (`deltafl run --tensorboard`)
summary.json     written last: a run that has it is finished
arms/            the other runs of an experiment, each a run directory of this shape
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Final

from deltafl.fl.read.regular import read_regular
from deltafl.fl.read.strict_json import parse_json
from deltafl.sim.errors import ConfigError, RunDirectoryError, UserError, damaged
from deltafl.sim.record.atomic import make_folder, write_file
from deltafl.sim.record.own_files import check_file, check_folder, open_own
from deltafl.sim.settings.config import REMOTE, FederationConfig, RunConfig
from deltafl.sim.settings.config_io import (
    build_config,
    first_difference,
    read_config_file,
    show,
    to_toml,
)

FEDERATED: Final = "run"
"""The run directory in the folder of a federation on this machine (`deltafl federation up`)."""

DEVICES: Final = "devices.txt"
"""The list of devices, in the same folder; and, in a run directory, all that were ever on it."""

MAX_JSON_BYTES: Final = 1 << 26
"""The largest summary, or account of versions, that is read."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one run, or of an experiment with its first run at the top.

    Attributes:
        path: where it is, or will be.
    """

    path: Path

    @property
    def config(self) -> Path:
        """All settings, TOML."""
        return self.path / "config.toml"

    @property
    def versions(self) -> Path:
        """Software, machine and data, JSON."""
        return self.path / "versions.json"

    @property
    def events(self) -> Path:
        """One line of JSON per round."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Folder of evaluations, CSV."""
        return self.path / "metrics"

    def metrics_of(self, federation: FederationConfig) -> dict[Fraction, Path]:
        """Folder of evaluations of each conformity level, largest first.

        A run of one level has them in `metrics`, one of several in `metrics/theta-0.8` and so on.
        """
        if len(federation.thetas) == 1:
            return {federation.thetas[0]: self.metrics}
        return {
            theta: self.metrics / f"theta-{show(theta).replace('/', '_')}"
            for theta in federation.thetas
        }

    @property
    def bundle(self) -> Path:
        """The models of all conformity levels, .npz."""
        return self.path / "bundle.npz"

    @property
    def checkpoints(self) -> Path:
        """Folder of states, .npz."""
        return self.path / "checkpoints"

    @property
    def transcript(self) -> Path:
        """The server's view."""
        return self.path / "transcript.bin"

    @property
    def round(self) -> Path:
        """What devices of a federation have sent in the current round."""
        return self.path / "round.bin"

    @property
    def devices(self) -> Path:
        """Every device that was ever on the list of a federation, with its key."""
        return self.path / DEVICES

    @property
    def measured(self) -> Path:
        """Folder of what the devices of a federation measured together."""
        return self.path / "measured"

    @property
    def truth(self) -> Path:
        """The devices' private values."""
        return self.path / "truth.bin"

    @property
    def attacked(self) -> Path:
        """Who lies, and their share of every aggregate; only of runs with attackers."""
        return self.path / "attackers.jsonl"

    @property
    def plots(self) -> Path:
        """Folder of figures."""
        return self.path / "plots"

    @property
    def summary(self) -> Path:
        """What was found, JSON; there only when the run is finished."""
        return self.path / "summary.json"

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
        replaced = self.config, self.versions, self.bundle, self.summary, self.devices
        written = self.events, self.transcript, self.round, self.truth, self.attacked
        return (*replaced, *written, self.lock)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that a run makes at the top of its directory."""
        return self.metrics, self.checkpoints, self.plots, self.arms, self.measured

    def finished(self, config: RunConfig, *, resume: bool) -> dict[str, object] | None:
        """The summary of the run with `config`, if it is finished; None if there is work to do.

        Raises:
            RunDirectoryError: as `check`.
        """
        return None if self.check(config, resume=resume) else read_json(self.summary)

    def check(self, config: RunConfig, *, resume: bool) -> int | None:
        """Check that a run with `config` may start or go on here; changes nothing.

        Returns:
            How many rounds the run here has by its settings, if `config` makes it longer.

        Raises:
            RunDirectoryError: it is not empty and `resume` is off, or it is no run directory, or
                the run in it has other settings, apart from fewer rounds, or is to be longer and
                an earlier version has evaluated it.
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
        if not self.config.exists():
            # a run that was killed before it wrote its settings leaves hidden files at most
            if any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise RunDirectoryError(
                    f"{self.path} is not a run directory (it has no config.toml): "
                    f"choose another --out"
                )
            return None
        try:
            present = build_config([read_config_file(self.config)])
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
            from deltafl.sim.record.evaluations import evaluation_files  # loads torch

            for folder in self.metrics_of(present.federation).values():
                evaluation_files(folder)  # of an earlier version, it is not gone on with
            return rounds
        beside_rounds = first_difference(config, _with_rounds_of(config, present))
        if difference := beside_rounds or first_difference(config, present):
            key, wanted, found = difference
            mend = "resume with the settings of its config.toml, or choose another --out"
            if key == "federation.rounds":
                mend = "a run is made longer, never shorter; choose another --out"
            raise RunDirectoryError(
                f"{self.path} was started with {key} = {show(found)}, not {show(wanted)}: {mend}"
            )
        return None

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
    def claim(self, config: RunConfig, *, resume: bool) -> Iterator[None]:
        """Be the only writer; creates the directory and its settings if they are not there.

        Raises:
            RunDirectoryError: as `check`; or another process is writing, or what is there is not
                the run's own.
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
            if self.check(config, resume=True):
                self._lengthen(config)
            self.prepare(config)
            yield

    def _lengthen(self, config: RunConfig) -> None:
        """Make the run one of more rounds, which is therefore not finished.

        The results go first: a process that ends here leaves a run that is only to be summarised.
        """
        for result in (self.summary, self.bundle):
            check_file(result)
            result.unlink(missing_ok=True)
        check_file(self.config)
        write_file(self.config, to_toml(config).encode())

    def prepare(self, config: RunConfig) -> None:
        """Create the settings and the folders, if they are not there.

        Raises:
            RunDirectoryError: a link, or anything else that a run does not make, has their name.
        """
        make_folder(self.path)
        metrics = self.metrics_of(config.federation).values()
        for file in self.files:
            check_file(file)
        for folder in (*self.folders, *metrics):
            check_folder(folder)
        if not self.config.exists():
            write_file(self.config, to_toml(config).encode())  # first: `check` goes by it
        for folder in (self.metrics, *metrics, self.checkpoints):
            make_folder(folder)


def _with_rounds_of(config: RunConfig, present: RunConfig) -> RunConfig:
    """The settings of a run that is here, with the rounds of those that are wanted."""
    rounds = config.federation.rounds
    return replace(present, federation=replace(present.federation, rounds=rounds))


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
        if directory.config.exists():  # the nearest: a run in `arms` has others around it
            owned = {*directory.files, *directory.folders}
            if not owned.isdisjoint((place, *place.parents)):
                raise UserError(f"{output} is a file of the run in {folder}: choose another file")
            return


def read_json(path: Path) -> dict[str, object] | None:
    """Read a JSON object; None if the file is not there.

    Raises:
        RunDirectoryError: the file holds anything else.
    """
    if not path.exists():
        return None
    try:
        document = parse_json(read_regular(path, MAX_JSON_BYTES))
    except OSError as error:
        raise damaged(path, error.strerror) from error
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(document, dict):
        raise damaged(path, "it does not contain a JSON object")
    return document


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON object for people to read, atomically."""
    write_file(path, json_bytes(document))


def json_bytes(document: Mapping[str, object]) -> bytes:
    """The file of a JSON object."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
