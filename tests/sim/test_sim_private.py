"""Private runs from end to end: real masks and ideal sums train the same model."""

import json
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from doubles import Killed, KilledAfter, run
from records import checkpoint_of, events_of, note, read_truth, toml_of

from deltafl.fl.data.load import DatasetSpec
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import Encoding
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.secagg import Adversary, Stage, Step, ThreatModel, Vanish
from deltafl.secagg.session import NoObserver
from deltafl.sim.cli import main
from deltafl.sim.cohort.dropouts import stages_of_session
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.data.dataset import dataset_spec
from deltafl.sim.errors import ConfigError, RunDirectoryError
from deltafl.sim.record.transcript import (
    Closing,
    Message,
    Resumed,
    RoundEnd,
    Sum,
    read_transcript,
)
from deltafl.sim.run.algorithms import build_rounds, build_strategy, sessions_of
from deltafl.sim.run.arms import check_arms
from deltafl.sim.settings.config import DataConfig
from deltafl.sim.settings.config_io import build_config

DELTA = "private-delta-fl"

pytestmark = pytest.mark.usefixtures("no_figures")

PRIVATE_RUN = {
    "data": {"num_devices": 24},
    "federation": {"algorithm": DELTA, "rounds": 3, "cohort_size": 8, "evaluate_every": 3},
    "privacy": {"min_cohort": 5, "transcript": "full"},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "training": {"batch_size": 64, "device": "cpu"},
}


@pytest.fixture
def private():
    return build_config([PRIVATE_RUN])


def learnt(path):
    """All that the server learnt, but not what the messages looked like."""
    left_out = ("bytes_up_per_device", "train_cpu_s", "protocol_cpu_s", "wall_s", "stage_s")
    return [
        {key: value for key, value in event.items() if key not in left_out}
        for event in events_of(path)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dropout", "privacy"),
    [(0.0, {}), (0.3, {}), (0.3, {"signed": True}), (0.3, {"adversary": "active"})],
)
def test_masked_and_ideal_runs_train_the_same_model(private, tmp_path, dropout, privacy):
    private = replace(
        private,
        faults=replace(private.faults, dropout=dropout),
        privacy=replace(private.privacy, **privacy),
    )
    ideal = replace(private, privacy=replace(private.privacy, sums="ideal"))
    summaries = [run(private, tmp_path / "masked"), run(ideal, tmp_path / "ideal")]
    assert learnt(tmp_path / "masked") == learnt(tmp_path / "ideal")
    assert len({summary["final_model_sha256"] for summary in summaries}) == 1
    assert [summary["sums"] for summary in summaries] == ["masked", "ideal"]
    assert summaries[0]["bytes_up_per_device_round"] > 0
    assert bool(summaries[0]["dropped_by_stage"]) == (dropout > 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bracketed", "histogram"])
def test_a_run_with_proved_votes_trains_the_same_model(private, tmp_path, method):
    quantile = replace(private.quantile, method=method, search="verified", votes="proved")
    proved = replace(
        private,
        privacy=replace(private.privacy, signed=True),
        quantile=replace(quantile, max_queries=2),
        policy=replace(private.policy, max_pivots=128),
    )
    trusted = replace(proved, quantile=replace(proved.quantile, votes="trusted"))
    summaries = {
        name: run(config, tmp_path / name)
        for name, config in {"proved": proved, "trusted": trusted}.items()
    }
    assert learnt(tmp_path / "proved") == learnt(tmp_path / "trusted")
    sent = {name: found["bytes_up_per_device_round"] for name, found in summaries.items()}
    assert sent["proved"] > sent["trusted"] + 500
    assert main(["audit", str(tmp_path / "proved")]) == 0


@pytest.mark.parametrize(
    ("quantile", "told"),
    [
        (
            {"search": "verified", "method": "mm"},
            "quantile.method = 'mm' has no proved votes: take bracketed or histogram",
        ),
        ({"search": "trusted"}, "quantile.search = 'trusted': must be 'verified'"),
        ({"search": "auto"}, "quantile.search = 'auto': must be 'verified'"),
    ],
)
def test_proved_votes_take_a_verified_search(private, quantile, told):
    changed = replace(
        private,
        privacy=replace(private.privacy, signed=True),
        quantile=replace(private.quantile, votes="proved", **quantile),
    )
    with pytest.raises(ConfigError, match=told):
        check_arms(changed, 10, None)


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["curious", "active"])
def test_devices_lost_at_every_stage_are_the_same_in_masked_and_ideal_runs(
    private, tmp_path, adversary
):
    settings = {key: dict(value) for key, value in PRIVATE_RUN.items()}
    settings["data"] = {"num_devices": 96}  # after a lost round, others are asked
    settings["federation"] |= {"theta": 1, "rounds": 8, "cohort_size": 12, "evaluate_every": 8}
    settings["privacy"] |= {"adversary": adversary, "transcript": "sums"}
    settings["faults"] = {"dropout": 0.3}
    summaries = {}
    for sums in ("masked", "ideal"):
        settings["privacy"]["sums"] = sums
        summaries[sums] = run(build_config([settings]), tmp_path / sums)
    assert learnt(tmp_path / "masked") == learnt(tmp_path / "ideal")
    lost_at = summaries["masked"]["dropped_by_stage"]
    # Without a query there is no list of devices to be signed before one.
    stages = set(stages_of_session(signed=adversary == "active")) - {Stage.LIST}
    assert set(lost_at) == {stage.name.lower() for stage in stages}
    assert any(event["aborted"] is None for event in learnt(tmp_path / "masked"))


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_a_query_that_a_device_misses_has_no_sum_and_ends_the_search(
    private, tmp_path, monkeypatch, signed
):
    def lose_one(round_index, device_ids, num_slots):
        del num_slots
        # Later from round to round; its vector comes when the slot was given up.
        return {device_ids[0]: Vanish(Step(Stage.MASK, round_index), late=True)}

    monkeypatch.setattr("deltafl.sim.run.algorithms.seeded_dropouts", lambda *_, **__: lose_one)
    for sums in ("masked", "ideal"):
        privacy = replace(private.privacy, sums=sums, signed=signed)
        run(replace(private, privacy=privacy), tmp_path / sums)
    first, *later = learnt(tmp_path / "masked")
    assert learnt(tmp_path / "ideal") == [first, *later]
    # The first query sets the cohort of the search.
    assert first["search_ended"] != "shrank"
    assert first["certified"] is True
    for asked, event in enumerate(later, start=1):
        assert event["search_ended"] == "shrank"
        assert event["certified"] is False
        assert (event["num_queries"], event["secure_sums"]) == (asked, asked + 1)
        assert event["dropped_by_stage"] == {"mask": 1}
        assert event["aborted"] is None
        assert event["kept_devices"] > 0


