"""Runs of honest parties, whatever becomes of their devices: nothing is found, all sums agree."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from honest_runs import (
    SETTINGS,
    StandIn,
    build_verified,
    config_of,
    edited,
    play_honestly,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce
from deltafl.secagg import Adversary, DecodeError, Stage, Step, Vanish
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import device_objects
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.run import RunAgain
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.run.algorithms import build_rounds, build_strategy, policy_of

BY_MM = {"max_mm_pivots_per_device": 10}  # a small cohort accepts so many pivots of `mm`
STEEP = {"quantile": {"method": "mm", "max_queries": 3}, "policy": BY_MM}
BRACKETED = {"quantile": {"max_queries": 5}}
HISTOGRAM = {"quantile": {"method": "histogram", "max_queries": 0}, "policy": {"max_pivots": 320}}
ACTIVE = {"privacy": {"adversary": "active"}, "build": build_verified}
FIRST_WHOLE = {
    "quantile": {"method": "mm", "max_queries": 4, "min_cohort": 4},
    "policy": BY_MM,
}
SPARSE = {"privacy": {"graph": "sparse", "colluding": 0.2}}
AVERAGING = {"federation": {"theta": 1}}
HIDING = {
    "quantile": {"method": "mm", "epsilon": 0.1, "min_cohort": 8, "weights": "equal"},
    "policy": BY_MM,
}


def proved(settings):
    """The same against an active server, with proved votes."""
    return settings | {
        "quantile": settings["quantile"] | {"votes": "proved"},
        "privacy": {"adversary": "active"},
    }


RUNS = {
    "steep": STEEP,
    "steep, active": STEEP | ACTIVE,
    "steep, first whole, active": FIRST_WHOLE | ACTIVE | {"rounds": 4, "dropout": 0.1},
    "steep, first whole": FIRST_WHOLE | {"rounds": 6, "dropout": 0.2},
    "steep, many, active": STEEP | ACTIVE | {"federation": {"cohort_size": 26}, "rounds": 1},
    "bracketed": BRACKETED,
    "bracketed, sparse": BRACKETED | SPARSE | {"dropout": 0.05},
    "histogram": HISTOGRAM,
    "histogram, active": HISTOGRAM | ACTIVE,
    "bracketed, proved": proved(BRACKETED) | {"dropout": 0.1},
    "histogram, proved": proved(HISTOGRAM) | {"dropout": 0.1},
    "averaging": AVERAGING | {"dropout": 0.35, "rounds": 4},
    "averaging, sparse": AVERAGING | SPARSE | {"dropout": 0.05, "rounds": 3},
    "hiding": HIDING | {"dropout": 0.1, "rounds": 3},
    "noisy": {
        "quantile": {"method": "noisy", "noise": "1/2", "weights": "equal", "max_queries": 0}
    },
    "powers of two": {"quantile": {"weights": "powers-of-two"}},
}
LONG = {
    "steep, first whole, active",
    "steep, first whole",
    "steep, many, active",
    "bracketed, proved",
    "histogram, proved",
}


def serious(report):
    return [f for f in report.findings if f.severity >= Severity.MEDIUM]


def limits(**changes):
    """What the settings of a run say of its server; the tail is small in so small cohorts."""
    config = config_of(**of(changes))
    limits = ("max_pivots", "max_mm_pivots_per_device")
    policy = policy_of(config)
    asked = tuple(f"policy.{name}={getattr(policy, name)}" for name in limits)
    adversary = Adversary(config.privacy.adversary)
    return Options(adversary=adversary, min_cohort=5, limits=asked)


def of(settings):
    """The settings of a run without those of how it is played."""
    return {k: v for k, v in settings.items() if k in {*SETTINGS, "policy"}}


def outcomes(report):
    return {check.name: check.outcome for check in report.checks}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Every run, with drop-outs; played once."""
    runs = {}

    def play(name):
        if name not in runs:
            settings = {"rounds": 2, "dropout": 0.15, "batches": 2, "length": 9} | RUNS[name]
            runs[name] = play_honestly(tmp_path_factory.mktemp("run"), **settings)
        return runs[name]

    return play


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in RUNS]
)
def test_nothing_is_found_and_every_sum_is_computed_again(played, name):
    run = played(name)
    report = audit(run.transcript, replace(limits(**of(RUNS[name])), truth=run.truth))
    assert serious(report) == []
    released = sum(round_report.secure_sums for round_report in run.reports)
    assert report.sums_replayed == report.sums_released == released
    assert report.full_rounds == report.rounds == len(run.reports)
    done = {name: one for name, one in outcomes(report).items() if name != RunAgain.name}
    assert set(done.values()) <= {Outcome.PASSED, Outcome.EMPTY}
    assert list(done.values()).count(Outcome.PASSED) > list(done.values()).count(Outcome.EMPTY)
    assert report.head == run.mark.digest.hex()
    assert report.statistics.tests > 0


