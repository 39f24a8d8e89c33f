"""Runs a set of cells, several at a time, and keeps the finished runs.

A finished cell lies in OUT/cells/KEY, a run directory without plots, and is never run twice: KEY is
the SHA-256 of all settings, the version of this package, and names, sizes and times of the data's
files. So tables and figures share runs, and an interrupted experiment goes on where it was. Every
cell runs in a process of its own, `python -m deltafl run`, with one thread: one that crashes loses
nothing but itself.
"""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from deltafl.sim.cohort.hardware import usable_cores
from deltafl.sim.errors import UserError
from deltafl.sim.progress import Bar
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.experiment import Cell, Finished
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import to_toml

_POLL_S: Final = 0.5
_PATIENCE_S: Final = 20.0  # for a cell that was asked to stop: it writes its checkpoint first
_KEY_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that could not be run.

    Attributes:
        cell: what was asked for.
        reason: the last line that it wrote to stderr.
        log: all of stderr.
    """

    cell: Cell
    reason: str
    log: Path

    def __str__(self) -> str:
        """The sentence for the person at the terminal."""
        return f"{self.cell} failed: {self.reason} (all of it: {self.log})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a set of cells.

    Attributes:
        finished: the cells that have a result, in the order in which they were asked for.
        failures: those that have none.
        unfinished: those that an interruption left, begun or not.
    """

    finished: tuple[Finished, ...]
    failures: tuple[Failure, ...]
    unfinished: tuple[Cell, ...] = ()


def key_of(config: RunConfig, seen: dict[str, bytes] | None = None) -> str:
    """Give the key under which a run with these settings, on the data as it is now, is kept.

    Args:
        config: all settings of the run.
        seen: what was found of the data's files by earlier calls, by path; takes up this one's.
    """
    seen = {} if seen is None else seen
    digest = hashlib.sha256(f"deltafl {metadata.version('deltafl')}\n".encode())
    digest.update(to_toml(config).encode())
    for path in (config.data.source, config.data.vectors):
        if path not in seen:
            seen[path] = "".join(_files(Path(path))).encode() if path else b""
        digest.update(seen[path])
    return digest.hexdigest()[:_KEY_DIGITS]


def directories_of(cells: Sequence[Cell], out: Path) -> list[RunDirectory]:
    """Where the cells' runs lie, or will; a finished one has a summary.

    The files of a data set are looked at once for all cells: there may be hundreds of thousands.
    """
    seen: dict[str, bytes] = {}
    return [RunDirectory(out.resolve() / "cells" / key_of(cell.config, seen)) for cell in cells]


def run_cells(
    cells: Sequence[Cell], out: Path, *, jobs: int | None = None, quiet: bool = False
) -> Outcome:
    """Run what is not there yet, until a person interrupts.

    Running cells are then ended as Ctrl-C would, and go on where they were when they are run again.

    Args:
        cells: any number; two with the same settings are run once.
        out: folder of the results; the runs lie in its folder `cells`.
        jobs: how many at a time; all usable cores by default.
        quiet: no progress bar.

    Raises:
        ValueError: `jobs` is below 1.
    """
    jobs = usable_cores() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs={jobs} is less than 1")
    places = directories_of(cells, out)
    waiting = {
        place.path: (cell, place)
        for cell, place in zip(cells, places, strict=True)
        if not place.is_finished
    }
    reasons = _run(list(waiting.values()), jobs, quiet=quiet)
    finished, failed, unfinished = [], [], []
    for cell, place in zip(cells, places, strict=True):
        if place.is_finished:
            finished.append(Finished(cell, place))
        elif place.path in reasons:
            failed.append(Failure(cell, reasons[place.path], _log(place)))
        else:
            unfinished.append(cell)
    return Outcome(tuple(finished), tuple(failed), tuple(unfinished))


@dataclass(slots=True)
class _Running:
    """A process, and how far it has come."""

    process: subprocess.Popen[bytes]
    cell: Cell
    place: RunDirectory
    core: int | None
    rounds: int


