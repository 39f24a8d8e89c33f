"""Test files are where one looks for them, and what several of them need is written once."""

import ast
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from fresh_python import run_python

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
TESTED = {
    "secagg": "secagg",
    "protocol": "protocol",
    "fl": "fl",
    "sim": "sim",
    "attacks": "sim/inspect/attacks",
    "audit": "sim/inspect/audit",
    "leakage": "sim/inspect/leakage",
    "api": "sim/api",
    "net": "sim/net",
    "view": "sim/view",
    "charts": "sim/charts",
}
"""Folders of tests whose files are named after modules, and where these lie."""

LINE = re.compile(r"^\| `([\w/]+\.py)` \| (.*\S) \|$", re.MULTILINE)
MAP = LINE.findall((TESTS / "README.md").read_text(encoding="utf-8"))
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def names_of(module):
    """What a test of a module may be called: its name, alone or after packages that hold it."""
    path = Path(module).with_suffix("")
    *packages, name = path.parent.parts if path.name == "__init__" else path.parts
    tails = ["_".join(packages[start:]) for start in range(len(packages))]
    return {name} | {f"{before}_{name}" for before in (*packages, *tails)}


def unnamed(tests, modules):
    """Which test files are named after none of the modules that their folder tests."""
    known = {
        folder: {
            name
            for module in modules
            if module.startswith(f"{tested}/")
            for name in names_of(module)
        }
        for folder, tested in TESTED.items()
    }
    return [
        test
        for test in tests
        if Path(test).stem.removeprefix("test_") not in known.get(test.partition("/")[0], ())
    ]


def test_a_test_file_is_named_after_its_module_or_on_the_map():
    modules = [
        path.relative_to(ROOT).as_posix()
        for layer in ("secagg", "protocol", "fl", "sim")
        for path in (ROOT / layer).rglob("*.py")
    ]
    assert unnamed(FILES, modules) == [name for name, _ in MAP]


def test_the_map_says_what_each_file_tests_once():
    assert all(first < second for (first, _), (second, _) in pairwise(MAP))
    assert len({text for _, text in MAP}) == len(MAP)
    assert all(text.endswith(".") for _, text in MAP)


