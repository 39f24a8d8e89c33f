import json
from dataclasses import replace

import pytest

from deltafl.secagg import GraphKind
from deltafl.sim.bench.round import RoundBenchmark, measure
from deltafl.sim.cli import main

BENCHMARK = RoundBenchmark(
    clients=12, dim=40, slots=3, graph=GraphKind.COMPLETE, signed=False, dropout=0.0, seed=1
)
SIGNED = replace(BENCHMARK, signed=True)


@pytest.mark.parametrize(
    ("benchmark", "slots", "trips"),
    [
        # set-up 3; unsigned: first query 2, each further one 1, update 2; signed: 3, 1 and 3
        (BENCHMARK, 1, 5),
        (BENCHMARK, 2, 7),
        (BENCHMARK, 5, 10),
        (SIGNED, 1, 6),
        (SIGNED, 2, 9),
        (SIGNED, 5, 12),
    ],
)
def test_round_trips_are_counted(benchmark, slots, trips):
    assert measure(replace(benchmark, slots=slots, dim=1))["trips"] == trips


def test_what_a_device_sends_beside_the_update_is_counted():
    measured = measure(BENCHMARK)
    up = 1e3 * sum(each["kb_up_per_device"] for each in measured["by_stage"].values())
    packed = -(-44 * measured["ring_bits"] // 8)  # weight, loss, count, clipped follow the update
    assert measured["bytes_up_beside_update"] == pytest.approx(up - packed, abs=0.1)


@pytest.mark.slow
def test_command(capsys):
    arguments = ["bench", "round", "--clients", "8", "--dim", "20", "--slots", "3"]
    arguments += ["--signed"]
    assert main([*arguments, "--graph", "complete", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["signed"], measured["graph"]) == (True, "complete")
    assert main([*arguments, "--graph", "complete"]) == 0
    assert "trips: 10\n" in capsys.readouterr().out