def strategy_of(**quantile):
    settings = {**PRIVATE_RUN, "quantile": {**PRIVATE_RUN["quantile"], **quantile}}
    return build_strategy(build_config([settings]))


def test_what_a_search_is_to_hide_comes_from_the_settings():
    plain = strategy_of().encoding
    searched = plain.search
    assert (searched.weighting, searched.epsilon_ticks, searched.min_cohort) == ("samples", 0, 0)
    hiding = strategy_of(method="mm", weights="equal", epsilon=0.5, min_cohort=6).encoding
    searched = hiding.search
    assert (searched.weighting, searched.epsilon_ticks, searched.min_cohort) == ("equal", 128, 6)
    assert (
        replace(
            hiding,
            method="bracketed",
            search=SearchParams(plain.search.max_queries, hiding.search.grid),
        )
        == plain
    )


@pytest.mark.parametrize(
    ("method", "own"), [("mm", 30), ("bracketed", 26), ("histogram", 5), ("noisy", 1)]
)
def test_a_search_may_take_as_many_queries_as_its_method_needs_or_as_are_set(method, own):
    options = {"method": method}
    if method == "noisy":
        options |= {"noise": 1, "weights": "equal"}
    assert strategy_of(**options).encoding.search.max_queries == own
    assert strategy_of(**options, max_queries=3).encoding.search.max_queries == 3


def test_the_defaults_of_the_settings_are_those_of_the_library():
    assert build_strategy(build_config([])).encoding == Encoding()
    assert dataset_spec(DataConfig()) == DatasetSpec("digits")


@pytest.mark.parametrize(
    ("epsilon", "ticks"), [(0.0, 0), (2.0**-10, 0), (2.0**-9, 0), (2.0**-8, 1), (8.0, 2048)]
)
def test_an_epsilon_in_nats_is_one_in_ticks_and_half_a_tick_is_none(epsilon, ticks):
    assert strategy_of(method="mm", epsilon=epsilon).encoding.search.epsilon_ticks == ticks


