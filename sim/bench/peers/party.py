"""A party and whoever tells it what to do, over a pipe.

    "round" -> plays one round                <- its seconds by the wall clock
    "model" ->                                <- the model as it stands, float32
    (end)   -> ends

First a party says what it is made of. A `Party` is a process from the outside: it is started, told,
measured and ended. Its own end is a `Conversation`. It waits in `recv`, so that it takes no time
from the others. Nobody sees what libraries print.
"""

import os
import signal
import time
from collections.abc import Callable
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

from deltafl.fl.vectors import Vector
from deltafl.sim.bench.peers.tasks import BenchmarkTask
from deltafl.sim.errors import RunError
from deltafl.sim.record.memory import memory_of, started_by

_PATIENCE_S: Final = 20
_MEGABYTE: Final = 1e6


def made_of(what: str, *packages: str) -> str:
    """What a party runs, with the versions of its packages."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return f"{what} ({versions})"


def start(
    target: Callable[..., None], *arguments: object, daemon: bool = True
) -> tuple[BaseProcess, Connection]:
    """Call a function in a process of its own, with one end of a pipe before the arguments.

    Args:
        target: what to call.
        arguments: the others.
        daemon: whether it ends with this process, and starts none.

    Returns:
        The process, and the other end of the pipe.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=daemon)
    process.start()
    theirs.close()
    return process, ours


class Usage(NamedTuple):
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
    peak, ticks = sum(memory_of(str(pid), "VmHWM") for pid in pids), sum(map(_ticks, pids))
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


class Conversation:
    """A party's own end.

    Args:
        pipe: to who tells it what to do.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def answer(self, what: object) -> None:
        """Say what the party is made of, or how long a round took."""
        self._pipe.send(what)

    def is_asked_for_a_round(self, model: Callable[[], Vector]) -> bool:
        """Wait for the next round; False when there is none.

        Args:
            model: gives the model as it stands, should it be asked for meanwhile.
        """
        try:
            while self._pipe.recv() == "model":
                self._pipe.send(model())
        except EOFError:
            return False
        return True

    def serve(self, play: Callable[[], None], model: Callable[[], Vector]) -> None:
        """Play rounds until there is none to play, and answer with the seconds of each."""
        while self.is_asked_for_a_round(model):
            start = time.perf_counter()
            play()
            self.answer(time.perf_counter() - start)


class Party:
    """A process that plays rounds when it is told to. Close it after use.

    Args:
        name: the party's.
        program: called with a `Conversation`, the task, its first model and the options.
        task: what to play.
        model: the parameters before the first round.
        options: more for the program.

    Attributes:
        name: the party's.
        made_of: what it runs, in words.

    Raises:
        RunError: it does not start, or ends before it should.
    """

    def __init__(
        self,
        name: str,
        program: Callable[..., None],
        task: BenchmarkTask,
        model: Vector,
        *options: str,
    ) -> None:
        self.name = name
        self._process, self._pipe = start(_live, program, task, model, *options, daemon=False)
        try:
            self.made_of: str = self._answer()
        except BaseException:
            self.close()
            raise

    def play(self) -> float:
        """Play a round; its seconds by the wall clock, as the party itself measures them."""
        return float(self._ask("round"))

    def model(self) -> Vector:
        """The model as it stands, float32."""
        model: Vector = self._ask("model")
        return model

    def usage(self) -> Usage | None:
        """What its processes have taken so far; None where the system does not tell."""
        return usage(self._process.pid or 0)

    def close(self) -> None:
        """End the process and all that it has started."""
        pids = tree(self._process.pid or 0)
        self._pipe.close()
        self._process.join(_PATIENCE_S)
        if self._process.exitcode is None:
            for pid in reversed(pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.join()

    def _ask(self, command: str) -> Any:  # noqa: ANN401 (a number or a model)
        try:
            self._pipe.send(command)
        except BrokenPipeError:
            raise RunError(f"{self.name} has ended") from None
        return self._answer()

    def _answer(self) -> Any:  # noqa: ANN401 (likewise)
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RunError(f"{self.name} has ended without a word") from None
        if isinstance(answer, RunError):
            raise RunError(f"{self.name} has ended: {answer}")
        return answer


def _live(pipe: Connection, program: Callable[..., None], *arguments: object) -> None:
    """Be a party."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        program(Conversation(pipe), *arguments)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other end is told)
        pipe.send(RunError(f"{type(error).__name__}: {error}"))
