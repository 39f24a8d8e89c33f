import json

import pytest

from deltafl.secagg import openings
from deltafl.secagg.errors import Refusal
from deltafl.sim.bench import verified_search
from deltafl.sim.bench.verified_search import WITHOUT_NOISE, VerifyBenchmark, measure
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError


@pytest.mark.parametrize("method", WITHOUT_NOISE)
def test_a_query_is_measured(method):
    measured = measure(VerifyBenchmark(6, method, repeats=1))
    assert measured["commit_cpu_ms"] > 0
    assert measured["check_cpu_ms"] > 0
    # a commitment and its signature each way, and 16 limbs of blinding
    assert measured["bytes_up"] >= 96 + 16 * measured["ring_bits"] // 8
    assert 6 * 96 < measured["bytes_down"] < 6 * 110 + 150 * measured["ring_bits"]


def test_a_proof_that_does_not_hold_is_not_timed(monkeypatch):
    monkeypatch.setattr(openings, "examine", lambda _: (Refusal.BAD_OPENING, "another sum"))
    with pytest.raises(RunError, match="another sum"):
        measure(VerifyBenchmark(6, "mm", repeats=1))


def test_the_proof_is_of_the_sum_of_the_answers(monkeypatch):
    honest = verified_search.answers_of
    taken = []

    def note(config, generator):
        taken.extend(honest(config, generator))
        return taken

    monkeypatch.setattr(verified_search, "answers_of", note)
    measure(VerifyBenchmark(6, "bracketed", repeats=1))
    assert len({answer.tobytes() for answer in taken}) > 1


def test_command(capsys):
    arguments = ["bench", "verify", "--clients", "6", "--repeats", "1"]
    assert main([*arguments, "--method", "mm", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["methods"]) == {"mm"}
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "over 6 devices" in printed
    assert all(method in printed for method in WITHOUT_NOISE)
    assert main([*arguments, "--repeats", "0"]) == 2
    assert "repeats=0 must be at least 1" in capsys.readouterr().err
    assert main(["bench", "verify", "--clients", "2"]) == 2
    assert "min_cohort" in capsys.readouterr().err
