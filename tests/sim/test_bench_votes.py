import json

import pytest

from deltafl.protocol.quantile.registry import QUANTILE_METHODS
from deltafl.secagg import openings
from deltafl.secagg.errors import Refusal
from deltafl.sim.bench import votes
from deltafl.sim.bench.votes import (
    PROVED,
    Votes,
    VotesBenchmark,
    measure_answers,
    measure_checks,
)
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError


def few(method, **changes):
    return Votes(VotesBenchmark(repeats=1, **changes), 6, method)


@pytest.mark.parametrize("method", PROVED)
def test_each_kind_of_answer_is_measured(method):
    measured = measure_answers(few(method, pivots=3))
    assert list(measured) == ["no proof", "first query", "later query"]
    for found in measured.values():
        assert found["device_cpu_ms"] > 0
        assert found["server_cpu_ms"] > 0
    ratio = measured["first query"]["server_over_no_proof"]
    assert ratio["lowest"] == ratio["median"] == ratio["highest"] > 1  # of one turn
    pivots = 1 if method == "bracketed" else 3
    later = 32 * (1 + (pivots + 1) + 1 + 2 * (pivots + 1))
    first = later + 32 * (13 + (2 + 3) + 12 * (1 + 2))
    sizes = {
        kind: found["bytes_up"] - measured["no proof"]["bytes_up"]
        for kind, found in measured.items()
    }
    assert abs(sizes["later query"] - later) <= 3  # heads of fields
    assert abs(sizes["first query"] - first) <= 3


def test_an_answer_that_is_refused_is_not_timed(monkeypatch):
    monkeypatch.setattr(votes, "admits", lambda *_, **__: False)
    with pytest.raises(RunError, match="a true answer was refused"):
        measure_answers(few("bracketed"))


@pytest.mark.parametrize("method", QUANTILE_METHODS)
def test_what_checks_a_search_is_measured(method):
    measured = measure_checks(few(method))
    assert measured["commit_cpu_ms"] > 0
    assert measured["check_cpu_ms"] > 0
    ring_bits = int(measured["answer"].split()[2])
    # a commitment and its signature each way, and 16 limbs of blinding
    assert measured["bytes_up"] >= 96 + 16 * ring_bits // 8
    assert 6 * 96 < measured["bytes_down"] < 6 * 110 + 150 * ring_bits


def test_a_proof_that_does_not_hold_is_not_timed(monkeypatch):
    monkeypatch.setattr(openings, "examine", lambda _: (Refusal.BAD_OPENING, "another sum"))
    with pytest.raises(RunError, match="another sum"):
        measure_checks(few("mm"))


def test_the_proof_is_of_the_sum_of_the_answers(monkeypatch):
    honest = votes.answers_of
    taken = []

    def note(config, generator):
        taken.extend(honest(config, generator))
        return taken

    monkeypatch.setattr(votes, "answers_of", note)
    measure_checks(few("bracketed"))
    assert len({answer.tobytes() for answer in taken}) > 1


def test_command(capsys):
    arguments = ["bench", "votes", "--clients", "6", "--repeats", "1", "--pivots", "2"]
    assert main([*arguments, "--methods", "bracketed", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert list(measured["checks"]) == ["bracketed, 6 devices"]
    assert "bracketed, 6 devices, first query" in measured["answers"]
    assert main([*arguments, "--weights", "equal"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in (*QUANTILE_METHODS, "first query", "bytes up"))
    assert main([*arguments, "--methods", "guess"]) == 2
    assert "unknown quantile method 'guess'" in capsys.readouterr().err
    assert main(["bench", "votes", "--clients", "2"]) == 2
    assert "min_cohort" in capsys.readouterr().err
