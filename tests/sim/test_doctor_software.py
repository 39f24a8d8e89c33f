import sys
import tomllib
from importlib import metadata

import pytest
from fresh_python import ROOT
from packaging.requirements import Requirement

from deltafl.sim.doctor import software
from deltafl.sim.doctor.findings import State
from deltafl.sim.doctor.software import EXTRAS, NEEDED, problem, requirements


def test_every_extra_for_users_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev", "docs", "fuzz"}
    assert next(iter(EXTRAS)) == NEEDED


def test_what_is_required_is_read_from_the_metadata():
    lines = [
        "numpy>=2.0",
        'torch>=2.4; extra == "sim"',
        'deltafl[sim]; extra == "bench"',
        'flwr[simulation]>=1.41,<1.43; extra == "bench"',
        'pfl==0.6.*; python_version < "9.13" and extra == "bench"',
        'of-old; python_version < "3.0" and extra == "bench"',
        'elsewhere>=3; sys_platform == "elsewhere" and extra == "bench"',
    ]
    for extra, names in {"": ["numpy"], "sim": ["torch"], "bench": ["flwr", "pfl"]}.items():
        assert [one.name for one in requirements(lines, extra)] == names


@pytest.mark.parametrize("needed", ["numpy>=0.1", "numpy"])
def test_what_fits_is_no_problem(needed):
    assert problem(Requirement(needed)) == ""


@pytest.mark.parametrize(("needed", "said"), [("numpy>=999", "is not >=999"), ("none", "missing")])
def test_what_is_missing_or_of_another_version_is_a_problem(needed, said):
    assert problem(Requirement(needed)).endswith(said)


def states(monkeypatch, *lines):
    monkeypatch.setattr(metadata, "requires", lambda _: list(lines))
    monkeypatch.setattr(software.metadata, "requires", lambda _: list(lines))
    return {one.topic: one for one in software.software()}


def test_without_what_is_needed_the_command_does_not_work(monkeypatch):
    found = states(monkeypatch, 'no-such-package>=1; extra == "sim"')
    assert found["extra sim"].state is State.FAILED
    assert found["extra sim"].mend == "pip install '.[sim]'"


def test_without_the_core_nothing_works(monkeypatch):
    assert states(monkeypatch, "no-such-package>=1")["core"].state is State.FAILED


def test_without_an_extra_that_is_not_needed_it_does(monkeypatch):
    found = states(monkeypatch, 'no-such-package>=1; extra == "hub"')
    assert (found["extra hub"].state, found["extra sim"].state) == (State.ABSENT, State.GOOD)


def test_a_source_tree_that_is_not_installed_is_a_warning(monkeypatch):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software.metadata, "version", unknown)
    python, package = software.software()
    assert (python.state, package.state) == (State.GOOD, State.WARNING)
    assert sys.executable in python.text
