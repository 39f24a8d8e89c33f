"""How the time of a round divides over the stages of its session."""

import pytest
from made_runs import event, make_run, private

from deltafl.secagg.states import Stage
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.view.costs import REST, STAGES, stage_times
from deltafl.sim.view.sections import Page, methods_of, status

SUMS = {"algorithm": "private-delta-fl", "federation": {"cohort_size": 10}, "baselines": ()}


def times(folder, **what):
    make_run(folder / "run", **{**SUMS, **what})
    return stage_times(methods_of([Reader(folder / "run").read()]))


def test_there_is_a_name_for_every_stage_in_its_order():
    assert list(STAGES) == [*(stage.name.lower() for stage in Stage), REST]


def test_seconds_are_medians_over_the_rounds_that_have_the_stage(tmp_path):
    def uneven(number):
        stages = {"advertise": float(number), "mask": 1.0}
        if number == 4:
            stages["unmask"] = 7.0
        return private(number, wall_s=20.0, stage_s=stages)

    (one,) = times(tmp_path, make_event=uneven, seeds=1)
    assert one.rounds == 4
    assert one.seconds == {"advertise": 2.5, "mask": 1.0, "unmask": 7.0, "rest": 16.5}


def test_each_method_has_stages_of_its_own(tmp_path):
    first, second = times(tmp_path, make_event=private, baselines=("private-fedavg",), rounds=4)
    assert (first.label, second.label) == ("private-delta-fl, θ = 0.5", "private-fedavg")
    assert first.seconds.keys() == second.seconds.keys()
    assert list(first.seconds)[-1] == REST


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"mask": 1e100, "no stage": 5.0}, {"mask": 1e100, "rest": 0.0}),
        ({"mask": 0}, {"mask": 0.0, "rest": 1.0}),
    ],
)
def test_times_that_cannot_be_are_told_all_the_same(tmp_path, seconds, expected):
    (one,) = times(tmp_path, make_event=lambda n: private(n, stage_s=seconds))
    assert one.seconds == expected


def test_sums_without_messages_have_no_stages(tmp_path):
    assert times(tmp_path / "ideal", make_event=lambda n: private(n, stage_s={})) == ()
    assert times(tmp_path / "clear", algorithm="delta-fl", make_event=event) == ()


def test_a_session_of_several_levels_counts_once(tmp_path):
    levels = {"0.8": {"eta": 1.0}, "0.5": {"eta": 2.0}}
    what = {"federation": {"cohort_size": 10, "levels": list(levels)}, "seeds": 1}
    (one,) = times(tmp_path, make_event=lambda n: private(n, levels=levels), **what)
    assert (one.label, one.rounds) == ("private-delta-fl, all levels", 4)
    make_run(tmp_path / "b", make_event=lambda n: private(n, levels=levels), **SUMS | what)
    named = (("a", "run"), ("b", "b"))
    twice = methods_of([Reader(tmp_path / run, name).read() for name, run in named])
    assert [each.label for each in stage_times(twice)] == [
        f"{name}: private-delta-fl, all levels" for name in "ab"
    ]
    shown = status(Page([Reader(tmp_path / "run").read()]))
    glance = {name: (value, remark) for name, value, remark in shown["glance"]}
    assert glance["Rounds"] == ("4", "of 4")
    assert glance["Time in rounds"] == ("4 s", "over all runs")
