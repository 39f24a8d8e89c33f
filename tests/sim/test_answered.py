"""No device is asked twice about one model: who may have answered, and runs that lose rounds."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from doubles import Killed, KilledAfter, run
from records import checkpoint_of, events_of

from deltafl.fl.cohort import SecureRoundResult
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.round import LostSearch, Round
from deltafl.secagg import ClientId, PeerError, Refusal, Stage, Step
from deltafl.secagg.errors import Fault
from deltafl.secagg.states import Drop
from deltafl.sim.cohort.sampling import Answered, Answers
from deltafl.sim.errors import RunError
from deltafl.sim.run import engine
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

A, B = np.zeros(2, np.float32), np.ones(2, np.float32)
ALL = tuple(range(8))
NOTHING = LostSearch()


def levels_of(*thetas):
    config = RoundConfig(0, 8, thetas[0], "mm", SearchParams(3), UpdateParams(), 2)
    return Levels.at(config, thetas)


def outcomes_of(levels, asked, drops):
    """Of rounds that got as far as asking the first levels, and were then given up."""
    rounds = [Round(config) for config in levels.rounds]
    for played in rounds[:asked]:
        played.check_opened(range(8))
        played.ask(range(8))
    return [played.outcome(drops, "lost") for played in rounds]


def dropped_at(stage, slot):
    return Drop(Fault.TIMED_OUT, Step(stage, slot))


def test_all_devices_count_that_were_there_when_their_first_vector_was_due():
    levels = levels_of(Fraction(1, 2), Fraction(1, 3))
    second = levels.first_slot(1)
    drops = {
        ClientId(0): dropped_at(Stage.RECEIPT, 0),
        ClientId(1): dropped_at(Stage.SHARE, 0),
        ClientId(2): dropped_at(Stage.MASK, 0),  # its vector may be on its way
        ClientId(3): dropped_at(Stage.UNMASK, 0),
        ClientId(4): dropped_at(Stage.MASK, second),
    }
    answers = Answers()
    answers.note(range(8), levels, SecureRoundResult(outcomes_of(levels, 2, drops), None))
    assert answers.by_level == (frozenset({2, 3, 4, 5, 6, 7}), frozenset({4, 5, 6, 7}))
    answers.note(range(8), levels, SecureRoundResult(outcomes_of(levels, 1, drops), None))
    assert answers.by_level == (frozenset({2, 3, 4, 5, 6, 7}), frozenset())
    answers.note(range(8), levels, SecureRoundResult(outcomes_of(levels, 0, drops), None))
    assert answers.by_level == (frozenset(), frozenset())


def test_a_model_that_has_changed_by_a_bit_is_new():
    answers = Answers((frozenset({1, 2}), frozenset({1, 3})))
    known = Answered().after(answers, ALL, [A, B], [A, B])
    assert known.anyone == {1, 2, 3}
    later = Answers((frozenset({5}), frozenset({6})))
    assert known.after(later, ALL, [A, B], [A, B]).by_level == ({1, 2, 5}, {1, 3, 6})
    negative = np.array([0.0, -0.0], np.float32)  # equal numbers, other bytes
    assert known.after(later, ALL, [A, B], [negative, B]).by_level == (frozenset(), {1, 3, 6})
    assert known.after(Answers(), ALL, [A, B], [B, A]).anyone == frozenset()
    assert known.after(Answers(), ALL, [A, B], [A, B]) == known  # a round in clear


def lost_after(*rounds, before=None):
    """What is known after rounds over the models A and B: of each, its cohort and what is lost."""
    known = Answered() if before is None else before
    for cohort, lost, models in rounds:
        known = known.after(Answers((frozenset({1}),), lost), cohort, [A, B], models)
    return known.lost


def test_a_lost_round_is_kept_with_its_search_as_long_as_its_models_stay():
    search = LostSearch((ClientId(0), ClientId(1)), (np.ones(4, np.uint32),))
    kept = lost_after((ALL, (search, NOTHING), [A, B]))
    assert (kept.cohort, kept.rounds, kept.searches) == (ALL, 1, (search, NOTHING))
    assert kept.devices == {0, 1}
    again = lost_after(*[(ALL, (search, NOTHING), [A, B])] * 3)
    assert again.rounds == 3
    others = lost_after((ALL, (search, NOTHING), [A, B]), ((8, 9), (NOTHING, NOTHING), [A, B]))
    assert (others.cohort, others.rounds, others.devices) == ((8, 9), 1, {8, 9})


def test_a_round_that_released_an_update_is_not_repeated():
    # of the first level, updates were summed: without a change, and with one
    assert lost_after((ALL, (None, NOTHING), [A, B])) is None
    assert lost_after((ALL, (None, NOTHING), [B, A])) is None  # nobody has answered for these
    known = Answered().after(
        Answers((frozenset(), frozenset({1})), (None, NOTHING)), ALL, [A, B], [B, B]
    )
    assert [one.sums for one in known.lost.searches] == [(), ()]


LOSING = {
    "data": {"num_devices": 120},
    "federation": {"rounds": 8, "cohort_size": 8, "evaluate_every": 8},
    "privacy": {"min_cohort": 5, "expected_dropout": 0.1},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "training": {"batch_size": 64, "device": "cpu", "backend": "reference"},
    "faults": {"dropout": 0.55},
}
KINDS = {
    "delta": {"federation": {"algorithm": "private-delta-fl"}},
    "active": {
        "federation": {"algorithm": "private-delta-fl"},
        "privacy": {"adversary": "active"},
    },
    "levels": {
        "federation": {"algorithm": "private-delta-fl", "levels": ["0.8", "0.4"]},
        "policy": {"max_pivots": 52},
    },
    "mean": {"federation": {"algorithm": "private-q-ffl"}},
    "momentum": {
        "federation": {"algorithm": "private-fedavg"},
        "strategy": {"server_optimizer": "momentum"},
    },
}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Runs go on however many rounds they lose."""
    monkeypatch.setattr(engine, "MAX_LOST_ROUNDS", 99)


