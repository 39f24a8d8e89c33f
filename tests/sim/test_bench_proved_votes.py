import json

import pytest

from deltafl.protocol.quantile.ballots import METHODS
from deltafl.sim.bench import proved_votes
from deltafl.sim.bench.proved_votes import VotesBenchmark, measure
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError


@pytest.mark.parametrize("method", METHODS)
def test_each_kind_of_answer_is_measured(method):
    measured = measure(VotesBenchmark(6, method, pivots=3, repeats=1))
    assert list(measured) == ["trusted", "first", "later"]
    for found in measured.values():
        assert found["device_cpu_ms"] > 0
        assert found["server_cpu_ms"] > 0
    pivots = 1 if method == "bracketed" else 3
    later = 32 * (1 + (pivots + 1) + 1 + 2 * (pivots + 1))
    first = later + 32 * (13 + (2 + 3) + 12 * (1 + 2))
    sizes = {
        kind: found["bytes_up"] - measured["trusted"]["bytes_up"]
        for kind, found in measured.items()
    }
    assert abs(sizes["later"] - later) <= 3  # heads of fields
    assert abs(sizes["first"] - first) <= 3


def test_an_answer_that_is_refused_is_not_timed(monkeypatch):
    monkeypatch.setattr(proved_votes, "admits", lambda *_, **__: False)
    with pytest.raises(RunError, match="a true answer was refused"):
        measure(VotesBenchmark(6, "bracketed", repeats=1))


def test_command(capsys):
    arguments = ["bench", "votes", "--clients", "6", "--repeats", "1", "--pivots", "2"]
    assert main([*arguments, "--method", "bracketed", "--json"]) == 0
    [measured] = json.loads(capsys.readouterr().out)["measured"]
    assert (measured["method"], measured["clients"]) == ("bracketed", 6)
    assert main([*arguments, "--weights", "equal"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("bracketed", "histogram", "first query", "kB up"))
    assert main([*arguments, "--repeats", "0"]) == 2
    assert "repeats=0 must be at least 1" in capsys.readouterr().err
    assert main(["bench", "votes", "--clients", "2"]) == 2
    assert "min_cohort" in capsys.readouterr().err
