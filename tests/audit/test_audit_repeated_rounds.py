"""A round that was lost may be repeated, and only as the specification says."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from doubles import run
from records import events_of

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.selection import Threshold
from deltafl.secagg.wire import Kind
from deltafl.sim.cli import main
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.differences import Answered, before, may_answer
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.seen import Content, Seen
from deltafl.sim.inspect.audit.session_log import Session
from deltafl.sim.record.transcript import Message, Sum
from deltafl.sim.settings.config_io import build_config

CONFIG = build_config(
    [
        {
            "data": {"num_devices": 17},
            "federation": {"rounds": 4, "cohort_size": 8, "evaluate_every": 8},
            "privacy": {"min_cohort": 5, "expected_dropout": 0.1, "transcript": "full"},
            "quantile": {"resolution_bits": 8, "loss_bound": 8},
            "training": {"batch_size": 64, "device": "cpu", "backend": "reference"},
            "faults": {"dropout": 0.55},
        }
    ]
)
ROUND = RoundConfig(0, 8, Fraction(1, 2), "mm", SearchParams(3), UpdateParams(), 2)
QUERY = Query("mm", (5,))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The devices are one cohort, so that the rounds after a lost one are the same once more."""
    path = tmp_path_factory.mktemp("repeated") / "run"
    run(CONFIG, path)
    return path


def rules_of(path, *options, capsys):
    main(["audit", str(path), "--json", *options])
    return {(f["rule"], f["severity"]) for f in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.slow
def test_a_run_that_repeats_a_lost_round_is_clean(played):
    events = events_of(played)
    assert [event["aborted"] is None for event in events] == [False, False, True, False]
    assert events[2]["secure_sums"] == 1 < events[2]["num_queries"]  # its search was the lost one's
    assert {f.rule for f in audit(played).findings if f.severity >= Severity.MEDIUM} == set()


@pytest.mark.slow
def test_for_devices_that_answer_once_it_is_not(played, capsys):
    found = rules_of(played, capsys=capsys)
    assert ("retry.one-model", "high") not in found
    assert ("retry.same-model", "info") in found
    once = rules_of(played, "--set", "policy.max_rounds_per_model=1", capsys=capsys)
    assert ("retry.one-model", "high") in once
    assert ("retry.one-model", "high") not in rules_of(
        played, "--set", "policy.max_rounds_per_model=2", capsys=capsys
    )


def level(devices, *questions, config=ROUND):
    """A level of a session over these devices, with a sum for each of these questions."""
    session = Session(None, 1, Levels((config,)), b"", Evidence())
    for number, question in enumerate(questions):
        for device in devices:
            record = Message(0, 1, True, device, 0, b"", b"")
            ask = None if question is None else Ask(question, b"")
            session.take(Seen(record, Content(Kind.SLOT, envelope=ask, slot=number)))
            session.take(Seen(record, Content(Kind.MASKED, slot=number)))
        if question is not None:
            session.sums.append(Sum(0, 1, number, 0, b"", np.array(sorted(devices)), None))
    (own,) = session.by_level()
    return own


def past(*rounds):
    return [Answered.of(one) for one in rounds]


def test_devices_of_the_lost_search_may_answer_again():
    known = past(level({1, 2, 3}, QUERY))
    assert may_answer(known, level({1, 2}), {1, 2}, 2)
    other = level({1, 2}, config=replace(ROUND, round_index=7))
    assert may_answer(known, other, {1, 2, 3}, 2)
    assert may_answer(past(level({1, 2, 3})), level({4}), {3, 4}, 2)  # nothing was asked


@pytest.mark.parametrize("config", [replace(ROUND, warm_start=3), replace(ROUND, min_tail=1)])
def test_not_with_other_settings(config):
    assert not may_answer(past(level({1, 2, 3}, QUERY)), level({1}, config=config), {1}, 2)


def test_not_beside_others():
    assert not may_answer(past(level({1, 2, 3}, QUERY)), level({1, 4}), {1, 4}, 2)


def test_not_once_updates_were_summed():
    known = past(level({1, 2, 3}, QUERY), level({1, 2}, Threshold(2, 0)))
    assert not may_answer(known, level({1}), {1}, 9)


def test_not_too_often():
    known = past(*[level({1, 2, 3}, QUERY)] * 2, level({1}, None))
    assert may_answer(known, level({2, 3}), {2, 3}, 3)
    assert not may_answer(known, level({1, 2}), {1, 2}, 3)


def test_rounds_of_others_over_the_model_do_not_count():
    others = replace(ROUND, cohort_size=4)
    known = past(level({1, 2, 3}, QUERY, Threshold(2, 0)), level({5, 6, 7}, QUERY, config=others))
    earlier = before(known, {6, 7})
    assert earlier == known[1:]
    assert may_answer(earlier, level({6, 7}, config=others), {6, 7}, 2)
    assert not may_answer(before(known, {1}), level({1}), {1}, 2)
    assert before(known, {3, 5}) == known


def test_a_round_of_some_counts_for_others_who_were_lost_with_them():
    known = past(level({1, 2, 3}, QUERY), level({1, 2}, Threshold(2, 0)))
    assert before(known, {3}) == known
    assert not may_answer(before(known, {3}), level({3}), {3}, 9)
