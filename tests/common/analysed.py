"""Records of analyses: honest ones, and those that somebody has changed."""

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import msgpack
import numpy as np
from frames import chained, frames_of

from deltafl.secagg import ThreatModel
from deltafl.sim.analyse.analysis import Guard, analyse_tables
from deltafl.sim.analyse.asking import About
from deltafl.sim.analyse.question import Question
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.transcript import ANALYSIS

TABLES = {i: np.arange(i % 4 + 1) * 3.0 for i in range(8)}
GUARD = Guard(5, ThreatModel(0.1, 0.2))
OPENING, MESSAGE, SUM, END, CLOSING, _, BEGIN, ASKED, ANSWER = range(9)


def question(statistic="mean", **more):
    """A question about `TABLES`."""
    return Question(statistic, **{"low": 0, "high": 8, "cap": 3, **more})


NOISY = {"cap": 1, "noise": Fraction(1, 2)}


def recorded(folder: Path, asked=None, *, tables=TABLES, guard=GUARD, about=None, **more) -> Path:
    """The folder with the record of an analysis, which may end without an answer."""
    about = about or About("who", "age")
    try:
        analyse_tables(tables, asked or question(), guard, out=folder, about=about, **more)
    except UserError:
        assert (folder / "analysis.bin").exists()
    return folder


def entries(folder: Path) -> list[list[object]]:
    """The records: kind, number, and fields."""
    frames = frames_of(folder / "analysis.bin", ANALYSIS)
    return [msgpack.unpackb(frame, use_list=True) for frame in frames]


def rewritten(folder: Path, records: list[list[object]], into: Path) -> Path:
    """Another record, numbered anew, whose chain is right."""
    frames = [msgpack.packb([kind, n, *rest]) for n, (kind, _, *rest) in enumerate(records)]
    into.mkdir(parents=True)
    (into / "analysis.bin").write_bytes(chained(frames, ANALYSIS))
    return into


def of_kind(records: list[list[object]], kind: int) -> list[list[object]]:
    """The records of a kind."""
    return [one for one in records if one[0] == kind]


def answer_of(records: list[list[object]]) -> dict[str, object]:
    """The answer that is recorded."""
    (one,) = of_kind(records, ANSWER)
    return json.loads(one[3])


def with_answer(records: list[list[object]], **changed) -> None:
    """Change numbers of the answer."""
    (one,) = of_kind(records, ANSWER)
    document = {**json.loads(one[3]), **changed}
    one[3] = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def with_sum(one: list[object], words: np.ndarray) -> None:
    """Change the words of a sum, digest included."""
    data = words.astype("<u8").tobytes()
    one[4:6] = [len(words), hashlib.sha256(data).digest()]
    one[7] = data


def mended(records: list[list[object]]) -> list[list[object]]:
    """The same records, of which those that repeat a message name the first that has it."""
    data = {one[6]: one[7] for one in records if one[0] == MESSAGE and isinstance(one[7], bytes)}
    first: dict[object, int] = {}
    found = []
    for number, (*one,) in enumerate(records):
        if one[0] == MESSAGE and one[3]:
            place = first.setdefault(one[6], number)
            one[7] = data[one[6]] if place == number else place
        found.append(one)
    return found


SMALL = "policy.looser"
"""What is found of every analysis whose guard is `GUARD`: usually, cohorts are larger."""


def rules_of(path: Path, **options) -> set[str]:
    """The rules that are found broken, besides `SMALL` and what is no more than a fact."""
    report = audit(path, Options(**options))
    return {finding.rule for finding in report.findings if finding.severity >= 1} - {SMALL}