def losing(kind, sums, **changes):
    return build_config([LOSING, KINDS[kind], {"privacy": {"sums": sums}}, changes])


def told(path):
    times = ("train_cpu_s", "protocol_cpu_s", "wall_s", "stage_s", "bytes_up_per_device")
    return [
        {key: value for key, value in event.items() if key not in times}
        for event in events_of(path)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_loses_rounds_asks_no_device_twice_about_a_model(kind, tmp_path):
    # A device that is asked twice refuses, and its refusal would end the masked run.
    run(losing(kind, "masked"), tmp_path / "masked")
    run(losing(kind, "ideal"), tmp_path / "ideal")
    events = told(tmp_path / "masked")
    assert events == told(tmp_path / "ideal")
    lost = [event["aborted"] is not None for event in events]
    assert any(lost)
    assert not all(lost)


def test_without_this_a_device_is_asked_twice_and_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(Answered, "anyone", frozenset())
    with pytest.raises(PeerError) as caught:
        run(losing("active", "masked", data={"num_devices": 24}), tmp_path / "run")
    assert caught.value.reason is Refusal.MODEL_REPEATED


def test_each_device_has_one_ledger_for_the_whole_run(tmp_path, monkeypatch):
    ledgers, original = {}, RoundClient.__init__

    def note(self, client_id, *arguments, ledger, **options):
        ledgers.setdefault(client_id, set()).add(id(ledger))
        original(self, client_id, *arguments, ledger=ledger, **options)

    monkeypatch.setattr(RoundClient, "__init__", note)
    changes = {"faults": {"dropout": 0}, "training": {"backend": "processes", "workers": 2}}
    run(losing("delta", "masked", data={"num_devices": 24}, **changes), tmp_path / "run")
    assert len(ledgers) == 12
    assert all(len(each) == 1 for each in ledgers.values())


@pytest.mark.parametrize("sums", ["masked", "ideal"])
@pytest.mark.parametrize("kind", ["delta", "levels"])
def test_a_resumed_run_draws_the_same_cohorts(kind, sums, tmp_path):
    config = losing(kind, sums)
    run(config, tmp_path / "whole")
    events = told(tmp_path / "whole")
    stop = next(event["round"] for event in events if event["aborted"] is not None)
    with pytest.raises(Killed):
        run(config, tmp_path / "killed", progress=KilledAfter(stop))
    answered = checkpoint_of(tmp_path / "killed").answered
    assert any(answered)
    run(config, tmp_path / "killed", resume=True)
    assert told(tmp_path / "killed") == events


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "levels"])
def test_a_resumed_run_goes_on_with_a_lost_round(kind, tmp_path):
    config = losing(kind, "ideal", data={"num_devices": 17})
    run(config, tmp_path / "whole")
    events = told(tmp_path / "whole")
    lost = [event["round"] for event in events if event["aborted"] and event["secure_sums"]]
    with pytest.raises(Killed):
        run(config, tmp_path / "killed", progress=KilledAfter(lost[0]))
    kept = checkpoint_of(tmp_path / "killed").lost
    assert kept.cohort == tuple(range(8))
    assert any(one.sums for one in kept.searches)
    run(config, tmp_path / "killed", resume=True)
    assert told(tmp_path / "killed") == events