@pytest.mark.slow
def test_devices_were_lost_at_every_stage_and_rounds_given_up(played):
    """Control: the runs above are not all smooth."""
    for name in RUNS:
        played(name)
    runs = [played(name) for name in RUNS]
    lost = sum((run.lost_at for run in runs), Counter())
    assert set(lost) == {stage.name.lower() for stage in Stage}
    assert sum(report.aborted is not None for run in runs for report in run.reports) >= 3
    ended = {str(report.search_ended) for run in runs for report in run.reports}
    assert {"exact", "last device", "shrank", "too few"} <= ended


@pytest.mark.parametrize("late", [False, True])
def test_a_device_may_vanish_at_any_step_late_or_not(tmp_path, late):
    """One device and one step in every round; of the slots, the first, a middle and the last."""
    num_slots = len(config_of_slots())
    steps = [
        Step(stage, slot)
        for stage in Stage
        for slot in ((0, 1, num_slots - 1) if stage >= Stage.MASK else (0,))
    ]

    def one_by_one(round_index, device_ids, num_slots):
        del num_slots
        return {device_ids[3 + round_index % 2]: Vanish(steps[round_index], late=late)}

    few = {"federation": {"cohort_size": 6}}
    run = play_honestly(
        tmp_path, rounds=len(steps), dropouts=one_by_one, batches=2, length=8, **few
    )
    assert sum(run.lost_at.values()) >= len(steps) - 2  # a search may end before the middle slot
    report = audit(run.transcript, replace(limits(**few), truth=run.truth))
    assert serious(report) == []
    assert report.sums_replayed == report.sums_released > len(steps)
    assert bool([f for f in report.findings if f.rule == "input.late"]) == late


def config_of_slots():
    """Slots of a session of the settings: one for each query, and the update's."""
    return range(SETTINGS["quantile"]["max_queries"] + 1)


@pytest.mark.slow
@settings(max_examples=4)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    st.sampled_from([STEEP, BRACKETED, HISTOGRAM]),
    st.sampled_from([{}, ACTIVE]),
)
def test_no_drop_outs_look_like_an_attack(tmp_path_factory, seed, dropout, method, active):
    changes = method | active
    folder = tmp_path_factory.mktemp("run")
    run = play_honestly(
        folder, rounds=2, dropout=dropout, seed=seed, batches=2, length=5, **changes
    )
    report = audit(run.transcript, limits(**changes))
    assert serious(report) == []
    assert report.sums_replayed == sum(round_report.secure_sums for round_report in run.reports)
    assert report.full_rounds == 2


def test_a_round_that_is_given_up_is_no_finding(tmp_path):
    """Enough shares come for its sum, but late: the server cannot have used them."""

    def all_late(round_index, device_ids, num_slots):
        del round_index
        step = Step(Stage.UNMASK, num_slots - 1)
        return {device: Vanish(step, late=True) for device in device_ids[:8]}

    run = play_honestly(tmp_path, rounds=1, dropouts=all_late, **AVERAGING)
    assert "threshold" in run.reports[0].aborted
    assert audit(run.transcript).findings == ()


@pytest.mark.slow
def test_a_round_that_is_given_up_after_sums_is_named(tmp_path):
    def nobody_trains(round_index, device_ids, num_slots):
        del round_index
        return {device: Vanish(Step(Stage.MASK, num_slots - 1)) for device in device_ids[:9]}

    run = play_honestly(tmp_path, rounds=1, dropouts=nobody_trains)
    assert run.reports[0].aborted is not None
    report = audit(run.transcript, Options(min_cohort=5))
    assert [f.rule for f in report.findings if f.severity is Severity.LOW] == ["retry.aborted"]
    assert serious(report) == []


@pytest.mark.slow
def test_the_same_transcript_gives_the_same_report(played):
    run = played("histogram, active")
    first, second = (audit(run.transcript, Options(truth=run.truth)) for _ in range(2))
    assert first == second
    assert first.to_json() == second.to_json()


def resume(run, *, rounds, **changes):
    """Play further rounds onto a record, as a process does that knows its checkpoint only."""
    state, config, seeds = run.state, config_of(**changes), Seeds(1)
    ids = sorted({device for device, _ in run.told[0].measured})
    with write_record(run.transcript) as record:
        writer = TranscriptWriter(record, "full")
        writer.resume(state.round)
        strategy, secure = build_strategy(config), build_rounds(config, writer)
        for number in range(state.round + 1, state.round + rounds + 1):
            writer.begin_round(number, ids)
            devices = device_objects(StandIn(one, number) for one in ids)
            cohort = SimulatedCohort(devices, state.round, seeds, secure)
            state, report = strategy.apply(state, cohort)
            writer.end_round(report.aborted)
        writer.finish(state.round)
        record.keep()


