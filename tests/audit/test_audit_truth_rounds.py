"""The truth beside the transcript: what every masked vector was to hide."""

import numpy as np
import pytest
from honest_runs import RUN_ID, play_honestly

from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.sim.inspect.audit.truth_rounds import TruthRounds, input_of, passes
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Sum, read_transcript
from deltafl.sim.record.truth import DeviceTruth


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return play_honestly(tmp_path_factory.mktemp("run"), rounds=3, batches=2, length=6)


@pytest.fixture(scope="module")
def views(run):
    """The rounds of the run, with their sums."""
    rounds = {number: RoundView(number, True) for number in (1, 2, 3)}
    for record in read_transcript(run.transcript):
        if isinstance(record, Message):
            rounds[record.round].add(record)
        elif isinstance(record, Sum):
            rounds[record.round].add_sum(record)
    return rounds


def test_every_round_has_the_truth_of_its_devices(run):
    truth = TruthRounds(run.truth, RUN_ID)
    for number, told in enumerate(run.told, start=1):
        of_round = truth.of(number)
        assert of_round.keys() == told.losses.keys()
        assert {one: t.loss for one, t in of_round.items()} == told.losses
    assert truth.of(4) == {}


def test_rounds_may_be_left_out_but_not_read_again(run):
    truth = TruthRounds(run.truth, RUN_ID)
    assert truth.of(0) == {}
    assert {t.round for t in truth.of(2).values()} == {2}
    assert truth.of(1) == {}
    assert len(truth.of(3)) == len(run.told[2].losses)


def test_the_sum_of_what_was_to_hide_is_the_sum_that_was_released(run, views):
    truth, checked = TruthRounds(run.truth, RUN_ID), 0
    for number, view in views.items():
        of_round = truth.of(number)
        (session,) = view.sessions.values()
        for slot in session.slots.values():
            inputs = [input_of(t, session.config, slot.question) for t in of_round.values()]
            words = np.sum(inputs, axis=0, dtype=np.uint64)
            bits = session.params.slots[slot.index].ring_bits
            assert (words % (1 << bits)).tolist() == slot.sums[0].words.tolist()
            checked += 1
    assert checked == sum(report.secure_sums for report in run.reports)


def test_who_passes_is_who_trained(run, views):
    truth = TruthRounds(run.truth, RUN_ID)
    for number, view in views.items():
        (session,) = view.sessions.values()
        threshold = session.slots[session.config.update_slot].question
        of_round = truth.of(number).values()
        assert [passes(t, session.config, threshold) for t in of_round] == [
            t.passed for t in of_round
        ]
    assert {t.passed for t in TruthRounds(run.truth, RUN_ID).of(1).values()} == {True, False}


def test_what_the_truth_does_not_hold_is_not_invented(views):
    (session,) = views[1].sessions.values()
    config = session.config
    everybody = Threshold(0, 0)
    trained = DeviceTruth(1, 4, 1.0, 3, True, None)
    assert input_of(trained, config, everybody) is None
    filtered = Threshold(2 * config.search.grid.max_tick, 0)
    assert not input_of(trained, config, filtered).any()
    not_finite = DeviceTruth(1, 4, float("nan"), 3, True, None)
    assert input_of(not_finite, config, everybody) is None
    foreign = Query("mm" if config.method != "mm" else "histogram", (1,))
    assert input_of(trained, config, foreign) is None
