"""Seeded faults: is there a test that fails when the code is broken on purpose?

`catalogue.toml` holds the faults, each an edit of one line that lets in an attack or an error. Each
is made in a copy of the tree and its tests are run there; if they pass, so are all tests of secagg
and protocol before the fault is said to survive. A fault is

    killed       a test fails
    timed out    the tests take too long, which counts as killed
    survived     every test passes: a test is missing, or the entry says why none can fail
    broken       the entry is badly written: the fault breaks the program, not the protocol

The command succeeds if every fault is killed, or survives with a reason that still holds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
CATALOGUE: Final = Path(__file__).with_name("catalogue.toml")
LAYERS: Final = ("secagg", "protocol", "fl", "sim")
COPIED: Final = (*LAYERS, "src", "tests", "docs", "README.md", "conftest.py", "pyproject.toml")
WHOLE: Final = ("tests/secagg", "tests/protocol")
FAST: Final = "not slow"
TIME_LIMIT_S: Final = 300.0
WHOLE_TIME_LIMIT_S: Final = 1200.0  # a run of them, or of one file, takes 240 s on an idle machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One entry of the catalogue.

    Attributes:
        id: Number, ascending; a hundred for each module.
        name: In kebab-case, unique.
        file: What is edited, from the root of the repository.
        old: Text that occurs in the file exactly once.
        new: What takes its place; one line of it differs.
        why: The attack or error that the fault lets in.
        tests: Paths or node ids of the tests that ought to fail; the fewest.
        survives: Why no test can fail; None where one does.
        thorough: Why no test of the fast tier fails; None where one does.
    """

    id: int
    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    survives: str | None = None
    thorough: str | None = None

    @property
    def tier(self) -> str:
        """Which of its tests are run, as pytest's -m takes it."""
        return FAST if self.thorough is None else ""

    def put_in(self, source: str) -> str:
        """The source with the fault in it, be it Python or not.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text occurs {count} times in {self.file}")
        return source.replace(self.old, self.new)

    def apply(self, source: str) -> str:
        """The source with the fault in it.

        Raises:
            ValueError: the old text does not occur exactly once, or the new one is no Python.
        """
        faulty = self.put_in(source)
        try:
            compile(faulty, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} is no Python any more: {error}") from None
        return faulty


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a fault, and how it was seen.

    Attributes:
        verdict: See the module.
        test: The test that failed, or the tests that took too long; empty where there is none.
        error: With what it failed.
        listed: Whether it is one of the tests that the catalogue lists for the fault.
    """

    verdict: Verdict
    test: str = ""
    error: str = ""
    listed: bool = True


