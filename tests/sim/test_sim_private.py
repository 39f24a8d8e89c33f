"""Private runs from end to end: real masks and ideal sums train the same model."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from doubles import Killed, Silent

from sim.algorithms import PRIVATE
from sim.checkpoint import load_checkpoint
from sim.cli import main
from sim.config_io import build_config
from sim.errors import ConfigError
from sim.events import read_events
from sim.experiment import run_experiment
from sim.transcript import read_transcript

pytestmark = pytest.mark.usefixtures("no_figures")

PRIVATE_RUN = {
    "data": {"num_devices": 24},
    "federation": {"algorithm": PRIVATE, "rounds": 3, "cohort_size": 8, "evaluate_every": 3},
    "privacy": {"min_cohort": 5, "transcript": "every=2"},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "training": {"batch_size": 64, "device": "cpu"},
}


class KilledAfter(Silent):
    def __init__(self, rounds):
        self.rounds = rounds

    def played(self, event):
        if event["round"] == self.rounds:
            raise Killed


@pytest.fixture
def private():
    return build_config([PRIVATE_RUN])


def run(config, path, *, resume=False, progress=None):
    return run_experiment(
        config, path, resume=resume, progress=progress or Silent(), warn=pytest.fail
    )


def learnt(path):
    """All that the server learnt, but not what the messages looked like."""
    left_out = ("bytes_up_per_device", "train_cpu_s", "protocol_cpu_s", "wall_s")
    return [
        {key: value for key, value in event.items() if key not in left_out}
        for event in read_events(path / "events.jsonl")
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_masked_and_ideal_runs_train_the_same_model(private, tmp_path, dropout):
    private = replace(private, faults=replace(private.faults, dropout=dropout))
    ideal = replace(private, privacy=replace(private.privacy, backend="ideal"))
    summaries = [run(private, tmp_path / "masked"), run(ideal, tmp_path / "ideal")]
    assert learnt(tmp_path / "masked") == learnt(tmp_path / "ideal")
    assert len({summary["final_model_sha256"] for summary in summaries}) == 1
    assert [summary["backend"] for summary in summaries] == ["masked", "ideal"]
    assert summaries[0]["bytes_up_per_device_round"] > 0
    assert bool(summaries[0]["dropped_by_stage"]) == (dropout > 0)


def test_round_one_of_a_linear_model_is_a_tie_and_keeps_everybody(private, tmp_path):
    """All losses are ln 10 up to rounding, which in clear decides who trains."""
    run(private, tmp_path / "run")
    assert learnt(tmp_path / "run")[0]["kept_devices"] == private.federation.cohort_size


def test_a_killed_masked_run_goes_on_to_the_same_model(private, tmp_path):
    whole = run(private, tmp_path / "whole")
    with pytest.raises(Killed):
        run(private, tmp_path / "killed", progress=KilledAfter(2))
    resumed = run(private, tmp_path / "killed", resume=True)
    assert resumed["final_model_sha256"] == whole["final_model_sha256"]
    assert learnt(tmp_path / "killed") == learnt(tmp_path / "whole")
    rounds = [frame.round for frame in read_transcript(tmp_path / "killed" / "transcript.bin")]
    assert rounds == sorted(rounds)
    assert set(rounds) == {1, 2, 3}


def test_the_transcript_holds_every_message_and_the_chosen_rounds_whole(private, tmp_path):
    summary = run(private, tmp_path / "run")
    frames = list(read_transcript(tmp_path / "run" / "transcript.bin"))
    assert {frame.round for frame in frames if frame.data is not None} == {2}
    received = sum(frame.size for frame in frames if not frame.sent)
    per_device = received / (private.federation.rounds * private.federation.cohort_size)
    assert per_device == pytest.approx(summary["bytes_up_per_device_round"])


def test_theta_one_is_federated_averaging_under_masks(private, tmp_path):
    averaging = replace(private, federation=replace(private.federation, theta=Fraction(1)))
    summary = run(averaging, tmp_path / "run")
    assert summary["secure_sums"] == averaging.federation.rounds
    plain = replace(private, federation=replace(private.federation, algorithm="fedavg"))
    run(plain, tmp_path / "plain")
    models = [load_checkpoint(tmp_path / n / "checkpoints").state.model for n in ("run", "plain")]
    assert abs(models[0] - models[1]).max() < 1e-2


@pytest.mark.parametrize(
    ("section", "changes", "sentence"),
    [
        ("federation", {"cohort_size": 6}, "min_cohort|privacy"),
        ("privacy", {"expected_dropout": 0.6, "colluding": 0.5}, "add up to more than 0.9"),
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


def test_playing_a_finished_run_again_changes_nothing(private, tmp_path):
    first = run(private, tmp_path / "run")
    before = (tmp_path / "run" / "transcript.bin").read_bytes()
    assert run(private, tmp_path / "run", resume=True) == first
    assert (tmp_path / "run" / "transcript.bin").read_bytes() == before


@pytest.mark.parametrize("graph", ["complete", "sparse"])
def test_the_benchmark_of_a_round_prints_what_it_measured(capsys, graph):
    arguments = f"bench round --clients 30 --dim 500 --slots 3 --graph {graph} --json".split()
    assert main([*arguments, "--dropout", "0.1"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["slots"] == 3
    assert measured["graph"] == graph
    assert measured["total_cpu_s"] >= measured["devices_cpu_s"] > 0
    assert set(measured["device_cpu_s"]) == {"advertise", "share", "mask", "unmask"}
    # The masked inputs of two queries and of an update of 500 numbers of at least 16 bits.
    assert measured["bytes_up_per_device"]["mask"] > 0.8 * 500 * 2


def test_the_benchmark_names_what_is_wrong(capsys):
    assert main(["bench", "round", "--clients", "3", "--dim", "5", "--slots", "0"]) == 2
    assert "slots=0" in capsys.readouterr().err
    assert main(["bench", "round", "--clients", "3", "--dim", "5", "--slots", "2"]) == 2
    assert "3" in capsys.readouterr().err
    for odd, words in (
        (["--clients", "0"], "clients=0"),
        (["--seed", "-1"], "seed=-1"),
        (["--dim", "100000000000"], "lower update_length"),
    ):
        assert main(["bench", "round", *odd]) == 2
        assert words in capsys.readouterr().err


def test_a_rate_that_decays_to_nothing_is_refused_beforehand():
    settings = {**PRIVATE_RUN, "training": {"decay": 0.1, "decay_every": 1}}
    settings["federation"] = {**PRIVATE_RUN["federation"], "rounds": 400}
    with pytest.raises(ConfigError, match="brings the learning rate to zero before round 400"):
        build_config([settings])


def test_notes_cover_every_run_of_an_experiment(private, tmp_path):
    faults = replace(private.faults, dropout=0.3)
    experiment = replace(private.experiment, num_seeds=2)
    config = replace(
        private,
        faults=faults,
        experiment=experiment,
        privacy=replace(private.privacy, backend="ideal"),
    )
    summary = run(config, tmp_path / "run")
    per_seed = summary["seeds"][PRIVATE]
    for seed, one in per_seed.items():
        noted = summary["noteworthy"].get(f"{PRIVATE}, seed {seed}", {})
        assert noted.get("uncertified_rounds", 0) == one["uncertified_rounds"]
    assert any(one["uncertified_rounds"] for one in per_seed.values())
