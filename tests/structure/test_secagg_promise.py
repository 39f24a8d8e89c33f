"""The public names of `secagg` and their arguments are those that the committed list has."""

import re
from difflib import ndiff
from pathlib import Path

import pytest
from public_names import arguments, describe, public_names

import deltafl.secagg

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("secagg_names.txt")


def test_nothing_public_has_changed_unnoticed():
    found, listed = public_names().splitlines(), LIST.read_text(encoding="utf-8").splitlines()
    changes = [line for line in ndiff(listed, found) if line[0] in "+-"]
    assert changes == [], (
        "what users rely on has changed; if it is meant, see docs/secagg.md, 'What stays', and run "
        "python tests/structure/public_names.py > tests/structure/secagg_names.txt"
    )


def test_the_page_names_everything_that_is_public():
    page = (ROOT / "docs" / "secagg.md").read_text(encoding="utf-8")
    assert {name for name in deltafl.secagg.__all__ if not re.search(rf"`{name}\b", page)} == set()


class Sample:
    """One.

    Attributes:
        made: Set by `__init__`.

    Raises:
        nothing: At all.
    """

    def __init__(self, first, *, second=1):
        self.made = first, second

    @classmethod
    def parse(cls, text):
        """Nothing."""

    @property
    def half(self):
        """Nothing."""

    def _hidden(self):
        """Nothing."""


def test_arguments_methods_and_attributes_are_seen():
    assert list(describe("Sample", Sample)) == [
        "Sample(first, *, second=…)",
        "Sample.half",
        "Sample.made",
        "Sample.parse(text)",
    ]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a, b=1: (a, b), "(a, b=…)"),
        (lambda a, b: (a, b), "(a, b)"),
        (lambda a, *, b: (a, b), "(a, *, b)"),
        (lambda: None, "()"),
    ],
)
def test_a_change_of_an_argument_is_seen(function, text):
    assert arguments(function) == text
