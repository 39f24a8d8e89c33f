"""Runs a set of cells, several at a time, and keeps the finished runs.

A finished cell lies in OUT/cells/KEY, a run directory without plots, and is never run twice: KEY is
the SHA-256 of all settings, the version of this package, and names, sizes and times of the data's
files. So tables and figures share runs, and an interrupted experiment goes on where it was. Every
cell runs in a process of its own, `python -m deltafl run`, with one thread: one that crashes loses
nothing but itself.
"""

import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from deltafl.sim.cohort.hardware import usable_cores
from deltafl.sim.errors import UserError
from deltafl.sim.progress import Bar
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.experiment import Cell
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import to_toml

_POLL_S: Final = 0.5
_PATIENCE_S: Final = 20.0  # for a cell that was asked to stop: it writes its checkpoint first
_KEY_DIGITS: Final = 16


class Outcome(NamedTuple):
    """The outcome of a set of cells.

    Attributes:
        finished: the runs of the cells that have a result, in the order in which they were asked
            for.
        failed: why the others that were tried have none: a sentence about each.
        unfinished: those that an interruption left, begun or not.
    """

    finished: Mapping[Cell, RunDirectory]
    failed: Mapping[Cell, str]
    unfinished: Sequence[Cell] = ()


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
    places = dict(zip(cells, directories_of(cells, out), strict=True))
    waiting = {at.path: (cell, at) for cell, at in places.items() if not at.is_finished}
    reasons = _run([*waiting.values()], jobs, quiet=quiet)
    finished = {cell: place for cell, place in places.items() if place.is_finished}
    failed = {
        cell: f"{cell} failed: {reasons[place.path]} (all of it: {_log(place)})"
        for cell, place in places.items()
        if place.path in reasons
    }
    return Outcome(finished, failed, [one for one in places if one not in {*finished, *failed}])


def _run(work: Sequence[tuple[Cell, RunDirectory]], jobs: int, *, quiet: bool) -> dict[Path, str]:
    """Run all of it, or what there is until an interruption; why the ones failed that did.

    There are at most so many processes at a time, each on a core of its own.
    """
    reasons: dict[Path, str] = {}
    if not work:
        return reasons
    stop = threading.Event()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    first = os.getpid() % max(1, len(cores))  # or two commands of one job would share a core
    taken = itertools.cycle(cores[first:] + cores[:first])
    bar = Bar(
        total=sum(cell.config.federation.rounds for cell, _ in work),
        initial=sum(rounds_done(place) for _, place in work),
        unit="round",
        desc=f"{len(work)} cells",
        quiet=quiet,
        leave=True,
    )

    def play(cell: Cell, place: RunDirectory) -> None:
        if stop.is_set():
            return
        reason = _played(cell, place, bar, stop)
        if reason and not stop.is_set():
            reasons[place.path] = reason
            bar.write(f"deltafl: {cell}: {reason}", sys.stderr)

    pool = ThreadPoolExecutor(jobs, initializer=lambda: bind(next(taken, None)))
    with contextlib.suppress(KeyboardInterrupt), bar, _ended_like_interrupted(), pool:
        try:
            for each in [pool.submit(play, *one) for one in work]:
                each.result()
        finally:
            stop.set()
    return reasons


def bind(core: int | None) -> None:
    """Give a thread, and the processes that it starts, one core, where the system has such a thing.

    They count their threads by it, so that no result depends on how many run at a time.
    """
    if core is not None:
        os.sched_setaffinity(0, {core})


def _played(cell: Cell, place: RunDirectory, bar: Bar, stop: threading.Event) -> str | None:
    """Run a cell, or as much as there is time for; why it did not succeed, None if it did."""
    if not place.record.exists():
        with place.claim(cell.config, resume=True):  # so it has its settings
            pass
    # -P: a folder called sim where the person stands must not be taken for this package
    program = [sys.executable, "-P", "-m", "deltafl"]
    command = [*program, "run", "--out", str(place.path), "--resume", "--no-plots", "--quiet"]
    log, done = _log(place), rounds_done(place)
    with log.open("wb") as written:
        process = subprocess.Popen(  # noqa: S603 (this interpreter and paths of ours)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=written,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    while process.poll() is None and not stop.wait(_POLL_S):
        now = rounds_done(place)
        bar.update(max(0, now - done))
        done = max(now, done)
    bar.update(max(0, rounds_done(place) - done))
    code = process.poll()
    if code is None:
        _end(process)
        return None
    if code == 0 and place.is_finished:
        log.unlink(missing_ok=True)
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if code < 0:
        return f"it was killed by signal {-code}"
    return lines[-1].removeprefix("deltafl: ") if lines else f"it ended with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it as Ctrl-C would."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
    paths = sorted(source.rglob("*")) if source.is_dir() else [source]
    for path in filter(Path.is_file, paths):
        status = path.stat()
        yield f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n"