@pytest.mark.parametrize(
    ("quantile", "message"),
    [
        ({"epsilon": 0.01}, r"quantile\.epsilon = 0\.01: must be 0 with .* = 'bracketed'"),
        ({"epsilon": 8.5, "method": "mm"}, r"quantile\.epsilon = 8\.5: must be at most .* = 8"),
    ],
)
def test_an_epsilon_that_does_not_fit_is_refused_before_anything_is_written(
    private, tmp_path, quantile, message
):
    config = replace(private, quantile=replace(private.quantile, **quantile))
    with pytest.raises(ConfigError, match=message):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_searches_that_say_less_train_the_same_model_by_both_kinds_of_sums(private, tmp_path):
    quantile = replace(
        private.quantile, method="mm", weights="powers-of-two", epsilon=0.05, min_cohort=8
    )
    private = replace(
        private,
        quantile=quantile,
        faults=replace(private.faults, dropout=0.2),
        policy=replace(private.policy, max_mm_pivots_per_device=Fraction(10)),
    )
    ideal = replace(private, privacy=replace(private.privacy, sums="ideal"))
    for name, config in (("masked", private), ("ideal", ideal)):
        run(config, tmp_path / name)
    assert learnt(tmp_path / "masked") == learnt(tmp_path / "ideal")


def test_where_too_few_are_there_everybody_is_kept_and_the_warm_start_stays(
    private, tmp_path, monkeypatch
):
    def lose_one(round_index, device_ids, num_slots):
        del num_slots
        return {device_ids[0]: Vanish(Step(Stage.RECEIPT))} if round_index == 1 else {}

    monkeypatch.setattr("deltafl.sim.run.algorithms.seeded_dropouts", lambda *_, **__: lose_one)
    quantile = replace(private.quantile, min_cohort=8)
    run(replace(private, quantile=quantile), tmp_path / "run")
    first, small, last = learnt(tmp_path / "run")
    assert (first["certified"], last["certified"]) == (True, True)
    assert (small["search_ended"], small["certified"]) == ("too few", False)
    assert (small["eta"], small["half_width"]) == (None, None)
    assert (small["num_queries"], small["secure_sums"], small["kept_devices"]) == (0, 1, 7)
    assert checkpoint_of(tmp_path / "run").state.eta == last["eta"]


def test_the_threshold_of_a_round_without_a_search_is_the_one_before(private):
    strategy = strategy_of(min_cohort=9)

    @dataclass
    class Constant:
        id: int
        weight: int = 10

        def loss(self, model):
            return float(1.0 + model[0])

        def update(self, model):
            return np.zeros_like(model)

    state = TrainingState(np.zeros(3, dtype=np.float32), eta=0.75)
    for num_devices, ended in ((8, "too few"), (9, "exact")):
        rounds = build_rounds(build_config([PRIVATE_RUN]), NoObserver())
        cohort = cohort_of(map(Constant, range(num_devices)), rounds)
        after, report = strategy.apply(state, cohort)
        assert report.search_ended == ended
        assert (after.eta, report.eta) == ((0.75, None) if ended == "too few" else (1.0, 1.0))
        assert report.kept_devices == num_devices


def sessions_by(**privacy):
    settings = {**PRIVATE_RUN, "privacy": {**PRIVATE_RUN["privacy"], **privacy}}
    return sessions_of(build_config([settings]))


def test_a_device_insists_on_what_the_configuration_says():
    plain = sessions_by(colluding=0.2)
    assert plain.policy == RoundPolicy(colluding_rate=0.2, min_cohort=5)
    assert plain.threat == ThreatModel(0.2, 0.1)
    assert not plain.signed
    signed = sessions_by(colluding=0.2, signed=True)
    assert signed.signed
    assert signed.policy == plain.policy
    active = sessions_by(colluding=0.2, adversary="active")
    assert active.signed
    assert active.threat == ThreatModel(0.2, 0.1, Adversary.ACTIVE)
    assert active.policy == replace(plain.policy, adversary=Adversary.ACTIVE)


def test_the_default_settings_withstand_an_active_server():
    settings = {**PRIVATE_RUN, "privacy": {"adversary": "active"}}
    settings["federation"] = {**PRIVATE_RUN["federation"], "cohort_size": 12}
    config = build_config([settings])
    model, sessions = np.zeros(5, dtype=np.float32), sessions_of(config)
    levels = build_strategy(config).levels_for(TrainingState(model), 12)
    sessions.params_of_levels(levels, model.tobytes(), bytes(32))
    assert build_rounds(config, NoObserver()).sessions == sessions


