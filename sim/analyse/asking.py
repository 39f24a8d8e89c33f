"""A question as it is recorded: with its guard, and of whose values it is.

It is JSON with sorted names. The context of the session is the digest of these bytes, so the masks
of every device are bound to them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from deltafl.fl.read.exact import exact_number
from deltafl.fl.read.strict_json import parse_json
from deltafl.secagg import GraphKind, ThreatModel, UsageError
from deltafl.secagg.labels import digest
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.secagg.threat import Adversary
from deltafl.sim.analyse.plan import LABEL, Guard
from deltafl.sim.analyse.question import Question
from deltafl.sim.errors import UserError

MAX_BYTES: Final = 1 << 16
"""Longest question."""

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class About:
    """Whose values a question is about. Texts, empty where they are not known.

    Attributes:
        user: the column that names the device of a row.
        column: the column of the values.
        where: NAME=VALUE, which a row must have to count; "" for all rows.
    """

    user: str = ""
    column: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Asking:
    """All that devices are told of an analysis before they answer.

    Attributes:
        question: what is asked.
        guard: the fewest devices, and what the session must withstand.
        about: of which values.
        salt: 32 random bytes, so that no two analyses have one context.
    """

    question: Question
    guard: Guard
    about: About
    salt: bytes

    @property
    def context(self) -> bytes:
        """The context of the session, 32 bytes.

        Raises:
            UserError: as `to_bytes`.
        """
        return digest(LABEL, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The question as it is recorded."""
        question, guard, threat = self.question, self.guard, self.guard.threat
        return json_line(
            {
                "statistic": question.statistic,
                "low": float(question.low),
                "high": float(question.high),
                "of": question.of,
                "cap": int(question.cap),
                "bins": int(question.bins),
                "level": str(question.level),
                "noise": str(question.noise),
                "min_cohort": int(guard.min_cohort),
                "adversary": str(threat.adversary),
                "colluding": float(threat.colluding_rate),
                "dropout": float(threat.dropout_rate),
                "graph": "" if guard.graph is None else str(guard.graph),
                "user": self.about.user,
                "column": self.about.column,
                "where": self.about.where,
                "salt": self.salt.hex(),
            }
        )


def read_asking(data: bytes) -> Asking:
    """Read a question that was recorded.

    Raises:
        ValueError: the bytes are not what `Asking.to_bytes` gives for any question.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, and {MAX_BYTES:,} at most are read")
    document = parse_json(data)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    taken = _Taken(document)
    try:
        asking = _read(taken)
    except (UserError, UsageError, OverflowError) as error:
        raise ValueError(str(error)) from error
    taken.finish()
    if asking.to_bytes() != data:
        raise ValueError("it is not written as the program writes it")
    return asking


def json_line(document: Mapping[str, object]) -> bytes:
    """JSON in one line, with sorted names: equal documents give equal bytes."""
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _read(taken: "_Taken") -> Asking:
    question = Question(
        taken.take("statistic", str),
        taken.take("low", float),
        taken.take("high", float),
        of=taken.take("of", str),
        cap=taken.take("cap", int),
        bins=taken.take("bins", int),
        level=exact_number(taken.take("level", str)),
        noise=exact_number(taken.take("noise", str)),
    )
    threat = ThreatModel(
        taken.take("colluding", float),
        taken.take("dropout", float),
        Adversary(taken.take("adversary", str)),
    )
    graph = taken.take("graph", str)
    guard = Guard(taken.take("min_cohort", int), threat, GraphKind(graph) if graph else None)
    about = About(*(taken.take(name, str) for name in ("user", "column", "where")))
    salt = bytes.fromhex(taken.take("salt", str))
    if len(salt) != DIGEST_SIZE:
        raise ValueError(f"its salt has {len(salt)} bytes, not {DIGEST_SIZE}")
    return Asking(question, guard, about, salt)


class _Taken:
    """Takes the values of a document one by one, each of its type."""

    def __init__(self, document: dict[str, object]) -> None:
        self._left = dict(document)

    def take(self, name: str, kind: type[_Kind]) -> _Kind:
        value = self._left.pop(name, None)
        if type(value) is not kind:
            raise ValueError(f"its {name} is not of type {kind.__name__}")
        return value

    def finish(self) -> None:
        if self._left:
            raise ValueError(f"it has {min(self._left)!r:.40}, which no question has")
