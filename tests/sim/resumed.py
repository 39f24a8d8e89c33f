"""Runs that are killed at a transaction, and what must not depend on that."""

from doubles import Killed
from records import checkpoint_of, evaluations_of, events_of, toml_of

from deltafl.sim.record.record import Record


def without_times(event):
    return {key: value for key, value in event.items() if not key.endswith("_s")}


def result(path):
    """Everything that must not depend on interruptions."""
    checkpoint = checkpoint_of(path)
    return {
        "model": checkpoint.state.model.tobytes(),
        "eta": checkpoint.state.eta,
        "events": [without_times(event) for event in events_of(path)],
        "metrics": {one.round: one for one in evaluations_of(path)},
        "config": toml_of(path),
    }


def kill_at_write(monkeypatch, number, *, after):
    """Die at the number-th transaction, just before or just after it ends."""
    writes = 0

    def killing(original):
        def keep(record, **options):
            nonlocal writes
            if not record.db.in_transaction:
                return original(record, **options)
            writes += 1
            if writes == number and not after:
                raise Killed
            original(record, **options)
            if writes == number:
                raise Killed
            return None

        return keep

    for name in ("keep", "keep_durably"):
        monkeypatch.setattr(Record, name, killing(getattr(Record, name)))
