import json
from dataclasses import replace

import pytest

from deltafl.secagg import GraphKind
from deltafl.sim.bench.round import measure
from deltafl.sim.bench.round_flags import RoundBenchmark
from deltafl.sim.cli import main

BENCHMARK = RoundBenchmark(
    clients=12, dim=40, queries=2, graph=GraphKind.COMPLETE, dropout=0.0, seed=1
)


@pytest.mark.parametrize(
    ("queries", "trips"),
    [
        # set-up 3; first query 3, each further one 1, update 3
        (1, 9),
        (4, 12),
    ],
)
def test_round_trips_are_counted(queries, trips):
    measured = measure(replace(BENCHMARK, queries=queries, dim=1))
    assert (measured["sums"], measured["trips"]) == (queries + 1, trips)


def test_what_a_device_sends_beside_the_update_is_counted():
    measured = measure(BENCHMARK)
    up = 1e3 * sum(each["kb_up_per_device"] for each in measured["by_stage"].values())
    packed = -(-44 * measured["ring_bits"] // 8)  # weight, loss, count, clipped follow the update
    assert measured["bytes_up_beside_update"] == pytest.approx(up - packed, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bracketed", "histogram"])
def test_what_checks_a_search_costs_time_and_bytes(method):
    checks = ("trusted", "verified", "proved")
    found = [measure(replace(BENCHMARK, method=method, search=one))["by_stage"] for one in checks]
    sent = [each["mask"]["kb_up_per_device"] for each in found]
    # a verified answer has a commitment, its signature and blinding; a proved one the proof, too
    assert sent[0] + 0.096 < sent[1] < sent[2]
    assert found[1]["mask"]["kb_down_per_device"] > found[0]["mask"]["kb_down_per_device"] + 0.096
    assert found[2]["mask"]["server_cpu_ms"] > found[1]["mask"]["server_cpu_ms"]


def test_votes_that_cannot_be_proved_are_refused(capsys):
    arguments = ["--clients", "12", "--search", "proved", "--graph", "complete"]
    assert main(["bench", "round", *arguments]) == 2
    assert "bracketed" in capsys.readouterr().err


@pytest.mark.slow
def test_command(capsys):
    arguments = ["bench", "round", "--clients", "12", "--dim", "20", "--queries", "2"]
    assert main([*arguments, "--graph", "complete", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["graph"] == "complete"
    assert main([*arguments, "--graph", "complete"]) == 0
    assert "trips: 10\n" in capsys.readouterr().out
