"""The reader in docs/examples shares no code with the program, and agrees with it."""

import ast
import shutil
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from lenient import ROUNDS
from records import change

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.record.events import add_event
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import Message, Sum, TranscriptWriter, read_transcript

READER = Path(__file__).parents[2] / "docs" / "examples" / "read_record.py"


class Device:
    def __init__(self, index):
        self.id, self.weight = index, 10 + index

    def loss(self, _model):
        return 0.1 * self.id

    def update(self, model):
        return np.full(len(model), 0.5, dtype=np.float32)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A record of two rounds and its head, hex."""
    path = tmp_path_factory.mktemp("reader") / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "full")
        search = SearchParams(default_max_queries("bracketed"))
        strategy = PrivateDeltaFL(Fraction(1, 2), Encoding("bracketed", search))
        sessions = Sessions(RoundPolicy(**ROUNDS), min_cohort=5)
        masked = MaskedRounds(sessions, observer=writer)
        state = TrainingState(np.zeros(2000, dtype=np.float32))
        for number in (1, 2):
            writer.begin_round(number, range(6))
            cohort = cohort_of(map(Device, range(6)), masked, round_index=number)
            state, report = strategy.apply(state, cohort)
            writer.end_round(report.aborted)
            add_event(record, {"round": number, "eta": 0.5})
        writer.finish(2)
        record.keep()
        return path, record.chain.mark.digest.hex()


def read(*arguments):
    command = [sys.executable, "-W", "error", str(READER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def test_the_reader_has_at_most_a_hundred_lines_and_none_of_this_project():
    source = READER.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 100
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"msgpack"}


def test_the_reader_counts_what_the_program_reads(written):
    path, head = written
    done = read(path, head)
    assert (done.returncode, done.stderr) == (0, "")
    *rows, last = done.stdout.splitlines()
    records = list(read_transcript(path))
    assert last == f"2 rounds, 0 lost, {sum(isinstance(r, Sum) for r in records)} sums; head {head}"
    counts, sizes = Counter(), Counter()
    for record in records:
        if isinstance(record, Message):
            counts["sent" if record.sent else "received"] += 1
            sizes["sent" if record.sent else "received"] += record.size
    told, told_sizes = Counter(), Counter()
    for row in rows:
        direction, *kind, count, size, _ = row.split()
        assert kind != ["unknown"]
        told[direction] += int(count)
        told_sizes[direction] += int(size)
    assert (told, told_sizes) == (counts, sizes)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE messages SET peer = 9 WHERE number = 5", "breaks at row 5"),
        ("DELETE FROM messages WHERE number = 5", "breaks at row 5"),
        ("UPDATE bodies SET data = x'00'", "another digest"),
    ],
)
def test_the_reader_finds_damage(written, tmp_path, statement, says):
    shutil.copy(written[0], tmp_path / "record.sqlite")
    change(tmp_path, statement)
    done = read(tmp_path / "record.sqlite")
    assert done.returncode == 1
    assert says in done.stderr


def test_the_reader_counts_rounds_that_an_interruption_lost(tmp_path):
    path = tmp_path / "record.sqlite"
    with write_record(path) as record:
        writer = TranscriptWriter(record, "sums")
        for number in (1, 2, 3):
            writer.begin_round(number, range(6))
            writer.end_round(None)
            if number > 1:
                writer.resume(1)
        record.keep()
    assert read(path).stdout.splitlines()[-1].startswith("3 rounds, 2 lost, 0 sums")


def test_the_reader_compares_the_head(written):
    path, head = written
    done = read(path, "00" + head[2:])
    assert done.returncode == 1
    assert "the head is not" in done.stderr
