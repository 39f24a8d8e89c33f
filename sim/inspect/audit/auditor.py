"""The audit: one pass over a record, which hands everything to every check, in order.

This module knows no check by name: they are listed in a table (`catalogue.CHECKS`) and share one
interface (`check`). It does what all checks need: it puts rounds together, and computes sums again
from their messages, with the secrets that are rebuilt for them.

It keeps the messages of one round in memory. Of earlier rounds, checks keep notes; the models that
they announced and the sums of updates are in a file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from deltafl.secagg.summing import SlotSum
from deltafl.sim.errors import ChainError, UserError
from deltafl.sim.inspect.audit.catalogue import CHECKS
from deltafl.sim.inspect.audit.check import Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.collected import Findings
from deltafl.sim.inspect.audit.coverage import Tally, uncovered
from deltafl.sim.inspect.audit.expected import expected_of
from deltafl.sim.inspect.audit.facts import CheckFacts
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.inventory import Inventory
from deltafl.sim.inspect.audit.options import Options, reproduce
from deltafl.sim.inspect.audit.preface import LIMITS, facts_of_run, without_truth
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.audit.rounds_again import RoundsAgain
from deltafl.sim.inspect.audit.source import Source, find_source
from deltafl.sim.inspect.audit.truth_rounds import (
    InputsOfRound,
    SeedsOfRound,
    TruthOfRound,
    TruthRounds,
)
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


class Progress(Protocol):
    """Follows the progress of an audit."""

    def advance(self, done: int, rows: int, round_number: int) -> None:
        """So many rows of the record are read, up to this round."""


class NoProgress:
    """Follows nothing."""

    def advance(self, done: int, rows: int, round_number: int) -> None:
        """Ignore it."""


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
    return _Audit(source, chosen).run(progress or NoProgress())


class _Audit:
    """One audit under way."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        expected = expected_of(source, options)
        self._premises = Premises(
            source,
            expected,
            options.head,
            FalseAlarmBudget(options.false_alarm_rate),
            RoundsAgain(expected.policy.expects_active),
            options.is_baseline,
        )
        self._checks = tuple(
            check(self._premises)
            for check in CHECKS
            if (options.truth is not None or not check.needs_truth)
            and (options.independent or not check.needs_asking)
            and not (source.is_in_clear and check.needs_messages)
        )
        self._findings = Findings()
        self._inventory = Inventory()
        self._truth: TruthRounds | None = None
        self._opening: Opening | None = None
        self._round: RoundView | None = None
        self._truth_of_round: TruthOfRound = {}
        self._digest_of_truth = b""
        self._again: dict[tuple[bytes, int], SlotSum] = {}
        self._num_rounds, self._whole_rounds = 0, 0
        self._num_records, self._digest = 0, b""
        self._is_closed = False

    def run(self, progress: Progress) -> AuditReport:
        size = self._source.transcript.stat().st_size
        with open_record(self._source.transcript) as opened:
            rows = opened.chain.mark.num_frames
        try:
            for record, digest in read_with_digests(self._source.transcript):
                self._num_records, self._digest = record.number + 1, digest
                self._take(record)
                for check in self._checks:
                    self._findings.add_all(check.on_record(record, digest))
                if not record.number % 1024:
                    progress.advance(record.number, rows, self._num_rounds)
        except ChainError as error:
            if error.damage.is_unreadable:
                raise
            number = self._round.number if self._round is not None else None
            for check in self._checks:  # what came before the damage is audited, and nothing else
                self._findings.add_all(check.on_damage(error, number))
        self._end_round()
        progress.advance(rows, rows, self._num_rounds)
        self._end()
        return self._report(size)

    def _take(self, record: Record) -> None:
        match record:
            case Opening():
                self._opening = record
                self._open_truth(record)
            case Message() if self._opening is not None and self._opening.mode == SUMS:
                self._round_of(record)  # there is nothing to play again
            case Message():
                self._take_message(self._round_of(record), record)
            case Sum() if self._opening is not None and self._opening.mode == SUMS:
                self._inventory.add_sum(record)
                self._round_of(record).add_sum(record)
            case Sum():
                self._take_sum(self._round_of(record), record)
            case Begin():
                self._end_round(record)
                self._begin_round(record.round).cohort = record.cohort
            case RoundEnd():
                self._round_of(record).end = record  # unless the next record says otherwise
            case Closed():
                self._round_of(record)
            case Closing():
                self._end_round(record)
                self._is_closed = True
            case Resumed():
                self._is_closed = False
                self._resume(record)

    def _take_message(self, round_: RoundView, record: Message) -> None:
        seen = round_.add(record)
        self._inventory.add(seen)
        for check in self._checks:
            self._findings.add_all(check.on_message(seen, round_))

    def _round_of(self, record: Message | Sum | RoundEnd | Closed) -> RoundView:
        """The round of a record, which ends the one before if it is of another."""
        round_ = self._round
        if round_ is None or round_.number != record.round or round_.end is not None:
            self._end_round(record)
            round_ = self._begin_round(record.round)
        return round_

    def _begin_round(self, number: int) -> RoundView:
        truth = self._read_truth(number)
        self._round = RoundView(
            number, truth=truth, inputs=self._inputs_of_round, seeds=self._seeds_of_round
        )
        self._num_rounds += 1
        self._again = {}
        self._truth_of_round = truth
        self._digest_of_truth = b"" if self._truth is None else self._truth.digest
        return self._round

    def _resume(self, record: Resumed) -> None:
        """The rounds after the last that was kept are lost."""
        lost = self._round
        if lost is not None and lost.number > record.round:
            lost.end = RoundEnd(record.number, lost.number, INTERRUPTED)
        self._end_round(record)

    def _open_truth(self, opening: Opening) -> None:
        if self._options.truth is not None:
            try:
                self._truth = TruthRounds(self._options.truth, opening.run_id)
            except ChainError as error:
                raise UserError(str(error)) from None

    def _read_truth(self, round_number: int) -> TruthOfRound:
        """The truth of a round; damage of its file is no finding about the transcript."""
        if self._truth is None:
            return {}
        try:
            return self._truth.of(round_number)
        except ChainError as error:
            raise UserError(str(error)) from None

    @property
    def _inputs_of_round(self) -> InputsOfRound:
        return {} if self._truth is None else self._truth.inputs

    @property
    def _seeds_of_round(self) -> SeedsOfRound:
        return {} if self._truth is None else self._truth.seeds

    def _read_all_truth(self) -> Sequence[int] | None:
        """Rounds that the truth file has and the record has not; None without a file."""
        if self._truth is None:
            return None
        try:
            return self._truth.to_the_end()
        except ChainError as error:
            raise UserError(str(error)) from None

    def _take_sum(self, round_: RoundView, record: Sum) -> None:
        self._inventory.add_sum(record)
        place, again = round_.add_sum(record), self._premises.rounds.learnt(record.slot)
        if place is not None and again is not None:
            session, slot = place
            if slot.members is not None and len(slot.members) == len(session.ids):
                self._again[session.params.tag, slot.index] = again
            else:  # positions are those of a roster of which messages are missing
                again = None
        released = ReleasedSum(record, round_, place, again)
        for check in self._checks:
            self._findings.add_all(check.on_sum(released))

    def _end_round(self, following: Record | None = None) -> None:
        """Hand a round to the checks, when it cannot be taken back any more.

        Args:
            following: The record that follows it; None where the file ends.
        """
        round_, self._round = self._round, None
        if round_ is None:
            return
        self._whole_rounds += bool(round_.sessions)
        over = RoundOver(
            round_,
            following if round_.end is None else None,
            self._again,
            self._truth_of_round if self._truth is not None else None,
            self._seeds_of_round,
            self._digest_of_truth,
        )
        for check in self._checks:
            self._findings.add_all(check.on_round(over))

    def _end(self) -> None:
        if (untold := self._read_all_truth()) is not None:
            for check in self._checks:
                self._findings.add_all(check.on_truth(untold))
        for check in self._checks:
            self._findings.add_all(check.on_end())
        alarms = self._premises.budget.alarms()
        for check in self._checks:
            self._findings.add_all(check.on_alarms(alarms))

    def _tally(self) -> Tally:
        found = {finding.rule for finding in self._findings.sorted()}
        damaged = any(check.guards_record and found & check.rules.keys() for check in self._checks)
        return Tally(
            self._num_rounds,
            self._whole_rounds,
            has_truth=self._truth is not None,
            is_cut=damaged and not self._is_closed,
        )

    def _report(self, size: int) -> AuditReport:
        findings, tally, opening = self._findings.sorted(), self._tally(), self._opening
        facts: CheckFacts = {}
        for check in self._checks:
            facts.update(check.facts())
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
            records=self._num_records,
            size=size,
            has_truth=tally.has_truth,
            is_silent=opening is not None and opening.mode == SUMS,
            checks=results,
            findings=findings,
            observed=self._inventory.observed(),
            not_checked=(*uncovered(results, tally, sums), *unchecked),
            limits=LIMITS,
            reproduce=reproduce(self._source.given, self._options),
            **facts,
        )
