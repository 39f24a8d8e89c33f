"""A federation and a simulation of the same devices come to the same model, bit for bit."""

from dataclasses import replace

import pytest
from federations import Federation, settings, simulate, vanishing, wired

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.net.frames import Task

CASES = {
    "Δ-FL": settings(),
    "Δ-FL, verified": settings("private-delta-fl", {"privacy": {"adversary": "active"}}),
    "two levels": settings("private-delta-fl", {"federation": {"levels": ["1", "1/2"]}}),
    "FedAvg": settings("private-fedavg", {"privacy": {"signed": True}}),
    "q-FFL": settings("private-q-ffl"),
    "FedProx, Adam": settings("private-fedprox", {"strategy": {"server_optimizer": "adam"}}),
}


def is_clean(path):
    return not [f for f in audit(path).findings if f.severity >= Severity.MEDIUM]


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_models_are_the_same(tmp_path, config):
    federation = Federation(config)
    with wired(federation):
        state = federation.play(tmp_path / "net")
    expected = simulate(config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()
    assert state.round == expected.round == 3
    assert is_clean(tmp_path / "net")
    assert not federation.declined


@pytest.mark.parametrize("name", ["Δ-FL", "q-FFL"])
@pytest.mark.parametrize("case", ["any", "of another unit"])
def test_the_audit_finds_a_graph_that_the_server_chose(tmp_path, monkeypatch, name, case):
    """A server that is free in it looks for a graph that suits it."""
    federation, honest = Federation(CASES[name]), Task.graph_seed

    def chosen(task):
        if case == "any":
            return honest.fget(task)[::-1]
        return honest.fget(replace(task, unit=task.unit + 1))

    with wired(federation), monkeypatch.context() as patched:
        patched.setattr(Task, "graph_seed", property(chosen))
        federation.play(tmp_path / "net")
    assert not federation.declined
    found = [f for f in audit(tmp_path / "net").findings if f.severity >= Severity.MEDIUM]
    assert {one.rule for one in found} == {"record.disagrees"}
    assert all("graph_seed" in one.detail for one in found)


@pytest.mark.parametrize("name", ["Δ-FL", "FedAvg", "q-FFL"])
def test_the_models_are_the_same_where_devices_drop_out(tmp_path, name):
    config = settings(CASES[name].federation.algorithm, {"faults": {"dropout": 0.2}})
    federation = Federation(config)
    with wired(federation, vanishing(federation)) as federation.wires:
        state = federation.play(tmp_path / "net")
    expected = simulate(config, tmp_path / "simulated", federation.dataset)
    assert federation.declined
    assert state.model.tobytes() == expected.model.tobytes()
    assert is_clean(tmp_path / "net")
