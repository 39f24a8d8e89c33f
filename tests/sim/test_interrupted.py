"""Runs whose process ends in a round: no device answers twice, and everything is recorded."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest
from doubles import Killed, KilledAfter, run
from fresh_python import run_python
from records import (
    change,
    checkpoint_of,
    evaluations_of,
    events_of,
    note,
    read_truth,
    rows_of,
    said_of,
    write_rows,
)
from reports import serious

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce
from deltafl.secagg.wire import Kind
from deltafl.sim.cohort.sampling import InterruptedCohort
from deltafl.sim.errors import ChainError, RunDirectoryError, RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.record import HAPPENED
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    Begin,
    Message,
    Resumed,
    RoundEnd,
    TranscriptWriter,
    read_transcript,
)
from deltafl.sim.run import engine
from deltafl.sim.run.accounting import account_of, privacy_of
from deltafl.sim.settings.config_io import build_config, to_toml

pytestmark = pytest.mark.usefixtures("no_figures")

ROUNDS = 3
PATHS = ("run", "whole")
BEGIN, RESUMED = "begin", "resumed"
KINDS = {
    "masked": {},
    "noisy": {"quantile": {"method": "noisy", "noise": 1, "weights": "equal"}},
    "levels": {
        "federation": {"levels": ["4/5", "1/2"]},
        "policy": {"max_pivots": 52},
        "privacy": {"min_honest_tail": 1},
    },
    "fedavg": {"federation": {"algorithm": "private-fedavg"}},
}


def settings_of(kind="masked", **changes):
    settings = {
        "data": {"num_devices": 120},
        "federation": {
            "algorithm": "private-delta-fl",
            "theta": "4/5",
            "rounds": ROUNDS,
            "cohort_size": 8,
            "evaluate_every": 2,
        },
        "training": {"batch_size": 64, "device": "cpu"},
        "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
        "privacy": {"min_cohort": 5, "transcript": "full"},
    }
    for section, values in [*KINDS[kind].items(), *changes.items()]:
        settings[section] = {**settings.get(section, {}), **values}
    return build_config([settings])


def killed_in(monkeypatch, config, path, *, number, after=None, resume=False):
    """A run whose process ends in a round: after so many messages, or between END and checkpoint.

    What is not kept by then is undone, so this leaves what SIGKILL leaves.
    """
    in_round = [0, 0]
    begin, message, end = (
        TranscriptWriter.begin_round,
        TranscriptWriter.message,
        TranscriptWriter.end_round,
    )

    def begin_round(self, which, cohort, mark=None):
        begin(self, which, cohort, mark)
        in_round[:] = [which, 0]
        if which == number and after == 0:
            raise Killed

    def take(self, *, sent, peer, data):
        message(self, sent=sent, peer=peer, data=data)
        in_round[1] += 1
        if in_round == [number, after]:
            raise Killed

    def end_round(self, aborted, truth=b""):
        end(self, aborted, truth)
        if in_round[0] == number and after is None:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TranscriptWriter, "begin_round", begin_round)
        patch.setattr(TranscriptWriter, "message", take)
        patch.setattr(TranscriptWriter, "end_round", end_round)
        with pytest.raises(Killed):
            run(config, path, resume=resume)


def messages_of(transcript):
    """What every device sent, by device, context, kind and slot."""
    sent, decoder = Counter(), Decoder()
    for record in read_transcript(transcript):
        if isinstance(record, Begin):
            decoder = Decoder()
        elif isinstance(record, Message):
            content = decoder.decode(record).content
            if not record.sent:
                context = decoder.params[content.tag].context
                sent[record.peer, context, content.kind, content.slot] += 1
    return sent


def lenient(path):
    return audit(path, Options())


def lost_rounds(path):
    events = events_of(path)
    return [event["round"] for event in events if event.get("aborted") == INTERRUPTED]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 30, 75, None])
def test_an_interrupted_round_is_lost_and_its_context_never_used_again(
    kind, after, tmp_path, monkeypatch
):
    path, config = tmp_path / "run", settings_of(kind)
    killed_in(monkeypatch, config, path, number=2, after=after)
    left = rows_of(path / "record.sqlite")
    summary = run(config, path, resume=True)
    assert lost_rounds(path) == [2]
    assert (summary["lost_rounds"], summary["interrupted_rounds"]) == (1, 1)
    assert summary["rounds"] == ROUNDS
    assert rows_of(path / "record.sqlite")[: len(left)] == left
    sent = messages_of(path / "record.sqlite")
    assert max(sent.values()) == 1
    searches = Counter(device for device, _, kind, slot in sent if (kind, slot) == (Kind.MASKED, 0))
    spent = privacy_of(config, max(searches.values()))
    if spent is not None:
        assert summary["search_privacy"]["epsilon"] >= spent.epsilon
    assert serious(lenient(path)) == set()
    begun = {r.round: r.cohort for r in read_transcript(path / "record.sqlite") if is_begin(r)}
    assert sorted(begun) == [1, 2, 3]
    assert not set(begun[2]) & set(begun[3])  # they may have answered for the model


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 75])
def test_a_lost_round_is_spent_like_any_other(after, tmp_path, monkeypatch):
    """Of 60 devices, thirty are in each round; by the third, some are in their second."""
    path = tmp_path / "run"
    config = settings_of(
        "noisy",
        dp={"noise": 1},
        federation={"cohort_size": 30},
        privacy={"min_cohort": 10, "max_weight": 1},
    )
    killed_in(monkeypatch, config, path, number=2, after=after)
    summary = run(config, path, resume=True)
    assert lost_rounds(path) == [2]
    account = account_of(config, 60, summary["model_parameters"])
    told = [event["epsilon"] for event in events_of(path)]
    assert told == [account.after(number).epsilon for number in (1, 2, 3)]
    assert told[1] < told[2] == summary["privacy"]["epsilon"]
    begun = [r.cohort for r in read_transcript(path / "record.sqlite") if is_begin(r)]
    invited = Counter(device for cohort in begun for device in cohort)
    assert max(invited.values()) <= summary["privacy"]["participations"] == 2


def is_begin(record):
    return isinstance(record, Begin)


@pytest.mark.slow
@pytest.mark.parametrize("after", [75, None])
def test_an_audit_with_the_truth_does_without_that_of_a_lost_round(after, tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of(privacy={"truth": True})
    killed_in(monkeypatch, config, path, number=2, after=after)
    run(config, path, resume=True)
    report = audit(path, Options(truth=path / "truth.sqlite"))
    assert serious(report) == set()
    opening = next(read_transcript(path / "record.sqlite"))
    told = {one.round for one in read_truth(path / "truth.sqlite", opening.run_id)}
    assert told == {1, 3}


@pytest.mark.parametrize("kind", ["masked", "levels"])
def test_the_model_after_a_lost_round_is_the_one_before_it(kind, tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of(kind)
    killed_in(monkeypatch, config, path, number=ROUNDS)
    before = checkpoint_of(path).state
    run(config, path, resume=True)
    after = checkpoint_of(path).state
    assert after.model.tobytes() == before.model.tobytes()
    assert (before.round, after.round) == (ROUNDS - 1, ROUNDS)
    assert after.eta == before.eta


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, ROUNDS])
def test_the_first_and_the_last_round_may_be_lost(number, tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of()
    killed_in(monkeypatch, config, path, number=number, after=40)
    run(config, path, resume=True)
    assert lost_rounds(path) == [number]
    assert serious(lenient(path)) == set()
    assert [one.round for one in evaluations_of(path)] == [0, 2, 3]


def is_warm(transcript):
    """Of each round, whether its search starts at a threshold of an earlier one."""
    starts = {}
    for record in read_transcript(transcript):
        if isinstance(record, Message) and record.is_whole and record.sent:
            envelope = round_wire.decode(record.head)
            if isinstance(envelope, Announce):
                starts[record.round] = envelope.levels.rounds[0].warm_start is not None
    return [starts[number] for number in sorted(starts)]


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("alone", [False, True])
def test_a_search_starts_at_the_threshold_of_a_round_that_was_kept(
    lost, alone, tmp_path, monkeypatch
):
    """The search of a lost round may have ended; the server has not kept its result."""
    path, config = tmp_path / "run", settings_of(federation={"rounds": 4})
    killed_in(monkeypatch, config, path, number=lost)
    run(config, path, resume=True)
    assert is_warm(path / "record.sqlite") == [False, lost == 2, True, True]
    source = path / "record.sqlite" if alone else path
    assert serious(audit(source, Options(min_cohort=5))) == set()


def test_a_search_that_starts_afresh_after_a_lost_round_is_found(tmp_path, monkeypatch):
    """The control of the test above: the run still has the threshold of the round before."""
    path, config = tmp_path / "run", settings_of()
    killed_in(monkeypatch, config, path, number=2)
    cold = replace(config, quantile=replace(config.quantile, warm_start=False))
    note(path, "settings", to_toml(cold))
    run(cold, path, resume=True)
    assert is_warm(path / "record.sqlite") == [False, True, False]
    report = audit(path / "record.sqlite", Options(min_cohort=5))
    assert serious(report) == {"parameters.changed"}


def test_an_interruption_is_none_of_the_rounds_that_are_lost_in_a_row():
    """A federation's server may find that it was interrupted while it plays on."""
    lost = engine._lost_after(["too few"], {"aborted": INTERRUPTED})
    assert lost == ["too few"]
    assert engine._lost_after(lost, {"aborted": "too late"}) == ["too few", "too late"]
    assert engine._lost_after(lost, {"aborted": None}) == []


