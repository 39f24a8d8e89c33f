"""A party and whoever tells it what to do, in lines on its standard input, answered by JSON.

    ready                     <- {"made_of": "two processes (torch 2.13.0)"}
    round                     -> plays one round                  <- {"seconds": 1.25}
    model PATH                -> writes the model, float32 .npy   <- {"model": PATH}
    (end of input)            -> ends

A `Party` is a program from the outside: it is started, told, measured and ended. Its own end is a
`Conversation`. It waits in `read`, so that it takes no time from the others. Whatever libraries
print goes to standard error, and their children cannot read the commands.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from deltafl.sim.cohort.hardware import usable_cores
from deltafl.sim.errors import RunError
from deltafl.sim.record.memory import peak_of, started_by

GetModel = Callable[[], npt.NDArray[np.float32]]
_Text = TypeVar("_Text", str, bytes)

OURS: Final = "ours"
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": (),
    "plain-warm": (),
    "flower": ("flwr", "ray"),
    "pfl": ("pfl",),
}
"""The peers, and the packages that each of them needs beside torch."""

USUAL: Final = ("plain", "flower", "pfl")
"""The peers that are taken where none are named."""

_PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    OURS: ("ours.main",),
    "plain": ("plain.main",),
    "plain-warm": ("plain.main", "warm"),
    "flower": ("flower.main",),
    "pfl": ("pfl_research.main",),
}
_PATIENCE_S: Final = 20
_MEGABYTE: Final = 1e6


def missing(peer: str) -> list[str]:
    """The packages that a peer needs and that are not installed."""
    return [name for name in NEEDS[peer] if importlib.util.find_spec(name) is None]


def program(function: str, *arguments: object) -> list[str]:
    """The command line that calls a function of these modules, such as "plain.main", with words."""
    module, name = function.split(".")
    call = f"import sys; from deltafl.sim.bench.peers.{module} import {name}; {name}(*sys.argv[1:])"
    return [sys.executable, "-c", call, *map(str, arguments)]


def made_of(what: str, *packages: str) -> str:
    """What a party runs, with the versions of its packages."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return f"{what} ({versions})"


def piped(stream: IO[_Text] | None) -> IO[_Text]:
    """The pipe of a program that was started with one."""
    if stream is None:
        raise RuntimeError("the program was started without pipes")
    return stream


@dataclass(frozen=True, slots=True)
class Usage:
    """What living processes have taken so far.

    Attributes:
        processes: how many they are.
        peak_rss_mb: the sum of each one's largest resident set (VmHWM), in 10^6 bytes. Pages that
            processes share count for each of them, and the peaks need not be simultaneous.
        cpu_s: their CPU time, in seconds, in steps of a clock tick (0.01 s).
    """

    processes: int
    peak_rss_mb: float
    cpu_s: float


def usage(root: int) -> Usage | None:
    """Measure a process and its living descendants; None where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    pids = tree(root)
    peak, ticks = sum(peak_of(str(pid)) for pid in pids), sum(map(_ticks, pids))
    return Usage(len(pids), peak / _MEGABYTE, ticks / os.sysconf("SC_CLK_TCK"))


def tree(root: int) -> list[int]:
    """A process and its living descendants, parents before children."""
    return [root, *map(int, started_by(str(root)))]


def _ticks(pid: int) -> int:
    """The clock ticks that a process has taken, of proc_pid_stat(5); 0 of one that has ended."""
    try:  # the fields after the name, which may hold spaces
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


class Party:
    """A program of `deltafl.sim.bench.peers` that plays rounds when it is told to.

    Args:
        name: "ours", or one of `NEEDS`.
        folder: the task, as `Federation.save` wrote it.
        arguments: more for its command line.

    Attributes:
        name: the party's.
        made_of: what it runs, in words.

    Raises:
        RunError: it does not start, or ends before it should.
    """

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the party
        function, *own = _PROGRAMS[name]
        self._process = subprocess.Popen(  # noqa: S603 - our own programs
            program(function, folder, usable_cores(), *own, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is ours to pass on
        )
        self._folder = folder
        try:
            ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.made_of: str = ready["made_of"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def play(self) -> float:
        """Play a round; its seconds by the wall clock, as the party itself measures them."""
        self._tell("round")
        return float(self._answer()["seconds"])

    def model(self) -> npt.NDArray[np.float32]:
        """The model as it stands, float32."""
        path = self._folder / f"{self.name}-model.npy"
        self._tell(f"model {path}")
        self._answer()
        model: npt.NDArray[np.float32] = np.load(path)
        return model

    def usage(self) -> Usage | None:
        """What its processes have taken so far; None where the system does not tell."""
        return usage(self._process.pid)

    def close(self) -> None:
        """End the program and all that it has started."""
        pids = tree(self._process.pid)
        piped(self._process.stdin).close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            for pid in reversed(pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait()
        piped(self._process.stdout).close()
        self._log.close()

    def _tell(self, command: str) -> None:
        try:
            piped(self._process.stdin).write(command + "\n")
            piped(self._process.stdin).flush()
        except BrokenPipeError:
            raise RunError(f"{self.name} has ended: {self._last_words()}") from None

    def _answer(self) -> dict[str, Any]:
        line = piped(self._process.stdout).readline()
        if not line:
            raise RunError(f"{self.name} has ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


class Conversation:
    """A party's own end; takes standard input and output for itself."""

    def __init__(self) -> None:
        self._commands = os.fdopen(os.dup(0), "r")
        self._answers = os.fdopen(os.dup(1), "w")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)

    def answer(self, fields: Mapping[str, object]) -> None:
        """Write one line."""
        self._answers.write(json.dumps(fields) + "\n")
        self._answers.flush()

    def is_asked_for_a_round(self, model: GetModel) -> bool:
        """Wait for the next round; False when there is none.

        Args:
            model: gives the model as it stands, should it be asked for meanwhile.
        """
        for line in self._commands:
            command, _, argument = line.strip().partition(" ")
            if command == "round":
                return True
            if command != "model":
                raise ValueError(f"command {line!r} is neither 'round' nor 'model PATH'")
            np.save(Path(argument), model())
            self.answer({"model": argument})
        return False

    def serve(self, play: Callable[[], None], model: GetModel) -> None:
        """Play rounds until there is none to play, and answer with the seconds of each."""
        while self.is_asked_for_a_round(model):
            start = time.perf_counter()
            play()
            self.answer({"seconds": time.perf_counter() - start})