@pytest.mark.slow
def test_a_run_directory_from_before_there_were_identities_goes_on(private, tmp_path):
    whole = run(private, tmp_path / "whole")
    with pytest.raises(Killed):
        run(private, tmp_path / "killed", progress=KilledAfter(2))
    lines = toml_of(tmp_path / "killed").splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(("adversary", "signed"))]
    assert len(older) == len(lines) - 2
    note(tmp_path / "killed", "settings", "".join(older))
    resumed = run(private, tmp_path / "killed", resume=True)
    assert resumed["final_model_sha256"] == whole["final_model_sha256"]
    active = replace(private, privacy=replace(private.privacy, adversary="active"))
    with pytest.raises(RunDirectoryError, match=r"was started with privacy\.adversary = 'curious'"):
        run(active, tmp_path / "killed", resume=True)


@pytest.mark.slow
def test_round_one_of_a_linear_model_is_a_tie_and_keeps_everybody(private, tmp_path):
    """All losses are ln 10 up to rounding, which in clear decides who trains."""
    run(private, tmp_path / "run")
    assert learnt(tmp_path / "run")[0]["kept_devices"] == private.federation.cohort_size


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_a_killed_masked_run_goes_on_to_the_same_model(private, tmp_path, signed):
    """In a signed one, devices get identities anew: they would not play a round a second time."""
    private = replace(private, privacy=replace(private.privacy, signed=signed))
    whole = run(private, tmp_path / "whole")
    with pytest.raises(Killed):
        run(private, tmp_path / "killed", progress=KilledAfter(2))
    resumed = run(private, tmp_path / "killed", resume=True)
    assert resumed["final_model_sha256"] == whole["final_model_sha256"]
    assert learnt(tmp_path / "killed") == learnt(tmp_path / "whole")
    _, *records, closing = read_transcript(tmp_path / "killed" / "record.sqlite")
    assert sum(isinstance(record, Resumed) for record in records) == 1
    rounds = [record.round for record in records if not isinstance(record, Resumed)]
    assert rounds == sorted(rounds)
    assert set(rounds) == {1, 2, 3}
    assert closing == Closing(closing.number, 3)


@pytest.mark.slow
def test_the_record_holds_every_message(private, tmp_path):
    summary = run(private, tmp_path / "run")
    records = list(read_transcript(tmp_path / "run" / "record.sqlite"))
    messages = [record for record in records if isinstance(record, Message)]
    assert all(m.is_whole for m in messages)
    received = sum(message.size for message in messages if not message.sent)
    per_device = received / (private.federation.rounds * private.federation.cohort_size)
    assert per_device == pytest.approx(summary["bytes_up_per_device_round"])


@pytest.mark.slow
def test_the_transcript_holds_every_sum_and_the_end_of_every_round(private, tmp_path):
    summary = run(private, tmp_path / "run")
    records = list(read_transcript(tmp_path / "run" / "record.sqlite"))
    assert sum(isinstance(record, Sum) for record in records) == summary["secure_sums"]
    ends = [record for record in records if isinstance(record, RoundEnd)]
    assert [(end.round, end.aborted) for end in ends] == [(1, ""), (2, ""), (3, "")]


@pytest.mark.slow
def test_the_truth_is_kept_only_where_it_is_asked_for(private, tmp_path):
    run(private, tmp_path / "run")
    assert not (tmp_path / "run" / "truth.sqlite").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_the_truth_says_what_every_device_had_to_hide(private, tmp_path, killed):
    asked = replace(private, privacy=replace(private.privacy, truth=True))
    if killed:
        with pytest.raises(Killed):
            run(asked, tmp_path / "run", progress=KilledAfter(2))
    run(asked, tmp_path / "run", resume=killed)
    opening = next(read_transcript(tmp_path / "run" / "record.sqlite"))
    truth = list(read_truth(tmp_path / "run" / "truth.sqlite", opening.run_id))
    size = asked.federation.cohort_size
    assert [device.round for device in truth] == [1] * size + [2] * size + [3] * size
    events = events_of(tmp_path / "run")
    for event in events:
        of_round = [device for device in truth if device.round == event["round"]]
        kept = [device for device in of_round if device.passed]
        assert len(kept) == event["kept_devices"]
        assert sum(device.weight for device in kept) == event["kept_weight"]
        assert sorted(device.device for device in of_round) == sorted(event["cohort"])
        for device in of_round:
            assert (device.update is not None) == device.passed


