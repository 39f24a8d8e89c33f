"""The model that a run starts from is built again from its seed, and compared."""

import json
from dataclasses import replace

import numpy as np
import pytest
from real_runs import leave, settings
from reports import serious

from deltafl.fl.bundle import Architecture, Bundle, read_stored
from deltafl.fl.parameters import to_vector
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.inspect.audit import initial
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.first_model import FirstModel
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.initial import initial_of
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.source import Source, find_source
from deltafl.sim.record.rundir import RunDirectory, write_json
from deltafl.sim.record.versions import decide_first_model
from deltafl.sim.run import engine

DIFFERS = {"model.first-differs"}
LEVELS = {
    "federation": {"rounds": 1, "levels": ("0.8", "0.5")},
    "quantile": {"method": "histogram"},
    "policy": {"max_pivots": 1024},
    "privacy": {"min_honest_tail": 0},
}
KINDS = {
    "whole": {"federation": {"rounds": 1}},
    "headers": {"federation": {"rounds": 1}, "privacy": {"transcript": "sums"}},
    "levels": LEVELS,
}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The directory of a run of each kind, made when it is asked for."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("honest") / kind
            assert leave(made[kind], **KINDS[kind])
        return made[kind]

    return of


def audited(path):
    report = audit(path, Options())
    (made,) = (check for check in report.checks if check.name == FirstModel.name)
    return serious(report) & DIFFERS, made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_model_of_an_honest_run_is_built_again(honest, kind):
    found, made = audited(honest(kind))
    assert found == set()
    assert made.outcome is Outcome.PASSED


@pytest.mark.parametrize("kind", KINDS)
def test_another_first_model_is_found(tmp_path, monkeypatch, kind):
    """It differs in a single number, by a rounding where it is not zero."""
    own = engine.first_model

    def other(config, spec):
        model = own(config, spec)
        model[-1] = np.nextafter(model[-1], np.float32(1))
        return model

    monkeypatch.setattr(engine, "first_model", other)
    assert leave(tmp_path / "run", **KINDS[kind])
    found, made = audited(tmp_path / "run")
    assert (found, made.outcome) == (DIFFERS, Outcome.FAILED)
    findings = audit(tmp_path / "run", Options()).findings
    (detail,) = (finding.detail for finding in findings if finding.rule in DIFFERS)
    by_digest = KINDS[kind].get("privacy", {}).get("transcript") == "headers"
    assert ("is bound to another" in detail) == by_digest


@pytest.mark.slow
def test_the_models_of_another_seed_are_found(tmp_path, monkeypatch):
    own = engine.first_model
    monkeypatch.setattr(
        engine,
        "first_model",
        lambda config, spec: own(
            replace(config, experiment=replace(config.experiment, seed=2)), spec
        ),
    )
    assert leave(tmp_path / "run", **LEVELS)
    assert audited(tmp_path / "run")[0] == DIFFERS


def test_levels_start_from_models_of_their_own(honest):
    source = find_source(honest("levels"))
    models = read_stored(source.directory.bundle).models
    size = sum(map(len, models.values()))
    built = initial_of(source, size).model
    assert len(built) == size
    assert len({part.tobytes() for part in np.split(built, len(models))}) == len(models)


@pytest.fixture
def copied(honest, tmp_path):
    """The directory of an honest run, to be changed."""
    directory = RunDirectory(tmp_path / "run")
    for path in honest("whole").rglob("*"):
        if path.is_file():
            to = directory.path / path.relative_to(honest("whole"))
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    return directory


def change_header(directory, **values):
    """Say something else in the head of the bundle."""
    with np.load(directory.bundle) as stored:
        arrays = dict(stored)
    header = json.loads(bytes(arrays["header"])) | values
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(directory.bundle, **arrays)


@pytest.mark.parametrize(
    "values",
    [{"input_shape": [1 << 20], "num_classes": 1 << 20}, {"num_classes": 3}, {"input_shape": [7]}],
)
def test_a_shape_that_does_not_fit_is_found(copied, values, monkeypatch):
    """However large it is: nothing of that size is built."""
    monkeypatch.setattr(initial, "first_model", lambda *_: pytest.fail("it is built"))
    change_header(copied, **values)
    assert audited(copied.path)[0] == DIFFERS


@pytest.mark.parametrize("key", decide_first_model())
def test_on_another_platform_nothing_is_compared_and_it_is_said(copied, key):
    versions = json.loads(copied.versions.read_text())
    copied.versions.write_text(json.dumps(versions | {key: "another"}))
    found, made = audited(copied.path)
    assert (found, made.outcome) == (set(), Outcome.SKIPPED)
    assert key in made.detail
    assert "another" in made.detail


@pytest.mark.slow
def test_where_there_is_nothing_to_build_it_from_it_is_said(copied):
    bare = audit(copied.transcript, Options()).not_checked
    assert any("“first model” was not made: a transcript alone" in one for one in bare)
    copied.bundle.unlink()
    said = audit(copied.path, Options()).not_checked
    assert any("“first model” was not made: there is no bundle.npz" in one for one in said)


def test_weights_that_are_drawn_are_those_of_the_seed(tmp_path):
    """Those of the linear model are not drawn."""
    config = settings(model={"name": "convnet"})
    shape, classes = (28, 28), 10
    spec = ModelSpec("convnet", shape, classes)
    module = spec.build(Seeds(config.experiment.seed).integer(Purpose.WEIGHTS))
    wanted, directory = to_vector(module), RunDirectory(tmp_path)
    bundle = Bundle(Architecture("convnet", shape, classes), {config.federation.theta: 0 * wanted})
    directory.bundle.write_bytes(bundle.to_bytes())
    write_json(directory.versions, decide_first_model())
    source = Source(tmp_path, directory.transcript, config, directory=directory)
    built = initial_of(source, len(wanted)).model
    assert built.tobytes() == wanted.tobytes()
    assert wanted.std() > 0
    assert initial_of(source, len(wanted) + 1).problem
