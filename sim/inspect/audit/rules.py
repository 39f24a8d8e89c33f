"""What a rule is, how a check's table of rules is read, and how a finding is made from a rule.

The meaning of a rule's id never changes, and an id is never used again for another rule. Each check
defines its own rules; `catalogue` collects them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity

MAX_PLACES: Final = 5
"""The most places that a finding names."""

ATTACKS: Final = {
    "A1": "inconsistent survivor lists",
    "A2": "both shares of one device",
    "A3": "key substitution",
    "A4": "small cohort",
    "A5": "late masked input",
    "A6": "reuse of masks, keys or sessions",
    "A7": "weak generator or short seed",
    "A8": "model inconsistency",
    "A11": "many rounds, partial participation",
    "A13": "differences of cohorts",
    "A14": "queries of the search",
    "A15": "values in clear",
    "A16": "metadata",
    "A17": "overflow and forged sums",
    "A18": "what the sum itself reveals",
    "A19": "thresholds dictated by the server",
    "A20": "abort and retry",
    "A22": "false shares",
    "A23": "keys of low order",
    "A24": "a record that is not what happened",
}
"""The attacks of docs/audit.md that rules are about, by their numbers."""

_RULE: Final = re.compile(
    r"(?P<id>\S+) +(?P<severity>\w+) +(?P<fault>\w+) +(?P<attack>A\d+): +(?P<title>.+)"
)


class Fault(StrEnum):
    """Who is at fault where a rule is broken; the value says what to do about it."""

    SERVER = "Do not use this server until it is known why it did so."
    DEVICE = "Do not use this device's software until it does as the specification says."
    SOMEBODY = "Find out whether a device, the network or the server did so, and exclude it."
    RECORD = "Get the files from where they were written. Until then, trust none of them."
    SETTINGS = "Change the settings of the run, or say why they are enough."
    DESIGN = "Nothing, while it is rare: it is part of the method (docs/limitations.md)."


class Harm(StrEnum):
    """What a finding comes to, the most harmful first."""

    VALUE = "a device's own value is known, or could have been computed"
    GUARANTEE = "a guarantee was broken for some device"
    RECORD = "the record is not what it claims to be"
    WEAKENED = "a guarantee was weakened, or something happened that honest parties do not do"
    DESIGN = "weaknesses that are part of the design, or that need assumptions which may not hold"
    FACT = "facts that are true of every run of the method"


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement that an audit checks.

    Attributes:
        severity: How bad it is in general to break it.
        fault: Who breaks it.
        attack: The number of the attack of docs/audit.md that it corresponds to, such as "A5".
        title: What was found, a short noun phrase.
        consequence: What follows from it, in sentences.
    """

    severity: Severity
    fault: Fault
    attack: str
    title: str
    consequence: str

    def harm(self, severity: Severity) -> Harm:
        """What a finding of this rule comes to, by its severity."""
        if severity is Severity.HIGH:
            return Harm.RECORD if self.fault is Fault.RECORD else Harm.GUARANTEE
        return _HARMS[severity]

    def texts(self) -> dict[str, str]:
        """What it says to people, by name."""
        return {
            "title": self.title,
            "consequence": self.consequence,
            "remedy": self.fault.value,
            "attack": f"{self.attack} {ATTACKS[self.attack]}",
        }


_HARMS: Final = {
    Severity.CRITICAL: Harm.VALUE,
    Severity.MEDIUM: Harm.WEAKENED,
    Severity.LOW: Harm.DESIGN,
    Severity.INFO: Harm.FACT,
}


class Rules(Mapping[str, Rule]):
    """Rules by id; makes findings of these rules only."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)

    @classmethod
    def read(cls, table: str) -> "Rules":
        """The rules of a table.

        Each has a line with id, severity, fault, attack and title, and below it, indented, its
        consequence.

        Raises:
            ValueError: a line is neither, or an id is there twice.
            KeyError: a severity or a fault is unknown.
        """
        rules: dict[str, Rule] = {}
        for block in re.split(r"\n(?=\S)", table.strip()):
            first, *rest = block.splitlines()
            if (read := _RULE.fullmatch(first)) is None or not rest or read["id"] in rules:
                raise ValueError(f"this is no new rule with a consequence: {block}")
            severity, fault = Severity[read["severity"].upper()], Fault[read["fault"].upper()]
            consequence = " ".join(map(str.strip, rest))
            rules[read["id"]] = Rule(severity, fault, read["attack"], read["title"], consequence)
        return cls(rules)

    def __getitem__(self, rule: str) -> Rule:
        return self._rules[rule]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

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
