"""The recipes of docs/extending.md work, and not without their line of a table."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
NEEDED = (
    *("secagg", "protocol", "fl", "sim", "src", "tests/audit", "tests/common"),
    *("pyproject.toml", "conftest.py"),
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TABLES = re.compile(r"registry|catalogue")


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def path(self):
        return re.match(r"# (\S+)\n", self.text)[1]

    @property
    def is_line_of_a_table(self):
        return self.language == "diff" and TABLES.search(self.path) is not None


def blocks(text):
    return [Block(*found.groups()) for found in BLOCK.finditer(text)]


def recipes(page):
    """What all recipes share, and the blocks of each by its title."""
    before, *sections = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    titles, texts = sections[::2], sections[1::2]
    return blocks(before), {title: blocks(text) for title, text in zip(titles, texts, strict=True)}


SHARED, RECIPES = recipes(PAGE)
WITH_TABLE = [title for title, steps in RECIPES.items() if any(s.is_line_of_a_table for s in steps)]

MISSED = {"An audit check": "checks_in_files() == set(CHECKS)"}
"""What a command says where the line is missing, if not that the name is unknown."""


def changed(source, diff):
    """The source with the lines of a diff, whose context occurs in it once."""
    lines = diff.splitlines(keepends=True)[1:]
    assert all(line[0] in " +-" for line in lines), diff
    old = "".join(line[1:] for line in lines if line[0] != "+")
    assert source.count(old) == 1, f"{source.count(old)} times: {old}"
    return source.replace(old, "".join(line[1:] for line in lines if line[0] != "-"))


def apply(root, block):
    path = root / block.path
    if block.language == "diff":
        path.write_text(changed(path.read_text(encoding="utf-8"), block.text), encoding="utf-8")
        return
    assert not path.exists(), f"{path} is not new"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


def commands(steps):
    lines = [line for step in steps if step.language == "sh" for line in step.text.splitlines()]
    assert lines
    words = [shlex.split(line) for line in lines]
    assert all(first == "python" for first, *_ in words)
    return [[sys.executable, *rest] for _, *rest in words]


def run(root, command):
    return subprocess.run(  # noqa: S603 our own interpreter, a command of our own page
        command,
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root / "src"),
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def tree(tmp_path):
    for name in NEEDED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    for block in SHARED:
        apply(tmp_path, block)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works(title, tree):
    steps = RECIPES[title]
    for step in steps:
        if step.language != "sh":
            apply(tree, step)
    for command in commands(steps):
        done = run(tree, command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("title", WITH_TABLE)
def test_a_recipe_without_its_line_of_a_table_fails(title, tree):
    steps = RECIPES[title]
    for step in steps:
        if step.language != "sh" and not step.is_line_of_a_table:
            apply(tree, step)
    done = run(tree, commands(steps)[0])
    assert done.returncode in (1, 2)
    assert MISSED.get(title, "must be one of") in done.stdout + done.stderr


def test_the_page_has_the_recipes():
    wanted = [
        "A quantile method",
        "A strategy",
        "A model",
        "A data set",
        "An audit check",
        "A transport",
    ]
    assert list(RECIPES) == wanted
    assert len(WITH_TABLE) == len(wanted) - 1


def test_a_context_that_does_not_occur_once_is_found():
    assert changed("a\nb\n", "# f\n a\n+c\n") == "a\nc\nb\n"
    assert changed("a\nb\n", "# f\n-a\n+c\n") == "c\nb\n"
    for source in ("b\n", "a\na\n"):
        with pytest.raises(AssertionError, match="times: a"):
            changed(source, "# f\n a\n+c\n")
