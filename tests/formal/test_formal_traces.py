"""What the real machines do is a path of the model: their moves are replayed in it by Spin."""

from itertools import pairwise

import pytest
from parties import make_params
from played_traces import SERVER, play
from spin_models import ask, missing_tool

needs_spin = pytest.mark.skipif(missing_tool() is not None, reason=f"{missing_tool()}")
TOLERANT, WHOLE = (2, 16), (2, 16, True)


def params(*slots):
    return make_params(4, threshold=3, slots=slots)


PLAYED = {
    "all stay": (params(TOLERANT, WHOLE), {}, {}),
    "whole first": (params(WHOLE, TOLERANT), {}, {}),
    "one lost in a slot": (params(TOLERANT, TOLERANT), {3: 3}, {}),
    "lost before it sends its vector": (params(TOLERANT, WHOLE), {1: 3}, {}),
    "lost after it sent its vector": (params(TOLERANT, WHOLE), {1: 4}, {}),
    "lost from a whole slot": (params(WHOLE, TOLERANT), {2: 3}, {}),
    "late vector": (params(TOLERANT, TOLERANT), {}, {0: 3}),
    "late keys": (params(TOLERANT, WHOLE), {}, {0: 0}),
    "too few": (params(TOLERANT, WHOLE), {0: 2, 1: 4}, {}),
    "verified": (params((2, 32, True, True), (2, 32, False, True)), {}, {}),
}


@pytest.fixture(scope="module")
def traces():
    return {
        name: play(made, silent=silent, late=late) for name, (made, silent, late) in PLAYED.items()
    }


@pytest.mark.slow
def test_the_traces_differ_in_what_becomes_of_them(traces):
    assert traces["all stay"].moves[-1] == (SERVER, "DONE")
    assert traces["all stay"].sums == [15, 15]
    assert traces["lost before it sends its vector"].sums == [13, 13]
    assert traces["lost after it sent its vector"].sums == [15, 0]
    assert traces["lost from a whole slot"].sums == [0, 11]
    assert traces["late vector"].sums == [14, 14]
    assert traces["too few"].moves[-1] == (SERVER, "ABORTED")
    # each device takes the opening of the first sum: from ready to ready
    moves = [move for move in traces["verified"].moves if move[0] == 0]
    assert ((0, "READY"), (0, "READY")) in pairwise(moves)


def replayed(trace, folder):
    return ask("session.pml", trace.defines(), folder, trace=trace.promela()).violated


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_the_moves_of_the_real_machines_are_a_path_of_the_model(name, traces, tmp_path):
    assert replayed(traces[name], tmp_path) == "not_all_replayed"


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["state", "order", "sum"])
def test_what_the_machines_did_not_do_is_no_path(wrong, traces, tmp_path):
    trace = play(PLAYED["late vector"][0], silent={}, late={0: 3})
    if wrong == "state":
        place = trace.moves.index((0, "MASKED"))
        trace.moves[place] = (0, "CONFIRMED")
    elif wrong == "order":  # a device answers before it was asked
        place = trace.moves.index((SERVER, "SHARE"))
        trace.moves.insert(0, trace.moves.pop(place + 1))
        trace.moves.insert(0, (1, "SHARED"))
    else:
        trace.sums[0] = 15
    assert replayed(trace, tmp_path) is None
