"""The catalogue of seeded faults fits the source, and its runner can tell the verdicts apart."""

import ast
import importlib.util
import re
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import pairwise, takewhile
from operator import eq
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "mutants"
LEAST = 900


def load_runner():
    spec = importlib.util.spec_from_file_location("mutants_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


run = load_runner()
FAULTS = run.load_catalogue()


def changed_lines(fault):
    """Lines from the first that a fault replaces, adds or removes to the last."""
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    before, after = source.splitlines(), fault.put_in(source).splitlines()
    for _ in range(2):  # what both begin with, and, turned around, what both end with
        same = sum(takewhile(bool, map(eq, before, after)))
        before, after = before[same:][::-1], after[same:][::-1]
    return max(len(before), len(after))


@cache
def text_of(path):
    """What stands in a file of tests; nothing if there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def missing_tests(tests):
    """Which of some paths and node ids name no file, or no function in it."""
    missing = []
    for test in tests:
        name, _, function = test.partition("::")
        definition = function.partition("[")[0].rpartition("::")[2]
        if f"def {definition}" not in text_of(ROOT / name):
            missing.append(test)
    return missing


@cache
def fast_tests(path):
    """Functions of a file that are not marked as slow."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    if any("pytestmark" in ast.unparse(node) and ".slow" in ast.unparse(node) for node in assigned):
        return set()
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        if not any(ast.unparse(mark).startswith("pytest.mark.slow") for mark in node.decorator_list)
    }


def slow_tests(tests):
    """Which of some paths and node ids have nothing in the fast tier; a single case always has."""
    slow = []
    for test in tests:
        name, _, inside = test.partition("::")
        function, fast = inside.rpartition("::")[2], fast_tests(ROOT / name)
        if "[" not in test and not (function in fast if function else fast):
            slow.append(test)
    return slow


def misnumbered(faults):
    """Faults whose id is not above that of the fault before, or whose name is not a new one."""
    names = [fault.name for fault in faults]
    found = [b.name for a, b in pairwise(faults) if b.id <= a.id]
    found += [name for name in names if names.count(name) > 1]
    return found + [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)]


def test_the_catalogue_is_not_cut_short():
    assert len(FAULTS) >= LEAST


def test_a_fault_is_one_line_of_todays_source():
    assert {fault.name: lines for fault in FAULTS if (lines := changed_lines(fault)) != 1} == {}


@pytest.mark.slow
def test_a_source_with_a_fault_is_python():
    for fault in FAULTS:
        fault.apply((ROOT / fault.file).read_text(encoding="utf-8"))


def test_a_fault_names_its_tests_and_its_reasons():
    assert [fault.name for fault in FAULTS if not fault.tests] == []
    assert {fault.name: lost for fault in FAULTS if (lost := missing_tests(fault.tests))} == {}
    reasons = [reason for one in FAULTS for reason in (one.why, one.survives, one.thorough)]
    assert [one for one in reasons if one is not None and not one.endswith(".")] == []


def test_the_tests_of_a_fault_are_fast():
    slow = {one.name: slow_tests(one.tests) for one in FAULTS if not one.thorough}
    assert {name: tests for name, tests in slow.items() if tests} == {}


def test_faults_are_numbered_and_named():
    assert misnumbered(FAULTS) == []


# --- that these checks, and the runner, can fail -------------------------------------------------

SLOW = "test_a_source_with_a_fault_is_python"
FAULT = run.Fault(
    id=1,
    name="a-fault",
    file="secagg/toy.py",
    old="return a + b",
    new="return a - b",
    why="Sums are wrong.",
    tests=("tests/secagg/test_toy.py::test_addition",),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "return b"}, "occurs 0 times"),
        ({"old": "return"}, "occurs 2 times"),
        ({"new": "return a -"}, "no Python any more"),
    ],
)
def test_a_fault_that_does_not_apply_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"a-fault: .*{message}"):
        replace(FAULT, **changes).apply("return a + b\nreturn")


def test_lost_tests_and_wrong_numbers_are_found():
    this = "tests/structure/test_mutants.py"
    lost = ["tests/structure/test_lost.py", f"{this}::test_that_nobody_wrote"]
    there = [this, f"{this}::test_faults_are_numbered_and_named[1]"]
    assert missing_tests([*there, *lost]) == lost
    assert misnumbered([FAULT, replace(FAULT, id=2, name="b")]) == []
    assert misnumbered([FAULT, replace(FAULT, id=1, name="b")]) == ["b"]
    assert misnumbered([FAULT, replace(FAULT, id=2)]) == ["a-fault"] * 2
    assert misnumbered([replace(FAULT, name="A_fault")]) == ["A_fault"]


