"""What a rule is, how a check's table of rules is read, and how a finding is made from a rule.

The meaning of a rule's id never changes, and an id is never used again for another rule. Each check
defines its own rules; `catalogue` collects them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity

MAX_PLACES: Final = 5
"""The most places that a finding names."""


class Fault(StrEnum):
    """Who is at fault where a rule is broken; the value is the remedy."""

    SERVER = "Do not use this server until it is known why it did so."
    DEVICE = "Do not use this device's software until it does as the specification says."
    SOMEBODY = "Find out whether a device, the network or the server did so, and exclude it."
    RECORD = "Get the files from where they were written. Until then, trust none of them."
    SETTINGS = "Change the settings of the run, or say why they are enough."
    DESIGN = "Nothing, while it is rare: it is part of the method (docs/limitations.md)."


class Harm(StrEnum):
    """What a finding comes to, the most harmful first.

    It is that of the finding's severity, but for records that are false, which are HIGH.
    """

    CRITICAL = "a device's own value is known, or could have been computed"
    HIGH = "a guarantee was broken for some device"
    RECORD = "the record is not what it claims to be"
    MEDIUM = "a guarantee was weakened, or something happened that honest parties do not do"
    LOW = "weaknesses that are part of the design, or that need assumptions which may not hold"
    INFO = "facts that are true of every run of the method"


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement that an audit checks.

    Attributes:
        severity: How bad it is in general to break it.
        remedy: What to do about it, by who breaks it.
        attack: The number of the attack of docs/audit.md that it corresponds to, such as "A5".
        title: What was found, a short noun phrase.
        consequence: What follows from it, in sentences.
    """

    severity: Severity
    remedy: Fault
    attack: str
    title: str
    consequence: str

    def harm(self, severity: Severity) -> Harm:
        """What a finding of this rule comes to, by its severity."""
        is_false = severity is Severity.HIGH and self.remedy is Fault.RECORD
        return Harm.RECORD if is_false else Harm[severity.name]


class Rules(dict[str, Rule]):
    """Rules by id; makes findings of these rules only."""

    @classmethod
    def read(cls, table: str) -> "Rules":
        """The rules of a table.

        Each has a line with id, severity, fault, attack and title, and below it, indented, its
        consequence.

        Raises:
            ValueError: a line is neither, or an id is there twice.
            KeyError: a severity or a fault is unknown.
        """
        rules = cls()
        for block in re.split(r"\n(?=\S)", table.strip()):
            first, *rest = block.splitlines()
            head, _, title = first.partition(": ")
            rule, severity, fault, attack = head.split()
            if attack[0] != "A" or not (title and rest) or rule in rules:
                raise ValueError(f"this is no new rule with a consequence: {block}")
            levels = Severity[severity.upper()], Fault[fault.upper()]
            rules[rule] = Rule(*levels, attack, title, " ".join(map(str.strip, rest)))
        return rules

    def found(
        self,
        rule: str,
        detail: str,
        places: Iterable[Evidence],
        severity: Severity | None = None,
    ) -> Finding:
        """A finding of a rule.

        Args:
            rule: Its id.
            detail: What was seen, one sentence without the full stop.
            places: Where; at least one.
            severity: How bad it is, if that differs from the rule's own severity.

        Raises:
            KeyError: it is not one of these rules.
        """
        evidence = tuple(places)
        level = self[rule].severity if severity is None else severity
        return Finding(rule, level, detail, evidence[:MAX_PLACES], len(evidence))
