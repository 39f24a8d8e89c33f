"""`secagg` by itself: what it loads, and a program that uses nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def run_python(*arguments, seconds=120):
    return subprocess.run(  # noqa: S603 our own interpreter, our own script
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def loaded_by(statement):
    """Top-level modules, and ours to the second level, that a statement loads."""
    done = run_python("-c", f"{statement}\nimport sys\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    names = [name.split(".") for name in done.stdout.split()]
    return {".".join(parts[: 2 if parts[0] == "deltafl" else 1]) for parts in names}


def test_importing_secagg_loads_nothing_until_a_name_is_used():
    assert loaded_by("import deltafl.secagg") & (NEEDS | STRANGERS) == set()


@pytest.mark.parametrize(
    "statement",
    [
        "from deltafl.secagg import Client",
        "import deltafl.secagg; deltafl.secagg.run_session",
        "from deltafl.secagg import *",
    ],
)
def test_using_secagg_loads_nothing_heavy(statement):
    loaded = loaded_by(statement)
    assert {"deltafl.secagg", *NEEDS} <= loaded
    assert loaded & STRANGERS == set()


def test_the_package_hands_on_the_public_names():
    from deltafl import secagg
    from deltafl.secagg import api

    assert set(api.__all__) < set(dir(secagg))
    assert all(getattr(secagg, name) is getattr(api, name) for name in api.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        secagg.Clinet  # noqa: B018


def test_what_is_loaded_is_seen():
    loaded = loaded_by("import deltafl.secagg, asyncio, deltafl.protocol")
    assert loaded & STRANGERS == {"asyncio", "deltafl.protocol"}


def test_the_example_over_tcp_sums_without_the_device_that_was_killed():
    done = run_python("docs/examples/tcp_sum.py")
    assert done.returncode == 0, done.stderr
    present = [n for n in range(8) if n != 3]
    total = [len(present), sum(present), sum(n * n for n in present)]
    assert done.stdout.splitlines() == [
        f"sum over 7 devices: {total}",
        "lost: device 3, timed out, stage MASK",
        "exit codes: [0, 0, 0, -9, 0, 0, 0, 0]",
    ]


def test_the_example_needs_secagg_and_numpy_only():
    source = (ROOT / "docs" / "examples" / "tcp_sum.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE))
    assert imported - sys.stdlib_module_names == {"deltafl", "numpy"}