@pytest.mark.parametrize(
    ("verdict", "survives", "found"),
    [
        (run.Verdict.KILLED, None, None),
        (run.Verdict.TIMED_OUT, None, None),
        (run.Verdict.SURVIVED, "Equivalent.", None),
        (run.Verdict.SURVIVED, None, "no test fails"),
        (run.Verdict.KILLED, "Equivalent.", "remove the reason"),
        (run.Verdict.TIMED_OUT, "Equivalent.", "remove the reason"),
        (run.Verdict.BROKEN, None, "rewrite the entry"),
        (run.Verdict.BROKEN, "Equivalent.", "rewrite the entry"),
    ],
)
def test_an_outcome_is_a_problem_or_not(verdict, survives, found):
    said = run.problem(replace(FAULT, survives=survives), run.Outcome(verdict, "a test"))
    assert said is None if found is None else found in said


TOY = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n"
TOY_TESTS = """
from deltafl.secagg.toy import {name}


def test_{test}():
    assert {name}({arguments}) == 6
"""


@pytest.fixture
def toy_tree(tmp_path):
    """A tree with two functions, one of them tested by the listed test."""
    for folder in ("secagg", "tests/secagg", "tests/protocol"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "secagg" / "__init__.py").touch()
    (tmp_path / "src" / "deltafl").mkdir(parents=True)
    (tmp_path / "src" / "deltafl" / "__init__.py").touch()
    (tmp_path / "src" / "deltafl" / "secagg").symlink_to("../../secagg")
    (tmp_path / "secagg" / "toy.py").write_text(TOY)
    addition = TOY_TESTS.format(name="add", test="addition", arguments="2, 4")
    doubling = TOY_TESTS.format(name="double", test="doubling", arguments="3")
    (tmp_path / "tests" / "secagg" / "test_toy.py").write_text(addition)
    (tmp_path / "tests" / "protocol" / "test_other.py").write_text(doubling)
    for name in ("conftest.py", "pyproject.toml", "tests/mutants"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    with closing(run.Tree(tmp_path)) as tree:
        yield tree


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "verdict", "test", "listed"),
    [
        ("a + b", "a - b", "killed", "tests/secagg/test_toy.py::test_addition", True),
        ("2 * a", "3 * a", "killed", "tests/protocol/test_other.py::test_doubling", False),
        ("a + b", "b + a", "survived", "", False),
        ("a + b", "a + c", "broken", "tests/secagg/test_toy.py::test_addition", True),
        ("def add", "def plus", "broken", "tests/secagg/test_toy.py", True),
    ],
)
def test_the_runner_tells_the_verdicts_apart(toy_tree, old, new, verdict, test, listed):
    fault = replace(FAULT, old=old, new=new)
    outcome = run.judge(fault, toy_tree)
    assert (outcome.verdict, outcome.test, outcome.listed) == (verdict, test, listed)
    assert (toy_tree.path / fault.file).read_text() == TOY


@pytest.mark.slow
def test_tests_that_take_too_long_are_stopped(toy_tree):
    assert toy_tree.run(FAULT.tests, limit_s=0.0).verdict is run.Verdict.TIMED_OUT
    assert toy_tree.run(FAULT.tests).verdict is run.Verdict.SURVIVED  # the tree is still of use


@pytest.mark.slow
@pytest.mark.parametrize(("why", "verdict"), [(None, "broken"), ("It is slow.", "survived")])
def test_slow_tests_kill_no_fault_that_does_not_say_so(toy_tree, why, verdict):
    path = toy_tree.path / FAULT.tests[0].partition("::")[0]
    marked = path.read_text().replace("def test", "@pytest.mark.slow\ndef test")
    path.write_text(f"import pytest\n\n{marked}")
    outcome = toy_tree.run(FAULT.tests, tier=replace(FAULT, thorough=why).tier)
    assert outcome.verdict == verdict


def test_a_test_that_is_slow_is_noticed_beside_a_fast_one():
    here = "tests/structure/test_mutants.py"
    fast, slow = f"{here}::test_faults_are_numbered_and_named", f"{here}::{SLOW}"
    assert slow_tests((here, fast, f"{slow}[a case]")) == []
    assert slow_tests((fast, slow, "tests/stories/test_first_days.py")) == [
        slow,
        "tests/stories/test_first_days.py",
    ]


def test_a_fault_belongs_to_a_change_by_its_file_or_its_tests(monkeypatch):
    other = replace(FAULT, file="secagg/other.py", tests=("tests/secagg/test_other.py",))
    assert run.touched([FAULT, other], {"secagg/toy.py"}) == [FAULT]
    assert run.touched([FAULT, other], {"tests/secagg/test_other.py"}) == [other]
    monkeypatch.setattr(run, "changed_files", lambda _: {"README.md"})
    with pytest.raises(SystemExit, match=r"^0$"):
        run.main(["--since", "main"])


SOURCES = """
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("x", [1])
def test_slow(x): ...


class TestKind:
    def test_fast(self): ...
"""


def test_which_tests_are_fast(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(SOURCES)
    assert fast_tests(path) == {"test_fast"}
    whole = tmp_path / "test_whole.py"
    whole.write_text(SOURCES + "\n\npytestmark = pytest.mark.slow\n")
    assert fast_tests(whole) == set()