def test_a_run_that_is_interrupted_in_every_round_ends_all_the_same(tmp_path, monkeypatch):
    """An interruption is not the settings' fault, and so no reason to give up."""
    path, config = tmp_path / "run", settings_of(federation={"rounds": 5})
    for number in range(1, 6):
        killed_in(monkeypatch, config, path, number=number, after=20, resume=number > 1)
    summary = run(config, path, resume=True)
    assert summary["interrupted_rounds"] == 5
    assert serious(lenient(path)) == set()
    assert max(messages_of(path / "record.sqlite").values()) == 1


def test_devices_that_may_have_answered_are_not_asked_again(tmp_path, monkeypatch):
    """With too few others, the run gives up."""
    path, config = tmp_path / "run", settings_of(data={"num_devices": 26})
    killed_in(monkeypatch, config, path, number=1, after=0)
    with pytest.raises(RunError, match="8 of 12 devices may have answered"):
        run(config, path, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("sums", ["ideal", "clear"])
@pytest.mark.parametrize("moment", ["in the round", "before the checkpoint"])
def test_without_masks_the_round_is_played_again_to_the_same_bits(
    sums, moment, tmp_path, monkeypatch
):
    algorithm = "delta-fl" if sums == "clear" else "private-delta-fl"
    settings = {"federation": {"algorithm": algorithm}, "privacy": {"sums": "ideal"}}
    config = settings_of(**settings)
    whole = run(config, tmp_path / "whole")

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(engine, "save_checkpoint", dying_in_round_two(engine.save_checkpoint))
        if moment == "in the round":
            patch.setattr(engine, "add_event", die)
        with pytest.raises(Killed):
            run(config, tmp_path / "run")
    summary = run(config, tmp_path / "run", resume=True)
    assert summary["final_model_sha256"] == whole["final_model_sha256"]
    assert summary["lost_rounds"] == 0


def dying_in_round_two(save):
    def save_checkpoint(record, checkpoint):
        if checkpoint.state.round == 2:
            raise Killed
        save(record, checkpoint)

    return save_checkpoint


def test_a_run_without_checkpoints_whose_devices_have_answered_is_not_begun_again(tmp_path):
    path, config = tmp_path / "run", settings_of()
    with pytest.raises(Killed):
        run(config, path, progress=KilledAfter(1))
    change(path, "DELETE FROM arrays")
    before = rows_of(path / "record.sqlite")
    with pytest.raises(RunDirectoryError, match="devices have answered in this run"):
        run(config, path, resume=True)
    assert rows_of(path / "record.sqlite") == before


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """The directory of a process that ended in round 2, and how far its checkpoint goes."""
    path = tmp_path_factory.mktemp("left") / "run"
    with pytest.MonkeyPatch.context() as patch:
        killed_in(patch, settings_of(), path, number=2)
    return path, checkpoint_of(path).mark


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2, 30, -1])
def test_a_record_that_ends_anywhere_after_the_checkpoint_is_gone_on_with(left, place, tmp_path):
    """As after a power cut, which may take back what no begin and no end has synchronised."""
    path, mark = tmp_path / "run", left[1]
    shutil.copytree(left[0], path)
    rows = rows_of(path / "record.sqlite")
    kept = len(rows) if place < 0 else mark.num_frames + place
    for table in (*HAPPENED, "bodies"):
        change(path, (f"DELETE FROM {table} WHERE number >= ?", (kept,)))  # noqa: S608
    run(settings_of(), path, resume=True)
    assert lost_rounds(path) == [2] * (place != 0)
    found = list(read_transcript(path / "record.sqlite"))
    [resumed] = [record for record in found if isinstance(record, Resumed)]
    assert resumed.round == 1
    assert rows_of(path / "record.sqlite")[:kept] == rows[:kept]
    assert serious(lenient(path)) == set()