def test_no_two_files_of_tests_have_one_name():
    """Their folders are on the import path together, so one would be taken for the other."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("fl/test_gru.py", True),
        ("fl/test_models_gru.py", True),
        ("fl/test_fl_models_gru.py", True),
        ("fl/test_fl_gru.py", True),
        ("fl/test_fl_models.py", True),
        ("audit/test_audit_keys.py", True),
        ("audit/injected/test_keys.py", True),
        ("fl/test_gru_models.py", False),  # packages come first
        ("fl/test_gru_steps.py", False),
        ("fl/test_keys.py", False),  # of another folder
        ("sim/test_models_keys.py", False),
        ("structure/test_gru.py", False),
    ],
)
def test_files_that_are_named_after_a_module_and_that_are_not(name, named):
    modules = ["fl/models/__init__.py", "fl/models/gru.py", "sim/inspect/audit/checks/keys.py"]
    assert unnamed([name], modules) == ([] if named else [name])


SCRIPTS = sorted(
    {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"python (tests/[\w/]+\.py)", page.read_text(encoding="utf-8"))
        if (ROOT / name).exists()
    }
)
"""What pages tell to start."""


@pytest.mark.slow
@pytest.mark.parametrize("script", [*SCRIPTS, "tests/net/net_hostile.py"])
def test_a_script_finds_what_it_imports(script):
    """Without the paths that pytest adds."""
    done = run_python(
        "-c",
        f"import sys, runpy; sys.path[0] = {str(Path(script).parent)!r}\n"
        f"runpy.run_path({script!r})",
    )
    assert done.returncode == 0, done.stderr


# --- helpers ------------------------------------------------------------------------------------

LONG = 4  # lines, the head included; shorter ones are not worth an import


class _Unnamed(ast.NodeTransformer):
    """Takes away what may differ between copies: names, types and docstrings."""

    def __init__(self, local):
        self._known = {name: f"_{number}" for number, name in enumerate(local)}

    def visit_Name(self, node):
        node.id = self._known.get(node.id, node.id)
        return node

    def visit_arg(self, node):
        node.arg, node.annotation = self._known[node.arg], None
        return node

    def visit_FunctionDef(self, node):
        node.returns = None
        return self._without_docstring(node)

    def visit_ClassDef(self, node):
        return self._without_docstring(node)

    def _without_docstring(self, node):
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def bodies_of(source):
    """The helpers at the top of a file by what they do, whatever they and their variables are."""
    for helper in ast.parse(source).body:
        if not isinstance(helper, ast.FunctionDef | ast.ClassDef) or is_test(helper.name):
            continue
        length, first = helper.end_lineno - helper.lineno + 1, helper.body[0]
        if ast.get_docstring(helper) is not None:
            length -= first.end_lineno - first.lineno + 1
        if length >= LONG:
            name, helper.name, helper.decorator_list = helper.name, "_", []
            yield ast.unparse(_Unnamed(local_names(helper)).visit(helper)), name


def local_names(helper):
    """Its arguments and variables, in a fixed order, each once."""
    nodes = list(ast.walk(helper))
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return dict.fromkeys([n.arg for n in nodes if isinstance(n, ast.arg)] + stored)


def is_test(name):
    return name.startswith(("test_", "Test"))


def copied(sources):
    """Helpers that stand in several files, as {name: source} gives them."""
    found = defaultdict(dict)
    for file, source in sources.items():
        for body, name in bodies_of(source):
            found[body][file] = f"{file}: {name}"
    return [list(places.values()) for places in found.values() if len(places) > 1]


@pytest.mark.slow
def test_no_helper_is_written_twice():
    sources = {
        path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8")
        for path in TESTS.rglob("*.py")
    }
    assert copied(sources) == []


HELPER = """
def total(numbers):
    found = 0
    for number in numbers:
        found += number
    return found
"""
RENAMED = '''
@fixture
def added_up(values: list[int]) -> int:
    """A sum."""
    so_far = 0
    for one in values:
        so_far += one
    return so_far
'''


@pytest.mark.parametrize(
    ("other", "is_copy"),
    [
        (HELPER, True),
        (RENAMED, True),
        (HELPER.replace("= 0", "= 1"), False),
        (HELPER.replace("+=", "*="), False),
        (HELPER.replace("in numbers", "in NUMBERS"), False),
        (HELPER.replace("def total", "def test_total"), False),
    ],
)
def test_copies_are_told_from_helpers_of_ones_own(other, is_copy):
    found = copied({"a.py": HELPER, "b.py": other})
    assert [len(places) for places in found] == [2] * is_copy


def test_copies_are_named_with_their_places():
    sources = {"a.py": HELPER, "b.py": "x = 1", "c.py": RENAMED}
    assert copied(sources) == [["a.py: total", "c.py: added_up"]]


def test_what_is_shorter_than_four_lines_may_be_written_again():
    short = "def double(number):\n    twice = 2 * number\n    return twice\n"
    stretched = short.replace("):\n", '):\n    """Twice\n\n    a number.\n    """\n')
    assert copied({"a.py": short, "b.py": stretched}) == []


def dated(source):
    """Lines of cases that are packed with the time: two workers would collect other cases."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        for decorator in getattr(node, "decorator_list", ()):
            for call in ast.walk(decorator):
                is_gzip = isinstance(call, ast.Call) and ast.unparse(call.func) == "gzip.compress"
                if is_gzip and not any(word.arg == "mtime" for word in call.keywords):
                    lines.append(call.lineno)
    return lines


@pytest.mark.slow
def test_cases_are_the_same_in_every_second():
    assert [file for file in FILES if dated((TESTS / file).read_text(encoding="utf-8"))] == []


def test_cases_that_hold_the_time_are_noticed():
    case = '@pytest.mark.parametrize("a", [gzip.compress(b"1"{})])\ndef test(a): ...\n'
    assert dated(case.format("")) == [1]
    assert dated(case.format(", mtime=0")) == []
