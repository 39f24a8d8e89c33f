"""Records of run directories, as tests read and change them."""

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace

import msgpack

from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.evaluations import read_evaluations, write_evaluation
from deltafl.sim.record.events import add_event, read_events
from deltafl.sim.record.record import HAPPENED, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.record.truth import DeviceTruth, read_with_marks


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


def evaluate(path, evaluation):
    """Put an evaluation of the first level in the place of that after the same round."""
    change(path, ("DELETE FROM evaluations WHERE round = ?", (evaluation.round,)))
    with write_record(RunDirectory(path).record) as record:
        write_evaluation(record, record.config().federation.thetas[0], evaluation)
        record.keep()


def change(path, *statements):
    """Run SQL on its record; a statement is a text, or a text and what it is given."""
    change_record(RunDirectory(path).record, *statements)


def change_record(path, *statements):
    """The same of a record."""
    with closing(sqlite3.connect(path)) as db:
        for one in statements:
            db.execute(*((one,) if isinstance(one, str) else one))
        db.commit()
        db.execute("PRAGMA journal_mode = DELETE")


def attacked_of(path):
    """What it has noted of attackers."""
    with RunDirectory(path).read() as record:
        return read_attacked(record)


def read_truth(path, run_id, kind=DeviceTruth):
    """What devices had to hide, by a file of truth; their seeds too, if they are asked for."""
    return (one for one, _ in read_with_marks(path, run_id) if isinstance(one, kind))


def rows_of(path):
    """The rows of the chain in a record, in their order: [table, number, fields by name, body]."""
    with closing(sqlite3.connect(path)) as db:
        found = []
        for table, declared in HAPPENED.items():
            columns = [one.split()[0] for one in declared.split(",")]
            more = ", body" if table == "messages" else ", NULL"
            names = ", ".join(columns)
            for row in db.execute(f"SELECT number, {names}{more} FROM {table}"):  # noqa: S608
                found.append([table, row[0], dict(zip(columns, row[1:-1], strict=True)), row[-1]])
    return sorted(found, key=lambda row: row[1])


def write_rows(path, rows):
    """Put other rows in their place, numbered anew, under a right chain; its last digest."""
    numbers = {row[1]: number for number, row in reversed([*enumerate(rows)])}
    digest = hashlib.sha256(b"deltafl record 1").digest()
    with closing(sqlite3.connect(path)) as db:
        bodies = db.execute("SELECT number, data FROM bodies").fetchall()
        for table in (*HAPPENED, "bodies"):
            db.execute(f"DELETE FROM {table}")  # noqa: S608
        for number, data in bodies:
            if number in numbers:
                db.execute("INSERT INTO bodies VALUES (?, ?)", (numbers[number], data))
        for number, (table, _, fields, body) in enumerate(rows):
            values = tuple(fields.values())
            digest = hashlib.sha256(digest + msgpack.packb((table, number, *values))).digest()
            row = (number, digest, *values)
            if table == "messages":
                row = (*row, numbers.get(body, number))
            places = ", ".join("?" * len(row))
            db.execute(f"INSERT INTO {table} VALUES ({places})", row)  # noqa: S608
        db.commit()
    return digest


def due(config):
    """The settings of a run that evaluates after every round."""
    return replace(config, federation=replace(config.federation, evaluate_every=1))


def write_run(path, config, *evaluations, events=(), **said):
    """A run directory with these settings and evaluations of each level; more is added to it."""
    RunDirectory(path).path.mkdir(parents=True, exist_ok=True)
    with write_record(RunDirectory(path).record) as record:
        TranscriptWriter(record, "full")
        record.note_settings(config)
        for one in events:
            add_event(record, one)
        for theta in config.federation.thetas:
            for one in evaluations:
                write_evaluation(record, theta, one)
        for name, value in said.items():
            record.note(name, value)
        record.keep()
    return RunDirectory(path)
