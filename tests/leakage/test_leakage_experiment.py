"""`deltafl audit leakage`: plans, prices, tables and the command line."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from leakage_command import command
from searched_cohorts import mitigation, rows_of

from deltafl.sim.inspect.leakage import cli
from deltafl.sim.inspect.leakage.consequences import ranks
from deltafl.sim.inspect.leakage.experiment import (
    MITIGATIONS,
    Cell,
    Plan,
    Weights,
    draw_cohort,
    play,
    price,
)
from deltafl.sim.parser import Parser

SMALL = Plan(
    methods=("plain", "mm", "bracketed"),
    cohorts=(3,),
    mitigations=(mitigation("none"), mitigation("min-cohort")),
    weights=(Weights.KNOWN,),
    repeats=2,
)


@pytest.fixture(scope="module")
def rows():
    return {(row["method"], row["mitigation"]): row for row in rows_of(SMALL)}


def test_mm_gives_small_cohorts_away_as_algorithm_2_does(rows):
    private, clear = rows["mm", "none"], rows["plain", "none"]
    assert private["recovered"] == clear["recovered"] == 1
    assert private["labelled_bits"] == pytest.approx(clear["labelled_bits"], abs=0.1)
    assert rows["bracketed", "none"]["recovered"] < 1


def test_a_search_of_mm_tells_how_many_devices_are_below():
    plan = replace(SMALL, cohorts=(10,), repeats=1)
    cohort = draw_cohort(plan, 10, Weights.KNOWN, 0)
    cell = Cell(10, Weights.KNOWN, "mm", mitigation("none"))
    view = play(plan, cell, cohort, np.random.default_rng(0)).view.anonymous()
    assert all(row.fewest == row.most for row in ranks(replace(view, tail=None)))
    assert {"count", "count_below"} <= set(view.answers[0].sums)


def test_a_cohort_too_small_to_search_keeps_its_losses_and_everybody(rows):
    row = rows["mm", "min-cohort"]
    assert row["labelled_bits"] == pytest.approx(0, abs=1e-9)
    assert (row["queries"], row["certified"], row["same_kept"]) == (0, 0, 0)
    assert row["rank_error"] > 0


def test_a_certified_search_keeps_what_algorithm_2_keeps(rows):
    for method in ("plain", "mm", "bracketed"):
        row = rows[method, "none"]
        assert (row["certified"], row["same_kept"], row["rank_error"]) == (1, 1, 0)


@pytest.mark.slow
def test_a_run_can_be_repeated(rows):
    again = rows_of(replace(SMALL, methods=("mm",), mitigations=(mitigation("none"),)))
    assert again[0] == rows["mm", "none"]


def test_cohorts_do_not_depend_on_method_or_mitigation():
    first = draw_cohort(SMALL, 5, Weights.KNOWN, 0)
    assert draw_cohort(SMALL, 5, Weights.UNKNOWN, 0) == first
    assert draw_cohort(SMALL, 5, Weights.EQUAL, 0).losses == first.losses
    assert draw_cohort(SMALL, 5, Weights.KNOWN, 1) != first


def test_every_mitigation_can_be_played():
    for one in MITIGATIONS:
        cell = Cell(10, Weights.KNOWN, "mm", one)
        cohort = draw_cohort(SMALL, 10, Weights.KNOWN, 0)
        played = play(SMALL, cell, cohort, np.random.default_rng(1))
        cost = price(SMALL, cohort, played.result)
        assert cost["rank_error"] < 0.2
        assert played.result.certified or one.name == "early-stop"


def test_the_price_of_a_wrong_threshold_is_the_weight_by_which_it_is_off():
    cell = Cell(10, Weights.EQUAL, "mm", MITIGATIONS[0])
    cohort = draw_cohort(SMALL, 10, Weights.EQUAL, 0)
    result = play(SMALL, cell, cohort, np.random.default_rng(1)).result
    assert price(SMALL, cohort, result)["rank_error"] == 0
    far = replace(result, eta_half_ticks=0)
    assert not price(SMALL, cohort, far)["same_kept"]
    assert price(SMALL, cohort, far)["rank_error"] == pytest.approx(0.4)
    nobody = replace(result, eta_half_ticks=4 * result.grid.max_tick)
    assert price(SMALL, cohort, nobody)["rank_error"] == pytest.approx(0.5)


def test_the_command_prints_json_for_programs(capsys):
    options = command(
        "--methods", "bracketed", "--cohort", "2", "--repeats", "1", "--weights", "equal",
        "--mitigations", "none", "--json",
    )  # fmt: skip
    assert cli.main(options) == 0
    result = json.loads(capsys.readouterr().out)
    (record,) = result["searches"]
    assert (record["devices"], record["method"], record["mitigation"]) == (2, "bracketed", "none")


def test_the_command_prints_tables(capsys):
    options = command(
        "--methods", "bracketed", "--cohort", "2", "--repeats", "1", "--weights", "known",
        "--mitigations", "coarse-grid",
    )  # fmt: skip
    assert cli.main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = next(n for n, line in enumerate(lines) if line.startswith("| devices | weights |"))
    rows = [line.split(" | ") for line in lines[heading : heading + 4]]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert [row[2:5] for row in rows[2:]] == [
        ["bracketed", "", "none"], ["bracketed", "", "coarse-grid"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--methods", "guess"], "unknown 'guess'; choose from plain, mm"),
        (["--cohort", "0"], "0 must be a whole number, and lie in [1, 1000]"),
        (["--cohort", ","], "names nothing"),
        (["--theta", "1"], "nothing is searched"),
        (["--theta", "much"], "theta='much' is not a number"),
        (["--repeats", "0"], "be at least 1"),
        (["--seed=-1"], "be at least 0"),
        (["--mitigations", "hope"], "unknown 'hope'"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_sentence(arguments, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(*arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert captured.err.count("\n") == 1


def test_the_help_explains_columns_and_mitigations():
    parser = Parser(prog="deltafl audit leakage")
    cli.add_arguments(parser)
    text = parser.format_help()
    for one in MITIGATIONS:
        assert f"  {one.name}" in text
    assert "labelled bits" in text


def test_all_means_everything():
    plan = cli.plan_of(command())
    assert plan == Plan()
    assert plan.theta == Fraction(1, 2)
