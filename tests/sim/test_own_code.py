"""Code that settings name: what is imported of it, and what of it is compared."""

import sys

import pytest

from deltafl.sim.errors import ConfigError
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.settings.config_io import build_config
from deltafl.sim.settings.own import OwnConfig


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "surgery"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/deep.py"):
        (folder / name).write_text("from torch import nn\nnet = nn.Linear(2, 2)\nrate = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [one for one in sys.modules if one.partition(".")[0] == "surgery"]:
        del sys.modules[name]


def found(path="surgery.inner.deep:net"):
    (digest,) = OwnConfig(module=path).found()
    return digest


def test_a_digest_is_of_all_files_of_the_package(package):
    first = found()
    assert first.startswith("surgery=")
    assert found("surgery:net") == first
    (package / "inner" / "weights.json").write_text("1")
    second = found()
    (package / "inner" / "weights.json").rename(package / "weights.json")
    third = found()
    assert len({first, second, third}) == 3
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "deep.pyc").write_text("cache")
    (package / ".DS_Store").write_text("hidden")
    assert found() == third
    assert "surgery.inner.deep" not in sys.modules  # nothing of it has run


def test_a_digest_of_one_file_is_of_that_alone(package):
    (package.parent / "single.py").write_text("net = 1")
    first = found("single:net")
    (package.parent / "other.py").write_text("net = 1")
    assert found("single:net") == first
    assert found("other:net") != first.replace("single", "other")


@pytest.mark.parametrize(
    ("path", "why"),
    [("nowhere.at:all", "'nowhere' is not installed here"), ("sys:path", "no files of its own")],
)
def test_what_cannot_be_compared_is_refused(path, why):
    with pytest.raises(ConfigError, match=why):
        found(path)


def test_what_is_too_large_is_refused(package, monkeypatch):
    monkeypatch.setattr("deltafl.sim.settings.own._MOST_FILES", 2)
    with pytest.raises(ConfigError, match="'surgery' is too large to compare"):
        found()
    monkeypatch.setattr("deltafl.sim.settings.own._MOST_FILES", 3)
    assert found()


@pytest.mark.parametrize(
    "path", ["surgery", "surgery:", ":net", "surgery.:net", "a b:c", "a:b:c", "../a:b", "a:b\n"]
)
def test_what_is_no_import_path_is_refused(path):
    with pytest.raises(ConfigError, match=r"own\.module = .*must be an import path"):
        build_config([{"own": {"module": path}}])


def test_what_is_of_ones_own_is_called_so():
    """So a preset's name for it does not stay."""
    named = {name: "a.b:c" for name in ("module", "loss", "metric", "optimizer", "strategy")}
    config = build_config([{"model": {"name": "linear"}, "own": named}])
    training = config.training
    assert (config.model.name, training.loss, training.metric, training.optimizer) == ("own",) * 4
    assert config.federation.algorithm == "private-own"
    clear = build_config([{"federation": {"algorithm": "own"}, "own": {"strategy": "a:b"}}])
    assert clear.federation.algorithm == "own"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"own": {"module": "surgery:nothing"}}, "cannot be imported .AttributeError"),
        ({"own": {"module": "surgery:rate"}}, "must be a module, a function"),
        ({"own": {"module": "surgery:net", "loss": "surgery:rate"}}, "loss = 3: must be a func"),
        ({"own": {"strategy": "surgery:rate"}}, "int has no 'name'"),
        ({"own": {"loss": "surgery:net"}}, "the papers' models are trained by cross-entropy"),
        ({"model": {"name": "own"}}, r"model.name = 'own'.*own\.module = "),
        ({"training": {"metric": "mae"}}, r"training.metric = 'mae': must be 'error'"),
        (
            {"data": {"unit": "m"}, "training": {"loss": "mse", "metric": "mae"}},
            "the papers' models",
        ),
    ],
)
def test_what_is_not_what_it_has_to_be_is_said(package, table, why):
    with pytest.raises(ConfigError, match=why):
        OwnCode.of(build_config([table]))


def test_what_fails_while_it_is_imported_is_said(package):
    (package / "broken.py").write_text("raise RuntimeError('no licence')")
    with pytest.raises(ConfigError, match="RuntimeError: no licence"):
        OwnCode.of(build_config([{"own": {"module": "surgery.broken:net"}}]))