def test_a_lost_round_is_not_repeated_while_there_are_others(tmp_path):
    run(losing("delta", "ideal"), tmp_path / "run")
    events = told(tmp_path / "run")
    after = [(one, two) for one, two in pairwise(events) if one["aborted"] and one["secure_sums"]]
    assert after
    assert all(one["cohort"] != two["cohort"] for one, two in after)


@pytest.mark.slow
def test_runs_that_lose_nothing_draw_what_they_always_drew(tmp_path):
    clear = {"federation": {"algorithm": "delta-fl"}, "faults": {"dropout": 0}}
    config = losing("delta", "ideal", faults={"dropout": 0})
    run(config, tmp_path / "private")
    run(build_config([LOSING, clear]), tmp_path / "clear")
    cohorts = [
        [event["cohort"] for event in told(tmp_path / name)] for name in ("private", "clear")
    ]
    assert cohorts[0] == cohorts[1]
    assert checkpoint_of(tmp_path / "private").answered == (frozenset(),)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "levels"])
def test_a_cohort_that_is_the_population_goes_on_after_lost_rounds(kind, tmp_path):
    for sums in ("masked", "ideal"):
        run(losing(kind, sums, data={"num_devices": 17}), tmp_path / sums)
    events = told(tmp_path / "masked")
    assert events == told(tmp_path / "ideal")
    assert all(len(event["cohort"]) == 8 for event in events)
    lost = [event["aborted"] is not None for event in events]
    assert any(lost)
    assert not all(lost[lost.index(True) :])


@pytest.mark.slow
def test_it_does_not_where_shares_that_come_late_may_complete_the_sum_of_updates(tmp_path):
    with pytest.raises(RunError, match="its updates were or may have been summed") as caught:
        run(losing("mean", "masked", data={"num_devices": 17}), tmp_path / "run")
    last = told(tmp_path / "run")[-1]
    assert last["dropped_by_stage"].get("unmask")
    assert f"gave up after round {last['round']}" in str(caught.value)


@pytest.mark.slow
def test_a_model_is_repeated_in_so_many_rounds_as_devices_answer(tmp_path):
    few = {"policy": {"max_rounds_per_model": 2}, "faults": {"dropout": 0.7}}
    config = losing("delta", "masked", data={"num_devices": 17}, federation={"rounds": 30}, **few)
    with pytest.raises(RunError, match=r"in 2 rounds \(policy.max_rounds_per_model\)"):
        run(config, tmp_path / "run")
    asked = [event for event in told(tmp_path / "run") if event["dropped_by_stage"].get("mask")]
    assert len(asked) == 2


@pytest.mark.parametrize("sums", ["masked", "ideal"])
def test_a_population_that_expects_an_active_server_cannot_go_on_after_a_lost_round(sums, tmp_path):
    config = losing("active", sums, data={"num_devices": 17})
    with pytest.raises(RunError, match="5 of 8 devices may have answered") as caught:
        run(config, tmp_path / "run")
    message = str(caught.value)
    assert "with the 2 others there can be no secure round" in message
    assert "more devices" in message
    assert "--dropout" in message
    # another command meets the same end
    with pytest.raises(RunError, match="may have answered"):
        run(config, tmp_path / "run", resume=True)


def test_a_smaller_cohort_plays_if_a_session_may_be_so_small(tmp_path):
    once = {"data": {"num_devices": 24}, "policy": {"max_rounds_per_model": 1}}
    run(losing("delta", "ideal", **once), tmp_path / "run")
    events = told(tmp_path / "run")
    sizes = [len(event["cohort"]) for event in events]
    assert sizes[:3] == [8, 7, 8]
    assert [event["aborted"] is None for event in events[:2]] == [False, True]
