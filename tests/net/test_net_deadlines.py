"""How long the server waits."""

import pytest

from deltafl.secagg import Stage, Step
from deltafl.sim.net.trips import Deadlines, Waiting

MASK, SHARE = Step(Stage.MASK, 3), Step(Stage.SHARE)


def test_before_anything_is_known_it_waits_longest():
    assert Deadlines(Waiting(60.0, 2.0)).seconds(MASK, trains=False) == 60.0


def test_a_few_that_are_late_do_not_make_everybody_wait():
    known = Deadlines(Waiting(60.0, 2.0, factor=4.0))
    known.note(MASK, [1.0] * 9 + [50.0], trains=False)
    assert known.seconds(MASK, trains=False) == 4.0
    known.note(MASK, [1.0] * 8 + [3.0, 50.0], trains=False)
    assert known.seconds(MASK, trains=False) == 12.0


def test_where_nobody_answered_nothing_is_learnt():
    known = Deadlines(Waiting(60.0, 2.0))
    known.note(MASK, [], trains=False)
    assert known.seconds(MASK, trains=False) == 60.0


def test_then_some_times_as_long_as_the_slowest_of_late():
    known = Deadlines(Waiting(60.0, 2.0, factor=4.0))
    known.note(MASK, [3.0], trains=False)
    known.note(Step(Stage.MASK, 9), [1.0], trains=False)
    assert known.seconds(MASK, trains=False) == 12.0
    assert known.seconds(MASK, trains=True) == 60.0
    for _ in range(8):
        known.note(MASK, [1.0], trains=False)
    assert known.seconds(MASK, trains=False) == 4.0


def test_a_stage_that_was_not_seen_yet_is_judged_by_the_others():
    known = Deadlines(Waiting(60.0, 2.0, factor=3.0))
    known.note(MASK, [4.0], trains=True)  # how long training takes says nothing about it
    assert known.seconds(SHARE, trains=False) == 60.0
    known.note(Step(Stage.ADVERTISE), [0.5], trains=False)
    known.note(Step(Stage.RECEIPT), [1.0], trains=False)
    assert known.seconds(SHARE, trains=False) == 9.0
    assert known.seconds(MASK, trains=False) == 9.0
    assert Deadlines(Waiting(60.0, 2.0)).seconds(MASK, trains=True) == 60.0


def test_training_that_was_not_seen_yet_may_take_longest():
    known = Deadlines(Waiting(60.0, 2.0))
    known.note(MASK, [1.0], trains=False)
    assert known.seconds(MASK, trains=True) == 60.0


def test_within_its_limits():
    known = Deadlines(Waiting(60.0, 2.0))
    known.note(MASK, [0.001], trains=False)
    assert known.seconds(MASK, trains=False) == 2.0
    known.note(MASK, [59.0], trains=False)
    assert known.seconds(MASK, trains=False) == 60.0


@pytest.mark.parametrize("given", [(0.0, 0.0), (1.0, 2.0), (1.0, 0.0), (1.0, 1.0, 0.5)])
def test_limits_that_contradict_each_other_are_refused(given):
    with pytest.raises(ValueError, match=r"least|factor"):
        Waiting(*given)
