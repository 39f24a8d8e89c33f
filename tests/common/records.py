"""Records of run directories, as tests read and change them."""

import sqlite3
from contextlib import closing

from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.evaluations import read_evaluations, write_evaluation
from deltafl.sim.record.events import read_events
from deltafl.sim.record.record import write_record
from deltafl.sim.record.rundir import RunDirectory


def events_of(path):
    """The events of the run in a directory."""
    with RunDirectory(path).read() as record:
        return read_events(record)


def evaluations_of(path, theta=None):
    """Its evaluations, of the first level or another."""
    with RunDirectory(path).read() as record:
        return list(read_evaluations(record, theta))


def checkpoint_of(path):
    """Its last checkpoint."""
    with RunDirectory(path).read() as record:
        return load_checkpoint(record)


def said_of(path, name):
    """What it says under a name, a JSON object."""
    with RunDirectory(path).read() as record:
        return record.json(name)


def toml_of(path):
    """Its settings, TOML."""
    with RunDirectory(path).read() as record:
        return record.settings


def note(path, name, value):
    """Have it say something else."""
    with write_record(RunDirectory(path).record) as record:
        record.note(name, value)
        record.keep()


def evaluate(path, theta, evaluation):
    """Add an evaluation."""
    with write_record(RunDirectory(path).record) as record:
        write_evaluation(record, theta, evaluation)
        record.keep()


def change(path, *statements):
    """Run SQL on its record; a statement is a text, or a text and what it is given."""
    with closing(sqlite3.connect(RunDirectory(path).record)) as db:
        for one in statements:
            db.execute(*((one,) if isinstance(one, str) else one))
        db.commit()


def attacked_of(path):
    """What it has noted of attackers."""
    with RunDirectory(path).read() as record:
        return read_attacked(record)
