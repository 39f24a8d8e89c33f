"""What a rule is, and how a finding is made from one.

The meaning of a rule's id never changes, and an id is never used again for another rule. Each check
defines its own rules; `catalogue` collects them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity

MAX_PLACES: Final = 5
"""The most places that a finding names."""

# The attacks of docs/audit.md that rules are about.
A1: Final = "A1 inconsistent survivor lists"
A2: Final = "A2 both shares of one device"
A3: Final = "A3 key substitution"
A4: Final = "A4 small cohort"
A5: Final = "A5 late masked input"
A6: Final = "A6 reuse of masks, keys or sessions"
A7: Final = "A7 weak generator or short seed"
A8: Final = "A8 model inconsistency"
A11: Final = "A11 many rounds, partial participation"
A13: Final = "A13 differences of cohorts"
A14: Final = "A14 queries of the search"
A15: Final = "A15 values in clear"
A16: Final = "A16 metadata"
A17: Final = "A17 overflow and forged sums"
A18: Final = "A18 what the sum itself reveals"
A19: Final = "A19 thresholds dictated by the server"
A20: Final = "A20 abort and retry"
A22: Final = "A22 false shares"
A23: Final = "A23 keys of low order"
A24: Final = "A24 a record that is not what happened"


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement that an audit checks.

    Attributes:
        severity: How bad it is in general to break it.
        title: What was found, a short noun phrase.
        consequence: What follows from it, one sentence.
        remedy: What to do about it, one sentence.
        attack: Which attack of docs/audit.md it corresponds to, such as "A5 late masked input".
    """

    severity: Severity
    title: str
    consequence: str
    remedy: str
    attack: str

    def texts(self) -> dict[str, str]:
        """The rule's texts, by attribute name."""
        return {
            "title": self.title,
            "consequence": self.consequence,
            "remedy": self.remedy,
            "attack": self.attack,
        }


class Rules(Mapping[str, Rule]):
    """Rules by id; makes findings of these rules only."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)

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
