"""Hypothesis profiles: `ci` always draws the same examples, `explore` new ones every time.

Choose with `pytest --hypothesis-profile=explore`. This file lies beside the packages, not in
`tests/`, because pytest puts its folder on the import path, and `tests/` holds folders of the
packages' names.
"""

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

SLOW_PAGES = ("docs/python.md", "docs/tutorials/")
CATALOGUE = Path(__file__).parent / "tests" / "mutants" / "catalogue.toml"

# Flower need not be installed; without it, its room and its example cannot be imported.
collect_ignore_glob = (
    [] if find_spec("flwr") else ["*/net/flower/*", "*/examples/flower/*", "*/deltafl/flower.py"]
)

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Decide what no decorator can: some pages are slow, and no case that a seeded fault names."""
    text = CATALOGUE.read_text(encoding="utf-8") if CATALOGUE.exists() else "fault = []"
    faults = tomllib.loads(text)["fault"]
    named = {test for fault in faults if "thorough" not in fault for test in fault["tests"]}
    for item in items:
        if item.nodeid.startswith(SLOW_PAGES):
            item.add_marker(pytest.mark.slow)
        if item.nodeid in named and "[" in item.nodeid:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