def test_a_record_that_is_damaged_is_not_gone_on_with(left, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(left[0], path)
    change(path, "UPDATE messages SET peer = peer + 1 WHERE round = 2")
    before = rows_of(path / "record.sqlite")
    with pytest.raises(ChainError, match="edited"):
        run(settings_of(), path, resume=True)
    assert rows_of(path / "record.sqlite") == before


def test_a_round_that_does_not_follow_the_checkpoint_is_damage(left, tmp_path):
    path, mark = tmp_path / "run", left[1]
    shutil.copytree(left[0], path)
    rows = rows_of(path / "record.sqlite")
    [begin] = [row for row in rows[mark.num_frames :] if row[2].get("what") == BEGIN]
    begin[2]["round"] = 3
    write_rows(path / "record.sqlite", rows)
    with pytest.raises(RunDirectoryError, match="round 3 began after round 1"):
        run(settings_of(), path, resume=True)


def at_every_write(monkeypatch, number):
    """Die just after the number-th checkpoint was written and kept."""
    writes, original = 0, engine.save_checkpoint

    def save_checkpoint(record, checkpoint):
        nonlocal writes
        original(record, checkpoint)
        record.keep()
        writes += 1
        if writes == number:
            raise Killed

    monkeypatch.setattr(engine, "save_checkpoint", save_checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_between_checkpoint_and_next_round_nothing_is_lost(number, tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of()
    with monkeypatch.context() as patch:
        at_every_write(patch, number)
        with pytest.raises(Killed):
            run(config, path)
    summary = run(config, path, resume=True)
    assert summary["lost_rounds"] == 0
    assert [one.round for one in evaluations_of(path)] == [0, 2, 3]
    assert serious(lenient(path)) == set()


@pytest.mark.parametrize("sums", ["masked", "ideal"])
def test_an_interruption_of_an_evaluation_loses_no_round(sums, tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of(privacy={"sums": sums})
    whole = run(config, tmp_path / "whole")
    original = engine.write_evaluation

    def write_evaluation(record, theta, evaluation):
        if evaluation.round == 2:
            raise Killed
        original(record, theta, evaluation)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "write_evaluation", write_evaluation)
        with pytest.raises(Killed):
            run(config, path)
    summary = run(config, path, resume=True)
    assert (summary["lost_rounds"], checkpoint_of(path).state.round) == (0, 3)
    assert summary["final_model_sha256"] == whole["final_model_sha256"]
    evaluated = [evaluations_of(tmp_path / name) for name in PATHS]
    assert evaluated[0] == evaluated[1]


@pytest.mark.slow
def test_a_process_that_ends_while_it_resumes_loses_nothing_more(tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of()
    killed_in(monkeypatch, config, path, number=2, after=50)

    def die(*_):
        raise Killed

    for target, name in [(engine, "save_checkpoint"), (engine, "add_event")]:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, die)
            with pytest.raises(Killed):
                run(config, path, resume=True)
    with monkeypatch.context() as patch:
        at_every_write(patch, 1)  # the checkpoint after the lost round
        with pytest.raises(Killed):
            run(config, path, resume=True)
    run(config, path, resume=True)
    assert lost_rounds(path) == [2]
    resumed = [r for r in read_transcript(path / "record.sqlite") if isinstance(r, Resumed)]
    assert [record.round for record in resumed] == [1, 2]
    assert serious(lenient(path)) == set()


@pytest.mark.slow
def test_a_finished_run_is_left_alone(tmp_path, monkeypatch):
    path, config = tmp_path / "run", settings_of()
    killed_in(monkeypatch, config, path, number=2, after=50)
    run(config, path, resume=True)
    note(path, "summary", None)  # killed just before it was written
    before = rows_of(path / "record.sqlite")
    run(config, path, resume=True)
    assert rows_of(path / "record.sqlite") == before


def test_interrupted_rounds_count_the_sums_of_each_level():
    class TwoLevels:
        rounds = (None, None)

        @staticmethod
        def first_slot(level):
            return 4 * level

    cohort = InterruptedCohort(None, (0, 3, 4), "gone")
    outcomes = cohort.secure_round(TwoLevels, []).outcomes
    assert [outcome.secure_sums for outcome in outcomes] == [2, 1]
    assert {outcome.aborted for outcome in outcomes} == {"gone"}
    assert all(outcome.asked and outcome.update is None for outcome in outcomes)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The directory of a run that lost its round 2."""
    path = tmp_path_factory.mktemp("resumed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        killed_in(patch, settings_of(), path, number=2, after=75)
        run(settings_of(), path, resume=True)
    return path


def first(found, kind, number=None):
    of_kind = (n for n, row in enumerate(found) if row[2].get("what") == kind)
    return next(n for n in of_kind if number in (None, found[n][2]["round"]))


def without_the_begin(found):
    del found[first(found, BEGIN, 2)]


def without_the_resumption(found):
    del found[first(found, RESUMED)]


def with_a_begin_again(found):
    found.insert(first(found, RESUMED), found[first(found, BEGIN, 2)])


def with_an_older_state(found):
    found[first(found, RESUMED)][2]["round"] = 7


def with_the_lost_round_kept(found):
    found[first(found, RESUMED)][2]["round"] = 2


def with_the_round_cut_and_played_again(found):
    """What a run did that cut its transcript back: round 2 twice, and only the second recorded."""
    begin, resumed = first(found, BEGIN, 2), first(found, RESUMED)
    del found[begin : resumed + 1]
    for row in found[begin:]:
        if row[0] in ("messages", "sums") or row[2].get("what") in (BEGIN, "closed", "end"):
            row[2]["round"] -= 1


@pytest.mark.parametrize(
    ("cut", "rule"),
    [
        (without_the_begin, "record.missing"),
        (without_the_resumption, "record.missing"),
        (with_a_begin_again, "record.reordered"),
        (with_an_older_state, "record.disagrees"),
        (with_the_lost_round_kept, "record.missing"),
        (with_the_round_cut_and_played_again, "record.disagrees"),
    ],
)
def test_a_round_that_is_cut_out_under_a_new_chain_is_found(cut, rule, resumed, tmp_path):
    shutil.copytree(resumed, tmp_path / "run")
    found = rows_of(resumed / "record.sqlite")
    cut(found)
    digest = write_rows(tmp_path / "run" / "record.sqlite", found)
    summary = {**said_of(resumed, "summary"), "record_sha256": digest.hex()}
    note(tmp_path / "run", "summary", summary)
    assert rule in serious(lenient(tmp_path / "run"))


@pytest.mark.slow
def test_the_run_that_the_cuts_are_made_in_is_clean(resumed):
    """The control of the test above; the sums that were released are told of, as low."""
    report = lenient(resumed)
    assert serious(report) == set()
    assert report.rounds == ROUNDS
    ends = [r for r in read_transcript(resumed / "record.sqlite") if isinstance(r, RoundEnd)]
    assert [end.round for end in ends] == [1, 3]


@pytest.mark.slow
def test_runs_that_are_killed_at_random_and_resumed_never_ask_twice():
    done = run_python("-W", "error", "tests/sim/kills.py", "--kills", "9", "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["kills"] == 9


@pytest.mark.slow
def test_an_uninterrupted_run_does_not_depend_on_what_is_recorded(tmp_path):
    """Masked and ideal runs give the same model, and only the first records its messages."""
    config = settings_of()
    ideal = replace(config, privacy=replace(config.privacy, sums="ideal"))
    summaries = [run(config, tmp_path / "masked"), run(ideal, tmp_path / "ideal")]
    assert len({summary["final_model_sha256"] for summary in summaries}) == 1
