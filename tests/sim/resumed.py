"""Runs that are killed at a write, and what must not depend on that."""

from doubles import Killed

from deltafl.sim.record import atomic, checkpoint, evaluations, rundir
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.events import read_events


def without_times(event):
    return {key: value for key, value in event.items() if not key.endswith("_s")}


def result(path):
    """Everything that must not depend on interruptions."""
    checkpoint = load_checkpoint(path / "checkpoints")
    return {
        "model": checkpoint.state.model.tobytes(),
        "eta": checkpoint.state.eta,
        "events": [without_times(event) for event in read_events(path / "events.jsonl")],
        "metrics": {p.name: p.read_bytes() for p in sorted((path / "metrics").iterdir())},
        "checkpoints": sorted(p.name for p in (path / "checkpoints").iterdir())[-2:],
        "config": (path / "config.toml").read_text(),
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
