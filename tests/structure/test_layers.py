"""What the lower layers must not know, read off their source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("secagg", "protocol", "fl", "sim")
PURE = ("secagg", "protocol")
FORBIDDEN = {
    "torch",
    "sklearn",
    "matplotlib",
    "random",
    "secrets",
    "socket",
    "asyncio",
    "time",
    "datetime",
    "pickle",
    "io",
    "os",
    "pathlib",
    "shutil",
    "sqlite3",
    "subprocess",
    "tempfile",
}
ALLOWED = {
    "secagg/randomness.py": {"os"},  # for `os.urandom`
    # What a device did must be on disk before its answer leaves, so it is the machine that asks for
    # it to be written; still the caller decides where, and gives the machine the ledger.
    "secagg/ledger.py": {"os", "pathlib", "sqlite3", "tempfile"},
}
"""What single modules may import all the same."""


def sources(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, package
    return files


def imported(tree):
    """Dotted names of all modules (and, of `from` imports, their members) that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def random_attributes(tree):
    """Uses of `numpy.random` by attribute."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "random"
        and isinstance(node.value, ast.Name)
        and node.value.id in ("np", "numpy")
    ]


def offences(source, package, allowed=frozenset()):
    """Everything in a source text that its package must not do, but for what it is allowed."""
    tree = ast.parse(source)
    names = list(imported(tree))
    above = LAYERS[LAYERS.index(package) + 1 :]
    found = [name for name in names if name.split(".")[0] in LAYERS]  # the folders' bare names
    found += [
        name for name in names if re.match(rf"deltafl\.({'|'.join(above)})\b", name) and above
    ]
    if package in PURE:
        found += [name for name in names if name.split(".")[0] in FORBIDDEN - allowed]
        found += [name for name in names if name.startswith("numpy.random")]
        found += [f"numpy.random in line {line}" for line in random_attributes(tree)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("package", LAYERS)
def test_layers_keep_to_what_they_may_know(package):
    for path in sources(package):
        allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), frozenset())
        assert offences(path.read_text(), package, allowed) == [], path


def test_modules_need_what_they_are_allowed():
    for name, allowed in ALLOWED.items():
        source = (ROOT / name).read_text()
        for one in allowed:
            assert len(offences(source, name.partition("/")[0], allowed - {one})) >= 1, one


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("import torch", "secagg"),
        ("import torch.nn as nn", "protocol"),
        ("from random import Random", "protocol"),
        ("def f():\n    import time", "secagg"),
        ("from numpy import random", "secagg"),
        ("import numpy.random", "secagg"),
        ("import sqlite3", "protocol"),
        ("from pathlib import Path", "secagg"),
        ("import numpy as np\nnp.random.default_rng()", "protocol"),
        ("from deltafl.protocol import wire", "secagg"),
        ("import deltafl.fl", "protocol"),
        ("from deltafl import sim", "fl"),
        ("from secagg import wire", "protocol"),
        ("from deltafl.sim.run.engine import run", "fl"),
    ],
)
def test_offences_are_found(source, package):
    assert len(offences(source, package)) >= 1


def test_lower_layers_may_be_imported():
    assert (
        offences(
            "import deltafl.secagg\nfrom deltafl.protocol import wire\nimport numpy as np", "fl"
        )
        == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("package", PURE)
def test_importing_loads_no_learning(package):
    script = (
        f"import pkgutil, importlib, sys, deltafl.{package} as package\n"
        "for one in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):\n"
        "    importlib.import_module(one.name)\n"
        "heavy = {'torch', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run(  # noqa: S603 our own interpreter, our own script
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_packages_are_typed():
    assert (ROOT / "src" / "deltafl" / "py.typed").is_file()
