"""What an audit finds: which rule was broken, where, and how bad it is."""

from dataclasses import dataclass
from enum import IntEnum

from deltafl.sim.writing import number


class Severity(IntEnum):
    """How bad a finding is; a threshold on it decides the exit code."""

    INFO = 0
    """A fact that the reader should know; every run of the method has it."""
    LOW = 1
    """A weakness that is part of the design, or needs assumptions that may not hold."""
    MEDIUM = 2
    """A guarantee was weakened, or something happened that honest parties do not do."""
    HIGH = 3
    """A guarantee was broken for some device, or the record is not what it claims to be."""
    CRITICAL = 4
    """A device's own value is known, or could have been computed."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A place in the record.

    Attributes:
        round: The round, counted from 1; None if the place is the whole file.
        record: Number of the row; None if the place is not a single row.
    """

    round: int | None = None
    record: int | None = None

    def __str__(self) -> str:
        """The place in words.

        >>> str(Evidence(3, 70)), str(Evidence())
        ('round 3, record 70', 'the whole run')
        """
        named = (("round", self.round), ("record", self.record))
        known = [f"{name} {number(value)}" for name, value in named if value is not None]
        return ", ".join(known) or "the whole run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule.

    Attributes:
        rule: The stable id, a key of `catalogue.RULES`.
        severity: How bad it is: the rule's own severity, unless this case is worse or better.
        detail: What was seen, in one sentence with the values.
        evidence: The first places where it was seen; never empty.
        count: The number of places in all.
    """

    rule: str
    severity: Severity
    detail: str
    evidence: tuple[Evidence, ...]
    count: int = 1
