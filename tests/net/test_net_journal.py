"""A server that is killed goes on with its round, and with the same session."""

import pytest
from federations import Federation, play_killed, settings, wired

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.record.events import read_events

SMALL = {
    "data": {"num_devices": 8, "split": "samples"},
    "federation": {"rounds": 2, "cohort_size": 8, "evaluate_every": 2},
    "privacy": {"min_cohort": 5, "expected_dropout": 0.1},
    "quantile": {"max_queries": 4},
}


def fleet(algorithm="private-delta-fl", *more):
    """Two rounds, each of all devices that there are: none may be lost."""
    return Federation(settings(algorithm, SMALL, *more))


def is_clean(path):
    found = [f for f in audit(path).findings if f.severity >= Severity.MEDIUM]
    lost = [event for event in read_events(path / "events.jsonl") if event.get("aborted")]
    return not found and not lost


class Everywhere:
    """Dies at each end of a trip and once within it; torn records alternate with whole ones."""

    def __init__(self):
        self.died, self.about = set(), None

    def __call__(self, writer, kind, fields):
        name, number = writer._path.name, writer.num_frames - 1
        if name == "round.bin" and kind == 0:
            self.about = fields[:2]
        is_answer = kind == 1
        every = 9 if name == "round.bin" else 16
        moment = name, self.about, number
        if moment in self.died or (is_answer and number % every != 4):
            return None
        self.died.add(moment)
        return (0, 5, 10**6)[len(self.died) % 3]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["private-fedavg", "private-delta-fl"])
def test_a_server_that_is_killed_everywhere_comes_to_the_same_model(
    tmp_path, monkeypatch, algorithm
):
    untouched = fleet(algorithm)
    with wired(untouched):
        expected = untouched.play(tmp_path / "untouched")
    federation = fleet(algorithm)
    state, kills = play_killed(federation, tmp_path / "run", monkeypatch, Everywhere())
    print(kills)
    assert state.model.tobytes() == expected.model.tobytes()
    assert kills > 60
    assert not federation.declined
    print([str(f)[:300] for f in audit(tmp_path / "run").findings], read_events(tmp_path / "run" / "events.jsonl"))
    assert is_clean(tmp_path / "run")
