"""The documentation points at things that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("secagg", "protocol", "fl", "sim", "tests", "docs")
MODULES = [str(path) for room in ROOMS for path in (ROOT / room).rglob("*.py")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:secagg|protocol|fl|sim|docs|tests)/[\w/.]*\w)`|\b(docs/\w[\w-]*\.md)\b")

MODULE = re.compile(r"`((?!bisection|root_size)[\w/]+\.py)`")  # but for those that a tutorial makes


def missing(page: Path, text: str) -> set[str]:
    links = {target for target in LINK.findall(text) if "://" not in target}
    named = {a or b for a, b in PATH.findall(text)}
    found = {m for m in MODULE.findall(text) if not any(one.endswith(f"/{m}") for one in MODULES)}
    found |= {target for target in links if not (page.parent / target).exists()}
    return found | {target for target in named if not (ROOT / target).exists()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    assert missing(page, page.read_text(encoding="utf-8")) == set()


def test_a_dead_link_and_a_lost_file_are_found():
    text = "see [this](nowhere.md) and `protocol/round.py` and `protocol/lost.py`, docs/gone.md"
    found = missing(ROOT / "README.md", f"{text} and `ring.py`, `backends/pool.py` and `away.py`")
    assert found == {"nowhere.md", "protocol/lost.py", "docs/gone.md", "away.py"}


def test_modules_name_only_documents_that_exist():
    for package in ROOMS[:4]:
        for module in (ROOT / package).rglob("*.py"):
            text = module.read_text(encoding="utf-8")
            assert missing(module, text) <= set(LINK.findall(text)), module