def test_a_resumed_run_is_low_at_most(tmp_path):
    """Simulated devices have other identities then: LOW, and once for each."""
    changes = {"federation": {"cohort_size": 6}}
    run = play_honestly(tmp_path, rounds=1, finish=False, **changes)
    resume(run, rounds=2, **changes)
    report = audit(run.transcript, limits())
    assert serious(report) == []
    assert report.rounds == 3
    changed = [f for f in report.findings if f.rule == "keys.identity-changed"]
    assert [f.severity for f in changed] == [Severity.LOW] * 6
    assert {f.evidence[0].round for f in changed} <= {2}


def test_a_round_without_a_search_does_not_forget_the_threshold(tmp_path):
    """The next search starts from the last one, as its server does."""

    def lose_one(round_index, device_ids, num_slots):
        del num_slots
        return {device_ids[0]: Vanish(Step(Stage.RECEIPT))} if round_index == 1 else {}

    changes = {"quantile": {"method": "mm", "max_queries": 2, "min_cohort": 10}, "policy": BY_MM}
    run = play_honestly(tmp_path, rounds=3, dropouts=lose_one, batches=3, **changes)
    assert [report.search_ended for report in run.reports] == ["budget", "too few", "budget"]
    report = audit(run.transcript, limits())
    assert [f for f in report.findings if f.rule == "question.unfounded"] == []


@pytest.mark.parametrize("stage", [Stage.MASK, Stage.UNMASK])
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_lost_round_leaves_the_start_of_the_next_search_where_it_was(tmp_path, stage, slot):
    """Also if it had announced a threshold."""

    def lose_three(round_index, device_ids, num_slots):
        del num_slots
        step = Step(stage, slot)
        return {device: Vanish(step) for device in device_ids[:3]} if round_index == 1 else {}

    changes = {"federation": {"cohort_size": 7}, **HISTOGRAM}
    run = play_honestly(tmp_path, rounds=3, dropouts=lose_three, batches=3, **changes)
    assert [bool(report.aborted) for report in run.reports] == [False, True, False]
    report = audit(run.transcript, limits())
    assert [f for f in report.findings if f.rule == "question.unfounded"] == []


@pytest.fixture(scope="module")
def one_sum(tmp_path_factory):
    return play_honestly(tmp_path_factory.mktemp("run"), rounds=1, length=6, **AVERAGING)


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_model_of_another_length_is_no_crash(one_sum, tmp_path, cut):
    def shorten(data):
        with suppress(DecodeError):
            envelope = round_wire.decode(data)
            if isinstance(envelope, Announce):
                return round_wire.encode(replace(envelope, models=envelope.models[:cut]))
        return data

    edited(one_sum.transcript, tmp_path / "t.sqlite", bodies=shorten)
    assert "session.impossible" in {f.rule for f in serious(audit(tmp_path / "t.sqlite"))}


def in_sums(**changes):
    """Changes the fields of every sum."""

    def change(table, fields):
        if table == "sums":
            fields |= {name: new(fields[name]) for name, new in changes.items()}

    return change


def test_a_sum_of_an_absurd_length_is_no_crash(one_sum, tmp_path):
    edited(one_sum.transcript, tmp_path / "t.sqlite", in_sums(length=lambda _: 1 << 60))
    assert "record.malformed" in {f.rule for f in serious(audit(tmp_path / "t.sqlite"))}


def test_a_sum_over_other_devices_than_were_asked_for_differs(one_sum, tmp_path):
    def put_a_stranger_in(devices):
        return (2).to_bytes(4, "little") + devices[4:]

    assert serious(audit(one_sum.transcript)) == []
    edited(one_sum.transcript, tmp_path / "t.sqlite", in_sums(contributors=put_a_stranger_in))
    assert "sums.differ" in {f.rule for f in serious(audit(tmp_path / "t.sqlite"))}


@pytest.mark.parametrize("device", [1 << 32, (1 << 63) - 1, -1])
def test_an_id_that_no_device_can_have_is_no_crash(one_sum, tmp_path, device):
    def rename(table, fields):
        if table == "messages" and fields["peer"] == 1:
            fields["peer"] = device

    edited(one_sum.transcript, tmp_path / "t.sqlite", rename)
    assert "record.malformed" in {f.rule for f in serious(audit(tmp_path / "t.sqlite"))}
