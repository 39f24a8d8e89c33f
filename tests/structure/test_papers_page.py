"""docs/papers.md names everything of the papers that the code has."""

from pathlib import Path

import pytest

from deltafl.fl.data.registry import FORMATS
from deltafl.sim.reproduce.catalogue import EXPERIMENTS
from deltafl.sim.settings.config import ALGORITHMS, MODELS

PAGE = (Path(__file__).parents[2] / "docs/papers.md").read_text(encoding="utf-8")
NAMES = [*ALGORITHMS, *MODELS, *FORMATS, *(experiment.name for experiment in EXPERIMENTS)]


@pytest.mark.parametrize("name", dict.fromkeys(NAMES))
def test_the_page_names(name):
    assert f"`{name}`" in PAGE


def test_it_names_nothing_at_random():
    assert "`delta-fl-2`" not in PAGE
