import json
import re

import pytest

from deltafl.secagg import GraphKind
from deltafl.sim.bench import secagg
from deltafl.sim.bench.secagg import SessionBenchmark, measure
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError


def benchmark(**changes):
    arguments = {"clients": 8, "dim": 300, "graph": GraphKind.COMPLETE}
    return SessionBenchmark(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"neighbours": 7, "threshold": 5, "dropped": 0}),
        ({"dropout": 0.25}, {"dropped": 2}),
        (
            {"clients": 20, "graph": GraphKind.SPARSE, "neighbours": 6},
            {"neighbours": 6, "threshold": 4},
        ),
    ],
)
def test_a_session_is_measured(changes, expected):
    measured = measure(benchmark(**changes))
    assert {key: measured[key] for key in expected} == expected
    stages = {"advertise", "share", "receipt", "mask", "confirm", "unmask"}
    assert set(measured["by_stage"]) == stages
    for costs in measured["by_stage"].values():
        assert min(costs.values()) > 0
    assert measured["total_cpu_s"] >= measured["device_cpu_s"] > 0
    assert measured["masking"]["masks_per_device"] == measured["neighbours"] + 1
    assert 0 < measured["masking"]["share_of_raw"] < 1


def test_the_upload_is_counted_whole():
    measured = measure(benchmark(dim=50_000))
    sent = 1e3 * sum(each["kb_up_per_device"] for each in measured["by_stage"].values())
    assert measured["upload"]["bytes"] == pytest.approx(sent, abs=0.1)
    assert measured["upload"]["over_packed"] == pytest.approx(sent / 200_000, abs=1e-4)


def test_a_wrong_sum_is_not_reported(monkeypatch):
    honest = secagg.run_session

    def wrong(*arguments, **options):
        (result,) = honest(*arguments, **options)
        result.vector[7] ^= 1
        return [result]

    monkeypatch.setattr(secagg, "run_session", wrong)
    with pytest.raises(RunError, match="not that of the contributors"):
        measure(benchmark())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graph", "complete", "--neighbours", "4"], "take --graph sparse"),
        (["--clients", "3", "--graph", "sparse"], "no sparse graph"),
        (["--clients", "8", "--dim", "9", "--graph", "complete", "--dropout", "0.7"], "are left"),
    ],
)
def test_what_cannot_be_measured_is_said(capsys, arguments, message):
    assert main(["bench", "secagg", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_command(capsys):
    arguments = ["bench", "secagg", "--clients", "6", "--dim", "10", "--graph", "complete"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 6
    assert main(arguments) == 0
    assert "clients: 6\n" in capsys.readouterr().out


def test_without_flower_the_peer_is_refused_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("deltafl.sim.bench.peers.flower_sums._RELEASES", ("0.0",))
    arguments = ["--clients", "6", "--dim", "10", "--graph", "complete", "--peer", "flower"]
    assert main(["bench", "secagg", *arguments]) == 2
    assert ".[bench]" in capsys.readouterr().err
