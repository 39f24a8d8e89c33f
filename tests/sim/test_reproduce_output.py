"""Reports on a terminal: every cell is there, in lines that fit."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.experiment import Report, Table
from deltafl.sim.reproduce.output import as_text

CELLS = st.text("abc123.±", min_size=1, max_size=12)
WIDE = Table(
    "t",
    "A table",
    ("method", *(f"EMNIST, model number {i} off by" for i in range(9))),
    (
        ("FedAvg", *(f"{i}1.25 ± 0.10" for i in range(9))),
        ("Δ-FL", *(f"**{i}2.50**" for i in range(9))),
    ),
)


def text_of(*tables, width=80, notes=()):
    return as_text(experiment_named("table2"), Report(tables, {}, notes), Path("out"), width)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width):
    text = text_of(WIDE, width=width, notes=("a long note " * 30,))
    assert max(map(len, text.splitlines())) <= width
    for i in range(9):
        assert f"{i}1.25 ± 0.10" in text
        assert f"*{i}2.50" in text


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_column():
    narrow, wide = text_of(WIDE, width=60), text_of(WIDE, width=200)
    assert (narrow.count("\nFedAvg"), wide.count("\nFedAvg")) == (3, 1)


@pytest.mark.slow
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4))
def test_every_cell_is_there(rows):
    text = text_of(Table("t", "T", ("a", "b", "c"), tuple(rows)))
    lines = text.split("\n-", 1)[1].split("\n\n")[0].splitlines()[1:]
    assert [tuple(line.split()) for line in lines] == rows


def test_the_star_is_explained_where_there_is_one():
    assert "- * is the best of its column." in text_of(WIDE)
    assert "best of its column" not in text_of(Table("t", "T", ("a",), (("1",), ("x",))))


def test_the_title_of_the_only_table_is_not_said_twice():
    title = experiment_named("table2").title
    assert text_of(Table("t", title, ("a",), (("1",),))).split("\n").count(title) == 1
    assert "Another title" in text_of(Table("t", "Another title", ("a",), (("1",),)))
