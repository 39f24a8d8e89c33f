"""A run of several conformity levels: what it leaves, resumed or not, private or in clear."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from doubles import Killed, Silent, run
from records import change, checkpoint_of, evaluations_of, events_of, rows_of, said_of, write_rows

from deltafl.fl.bundle import Architecture, Bundle, embedding_sha256
from deltafl.fl.data.glove import load_glove
from deltafl.fl.models import build_model
from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.base import RoundReport, TrainingState, Visibility
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.levels import (
    LevelsInClear,
    PrivateLevels,
    level_states,
    split_models,
    starting_models,
)
from deltafl.protocol.levels import MAX_LEVELS
from deltafl.secagg.session import NoObserver
from deltafl.sim.charts.runs import chart_of
from deltafl.sim.cli import main
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.errors import ConfigError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.run import RunAgain
from deltafl.sim.inspect.audit.checks.server import ServerAgain
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.record.transcript import Message, Sum, read_transcript
from deltafl.sim.run.algorithms import build_rounds, strategy_of
from deltafl.sim.run.summary import summarise_run
from deltafl.sim.settings.config_io import build_config
from deltafl.sim.settings.constraints import FallingLevels

LEVELS = ["0.8", "0.5", "0.2"]
THETAS = tuple(map(Fraction, LEVELS))
SETTINGS = {
    "data": {"num_devices": 16},
    "federation": {
        "rounds": 2,
        "cohort_size": 6,
        "evaluate_every": 1,
        "levels": LEVELS,
    },
    "quantile": {"method": "histogram"},
    "policy": {"max_pivots": 960},
    "privacy": {"min_cohort": 4, "min_honest_tail": 0, "transcript": "full"},
    "training": {"learning_rate": 0.5, "batch_size": 64, "device": "cpu"},
    "experiment": {"num_seeds": 1, "baselines": ["delta-fl", "fedavg"]},
}


def settings(**changes):
    sections = {name: dict(values) for name, values in SETTINGS.items()}
    for name, values in changes.items():
        sections[name] = sections.get(name, {}) | values
    return build_config([sections])


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    path = tmp_path_factory.mktemp("levels") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        return path, run(settings(), path)


def models_of(path) -> list[np.ndarray]:
    bundle = Bundle.load(path / "bundle.npz")
    return [bundle.model(theta) for theta in THETAS]


# --- what a run leaves ---------------------------------------------------------------------------


@pytest.mark.slow
def test_every_level_is_evaluated_by_itself(played):
    path, _ = played
    found = [evaluations_of(path, Fraction(level)) for level in LEVELS]
    assert [[one.round for one in level] for level in found] == [[0, 1, 2]] * 3
    assert found[0][-1] != found[1][-1]


def test_the_summary_tells_of_every_level(played):
    path, summary = played
    assert list(summary["levels"]) == LEVELS
    hashes = {one["final_model_sha256"] for one in summary["levels"].values()}
    assert len(hashes) == 3
    assert summary["theta"] == 0.8
    assert summary["final_model_sha256"] == summary["levels"]["0.8"]["final_model_sha256"]
    assert "levels" not in summary["baseline"]["fedavg"]
    assert said_of(path, "summary") == summary


def test_events_tell_of_every_level(played):
    for event in events_of(played[0]):
        assert list(event["levels"]) == LEVELS
        kept = [level["kept_devices"] for level in event["levels"].values()]
        assert kept == sorted(kept, reverse=True)
        assert event["secure_sums"] == sum(one["secure_sums"] for one in event["levels"].values())


def test_private_levels_keep_whom_levels_in_clear_keep(played):
    path, _ = played
    private = events_of(path)
    clear = events_of(path / "arms" / "delta-fl-seed-1")
    for one, other in zip(private, clear, strict=True):
        # the largest level starts from zeros: its losses are all one, but for rounding in clear
        for level in LEVELS[1:]:
            assert one["levels"][level]["kept_devices"] == other["levels"][level]["kept_devices"]
    clear_models = models_of(path / "arms" / "delta-fl-seed-1")
    for one, other in list(zip(models_of(path), clear_models, strict=True))[1:]:
        assert np.allclose(one, other, atol=0.01)


def test_the_bundle_has_the_final_models(played):
    path, _ = played
    bundle = Bundle.load(path / "bundle.npz")
    assert bundle.levels == THETAS
    assert bundle.provenance["round"] == "2"
    assert bundle.provenance["data"] == "digits"
    (baseline,) = Bundle.load(path / "arms" / "fedavg-seed-1" / "bundle.npz").models.values()
    checkpoint = checkpoint_of(path / "arms" / "fedavg-seed-1")
    assert np.array_equal(baseline, checkpoint.state.model)


def test_a_level_by_itself_leaves_a_bundle_of_one(tmp_path, no_figures):
    config = settings(
        federation={"levels": [], "theta": "0.2", "algorithm": "delta-fl", "rounds": 1},
        experiment={"baselines": []},
    )
    summary = run(config, tmp_path / "run")
    assert "levels" not in summary
    assert Bundle.load(tmp_path / "run" / "bundle.npz").levels == (Fraction(1, 5),)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_to_the_bit(played, tmp_path, no_figures):
    class Killing(Silent):
        def played(self, event):
            if event["round"] == 1:
                raise Killed

    config = settings(federation={"algorithm": "delta-fl"}, experiment={"baselines": []})
    with pytest.raises(Killed):
        run(config, tmp_path / "run", progress=Killing())
    run(config, tmp_path / "run", resume=True)
    before = models_of(played[0] / "arms" / "delta-fl-seed-1")
    for one, other in zip(models_of(tmp_path / "run"), before, strict=True):
        assert one.tobytes() == other.tobytes()


def test_figures_draw_every_level(played):
    methods = Reader(played[0]).read().methods[: len(LEVELS)]
    assert methods[1].label == "private-delta-fl, θ = 0.5"
    kept = [one.mean for one in chart_of("kept", methods).curves]
    assert len(kept) == len(LEVELS)
    assert all(first >= last for first, last in zip(kept[0], kept[-1], strict=True))


# --- the audit -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_audit_plays_every_level_again(played):
    report = audit(played[0])
    assert report.full_rounds == 2
    assert 0 < report.sums_replayed == report.sums_released
    outcomes = {check.name: check.outcome for check in report.checks}
    assert outcomes[ServerAgain.name] is outcomes[RunAgain.name] is Outcome.PASSED
    # tails of two of eight devices are what they are; nothing else is wrong
    serious = {f.rule for f in report.findings if f.severity >= Severity.MEDIUM}
    assert serious <= {"sums.small-tail"}
    assert len(report.searches) == 2 * len(LEVELS)


@pytest.mark.slow
def test_the_audit_compares_every_level_with_the_events(played, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(played[0], copy)
    rows = rows_of(copy / "record.sqlite")
    first = next(row[2] for row in rows if row[0] == "events")
    event = json.loads(first["event"])
    event["levels"]["0.5"]["kept_devices"] += 1
    first["event"] = json.dumps(event)
    write_rows(copy / "record.sqlite", rows)
    details = [f.detail for f in audit(copy).findings if f.rule == "record.disagrees"]
    assert any("levels.0.5.kept_devices" in detail for detail in details), details


def views_of(path):
    """What the server saw, round by round."""
    views: dict[int, RoundView] = {}
    for record in read_transcript(path / "record.sqlite"):
        if isinstance(record, Message | Sum):
            view = views.setdefault(record.round, RoundView(record.round))
            if isinstance(record, Message):
                view.add(record)
            else:
                view.add_sum(record)
    return list(views.values())


def test_the_transcript_has_one_session_a_round(played):
    for view in views_of(played[0]):
        (session,) = view.sessions.values()
        levels = list(session.by_level())
        assert [level.config.theta for level in levels] == list(THETAS)
        assert sum(len(level.slots) for level in levels) == len(session.slots)
        assert len({level.model for level in levels}) == 3


# --- what cannot be asked for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"federation": {"levels": ["0.5", "0.8"]}}, "below the one before"),
        ({"federation": {"levels": ["0.5", "0.5"]}}, "below the one before"),
        ({"federation": {"levels": ["1.5"]}}, "below the one before"),
        ({"federation": {"levels": ["much"]}}, "below the one before"),
    ],
)
def test_levels_that_do_not_fall_are_refused(changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        settings(**changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"federation": {"algorithm": "fedavg"}, "experiment": {"baselines": []}},
            "only delta-fl and private-delta-fl",
        ),
    ],
)
def test_what_does_not_go_with_levels_is_refused(changes, complaint, tmp_path):
    with pytest.raises(ConfigError, match=complaint):
        run(settings(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_session_takes_as_many_levels_as_the_settings():
    assert FallingLevels().most == MAX_LEVELS


def test_levels_come_back_from_the_settings_of_a_run(played):
    config = RunDirectory(played[0]).config()
    assert config.federation.levels == tuple(LEVELS)
    assert config.federation.thetas == THETAS
    assert config.arms()[-1].federation.levels == ()


# --- strategies ----------------------------------------------------------------------------------


class Lonely:
    """A device for which every model is the same."""

    def __init__(self, number):
        self.id, self.weight = number, 1 + number

    def loss(self, model):
        return float(self.id) + float(model.sum())

    def update(self, model, _objective=None):
        return np.full_like(model, 0.1 * self.id)


def test_levels_in_clear_are_algorithm_2_side_by_side():
    strategies = tuple(DeltaFL(theta) for theta in THETAS)
    model = np.arange(6, dtype=np.float32)
    levels = LevelsInClear(THETAS, strategies)
    assert levels.server_sees is Visibility.LOSSES
    state, devices = levels.init(model, 5), cohort_of(map(Lonely, range(5)))
    alone = [s.init(part, 5) for s, part in zip(strategies, model.reshape(3, 2), strict=True)]
    for _ in range(2):
        state, report = levels.apply(state, devices)
        alone = [s.apply(one, devices)[0] for s, one in zip(strategies, alone, strict=True)]
        assert isinstance(report, RoundReport)
        assert list(report.levels) == list(THETAS)
    assert np.array_equal(state.model, np.concatenate([one.model for one in alone]))
    assert [part.eta for part in level_states(state, THETAS)] == [one.eta for one in alone]
    assert state.round == 2


def test_levels_start_from_different_models():
    def generator(level):
        return np.random.default_rng(level)

    zeros = starting_models(3, lambda _: np.zeros(5, np.float32), generator)
    parts = split_models(zeros, 3)
    assert not parts[0].any()
    assert len({part.tobytes() for part in parts}) == 3
    own = starting_models(2, lambda level: np.full(5, level, np.float32), generator)
    assert own.tolist() == [0.0] * 5 + [1.0] * 5
    with pytest.raises(ValueError, match="not 2 models"):
        split_models(np.zeros(5, np.float32), 2)


def test_levels_and_strategies_come_in_pairs():
    with pytest.raises(ValueError, match="one each"):
        LevelsInClear(THETAS, (DeltaFL(THETAS[0]),))
    with pytest.raises(ValueError, match="do not fall"):
        LevelsInClear(THETAS[::-1], tuple(map(DeltaFL, THETAS)))


def test_private_levels_remember_an_eta_of_each():
    config = settings(privacy={"sums": "ideal", "transcript": "sums"})
    levels = strategy_of(config)
    assert isinstance(levels, PrivateLevels)
    assert levels.server_sees is Visibility.SUMS
    state = levels.init(np.arange(6, dtype=np.float32) / 8, 8)
    rounds = build_rounds(config, NoObserver())
    state, report = levels.apply(state, cohort_of(map(Lonely, range(8)), rounds))
    etas = [part.eta for part in level_states(state, THETAS)]
    assert etas == [one.eta for one in report.levels.values()]
    assert None not in etas
    assert isinstance(state, TrainingState)


def test_one_level_is_no_framework():
    config = settings(federation={"levels": ["0.5"]})
    assert not isinstance(strategy_of(config), PrivateLevels)
    assert strategy_of(config).theta == Fraction(1, 2)


def test_noise_of_every_level_is_accounted_for(played):
    from deltafl.sim.run.summary import search_privacy

    noisy = {"method": "noisy", "noise": 4, "weights": "equal"}
    three = search_privacy(settings(quantile=noisy), 2)
    alone = settings(quantile=noisy, federation={"levels": [], "theta": "0.8"})
    one = search_privacy(alone, 6)
    assert three["rho"] == pytest.approx(3 * one["rho"])
    assert three["epsilon"] == pytest.approx(one["epsilon"])
    assert search_privacy(settings(), 2) is None


# --- predictions ---------------------------------------------------------------------------------


@pytest.fixture
def samples(tmp_path):
    generator = np.random.default_rng(5)
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        x=generator.random((6, 8, 8)).astype(np.float32),
        y=np.arange(6) % 3,
        user=np.array([0, 0, 0, 1, 1, 1]),
        users=np.array(["anna", "ben"]),
    )
    return path


def test_predict_lists_the_levels(played, capsys):
    assert main(["predict", str(played[0]), "--list"]) == 0
    printed = capsys.readouterr().out
    assert [line.strip() for line in printed.splitlines()[1:4]] == [f"θ = {t}" for t in LEVELS]


def test_predict_writes_a_class_for_every_sample(played, samples, tmp_path, capsys):
    out = tmp_path / "p.jsonl"
    arguments = ["predict", str(played[0]), "--data", str(samples), "--conformity", "0.6"]
    assert main([*arguments, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "using the model of θ = 0.5" in captured.err
    assert "anna" in captured.out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    with np.load(samples) as file:
        expected = Bundle.load(played[0] / "bundle.npz").predict(file["x"], 0.5)
    assert [row["class"] for row in rows] == expected.argmax(axis=1).tolist()
    assert [row["user"] for row in rows] == ["anna"] * 3 + ["ben"] * 3


def test_predict_prints_a_table_and_needs_no_labels(played, tmp_path, capsys):
    np.savez(tmp_path / "bare.npz", x=np.zeros((2, 8, 8), np.float32))
    arguments = ["predict", str(played[0]), "--data", str(tmp_path / "bare.npz")]
    assert main([*arguments, "--conformity", "0.8"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "user,sample,class,probability"
    assert main(arguments) == 2
    assert "without labels" in capsys.readouterr().err


def test_predict_compares_levels_for_one_user(played, samples, capsys):
    assert main(["predict", str(played[0]), "--data", str(samples), "--user", "ben"]) == 0
    assert capsys.readouterr().out.count("over 1 user\n") == 3


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ([], "--data is missing"),
        (["--data", "nothing.npz"], "no such file"),
        (["--data", "SAMPLES", "--conformity", "0"], "--conformity 0: must lie in (0, 1], such as"),
        (["--data", "SAMPLES", "--conformity", "1", "--out", "no/p.csv"], "there is no folder no"),
        (["--data", "synthetic"], "has the data digits"),
        (["--data", "SAMPLES", "--user", "carl"], "no such user"),
        (["--data", "SAMPLES", "--out", "p.csv"], "--out needs --conformity"),
        (["--data", "SAMPLES", "--conformity", "1", "--out", "p.txt"], ".csv or .jsonl"),
    ],
)
def test_predict_says_what_it_cannot_do(played, samples, more, complaint, capsys):
    more = [str(samples) if word == "SAMPLES" else word for word in more]
    assert main(["predict", str(played[0]), *more]) == 2
    assert complaint in capsys.readouterr().err


def test_predict_serves_a_baseline_without_a_level(played, samples, tmp_path, capsys):
    baseline = str(played[0] / "arms" / "fedavg-seed-1")
    out = tmp_path / "p.csv"
    assert main(["predict", baseline, "--data", str(samples), "--out", str(out)]) == 0
    assert out.read_text().startswith("user,sample,class,probability")
    assert "fedavg: error" in capsys.readouterr().out
    assert main(["predict", baseline, "--data", str(samples), "--conformity", "0.5"]) == 0
    assert "fedavg trains one model for all" in capsys.readouterr().err
    assert main(["predict", baseline, "--list"]) == 0
    assert "θ" not in capsys.readouterr().out


def test_predict_knows_the_data_that_a_run_made(played, capsys):
    assert main(["predict", str(played[0]), "--data", "digits", "--json"]) == 0
    levels = json.loads(capsys.readouterr().out)
    assert [level["theta"] for level in levels] == LEVELS
    summary = said_of(played[0], "summary")
    mean = float(np.mean(list(levels[0]["error"].values())))
    assert mean == pytest.approx(summary["levels"]["0.8"]["test_error"]["mean"], abs=1e-3)


def test_predict_says_whose_input_is_no_number(played, samples, tmp_path, capsys):
    with np.load(samples) as file:
        arrays = dict(file)
    arrays["x"] = arrays["x"].astype(np.float32)
    row = len(arrays["x"]) - 1
    arrays["x"][row, 3] = np.nan
    np.savez(tmp_path / "bad.npz", **arrays)
    assert main(["predict", str(played[0]), "--data", str(tmp_path / "bad.npz")]) == 2
    name = str(arrays["users"][arrays["user"][row]])
    number = int((arrays["user"][:row] == arrays["user"][row]).sum())
    assert f"bad.npz: user {name!r}: sample {number} has the input nan" in capsys.readouterr().err


def leaf(path, **samples):
    path.mkdir()
    data = {
        "users": list(samples),
        "num_samples": [len(x) for x in samples.values()],
        "user_data": {user: {"x": x, "y": [0] * len(x)} for user, x in samples.items()},
    }
    (path / "data.json").write_text(json.dumps(data))
    return str(path)


@pytest.fixture
def linear(tmp_path):
    bundle = Bundle(
        Architecture("linear", (4,), 3),
        {Fraction(1): np.zeros(12, np.float32)},
        provenance={"data": "mine\x1b[31m\nmodels_sha256: 00"},
    )
    (tmp_path / "linear.npz").write_bytes(bundle.to_bytes())
    return str(tmp_path / "linear.npz")


def test_predict_takes_the_samples_of_one_person(linear, tmp_path, capsys):
    folder = leaf(tmp_path / "leaf", anna=[[0.1] * 4, [0.2] * 4])
    assert main(["predict", linear, "--data", folder]) == 0
    assert "over 1 user" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [({}, "contains no users"), ({"anna": [[0.1] * 4], "ben": [[0.1] * 3]}, "the same shape")],
)
def test_predict_says_which_samples_it_cannot_take(linear, tmp_path, samples, complaint, capsys):
    assert main(["predict", linear, "--data", leaf(tmp_path / "leaf", **samples)]) == 2
    assert complaint in capsys.readouterr().err


def test_predict_shows_no_control_characters(linear, capsys):
    assert main(["predict", linear, "--list"]) == 0
    assert r"data: mine\x1b[31m\nmodels_sha256: 00" in capsys.readouterr().out


def test_predict_reads_text_through_the_vectors_of_the_run(tmp_path, capsys):
    words = np.random.default_rng(1).random((2, 3)).astype(np.float32)
    np.savez(tmp_path / "words.npz", words=np.array(["a", "b"]), vectors=words)
    table = load_glove(tmp_path / "words.npz").table
    module = build_model("lstm", input_shape=(4,), num_classes=2, seed=1, embedding=table)
    architecture = Architecture("lstm", (4,), 2, embedding_sha256(table))
    bundle = Bundle(architecture, {Fraction(1): to_vector(module)}, embedding=table)
    (tmp_path / "text.npz").write_bytes(bundle.to_bytes())
    np.savez(tmp_path / "mine.npz", x=np.array([[0, 1, 2, 2]]), y=np.array([1]))
    arguments = ["predict", str(tmp_path / "text.npz"), "--data", str(tmp_path / "mine.npz")]
    assert main(arguments) == 2
    assert "--vectors" in capsys.readouterr().err
    assert main([*arguments, "--vectors", str(tmp_path / "words.npz")]) == 0
    assert "over 1 user" in capsys.readouterr().out


def test_a_summary_needs_the_evaluations_of_every_level(played, tmp_path):
    import shutil

    from deltafl.sim.errors import RunDirectoryError
    from deltafl.sim.run.summary import DataSize

    copy = tmp_path / "run"
    shutil.copytree(played[0], copy)
    config = replace(settings(), experiment=settings().arms()[0].experiment)
    with RunDirectory(copy).read() as record:
        summarise_run(config, record, DataSize("digits", 12, 12))
    change(copy, "DELETE FROM evaluations WHERE theta = '0.2'")
    with RunDirectory(copy).read() as record, pytest.raises(RunDirectoryError):
        summarise_run(config, record, DataSize("digits", 12, 12))
