"""Small models are searched by Spin, if it is there: what holds, and the attacks on twins."""

import re

import pytest
from spin_models import MODELS, ask, missing_tool, read, runs

RUNS = runs()
README = (MODELS / "README.md").read_text(encoding="utf-8")
needs_spin = pytest.mark.skipif(missing_tool() is not None, reason=f"{missing_tool()}")


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("run", [run for run in RUNS if run.fast], ids=lambda run: run.name)
def test_spin_finds_what_is_written(run, tmp_path):
    answer = ask(run.file, run.defines, tmp_path)
    assert answer.violated == run.expected
    # the number of states is determined; that of a search which ended early is not promised
    if run.expected is None:
        assert f"{answer.states:,} |" in line_of(run)


def line_of(run):
    (line,) = (line for line in README.splitlines() if line.startswith(f"| `{run.name}` |"))
    return line


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_page_has_every_run_with_what_it_found(run):
    line = line_of(run)
    assert run.says in line
    for name in (*run.properties, run.violates, run.reaches):
        assert name is None or name.removeprefix("no ") in line


def test_every_model_is_asked_about_and_every_property_has_a_twin_that_violates_it():
    assert {run.file for run in RUNS} == {
        path.name for path in MODELS.glob("*.pml") if "active" in path.read_text(encoding="utf-8")
    }
    assert len({run.name for run in RUNS}) == len(RUNS)
    promised = {name for run in RUNS for name in run.properties}
    violated = {run.violates for run in RUNS if run.violates is not None}
    assert violated == promised
    for run in RUNS:
        assert (run.expected is None) == bool(run.properties)
        assert run.violates is None or run.reaches is None


def test_every_model_of_a_lying_server_gets_to_its_end():
    """If no sum were ever there, nothing would be said by what holds of sums."""
    reached = {run.file for run in RUNS if run.reaches is not None}
    assert reached == {"unmasking.pml", "agreement.pml", "whole_slots.pml"}
    assert all("REACH" in run.defines for run in RUNS if run.reaches is not None)


def test_every_broken_twin_of_a_model_is_asked_about():
    text = "".join(path.read_text(encoding="utf-8") for path in MODELS.glob("*.pml"))
    twins = set(re.findall(r"\bBROKEN_\w+", text))
    assert twins == {one for run in RUNS for one in run.defines if one.startswith("BROKEN_")}


FOUND = """
pan:1: assertion violated one_list (at depth 43)
State-vector 56 byte, depth reached 45, errors: 1
       23 states, stored
"""
DONE = """
State-vector 56 byte, depth reached 45, errors: 0
    94819 states, stored
  128.730	total actual memory usage
unreached in proctype Device
	agreement.pml:207, state 12, "goto end_refused"
"""


def test_what_spin_says_is_read():
    assert read(FOUND, 1.0).violated == "one_list"
    assert read(
        FOUND.replace("assertion violated one_list", "invalid end state"), 1.0
    ).violated == ("no deadlock")
    answer = read(DONE, 1.0)
    assert (answer.violated, answer.states, answer.memory_mb) == (None, 94819, 128.73)
    assert answer.unreached == {("agreement.pml", 207)}


@pytest.mark.parametrize(
    "said",
    [
        "",
        f"{DONE}Warning: Search not completed",
        f"{DONE}error: max search depth too small",
        FOUND.replace("assertion violated one_list", "acceptance cycle"),
    ],
)
def test_a_search_that_did_not_end_proves_nothing(said):
    with pytest.raises(RuntimeError):
        read(said, 1.0)
