"""What the modules import is what pyproject.toml declares, no more and no less."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def needed_by(*packages):
    """Distributions that hold what the packages' modules import from outside.

    But for the room that is for apps of Flower's, which need not be installed.
    """
    graph = grimp.build_graph("deltafl", include_external_packages=True)
    own = {m for m in graph.modules if any(f"{m}.".startswith(f"{one}.") for one in packages)}
    own = {m for m in own if not f"{m}.".startswith("deltafl.sim.net.flower.")}
    imported = {name for m in own for name in graph.find_modules_directly_imported_by(m)}
    outside = {name.partition(".")[0] for name in imported} - {"deltafl"} - sys.stdlib_module_names
    holders = metadata.packages_distributions()
    return {re.sub("[-_.]+", "-", holders[name][0]).lower() for name in outside}


def declared(lines):
    return {re.split(r"[><=~;\[]", line)[0] for line in lines}


@pytest.mark.slow
def test_the_core_needs_what_the_distribution_requires():
    core = declared(PROJECT["dependencies"])
    assert needed_by("deltafl.secagg", "deltafl.protocol") == core
    assert needed_by("deltafl.secagg") == core


@pytest.mark.slow
def test_the_rest_needs_what_the_extra_sim_brings():
    sim = declared(PROJECT["optional-dependencies"]["sim"])
    core = declared(PROJECT["dependencies"])
    net = declared(PROJECT["optional-dependencies"]["net"]) - {"deltafl"}
    assert needed_by("deltafl.fl", "deltafl.sim") - core == sim | net
    assert net <= needed_by("deltafl.sim.net")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["deltafl.fl", "deltafl.sim"])
def test_needs_are_seen(package):
    assert {"numpy", "torch"} < needed_by(package)


def test_versions_are_pinned_for_all_that_is_declared():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    assert declared(PROJECT["dependencies"] + extras) - {"deltafl"} <= pinned
