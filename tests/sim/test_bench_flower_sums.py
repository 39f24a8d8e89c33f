import importlib.util
import logging
import random
import warnings
from importlib import metadata
from types import SimpleNamespace

import pytest

from deltafl.sim.bench.peers import flower_sums
from deltafl.sim.bench.peers.flower_sums import measure
from deltafl.sim.errors import RunError, UserError

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="flwr is not installed: pip install '.[bench]'",
)

STAGES = ["setup", "share_keys", "collect_masked_vectors", "unmask"]
# A step of Flower's quantisation; a device rounds by less than one, float32 blurs a little more.
ROUNDING = 1.25 * 16 / 2**22


def play(**changes):
    arguments = {
        "clients": 6,
        "dim": 50,
        "neighbours": None,
        "threshold": 4,
        "dropped": 0,
        "seed": 3,
    }
    return measure(**(arguments | changes))


@needs_flower
@pytest.mark.parametrize(
    ("changes", "workflow", "neighbours"),
    [
        ({}, "SecAggWorkflow", 5),
        ({"threshold": 6}, "SecAggWorkflow", 5),
        ({"neighbours": 2, "threshold": 2}, "SecAggPlusWorkflow", 2),
        ({"clients": 8, "neighbours": 4}, "SecAggPlusWorkflow", 4),
        ({"clients": 5, "neighbours": 4}, "SecAggPlusWorkflow", 4),
    ],
)
def test_the_aggregate_is_the_mean(changes, workflow, neighbours):
    cost = play(**changes)
    assert cost["max_error"] < ROUNDING
    assert (cost["workflow"], cost["neighbours"]) == (workflow, neighbours)


@pytest.mark.slow
@needs_flower
@pytest.mark.parametrize("changes", [{}, {"clients": 8, "neighbours": 6}])
def test_a_device_that_vanishes_before_its_masked_vector_is_survived(changes):
    assert play(**changes, dropped=1)["max_error"] < ROUNDING


@pytest.mark.slow
@needs_flower
def test_the_error_shows_an_aggregate_that_is_wrong(monkeypatch):
    play()  # imports flwr
    secaggplus = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    mask = secaggplus.pseudo_rand_gen
    monkeypatch.setattr(
        secaggplus, "pseudo_rand_gen", lambda seed, *rest: mask(bytes(len(seed)), *rest)
    )
    assert play()["max_error"] > 1000 * ROUNDING


@needs_flower
def test_many_devices_do_not_overflow(monkeypatch):
    monkeypatch.setattr(
        "deltafl.sim.bench.peers.flower_sums._MODULUS_RANGE", 1 << 23
    )  # few bits, for six
    assert play()["max_error"] < 4 * ROUNDING  # two bits less than by default


@pytest.mark.slow
@needs_flower
def test_the_seed_decides_who_neighbours_whom():
    def survives(seed):
        try:
            play(neighbours=2, threshold=2, dropped=2, seed=seed)  # only if opposite on the ring
        except RunError:
            return False
        return True

    assert [seed for seed in range(4, 12) if survives(seed)] == [8]


@pytest.mark.slow
@needs_flower
@pytest.mark.parametrize(("mod", "neighbours"), [("secagg_mod", None), ("secaggplus_mod", 4)])
def test_devices_and_server_each_bear_their_own_cost(monkeypatch, mod, neighbours):
    play()  # imports flwr
    now = 0.0

    def takes(seconds, module, name):
        """Let a function advance the clock, and ever more so."""
        original = getattr(module, name)
        calls = 0

        def slow(*arguments):
            nonlocal now, calls
            now += seconds + calls**2
            calls += 1
            return original(*arguments)

        monkeypatch.setattr(module, name, slow)

    monkeypatch.setattr(
        "deltafl.sim.bench.peers.flower_sums.time", SimpleNamespace(process_time=lambda: now)
    )
    workflow = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"
    takes(1, importlib.import_module("flwr.client.mod"), mod)  # 22 times
    takes(1000, importlib.import_module(workflow), "combine_shares")  # once per device
    takes(100_000, flower_sums._MemoryGrid, "_carry")  # not to be counted
    cost = play(neighbours=neighbours, dropped=1)
    assert cost["device_cpu_s"] == {
        "setup": 1 + (2**2 + 3**2) / 2,  # the median of calls 0 to 5
        "share_keys": 1 + (8**2 + 9**2) / 2,
        "collect_masked_vectors": 1 + 14**2,  # from here on one device less
        "unmask": 1 + 19**2,
    }
    assert cost["devices_cpu_s"] == sum(1 + call**2 for call in range(22))
    assert cost["server_cpu_s"] == sum(1000 + call**2 for call in range(6))
    assert cost["total_cpu_s"] == cost["devices_cpu_s"] + cost["server_cpu_s"]


@pytest.mark.slow
@needs_flower
def test_every_stage_has_its_cost():
    cost = play(dropped=1)
    assert list(cost["device_cpu_s"]) == STAGES
    assert min(*cost["device_cpu_s"].values(), cost["server_cpu_s"]) > 0
    assert cost["version"] == metadata.version("flwr")


@needs_flower
def test_a_halted_round_is_no_result():
    with pytest.raises(RunError, match=r"dropped=3 of clients=6.* threshold=4"):
        play(dropped=3)


@needs_flower
def test_a_round_leaves_no_trace(capfd, caplog):
    random.seed(7)
    state = random.getstate()
    play(neighbours=4)
    assert random.getstate() == state
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert not logging.getLogger("flwr").disabled


def test_warnings_are_shown_again_after_a_failure(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: "2.0.0")
    with pytest.raises(UserError):
        play()
    with pytest.warns(UserWarning, match="shown"):
        warnings.warn("shown", stacklevel=1)


def test_without_flwr_the_remedy_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UserError, match=r"not installed.*pip install '\.\[bench\]'"):
        play()


@pytest.mark.parametrize("version", ["1.4.1", "1.43.0", "1.410.0", "2.0.0"])
def test_another_release_is_refused(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(UserError, match=rf"flwr is {version}, not 1\.41 or 1\.42: install"):
        play()


def test_a_package_that_lacks_a_module_is_refused(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: "1.41.0")
    monkeypatch.setattr("deltafl.sim.bench.peers.flower_sums._MODULES", ("flwr_without_this",))
    with pytest.raises(UserError, match=r"flwr_without_this.*\.\[bench\]"):
        play()
