"""Runs that are killed at a write, and what must not depend on that."""

from doubles import Killed
from records import checkpoint_of, events_of, toml_of

from deltafl.sim.record import atomic, checkpoint, evaluations, rundir


def without_times(event):
    return {key: value for key, value in event.items() if not key.endswith("_s")}


def result(path):
    """Everything that must not depend on interruptions."""
    checkpoint = checkpoint_of(path)
    return {
        "model": checkpoint.state.model.tobytes(),
        "eta": checkpoint.state.eta,
        "events": [without_times(event) for event in events_of(path)],
        "metrics": {p.name: p.read_bytes() for p in sorted((path / "metrics").iterdir())},
        "checkpoints": sorted(p.name for p in (path / "checkpoints").iterdir())[-2:],
        "config": toml_of(path),
    }


def kill_at_write(monkeypatch, number, *, after):
    """Die at the number-th durable write, just before or just after it takes effect."""
    writes = 0
    original = atomic.write_file

    def write_file(path, data):
        nonlocal writes
        writes += 1
        if after:
            original(path, data)
        if writes == number:
            raise Killed
        if not after:
            original(path, data)

    for module in (checkpoint, evaluations, rundir):
        monkeypatch.setattr(module, "write_file", write_file)