def load_catalogue(path: Path = CATALOGUE) -> list[Fault]:
    """All faults, in the order of the file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    return [Fault(**(entry | {"tests": tuple(entry["tests"])})) for entry in entries]


def problem(fault: Fault, outcome: Outcome) -> str | None:
    """What is to be done about an outcome; None where nothing is."""
    match outcome.verdict:
        case Verdict.BROKEN:
            return f"rewrite the entry: {outcome.error} ({outcome.test})"
        case Verdict.SURVIVED if fault.survives is None:
            return "no test fails: write one, or say why none can"
        case Verdict.KILLED | Verdict.TIMED_OUT if fault.survives is not None:
            return f"it does not survive, remove the reason: {outcome.test}"
    return None


def environment(tree: Path) -> dict[str, str]:
    """The environment in which Python imports the packages of `tree` and behaves as ever."""
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("PYTEST_")}
    return inherited | {
        "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree / "tests" / "mutants"))),
        # Cached bytecode is told from stale by size and whole seconds: a fault may change neither.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class Tree:
    """A copy of the repository, and a process that runs its tests."""

    def __init__(self, path: Path) -> None:
        """Begin; `path` has been copied to.

        Args:
            path: Its root.
        """
        self.path = path
        command = [sys.executable, str(path / "tests" / "mutants" / "warm.py")]
        self._process = subprocess.Popen(  # noqa: S603 our own interpreter, our own script
            command,
            cwd=path,
            env=environment(path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, tests: Sequence[str], limit_s: float = TIME_LIMIT_S, tier: str = FAST) -> Outcome:
        """Run tests up to the first that fails.

        Args:
            tests: Paths and node ids.
            limit_s: How long they may take.
            tier: Which of them are run, as pytest's -m takes it.
        """
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        arguments += ["-p", "first_failure", "-o", "addopts=", "-m", tier, *tests]
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            report = Path(folder) / "first_failure.json"
            asked = {"arguments": arguments, "report": str(report), "limit_s": limit_s}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            code, said = json.loads(self._process.stdout.readline())
            first = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
        if code is None:
            return Outcome(Verdict.TIMED_OUT, " ".join(tests), f"more than {limit_s:g} s")
        if first is not None:
            noticed = code == pytest.ExitCode.TESTS_FAILED and not first["miswritten"]
            verdict = Verdict.KILLED if noticed else Verdict.BROKEN
            return Outcome(verdict, first["test"], first["error"])
        if code == pytest.ExitCode.OK:
            return Outcome(Verdict.SURVIVED)
        error = f"pytest ended with {code} and said: {said}"
        return Outcome(Verdict.BROKEN, " ".join(tests), error)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def judge(fault: Fault, tree: Tree) -> Outcome:
    """Make a fault in a tree, see what becomes of it, and take it back."""
    target = tree.path / fault.file
    source = target.read_text(encoding="utf-8")
    target.write_text(fault.apply(source), encoding="utf-8")
    try:
        outcome = tree.run(fault.tests, tier=fault.tier)
        if outcome.verdict is not Verdict.SURVIVED:
            return outcome
        outcome = tree.run(WHOLE, WHOLE_TIME_LIMIT_S)
    finally:
        target.write_text(source, encoding="utf-8")
    if outcome.verdict is not Verdict.KILLED:
        return replace(outcome, listed=False)
    # Unlike those listed, this test was not run before the first fault.
    if tree.run([outcome.test]).verdict is not Verdict.SURVIVED:
        return Outcome(Verdict.BROKEN, outcome.test, "fails without the fault too", listed=False)
    return replace(outcome, listed=False)


def copy_tree(tree: Path) -> None:
    """Copy all that the tests need, and see that Python imports the copy.

    Raises:
        RuntimeError: it imports something else.
    """
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)
    script = "import importlib.util as u, sys; [print(u.find_spec(p).origin) for p in sys.argv[1:]]"
    found = subprocess.run(  # noqa: S603 our own interpreter, our own script
        [sys.executable, "-c", script, *(f"deltafl.{layer}" for layer in LAYERS)],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = [str(tree / "src" / "deltafl" / layer / "__init__.py") for layer in LAYERS]
    if found != expected:
        raise RuntimeError(f"Python imports {found}, not the copy {expected}")


def by_file(faults: Sequence[Fault]) -> list[tuple[str, list[str]]]:
    """The tests listed for some faults, each once, those of one file and tier together."""
    listed = sorted({(fault.tier, test) for fault in faults for test in fault.tests})
    grouped = groupby(listed, lambda one: (one[0], one[1].partition("::")[0]))
    return [(tier, [test for _, test in each]) for (tier, _), each in grouped]


def judge_all(faults: Sequence[Fault], jobs: int) -> dict[str, Outcome]:
    """Judge every fault, several at a time, and say so as they are done; by name.

    Raises:
        RuntimeError: the tests fail without any fault, or the copies are not imported.
    """
    start = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    with ExitStack() as stack:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(jobs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
            copy_tree(Path(folder).resolve())
            trees.put(stack.enter_context(closing(Tree(Path(folder).resolve()))))
        print(f"{jobs} copies like {folder}; the tests without a fault first", flush=True)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))

        def with_tree(play: Callable[[Tree], Outcome]) -> tuple[Outcome, float]:
            tree, began = trees.get(), time.monotonic()
            try:
                return play(tree), time.monotonic() - began
            finally:
                trees.put(tree)

        def healthy(tests: tuple[str, list[str]]) -> Outcome:
            return with_tree(lambda tree: tree.run(tests[1], WHOLE_TIME_LIMIT_S, tests[0]))[0]

        def judged(fault: Fault) -> tuple[Fault, Outcome, float]:
            return fault, *with_tree(partial(judge, fault))

        for outcome in pool.map(healthy, by_file(faults)):
            if outcome.verdict is not Verdict.SURVIVED:
                raise RuntimeError(f"without any fault: {outcome.test}: {outcome.error}")
        for done in as_completed([pool.submit(judged, fault) for fault in faults]):
            fault, outcome, took = done.result()
            outcomes[fault.name] = outcome
            print(
                f"{time.monotonic() - start:5.0f} s  {len(outcomes):3}/{len(faults)}  "
                f"{took:5.1f} s  {outcome.verdict:9}  {fault.name}",
                flush=True,
            )
    return outcomes


def print_table(faults: Sequence[Fault], outcomes: dict[str, Outcome]) -> None:
    """Every fault with its verdict and the test that killed it, and what is to be done."""
    width = max(len(fault.name) for fault in faults)
    print()
    for fault in faults:
        outcome = outcomes[fault.name]
        seen = outcome.test if outcome.listed else f"{outcome.test} (not listed)".lstrip()
        if outcome.verdict is Verdict.SURVIVED:
            seen = fault.survives or ""
        print(f"{fault.id:5} {fault.name:{width}}  {outcome.verdict:9}  {' '.join(seen.split())}")
    counts = [(v, sum(outcome.verdict is v for outcome in outcomes.values())) for v in Verdict]
    print(f"\n{len(faults)} faults: " + ", ".join(f"{count} {v}" for v, count in counts if count))
    for fault in faults:
        if found := problem(fault, outcomes[fault.name]):
            print(f"{fault.file}: {fault.name}: {found}")


def changed_files(commit: str) -> set[str]:
    """Files that differ from those of a commit."""
    command = ["git", "diff", "--name-only", commit, "--"]
    done = subprocess.run(  # noqa: S603 git, and what the caller of this command names
        command, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines())


def touched(faults: Sequence[Fault], files: set[str]) -> list[Fault]:
    """Faults that are in one of these files, or killed by its tests."""
    return [
        fault
        for fault in faults
        if files & {fault.file, *(test.partition("::")[0] for test in fault.tests)}
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if every fault is killed, or survives with a reason."""
    parser = argparse.ArgumentParser(description="Break the code on purpose and run its tests.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults and no others")
    parser.add_argument(
        "--since", metavar="COMMIT", help="faults whose file or tests have changed since then"
    )
    parser.add_argument("--list", action="store_true", help="show the faults and do nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there too")
    chosen = parser.parse_args(arguments)
    faults = load_catalogue()
    if unknown := set(chosen.only or ()) - {fault.name for fault in faults}:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    if chosen.jobs < 1:
        parser.error(f"--jobs {chosen.jobs} is less than 1")
    if chosen.only:
        faults = [fault for fault in faults if fault.name in chosen.only]
    if chosen.since and not (faults := touched(faults, changed_files(chosen.since))):
        parser.exit(message="no fault is touched\n")
    if chosen.list:
        for fault in faults:
            print(f"{fault.id:5} {fault.name} ({fault.file})\n      {fault.why}")
        return 0
    outcomes = judge_all(faults, min(chosen.jobs, len(faults)))
    print_table(faults, outcomes)
    if chosen.json:
        records = [asdict(fault) | asdict(outcomes[fault.name]) for fault in faults]
        chosen.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return int(any(problem(fault, outcomes[fault.name]) for fault in faults))


if __name__ == "__main__":
    sys.exit(main())
