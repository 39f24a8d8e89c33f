"""A party from the outside: its program is started, told to play rounds, measured and ended."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import numpy as np
import numpy.typing as npt

from deltafl.sim.bench.peers.process_tree import Usage, tree, usage
from deltafl.sim.cohort.hardware import usable_cores
from deltafl.sim.errors import RunError

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
    OURS: ("deltafl.sim.bench.peers.ours",),
    "plain": ("deltafl.sim.bench.peers.plain",),
    "plain-warm": ("deltafl.sim.bench.peers.plain", "warm"),
    "flower": ("deltafl.sim.bench.peers.flower",),
    "pfl": ("deltafl.sim.bench.peers.pfl_research",),
}
_PATIENCE_S: Final = 20


def missing(peer: str) -> list[str]:
    """The packages that a peer needs and that are not installed."""
    return [name for name in NEEDS[peer] if importlib.util.find_spec(name) is None]


class Party:
    """A program of `deltafl.sim.bench.peers` that plays rounds when it is told to.

    Args:
        name: "ours", or one of `NEEDS`.
        folder: the task, as `Federation.save` wrote it.
        arguments: more for its command line.

    Attributes:
        name: the party's.
        versions: of the packages that it is made of.
        how: what it runs, in words.

    Raises:
        RunError: it does not start, or ends before it should.
    """

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the party
        module, *own = _PROGRAMS[name]
        command = [sys.executable, "-m", module, str(folder), str(usable_cores())]
        self._process = subprocess.Popen(  # noqa: S603 - our own programs
            [*command, *own, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is ours to pass on
        )
        self._folder = folder
        self._idle_since: Usage | None = None
        self._idle_cpu_s = 0.0
        try:
            ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = ready["versions"]
        self.how: str = ready["how"]

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
        now = self.usage()
        if now is not None and self._idle_since is not None:
            self._idle_cpu_s += max(0.0, now.cpu_s - self._idle_since.cpu_s)
        self._tell("round")
        seconds = float(self._answer()["seconds"])
        self._idle_since = self.usage()
        return seconds

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

    @property
    def idle_cpu_s(self) -> float:
        """CPU seconds that it took between its rounds, while others played."""
        return self._idle_cpu_s

    def close(self) -> None:
        """End the program and all that it has started."""
        pids = tree(self._process.pid)
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            for pid in reversed(pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait()
        self._pipe(self._process.stdout).close()
        self._log.close()

    def _tell(self, command: str) -> None:
        try:
            self._pipe(self._process.stdin).write(command + "\n")
            self._pipe(self._process.stdin).flush()
        except BrokenPipeError:
            raise RunError(f"{self.name} has ended: {self._last_words()}") from None

    def _answer(self) -> dict[str, Any]:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise RunError(f"{self.name} has ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    @staticmethod
    def _pipe(stream: IO[str] | None) -> IO[str]:
        if stream is None:
            raise RuntimeError("the program was started without pipes")
        return stream