def _run(work: Sequence[tuple[Cell, RunDirectory]], jobs: int, *, quiet: bool) -> dict[Path, str]:
    """Run all of it, or what there is until an interruption; why the ones failed that did.

    There are at most so many processes at a time, each on a core of its own.
    """
    reasons: dict[Path, str] = {}
    if not work:
        return reasons
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    first = os.getpid() % max(1, len(cores))  # or two commands of one job would share a core
    cores = cores[first:] + cores[:first]
    queue = list(reversed(work))
    running: list[_Running] = []
    bar = Bar(
        total=sum(cell.config.federation.rounds for cell, _ in work),
        initial=sum(rounds_done(place) for _, place in work),
        unit="round",
        desc=f"{len(work)} cells",
        quiet=quiet,
        leave=True,
    )
    try:
        with contextlib.suppress(KeyboardInterrupt), bar, _ended_like_interrupted():
            while queue or running:
                while queue and len(running) < jobs:
                    core = _free(cores, [one.core for one in running])
                    running.append(_start(*queue.pop(), core))
                for one in list(running):
                    _follow(one, bar)
                    if one.process.poll() is not None:
                        _follow(one, bar)
                        running.remove(one)
                        if reason := _reason(one):
                            reasons[one.place.path] = reason
                            bar.write(f"deltafl: {one.cell}: {reason}", sys.stderr)
                        bar.set_description(f"{len(queue) + len(running)} cells left")
                if running:
                    time.sleep(_POLL_S)
    finally:
        _stop(running)
    return reasons


def _free(cores: Sequence[int], taken: Sequence[int | None]) -> int | None:
    """The core that the fewest running cells have; None where the system has no such choice."""
    return min(cores, key=taken.count, default=None)


def _start(cell: Cell, place: RunDirectory, core: int | None) -> _Running:
    if not place.record.exists():
        with place.claim(cell.config, resume=True):  # so it has its settings
            pass
    # -P: a folder called sim where the person stands must not be taken for this package
    program = [sys.executable, "-P", "-m", "deltafl"]
    command = [*program, "run", "--out", str(place.path), "--resume", "--no-plots", "--quiet"]
    with _log(place).open("wb") as log, _bound_to(core):
        process = subprocess.Popen(  # noqa: S603 (this interpreter and paths of ours)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    return _Running(process, cell, place, core, rounds_done(place))


@contextlib.contextmanager
def _bound_to(core: int | None) -> Iterator[None]:
    """Give the processes that start here one core.

    They count their threads by it, so that no result depends on how many run at a time.
    """
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Take SIGTERM (of `timeout`, of a batch system) for Ctrl-C, so that no process is left."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(one: _Running, bar: Bar) -> None:
    now = rounds_done(one.place)
    bar.update(max(0, now - one.rounds))
    one.rounds = max(now, one.rounds)


def _reason(one: _Running) -> str | None:
    """Why a process that has ended did not succeed; None if it did."""
    log = _log(one.place)
    code = one.process.returncode
    if code == 0 and one.place.is_finished:
        log.unlink(missing_ok=True)
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if code < 0:
        return f"it was killed by signal {-code}"
    return lines[-1].removeprefix("deltafl: ") if lines else f"it ended with exit code {code}"


def _stop(running: Sequence[_Running]) -> None:
    """End what still runs, as Ctrl-C would."""
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(signal.SIGINT)
    for one in running:
        try:
            one.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def rounds_done(place: RunDirectory) -> int:
    """How many rounds a run has behind it."""
    try:
        with place.read() as record:
            return len(read_events(record))
    except UserError:  # it has not begun
        return 0


def _log(place: RunDirectory) -> Path:
    return place.path.with_suffix(".log")


def _files(source: Path) -> Iterator[str]:
    """Name, size and time of every file of a data set; nothing for data that is no file."""
    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.is_file())
    else:
        return
    for path in paths:
        status = path.stat()
        yield f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n"
