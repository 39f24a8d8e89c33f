"""`secagg` by itself: what it loads."""

import ast
import pickle
import sys
from pathlib import Path

import pytest
from fresh_python import loaded_by, run_python

from deltafl.secagg import SlotSpec

ROOT = Path(__file__).parents[2]
NEEDS = {"numpy", "cryptography", "nacl", "msgpack"}
STRANGERS = {
    "torch",
    "sklearn",
    "matplotlib",
    "pyarrow",
    "scipy",
    "tqdm",
    "asyncio",
    "deltafl.protocol",
    "deltafl.fl",
    "deltafl.sim",
}


def packages_loaded_by(statement):
    """Top-level modules, and ours to the second level, that a statement loads."""
    names = [name.split(".") for name in loaded_by(statement)]
    return {".".join(parts[: 2 if parts[0] == "deltafl" else 1]) for parts in names}


def test_importing_secagg_loads_nothing_until_a_name_is_used():
    assert packages_loaded_by("import deltafl.secagg") & (NEEDS | STRANGERS) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "from deltafl.secagg import Client",
        "import deltafl.secagg; deltafl.secagg.run_session",
        "from deltafl.secagg import *",
    ],
)
def test_using_secagg_loads_nothing_heavy(statement):
    loaded = packages_loaded_by(statement)
    assert {"deltafl.secagg", *NEEDS} <= loaded
    assert loaded & STRANGERS == set()


def test_the_public_names_are_those_that_type_checkers_see():
    import deltafl.secagg as package

    tree = ast.parse((ROOT / "secagg" / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.asname: node.module.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("deltafl.")
        for alias in node.names
    }
    assert seen == package._HOMES
    assert set(package.__all__) < set(dir(package))
    for name, home in seen.items():
        assert getattr(package, name) is vars(sys.modules[f"deltafl.secagg.{home}"])[name]
    with pytest.raises(AttributeError, match=r"'deltafl\.secagg' has no attribute 'Clinet'"):
        package.Clinet  # noqa: B018


EACH_FIRST = """
import importlib, pkgutil, sys
import numpy, cryptography, nacl.bindings, msgpack
for layer in ("secagg", "protocol"):
    package = importlib.import_module(f"deltafl.{layer}")
    names = [one.name for one in pkgutil.walk_packages(package.__path__, f"deltafl.{layer}.")]
    assert len(names) > 20
    for name in names:
        for loaded in [one for one in sys.modules if one.startswith("deltafl")]:
            del sys.modules[loaded]
        importlib.import_module(name)
"""


@pytest.mark.slow
def test_every_module_may_be_imported_first():
    done = run_python("-c", EACH_FIRST)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_was_pickled_elsewhere_is_read():
    packed = pickle.dumps(SlotSpec("votes", 3, 32))
    done = run_python("-c", f"import pickle\nprint(pickle.loads({packed!r}))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SlotSpec(")


@pytest.mark.slow
def test_threads_may_take_names_at_once():
    script = (
        "import deltafl.secagg as package, sys, threading\n"
        "sys.setswitchinterval(1e-5)\n"
        "failed, gate = [], threading.Barrier(16)\n"
        "def take(number):\n"
        "    gate.wait()\n"
        "    try: [getattr(package, n) for n in package.__all__[number::3]]\n"
        "    except Exception as error: failed.append(repr(error))\n"
        "threads = [threading.Thread(target=take, args=(n,)) for n in range(16)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\n"
        "sys.exit(str(failed) if failed else 0)"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr


def test_what_is_loaded_is_seen():
    loaded = packages_loaded_by("import deltafl.secagg, asyncio, deltafl.protocol")
    assert loaded & STRANGERS == {"asyncio", "deltafl.protocol"}
