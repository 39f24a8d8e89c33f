"""The common interface of all checks.

A check is an object. It has the rules that it may find broken, its own memory of earlier rounds,
methods that take what the auditor reads, and a report of how much it covered. The auditor hands
everything to every check, in the order in which it happened. A check overrides what it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from deltafl.secagg.summing import SlotSum
from deltafl.sim.errors import ChainError
from deltafl.sim.inspect.audit.coverage import Coverage, Tally, outcome_of
from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.facts import CheckFacts, CheckResult
from deltafl.sim.inspect.audit.false_alarms import Alarm, FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.rounds_again import RoundsAgain
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Record


@dataclass(frozen=True, slots=True, eq=False)
class Premises:
    """What an audit is based on, the same for all checks.

    Attributes:
        source: What is audited, with what the run says about itself.
        expected: The limits that the audit applies to the run.
        digest: The digest that the transcript must end with, 32 bytes; None if nobody gave one.
        budget: Takes the p-values of all statistical tests.
        rounds: The rounds' servers, played again as far as the record was read.
        is_baseline: Whether the run is audited beside another, as its baseline.
    """

    source: Source
    expected: Expected
    digest: bytes | None
    budget: FalseAlarmBudget
    rounds: RoundsAgain
    is_baseline: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RoundOver:
    """A round that is over, and what was computed from it.

    Attributes:
        view: What the server saw.
        following: The record that follows it although it has no end; None if it has one, or if
            the file ends.
        again: Sums that were learnt again, by session's tag and slot.
    """

    view: RoundView
    following: Record | None = None
    again: Mapping[tuple[bytes, int], SlotSum] = field(default_factory=dict)


Found: TypeAlias = Iterable[Finding] | None
"""What a check has found; None where that is nothing."""


class Check(ABC):
    """Looks for one kind of trouble.

    It remembers one round, and short notes on the rounds before. It yields what it finds, and
    changes nothing but its own notes.

    Args:
        premises: What the audit is based on.

    Attributes:
        name: What is checked, a short noun phrase.
        table: What it may find broken, as `Rules.read` takes it; no other check has these rules.
        rules: The same as rules.
        tests: The rules that its statistical tests are about, by the first words of the tests'
            names in the budget.
        guards_record: Whether its findings mean that there may have been more in the record.
        needs_truth: Whether it is only made if there is a truth file.
        needs_messages: Whether it is only made of runs that have masks.
        needs_asking: Whether it is only made with the option `independent`.
    """

    name: ClassVar[str]
    table: ClassVar[str] = ""
    rules: ClassVar[Rules]
    tests: ClassVar[Mapping[str, str]] = MappingProxyType({})
    guards_record: ClassVar[bool] = False
    needs_truth: ClassVar[bool] = False
    needs_messages: ClassVar[bool] = True
    needs_asking: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.table:
            cls.rules = Rules.read(cls.table)

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def on_record(self, record: Record, digest: bytes) -> Found:
        """Take a record of the file, after the round that it ends is over.

        Args:
            record: The record, in its order.
            digest: The digest of the chain up to it, 32 bytes.
        """

    def on_damage(self, error: ChainError, round_number: int | None) -> Found:
        """Note that the file is damaged: the rest is unknown, and no further record comes.

        Args:
            error: What the reader says.
            round_number: The round in which it happened; None outside a round.
        """

    def on_message(self, seen: Seen, round_: RoundView) -> Found:
        """Take a message, as it was sorted into its round.

        Args:
            seen: The message; long ones are not kept after this.
            round_: Its round, up to this point.
        """

    def on_round(self, over: RoundOver) -> Found:
        """Take a round that is over."""

    def on_truth(self, untold: Sequence[int]) -> Found:
        """Take what is known of the truth file, once it is read to its end.

        Args:
            untold: Rounds that it has and the record has not, ascending.
        """

    def on_end(self) -> Found:
        """The transcript has ended or is damaged: say what follows from all of it."""

    def on_alarms(self, alarms: Sequence[Alarm]) -> Iterator[Finding]:
        """After all tests, say which of its own gave results that ideal masks do not explain.

        Args:
            alarms: All alarms of the budget.
        """
        for alarm in alarms:
            for test, rule in self.tests.items():
                if alarm.test.startswith(test):
                    tests = f"corrected for all {self._premises.budget.num_tests} tests"
                    p_values = f"p = {alarm.value:.1e}, or {alarm.corrected:.1e} {tests}"
                    detail = f"{alarm.detail}; {p_values}"
                    yield self.rules.found(rule, detail, alarm.evidence)

    @abstractmethod
    def coverage(self, tally: Tally) -> Coverage:
        """How much it covered, at the end.

        Args:
            tally: The rounds of the transcript.
        """

    def unchecked(self) -> Iterable[str]:
        """What it did not check, beside the rounds that it did not cover: each a phrase."""
        return ()

    def facts(self) -> CheckFacts:
        """The figures that it adds to the report, at the end."""
        return {}

    def result(self, findings: Iterable[Finding], tally: Tally) -> CheckResult:
        """Its outcome.

        Args:
            findings: All findings of the audit.
            tally: The rounds of the transcript.
        """
        made = self.coverage(tally)
        outcome = outcome_of(self.rules, findings, made, tally)
        return CheckResult(self.name, outcome, made.detail)