@pytest.mark.slow
def test_theta_one_is_federated_averaging_under_masks(private, tmp_path):
    averaging = replace(private, federation=replace(private.federation, theta=Fraction(1)))
    summary = run(averaging, tmp_path / "run")
    assert summary["secure_sums"] == averaging.federation.rounds
    plain = replace(private, federation=replace(private.federation, algorithm="fedavg"))
    run(plain, tmp_path / "plain")
    models = [checkpoint_of(tmp_path / n).state.model for n in ("run", "plain")]
    assert abs(models[0] - models[1]).max() < 1e-2


@pytest.mark.parametrize(
    ("section", "changes", "sentence"),
    [
        ("federation", {"cohort_size": 6}, "min_cohort|privacy"),
        ("privacy", {"expected_dropout": 0.6, "colluding": 0.5}, "add up to more than 0.9"),
        ("privacy", {"adversary": "active", "expected_dropout": 0.45}, "twice dropout_rate=0.45"),
        ("privacy", {"max_weight": 2**40, "update_resolution_bits": 30}, "max_weight|lower"),
        (
            "privacy",
            {"graph": "sparse", "colluding": 0.45, "expected_dropout": 0.45},
            "no sparse graph",
        ),
    ],
)
def test_what_the_protocol_would_refuse_is_refused_before_anything_is_written(
    private, tmp_path, section, changes, sentence
):
    settings = {key: dict(value) for key, value in PRIVATE_RUN.items()}
    settings["privacy"]["min_cohort"] = 7
    settings[section] |= changes
    with pytest.raises(ConfigError, match=sentence):
        run(build_config([settings]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_playing_a_finished_run_again_changes_nothing(private, tmp_path):
    first = run(private, tmp_path / "run")
    before = (tmp_path / "run" / "record.sqlite").read_bytes()
    assert run(private, tmp_path / "run", resume=True) == first
    assert (tmp_path / "run" / "record.sqlite").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("graph", ["complete", "sparse"])
def test_the_benchmark_of_a_round_prints_what_it_measured(capsys, graph, signed):
    arguments = f"bench round --clients 30 --dim 500 --queries 2 --graph {graph} --json".split()
    assert main([*arguments, "--dropout", "0.1", *(["--signed"] if signed else [])]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["sums"] == 3
    assert measured["graph"] == graph
    assert measured["total_cpu_s"] >= measured["devices_cpu_s"] > 0
    assert measured["signed"] is signed
    expected = {"advertise", "share", "receipt", "mask", "unmask"} | (
        {"confirm"} if signed else set()
    )
    stages = measured["by_stage"]
    assert set(stages) == expected
    assert all(each["device_cpu_ms"] > 0 for each in stages.values())
    # The masked inputs of two queries and of an update of 500 numbers of at least 16 bits.
    assert stages["mask"]["kb_up_per_device"] > 0.8 * 500 * 2 / 1e3


def test_the_benchmark_names_what_is_wrong(capsys):
    assert main(["bench", "round", "--clients", "3", "--dim", "5", "--queries", "2"]) == 2
    assert "cohort_size = 3: must be at least" in capsys.readouterr().err
    wrong = {"--queries": "0", "--clients": "0", "--seed": "-1", "--dim": "100000000000"}
    for flag, number in wrong.items():
        with pytest.raises(SystemExit):
            main(["bench", "round", flag, number])
        assert f"{flag}: {number} must be a whole number" in capsys.readouterr().err


def test_a_rate_that_decays_to_nothing_is_refused_beforehand():
    settings = {**PRIVATE_RUN, "training": {"decay": 0.1, "decay_every": 1}}
    settings["federation"] = {**PRIVATE_RUN["federation"], "rounds": 400}
    with pytest.raises(ConfigError, match="reduces the learning rate to zero before round 400"):
        build_config([settings])


def test_notes_cover_every_run_of_an_experiment(private, tmp_path):
    faults = replace(private.faults, dropout=0.3)
    experiment = replace(private.experiment, num_seeds=2)
    config = replace(
        private,
        faults=faults,
        experiment=experiment,
        privacy=replace(private.privacy, sums="ideal"),
    )
    summary = run(config, tmp_path / "run")
    per_seed = summary["seeds"][DELTA]
    for seed, one in per_seed.items():
        noted = summary["noteworthy"].get(f"{DELTA}, seed {seed}", {})
        assert noted.get("uncertified_rounds", 0) == one["uncertified_rounds"]
    assert any(one["uncertified_rounds"] for one in per_seed.values())
