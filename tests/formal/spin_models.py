"""Runs the Promela models of docs/formal in Spin, and reads what Spin says."""

import re
import resource
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODELS: Final = Path(__file__).parents[2] / "docs" / "formal"
DEADLOCK: Final = "no deadlock"
UNREACHED: Final = "unreached"
_LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One question to Spin.

    Attributes:
        name: Of the question, in kebab-case.
        file: The model.
        says: In words, what is modelled or which check is missing.
        defines: What the preprocessor is told.
        properties: What must hold; empty where something is violated.
        violates: The property that must be violated; None where nothing may be.
        reaches: In words, what the model must get to; None of a run that asks for something else.
        fast: Whether the test suite asks it, too.
    """

    name: str
    file: str
    says: str
    defines: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    violates: str | None = None
    reaches: str | None = None
    fast: bool = False

    @property
    def expected(self) -> str | None:
        """What Spin has to say is violated; None if nothing may be."""
        return self.violates if self.reaches is None else UNREACHED


@dataclass(frozen=True, slots=True)
class Answer:
    """What Spin found.

    Attributes:
        violated: The property that does not hold; None if all do.
        states: States that were stored.
        complete: Whether the search came to its end.
        seconds: Of a processor, for the search alone.
        memory_mb: Of the search, in MiB.
        unreached: Lines that were never executed, by file.
    """

    violated: str | None
    states: int
    complete: bool
    seconds: float
    memory_mb: float
    unreached: frozenset[tuple[str, int]]


def runs() -> list[Run]:
    """All questions, in the order of the file."""
    with (MODELS / "models.toml").open("rb") as file:
        listed = tomllib.load(file)["run"]
    return [
        Run(**{k: tuple(v) if isinstance(v, list) else v for k, v in r.items()}) for r in listed
    ]


def missing_tool() -> str | None:
    """Why Spin cannot be run here, in a few words; None if it can."""
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (on Debian: apt-get install spin gcc)"
    return None


def ask(file: str, defines: Sequence[str], folder: Path, *, trace: str | None = None) -> Answer:
    """Search all states of a model, or those before the first violation.

    Args:
        file: The model.
        defines: What the preprocessor is told.
        folder: An empty one, for the verifier.
        trace: What the file trace.pml says, for a model that replays one. It stops wherever it does
            not go on like the trace, so that this is no deadlock.

    Raises:
        RuntimeError: the model does not compile, or the search ended otherwise than it should.
    """
    for model in MODELS.glob("*.pml"):
        shutil.copy(model, folder)
    if trace is not None:
        (folder / "trace.pml").write_text(trace, encoding="utf-8")
    flags = [f"-D{define}" for define in defines]
    _run(["spin", "-a", *flags, file], folder)
    optimised = "-O1" if trace is None else "-O0"  # few states: compiling takes longer
    _run(["gcc", optimised, "-w", "-DSAFETY", "-DMEMLIM=3000", "-o", "pan", "pan.c"], folder)
    begin = _cpu_seconds()
    said = _run(["./pan", "-m100000", *([] if trace is None else ["-E"])], folder)
    return read(said, _cpu_seconds() - begin)


def read(said: str, seconds: float) -> Answer:
    """Read the output of a verifier.

    Raises:
        RuntimeError: it is none, or the search was not exhaustive where it found nothing.
    """
    states = re.search(r"(\d+) states, stored", said)
    errors = re.search(r"errors: (\d+)", said)
    if states is None or errors is None:
        raise RuntimeError(f"no output of a verifier: {said[-1000:]}")
    memory = re.search(r"([\d.]+)\s+total actual memory usage", said)
    violated = None
    if int(errors[1]):
        found = re.search(r"pan:1: (?:assertion violated (\w+) |(invalid end state))", said)
        if found is None:
            raise RuntimeError(f"an error of another kind: {said[:500]}")
        violated = found[1] or DEADLOCK
    complete = "Search not completed" not in said and "max search depth" not in said
    if violated is None and not complete:
        raise RuntimeError(f"not all states were searched: {said[:500]}")
    lines = re.findall(r"^\s+([\w.]+\.pml):(\d+), state", said, re.MULTILINE)
    return Answer(
        violated,
        int(states[1]),
        complete,
        seconds,
        float(memory[1]) if memory else 0.0,
        frozenset((name, int(line)) for name, line in lines),
    )


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(  # noqa: S603 our own models
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
