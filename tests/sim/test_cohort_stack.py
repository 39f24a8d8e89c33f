"""How far it is from a round to the loss of one of its devices: each package is entered once."""

import traceback
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from doubles import Silent

import deltafl.sim
from deltafl.sim.cohort.backends.in_process import _Batch
from deltafl.sim.run.experiment import run_experiment

PACKAGES = Path(deltafl.sim.__file__).resolve().parents[1]
MOST_FRAMES = 13  # one of them notes who may have answered (`sim/cohort/sampling.py`)


def room(path):
    """`sim/cohort` of a module in it, `fl` of one of the learning side's."""
    parts = Path(path).resolve().relative_to(PACKAGES).parts
    return "/".join(parts[:2]) if parts[0] == "sim" else parts[0]


def ways(stack):
    """The frames from the engine's round on, and the rooms that they lead through, in order."""
    names = [frame.name for frame in stack]
    inner = stack[names.index("_play_round") :]
    return inner, [name for name, _ in groupby(room(frame.filename) for frame in inner)]


@pytest.mark.slow
@pytest.mark.parametrize(("sums", "most"), [("masked", MOST_FRAMES), ("ideal", MOST_FRAMES - 2)])
def test_from_a_round_to_a_devices_loss_it_is_a_straight_way(
    tiny, tmp_path, monkeypatch, sums, most
):
    seen, measure = [], _Batch._begun

    def spied(self, *arguments):
        if self._work.training is None:  # of losses
            seen.append(traceback.extract_stack()[:-1])
        return measure(self, *arguments)

    monkeypatch.setattr(_Batch, "_begun", spied)
    config = replace(
        tiny,
        federation=replace(tiny.federation, algorithm="private-delta-fl", rounds=1, cohort_size=4),
        training=replace(tiny.training, backend="reference"),
        privacy=replace(tiny.privacy, sums=sums, min_cohort=4),
    )
    run_experiment(config, tmp_path / "run", resume=False, progress=Silent(), warn=print)
    assert seen
    for stack in seen:
        frames, rooms = ways(stack)
        assert len(frames) < most, [frame.name for frame in frames]  # the spy is one of them
        assert rooms == ["sim/run", "fl", "sim/cohort"]


def test_a_way_back_is_seen():
    files = ["sim/run/engine.py", "fl/cohort.py", "sim/cohort/work.py", "fl/cohort.py"]
    names = ["_play_round", "apply", "loss", "loss"]
    stack = [
        traceback.FrameSummary(str(PACKAGES / file), 1, name)
        for file, name in zip(files, names, strict=True)
    ]
    _, rooms = ways(stack)
    assert rooms == ["sim/run", "fl", "sim/cohort", "fl"]
