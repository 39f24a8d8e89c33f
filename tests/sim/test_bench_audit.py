"""`deltafl bench audit`: rounds are recorded, and their audit is measured."""

import json

import pytest

from deltafl.sim.cli import main


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mm", "histogram", "bracketed"])
def test_an_audit_of_a_recorded_round_is_measured(method, capsys):
    arguments = ["bench", "audit", "--dim", "20", "--graph", "complete", "--clients", "60"]
    arguments += ["--method", method]
    assert main([*arguments, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["sums_replayed"] == measured["sums_released"] > 1
    assert measured["exit_code"] in (0, 1)
    assert min(measured["wall_s"], measured["peak_memory_mb"], measured["record_mb"]) > 0


def test_what_cannot_be_recorded_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "audit", "--rounds", "0"])
    assert "--rounds: 0 must be a whole number" in capsys.readouterr().err
