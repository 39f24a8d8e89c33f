"""The script of `make gpu`, without a GPU: what it says, and that its checks can fail."""

import json
import time
from dataclasses import replace

import gpu_checks
import gpu_run
import gpu_steps
import numpy as np
import pytest
import torch
from fresh_python import run_python
from gpu_checks import CHECKS, near
from gpu_figures import FIGURES
from gpu_steps import CHECK, NotPassed, Place, Step, as_markdown, play

from deltafl.fl.models import MODELS

PLACE = Place(torch.device("cpu"), True, {"gpu": None, "processor": "some"})


def step(name, work, kind=CHECK, limit=60):
    return Step(name, kind, limit, work, f"the {name}")


def passes(_place, _end):
    return {"value": 1}


def fails(_place, _end):
    raise NotPassed("a bit differs")


def played(steps, out, seconds=60.0, place=PLACE):
    said = []
    code = play(steps, place, out, time.monotonic() + seconds, say=said.append)
    document = json.loads((out / "results.json").read_text())
    return code, {one["name"]: one for one in document["steps"]}, said


def test_all_checks_have_to_pass(tmp_path):
    assert played([step("one", passes), step("two", passes)], tmp_path)[0] == 0
    assert played([step("one", fails), step("two", passes)], tmp_path)[0] == 1
    assert played([step("one", passes), step("two", fails)], tmp_path)[0] == 1
    assert played([], tmp_path)[0] == 1


def test_a_step_that_fails_stops_no_other_and_says_where(tmp_path):
    _, steps, said = played([step("one", fails), step("two", passes)], tmp_path)
    assert steps["one"]["state"] == "failed"
    assert steps["one"]["why"] == "NotPassed: a bit differs"
    assert any("raise NotPassed" in line for line in steps["one"]["found"]["traceback"])
    assert steps["two"]["state"] == "passed"
    assert "a bit differs" in said[0]


def test_results_are_written_after_every_step(tmp_path):
    def look(_place, _end):
        return {"seen": [one["name"] for one in json.loads(text())["steps"]]}

    def text():
        return (tmp_path / "results.json").read_text()

    _, steps, _ = played([step("one", passes), step("two", look)], tmp_path)
    assert steps["two"]["found"] == {"seen": ["one"]}


def test_a_step_that_takes_too_long_is_cut_and_the_next_one_runs(tmp_path):
    def endless(_place, _end):
        while True:
            time.sleep(0.01)

    code, steps, _ = played([step("one", endless, limit=0.05), step("two", passes)], tmp_path)
    assert (code, steps["one"]["state"], steps["two"]["state"]) == (1, "cut", "passed")
    assert "more than" in steps["one"]["why"]


def test_what_there_is_no_time_for_is_named(tmp_path):
    code, steps, _ = played([step("one", passes)], tmp_path, seconds=0.5)
    assert (code, steps["one"]["state"], steps["one"]["why"]) == (
        1,
        "left out",
        "the time was spent",
    )


def test_seconds_of_a_cpu_are_not_published_as_a_gpus(tmp_path):
    both = [step("check", passes), step("figure", passes, gpu_steps.FIGURES)]
    _, steps, _ = played(both, tmp_path)
    assert steps["check"]["found"] == {"value": 1}
    assert steps["figure"]["state"] == "rehearsed"
    assert steps["figure"]["found"] == {}
    text = (tmp_path / "results.md").read_text()
    for part in ("Not run on a GPU", "processor some", "| the figure | absent | no GPU here"):
        assert part in text
    _, steps, _ = played(both, tmp_path, place=replace(PLACE, emulated=False))
    assert steps["figure"]["found"] == {"value": 1}
    text = (tmp_path / "results.md").read_text()
    assert "Not run" not in text
    assert "| the figure: value | 1 | |" in text


def test_the_table_keeps_its_columns_whatever_an_error_says():
    one = {"name": "n", "kind": CHECK, "title": "t", "state": "failed", "emulated": True}
    document = {
        "hardware": {},
        "emulated": True,
        "steps": [{**one, "seconds": 1, "why": "a | b\nc", "found": {}}],
    }
    assert r"| t | failed | yes | 1 | a \| b c |" in as_markdown(document)


def test_missing_packages_are_named():
    there = {"torch", "numpy", "msgpack"}
    assert gpu_run.missing(find=lambda name: name if name in there else None) == [
        "cryptography",
        "pynacl",
    ]
    assert gpu_run.missing() == []


def test_a_step_that_there_is_none_of_is_refused(capsys):
    with pytest.raises(SystemExit) as refused:
        gpu_run.main(["--only", "backends,nix"])
    assert refused.value.code == 2
    assert "--only nix: the steps are gradients" in capsys.readouterr().err


BARE = """
import sys
OTHERS = "scipy pandas pyarrow matplotlib sklearn tqdm jinja2 PIL shtab cloudpickle dp_accounting"
sys.modules |= dict.fromkeys(OTHERS.split())  # which cannot be imported then
sys.path[:0] = ["tests/gpu"]
import gpu_run
sys.exit(gpu_run.main(["--only", "backends,linear", "--out", sys.argv[1]]))
"""


@pytest.mark.slow
def test_it_runs_with_few_packages(tmp_path):
    done = run_python("-c", BARE, str(tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "rehearsed" in done.stdout


def test_every_model_has_a_gradient_that_is_checked():
    assert set(gpu_checks.SHAPES) == set(MODELS)
    names = [one.name for one in (*CHECKS, *FIGURES)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["linear", "logistic-bias", "gru"])
def test_gradients_of_the_learner_for_accelerators(name):
    assert gpu_checks._gradient_of(name, torch.device("cpu")) < 1e-4


def test_a_wrong_gradient_is_noticed(monkeypatch):
    honest = gpu_checks._exact
    monkeypatch.setattr(
        gpu_checks, "_exact", lambda *a: [gradient * 1.001 for gradient in honest(*a)]
    )
    with pytest.raises(NotPassed, match=r"the gradient of linear: differs by 0\.001"):
        gpu_checks._gradient_of("linear", torch.device("cpu"))


def test_comparisons_can_fail():
    right = np.array([3.0, 4.0])
    assert near("it", right * (1 + 1e-5), right) == pytest.approx(1e-5)
    for wrong in (right * 1.001, right * np.nan):
        with pytest.raises(NotPassed, match="it: differs by"):
            near("it", wrong, right)
