"""The audit: one pass over a record, which hands everything to every check, in order.

This module knows no check by name: they are listed in a table (`catalogue.CHECKS`) and share one
interface (`check`). It does what all checks need: it puts rounds together, and computes sums again
from their messages, with the secrets that are rebuilt for them.

It keeps the messages of one round in memory. Of earlier rounds, checks keep notes; the models that
they announced and the sums of updates are in a file.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from deltafl.secagg.summing import SlotSum
from deltafl.sim.errors import ChainError
from deltafl.sim.inspect.audit.catalogue import CHECKS
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.collected import Findings
from deltafl.sim.inspect.audit.coverage import Tally, uncovered
from deltafl.sim.inspect.audit.expected import expected_of
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.inventory import Inventory
from deltafl.sim.inspect.audit.options import Options, reproduce
from deltafl.sim.inspect.audit.preface import LIMITS, facts_of_run, without_truth
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.audit.rounds_again import RoundsAgain
from deltafl.sim.inspect.audit.source import Source, find_source
from deltafl.sim.inspect.audit.truth_rounds import TruthRounds
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.record import open_record
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    Begin,
    Closed,
    Closing,
    Message,
    Opening,
    Record,
    Resumed,
    RoundEnd,
    Sum,
    read_with_digests,
)
from deltafl.sim.settings.constraints import SUMS

Progress: TypeAlias = Callable[[int, int, int], object]
"""Is told how many rows of the record are read, of how many, and up to which round."""


def audit(
    path: Path, options: Options | None = None, progress: Progress | None = None
) -> AuditReport:
    """Audit a run directory or a transcript.

    Args:
        path: Either.
        options: The limits to apply.
        progress: Follows the audit.

    Raises:
        UserError: there is nothing to audit: no such file, no transcript of this version, a truth
            file of another run. A transcript that is damaged is audited up to there, and the damage
            is a finding.
    """
    chosen = options or Options()
    source = find_source(path, chosen.data)
    return _Audit(source, chosen).run(progress or (lambda *_: None))


class _Audit:
    """One audit under way."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        expected, budget = expected_of(source, options), FalseAlarmBudget(options.false_alarm_rate)
        rounds = RoundsAgain(expected.policy.expects_active)
        about = source, expected, options.head, budget, rounds, options.is_baseline
        self._premises = Premises(*about)
        self._checks = tuple(
            check(self._premises)
            for check in CHECKS
            if (options.truth is not None or not check.needs_truth)
            and (options.independent or not check.needs_asking)
            and not (source.is_in_clear and check.needs_messages)
        )
        self._findings = Findings()
        self._inventory = Inventory()
        self._truth = TruthRounds(None, b"")
        self._opening: Opening | None = None
        self._round: RoundView | None = None
        self._again: dict[tuple[bytes, int], SlotSum] = {}
        self._num_rounds, self._whole_rounds = 0, 0
        self._last: Record | None = None
        self._digest = b""

    def run(self, progress: Progress) -> AuditReport:
        size = self._source.transcript.stat().st_size
        with open_record(self._source.transcript) as opened:
            rows = opened.chain.mark.num_frames
        try:
            for record, digest in read_with_digests(self._source.transcript):
                self._take(record, digest)
                if not record.number % 1024:
                    progress(record.number, rows, self._num_rounds)
        except ChainError as error:
            if error.damage.is_unreadable:
                raise
            # what came before it is audited, and nothing else
            damage, number = error, self._round.number if self._round else None
            self._ask(lambda check: check.on_damage(damage, number))
        self._end_round()
        progress(rows, rows, self._num_rounds)
        untold = self._truth.to_the_end()
        self._ask(lambda check: check.on_truth(untold))
        self._ask(lambda check: check.on_end())
        alarms = self._premises.budget.alarms()
        self._ask(lambda check: check.on_alarms(alarms))
        return self._report(size)

    def _ask(self, found: Callable[[Check], Iterable[Finding] | None]) -> None:
        """Keep what each check finds."""
        for check in self._checks:
            self._findings.add_all(found(check) or ())

    @property
    def _is_silent(self) -> bool:
        """Whether there are no messages to play again."""
        return self._opening is not None and self._opening.mode == SUMS

    def _take(self, record: Record, digest: bytes) -> None:
        self._last, self._digest = record, digest
        match record:
            case Opening():
                self._opening = record
                self._truth = TruthRounds(self._options.truth, record.run_id)
            case Begin():
                self._end_round(record)
                self._begin_round(record.round).cohort = record.cohort
            case Closing():
                self._end_round(record)
            case Resumed():
                self._resume(record)
            case _:
                self._take_into(self._round_of(record), record)
        self._ask(lambda check: check.on_record(record, digest))

    def _take_into(self, round_: RoundView, record: Message | Sum | RoundEnd | Closed) -> None:
        match record:
            case Message() if not self._is_silent:
                seen = round_.add(record)
                self._inventory.add(seen)
                self._ask(lambda check: check.on_message(seen, round_))
            case Sum():
                self._inventory.add_sum(record)
                self._take_sum(round_, record)
            case RoundEnd():
                round_.end = record  # unless the next record says otherwise

    def _round_of(self, record: Message | Sum | RoundEnd | Closed) -> RoundView:
        """The round of a record, which ends the one before if it is of another."""
        round_ = self._round
        if round_ is None or round_.number != record.round or round_.end is not None:
            self._end_round(record)
            round_ = self._begin_round(record.round)
        return round_

    def _begin_round(self, number: int) -> RoundView:
        self._round = RoundView(number, truth=self._truth.of(number))
        self._num_rounds += 1
        self._again = {}
        return self._round

    def _resume(self, record: Resumed) -> None:
        """The rounds after the last that was kept are lost."""
        lost = self._round
        if lost is not None and lost.number > record.round:
            lost.end = RoundEnd(record.number, lost.number, INTERRUPTED)
        self._end_round(record)

    def _take_sum(self, round_: RoundView, record: Sum) -> None:
        session, again = round_.add_sum(record), self._premises.rounds.learnt(record.slot)
        if session is not None and again is not None:
            members = session.members(record.slot)  # else messages of its roster are missing
            if members is not None and len(members) == len(session.ids):
                self._again[session.params.tag, record.slot] = again

    def _end_round(self, following: Record | None = None) -> None:
        """Hand a round to the checks, when it cannot be taken back any more.

        Args:
            following: The record that follows it; None where the file ends.
        """
        round_, self._round = self._round, None
        if round_ is None:
            return
        self._whole_rounds += bool(round_.sessions)
        over = RoundOver(round_, following if round_.end is None else None, self._again)
        self._ask(lambda check: check.on_round(over))

    def _tally(self) -> Tally:
        found = {finding.rule for finding in self._findings.sorted()}
        damaged = any(check.guards_record and found & check.rules.keys() for check in self._checks)
        has_truth, is_closed = self._options.truth is not None, isinstance(self._last, Closing)
        return Tally(self._num_rounds, self._whole_rounds, has_truth, damaged and not is_closed)

    def _report(self, size: int) -> AuditReport:
        findings, tally, opening = self._findings.sorted(), self._tally(), self._opening
        facts = {name: one for check in self._checks for name, one in check.facts().items()}
        results = tuple(check.result(findings, tally) for check in self._checks)
        sums = facts.get("sums_released", 0), facts.get("sums_replayed", 0)
        unchecked = [one for check in self._checks for one in check.unchecked()]
        if not (tally.has_truth or self._source.is_in_clear):
            unchecked.insert(0, without_truth(self._source))
        return AuditReport(
            source=str(self._source.given),
            record=str(self._source.transcript),
            head=self._digest.hex(),
            run_id=opening.run_id.hex() if opening else "",
            facts=facts_of_run(self._source, opening, self._premises.expected),
            rounds=tally.rounds,
            full_rounds=tally.whole,
            records=0 if self._last is None else self._last.number + 1,
            size=size,
            has_truth=tally.has_truth,
            is_silent=self._is_silent,
            checks=results,
            findings=findings,
            observed=self._inventory.observed(),
            not_checked=(*uncovered(results, tally, sums), *unchecked),
            limits=LIMITS,
            reproduce=reproduce(self._source.given, self._options),
            **facts,
        )
