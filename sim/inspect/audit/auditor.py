"""The audit: one pass over a transcript, round by round, with every check in its place.

Memory is that of one round, and of short notes on the rounds before: a transcript of any length can
be audited. Masked vectors are read a second time, from where they lie in the file, when their slot
is summed.
"""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Protocol

import numpy as np

from deltafl.fl.strategies.server_optimizer import ServerOptimizer
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.ring import Vector
from deltafl.sim.errors import ChainError, UserError
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.checks import (
    clear,
    floors,
    keys,
    lists,
    metadata,
    questions,
    record,
    released,
    shares,
)
from deltafl.sim.inspect.audit.checks.masks import MaskTests
from deltafl.sim.inspect.audit.collected import Findings
from deltafl.sim.inspect.audit.coverage import outcome_of
from deltafl.sim.inspect.audit.differencing import Differencing
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.inventory import Inventory, Timeline
from deltafl.sim.inspect.audit.options import Options, expected_of, reproduce
from deltafl.sim.inspect.audit.preface import LIMITS, WITHOUT_TRUTH, facts_of_run
from deltafl.sim.inspect.audit.replay import SlotReplay, masked_vectors
from deltafl.sim.inspect.audit.report import (
    AuditReport,
    CheckResult,
    Outcome,
    ParticipationFacts,
    SearchFacts,
    StatisticsFacts,
)
from deltafl.sim.inspect.audit.searches import facts_of
from deltafl.sim.inspect.audit.source import Source, find_source
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound, TruthRounds, input_of, passes
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView, contributors, place_of
from deltafl.sim.record.transcript import (
    HEAD_RECEIVED,
    HEAD_SENT,
    Closing,
    Message,
    Opening,
    Reader,
    Record,
    Resumed,
    RoundEnd,
    Sum,
    keeps_whole,
    read_with_digests,
    sum_sha256,
)
from deltafl.sim.run.algorithms import server_optimizer_of
from deltafl.sim.settings.config_io import show


class Progress(Protocol):
    """Follows an audit while it goes."""

    def advance(self, offset: int, size: int, round_number: int) -> None:
        """So many bytes of the file are read, up to this round."""


class NoProgress:
    """Follows nothing."""

    def advance(self, offset: int, size: int, round_number: int) -> None:
        """Ignore it."""


def audit(
    path: Path, options: Options | None = None, progress: Progress | None = None
) -> AuditReport:
    """Audit a run directory or a transcript.

    Args:
        path: Either.
        options: What to hold it to.
        progress: Told how far it is.

    Raises:
        UserError: there is nothing to audit: no such file, no transcript of this version, a truth
            file of another run. A transcript that is damaged is audited up to there, and the damage
            is a finding.
    """
    chosen, source = options or Options(), find_source(path)
    if source.is_in_clear:
        return _report_in_clear(source, chosen)
    with closing(Reader(source.transcript)) as reader:
        running = _Audit(source, chosen, reader)
        return running.run(progress or NoProgress())


class _Audit:
    """One audit under way."""

    def __init__(self, source: Source, options: Options, reader: Reader) -> None:
        self._source, self._options, self._reader = source, options, reader
        self._expected = expected_of(source, options)
        self._findings = Findings()
        self._budget = FalseAlarmBudget(options.false_alarm_rate)
        self._masks = MaskTests(self._budget)
        self._keys = keys.PastKeys()
        self._models: dict[int, questions.PastModel] = {}
        self._optimizer = _optimizer_of(source)
        self._sums = released.PastSums(Differencing(self._expected.min_difference))
        self._answers = metadata.PastAnswers()
        self._inventory = Inventory()
        self._timeline: Timeline | None = None
        self._timeline_round: int | None = None
        self._searches: list[SearchFacts] = []
        self._truth: TruthRounds | None = None
        self._opening: Opening | None = None
        self._round: RoundView | None = None
        self._truth_of_round: TruthOfRound = {}
        self._totals: dict[tuple[bytes, int], Vector] = {}
        self._rounds: list[int] = []
        self._full_rounds = 0
        self._opaque_rounds = 0
        self._num_records = 0
        self._sums_released = 0
        self._sums_replayed = 0
        self._questions_checked = 0
        self._models_checked = 0
        self._noisy: Counter[Noise] = Counter()
        self._closed = False
        self._head = b""

    def run(self, progress: Progress) -> AuditReport:
        size = self._source.transcript.stat().st_size
        try:
            for entry, digest in read_with_digests(self._source.transcript):
                self._num_records, self._head = entry.number + 1, digest
                self._take(entry)
                if self._num_records == self._vouched_records:
                    self._check_head(entry)
                if not entry.number % 1024:
                    progress.advance(entry.offset, size, len(self._rounds))
        except ChainError as error:
            self._broken(error)
        else:
            self._end_round()
            self._check_end()
        progress.advance(size, size, len(self._rounds))
        return self._report(size)

    @property
    def _vouched_records(self) -> int | None:
        return self._source.num_records if self._options.head is None else None

    def _take(self, entry: Record) -> None:
        if self._closed:
            place = Evidence(None, entry.number, entry.offset)
            self._findings.add(found("record.malformed", "it follows the closing record", [place]))
        match entry:
            case Opening():
                self._opening = entry
                self._open_truth(entry)
            case Message():
                self._check_kept(entry)
                seen = self._round_of(entry).add(entry)
                self._inventory.add(seen)
                if self._timeline is not None and entry.round == self._timeline_round:
                    self._timeline.add(seen)
            case Sum():
                self._take_sum(entry)
            case RoundEnd():
                self._round_of(entry).end = entry
                self._end_round()
            case Closing():
                self._end_round(entry)
                self._closed = True
                if entry.rounds != len(set(self._rounds)):
                    played = len(set(self._rounds))
                    detail = f"it says that {entry.rounds} rounds were played, and has {played}"
                    place = Evidence(None, entry.number, entry.offset)
                    self._findings.add(found("record.disagrees", detail, [place]))
            case Resumed():
                self._end_round(entry)
                self._keys.resume()

    def _keeps_whole(self, round_number: int) -> bool:
        return self._opening is not None and keeps_whole(self._opening.mode, round_number)

    def _check_kept(self, entry: Message) -> None:
        """A message of which less is kept than the mode says was cut to hide something."""
        limit = HEAD_SENT if entry.sent else HEAD_RECEIVED
        kept = entry.size if self._keeps_whole(entry.round) else min(entry.size, limit)
        if entry.repeats is None and len(entry.head) != kept:
            detail = f"it keeps {len(entry.head)} bytes of a message, where {kept} belong"
            place = Evidence(entry.round, entry.number, entry.offset)
            self._findings.add(found("record.malformed", detail, [place]))

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

    def _round_of(self, entry: Message | Sum | RoundEnd) -> RoundView:
        number = entry.round
        if self._round is None or self._round.number != number:
            self._end_round(entry)
            self._round = RoundView(number, self._keeps_whole(number))
            self._rounds.append(number)
            self._totals = {}
            self._truth_of_round = self._read_truth(number)
            if self._timeline is None:
                self._timeline, self._timeline_round = Timeline(), number
        return self._round

    def _take_sum(self, entry: Sum) -> None:
        round_ = self._round_of(entry)
        self._sums_released += 1
        self._inventory.add_sum(entry)
        place = round_.add_sum(entry)
        if place is None and round_.is_opaque:
            return
        if place is None:
            detail = f"slot {entry.slot}: nobody was asked for shares, and yet there is a sum"
            self._findings.add(found("sums.unreplayable", detail, [place_of(entry)]))
            return
        session, slot = place
        if self._timeline is not None and entry.round == self._timeline_round:
            self._timeline.add_sum(entry, _knows(slot, entry))
        if session.is_whole:
            self._replay(session, slot, entry)
        elif slot.survivors is not None:
            self._compare_contributors(session, slot, entry)

    def _compare_contributors(self, session: SessionView, slot: SlotView, entry: Sum) -> bool:
        if sorted(_devices(session, slot)) == entry.contributors.tolist():
            return True
        detail = f"slot {slot.index}: it is over other devices than recorded"
        self._findings.add(found("sums.differ", detail, [place_of(entry)]))
        return False

    def _replay(self, session: SessionView, slot: SlotView, entry: Sum | None) -> None:
        """Read the vectors of a slot: add them up, test them, and unmask the sum."""
        again = SlotReplay(session, slot)
        spec, config, asked = session.params.slots[slot.index], session.config, slot.question
        for seen, vector in masked_vectors(self._reader, session, slot):
            device = seen.record.peer
            again.add(seen, vector)
            self._masks.add(device, slot.index, spec, vector, seen.place)
            true = self._truth_of_round.get(device)
            if true is not None and config is not None and asked is not None:
                hidden = input_of(true, config, asked)
                passed = passes(true, config, asked) if isinstance(asked, Threshold) else None
                if hidden is not None:
                    self._masks.add_input(spec, vector, hidden, passed=passed)
        if entry is None:
            return
        replayed = again.finish()
        slot.shares.clear()
        if replayed.wrong:
            detail = f"slot {slot.index}: devices {', '.join(map(str, sorted(replayed.wrong)))}"
            self._findings.add(found("shares.wrong", detail, [place_of(entry)]))
        if replayed.total is None:
            detail = f"slot {slot.index}: {replayed.problem}"
            self._findings.add(found("sums.unreplayable", detail, [place_of(entry)]))
            return
        place = Evidence(entry.round, entry.number, entry.offset)
        self._masks.add_secrets(replayed.secrets, place)
        session_tag = session.params.tag
        self._totals[session_tag, slot.index] = replayed.total
        if sum_sha256(replayed.total) != entry.sha256:
            detail = f"slot {slot.index}: its {entry.length} words are not those recorded"
            self._findings.add(found("sums.differ", detail, [place_of(entry)]))
        elif self._compare_contributors(session, slot, entry):
            self._sums_replayed += 1

    def _end_round(self, following: Record | None = None) -> None:
        """Make the checks of a round; it ends by its own record, or by one that follows it."""
        round_, self._round = self._round, None
        if round_ is None:
            return
        if following is not None and round_.end is None:
            lacks = record.without_end(round_, following.number, following.offset)
            self._findings.add(lacks)
        self._findings.add_all(record.check(round_))
        self._full_rounds += round_.is_whole
        self._opaque_rounds += round_.is_opaque
        for session in round_.sessions.values():
            for slot in session.slots.values():
                if session.is_whole and not slot.sums:
                    self._replay(session, slot, None)
                self._unrecorded(round_, session, slot)
        is_first = len(self._rounds) == 1
        played = questions.check(round_, self._models, self._totals, self._optimizer)
        outcomes = [one.outcome for one in played if one.outcome is not None]
        changed = {
            one.level
            for one in played
            if one.outcome is not None and one.outcome.update is not None
        }
        self._questions_checked += bool(outcomes)
        self._models_checked += round_.is_whole and all(
            is_first or one.has_known_model for one in played
        )
        for one in played:
            self._findings.add_all(one.findings)
        self._findings.add_all(clear.check(round_))
        self._findings.add_all(lists.check(round_))
        self._findings.add_all(keys.check(round_, self._keys, self._expected))
        self._findings.add_all(shares.check(round_))
        self._findings.add_all(floors.check(round_, self._expected))
        self._findings.add_all(metadata.sizes(round_))
        self._findings.add_all(released.check(round_, self._sums, changed=changed))
        self._masks.end_round()
        if self._truth is not None:
            metadata.compare(round_, self._truth_of_round, self._answers)
        event = (self._source.events or {}).get(round_.number)
        if event is not None:
            outcome = outcomes[0] if len(played) == len(outcomes) == 1 else None
            self._findings.add_all(record.compare(round_, event, outcome))
            if len(round_.sessions) == 1 < len(played):
                for one in played:
                    self._findings.add_all(
                        record.compare_level(round_, event, show(one.theta), one.outcome)
                    )
        levels = [view for session in round_.sessions.values() for view in session.by_level()]
        for session in levels:
            if session.config is not None and session.config.noise is not None:
                self._noisy[session.config.noise] += 1
            told = facts_of(round_, session, self._totals, self._truth_of_round)
            if told is not None:
                self._searches.append(told[0])
                self._findings.add_all([] if told[1] is None else [told[1]])

    def _unrecorded(self, round_: RoundView, session: SessionView, slot: SlotView) -> None:
        """A slot whose secrets were there to be rebuilt, and of which no sum is recorded.

        In a round that was given up, the last shares may have come when it was too late.
        """
        if slot.sums or not slot.shares:
            return
        if self._could_unmask(session, slot):
            detail = f"slot {slot.index}: enough shares came to unmask it"
            severity = Severity.LOW if round_.end is not None and round_.end.aborted else None
            place = slot.shares[0].place
            self._findings.add(found("sums.unrecorded", detail, [place], severity))

    def _could_unmask(self, session: SessionView, slot: SlotView) -> bool:
        """Whether enough shares came: of every device where they are kept, else from enough."""
        if not slot.given:
            return len({seen.record.peer for seen in slot.shares}) >= session.params.threshold
        given = np.sum(list(slot.given.values()), axis=(0, 1))
        members = slot.members
        if members is None or len(members) != len(given) or not members.any():
            return False
        return bool((given[members] >= session.params.threshold).all())

    def _check_head(self, entry: Record) -> None:
        if self._source.head is not None and self._head != self._source.head:
            detail = f"it is {self._head.hex()}, not {self._source.head.hex()}"
            place = Evidence(None, entry.number, entry.offset)
            self._findings.add(found("record.head-differs", detail, [place]))

    def _check_end(self) -> None:
        wanted = self._options.head
        place = Evidence(None, self._num_records - 1)
        if wanted is not None and self._head != wanted:
            detail = f"it is {self._head.hex()}, not {wanted.hex()}"
            self._findings.add(found("record.head-differs", detail, [place]))
        vouched = self._vouched_records
        if vouched is not None and self._num_records < vouched:
            detail = f"{self._num_records} records, and the run's checkpoint knows of {vouched}"
            self._findings.add(found("record.cut", detail, [place]))
        elif not self._closed:
            detail = f"record {self._num_records - 1} is the last"
            self._findings.add(found("record.unfinished", detail, [place]))
        if not self._inventory.observed():
            self._findings.add(found("record.no-messages", "no message is recorded", [place]))
        if self._source.events is not None:
            self._findings.add_all(record.missing_rounds(self._source.events, set(self._rounds)))

    def _broken(self, error: ChainError) -> None:
        """Damage: what came before it is audited, and nothing else."""
        if error.damage.is_unreadable:
            raise error
        number = self._round.number if self._round is not None else None
        vouched = self._vouched_records
        if vouched is not None and error.frame >= vouched:
            detail = f"{error.problem}; the run's checkpoint vouches for {vouched} records only"
            place = Evidence(number, error.frame, error.offset)
            self._findings.add(found("record.unfinished", detail, [place]))
        else:
            self._findings.add(record.damage(error, number))
        self._end_round()

    def _report(self, size: int) -> AuditReport:
        self._findings.add_all(self._keys.repeated())
        self._answers.into(self._budget)
        self._findings.add_all(self._masks.finish())
        participation = self._sums.participation.result()
        self._findings.add_all(released.solvable(participation))
        if self._searches:
            queries = sum(facts.queries for facts in self._searches)
            detail = f"{len(self._searches)} searches, {queries} queries; see the table of searches"
            rounds = [Evidence(facts.round) for facts in self._searches]
            self._findings.add(found("search.narrow", detail, rounds))
        findings = self._findings.sorted()
        opening = self._opening
        return AuditReport(
            source=str(self._source.given),
            head=self._head.hex(),
            run_id=opening.run_id.hex() if opening else "",
            facts=(*facts_of_run(self._source, opening, self._expected), *self._noise_facts()),
            rounds=len(self._rounds),
            full_rounds=self._full_rounds,
            records=self._num_records,
            size=size,
            sums_released=self._sums_released,
            sums_replayed=self._sums_replayed,
            has_truth=self._truth is not None,
            checks=self._checks(findings),
            findings=findings,
            observed=self._inventory.observed(),
            timeline=self._timeline.steps() if self._timeline else (),
            timeline_round=self._timeline_round,
            searches=tuple(self._searches),
            statistics=StatisticsFacts(
                self._budget.num_tests,
                self._budget.smallest,
                self._budget.rate,
                self._masks.bytes_tested,
            ),
            participation=ParticipationFacts(
                participation.sums,
                participation.devices,
                participation.rank,
                participation.num_solvable,
                participation.smallest_difference,
            ),
            limits=LIMITS if self._truth is not None else (*LIMITS, WITHOUT_TRUTH),
            reproduce=reproduce(self._source, self._options),
        )

    def _noise_facts(self) -> tuple[tuple[str, str], ...]:
        """What noise searches had; what it is worth, the run's summary says (`search_privacy`)."""
        return tuple(
            (
                "noise of the search",
                f"variance {noise.variance}, due from {noise.num_devices} devices, in {rounds} "
                "rounds; the sums of updates have none",
            )
            for noise, rounds in self._noisy.items()
        )

    def _checks(self, findings: tuple[Finding, ...]) -> tuple[CheckResult, ...]:
        """Every check and what became of it."""
        full, every = self._full_rounds, len(self._rounds)
        told = every - self._opaque_rounds
        whole = f"{full} of {every} rounds are recorded whole"
        damaged = any(finding.rule.startswith("record.") for finding in findings)
        replayed = f"{self._sums_replayed} of {self._sums_released} sums computed again and equal"
        tests = f"{self._budget.num_tests} tests of {self._masks.bytes_tested} bytes"
        replays = f"{self._questions_checked} of {every} rounds played again from their sums"
        models = f"{self._models_checked} of {every}; the first is given"
        if self._optimizer != questions.PLAIN_STEP:
            models += "; stepped by the optimiser of the run's settings"
        floors_held = (
            f"{self._expected.policy.min_cohort} in a cohort, {self._expected.min_tail} in a tail"
        )
        differing = (
            f"sums of the same inputs, by fewer than {self._expected.min_difference} devices"
        )
        updates = f"{self._sums.participation.result().sums} sums of updates"
        searches = (
            f"{len(self._searches)} searches by exact sums, {self._noisy.total()} by noisy ones"
        )
        metadata_of = "sizes, order, answers" if self._truth else "sizes"
        rounds_of = {
            "integrity of the record": (every, f"{self._num_records} records"),
            "values in clear": (told, "every message, field by field"),
            "the same for all": (told, "models, questions, rosters, cohorts, survivors"),
            "keys, signatures, bindings": (full, whole),
            "shares of one kind": (full, whole),
            "sums from messages": (full, replayed),
            "questions from sums": (self._questions_checked, replays),
            "models from sums": (self._models_checked, models),
            "masked bytes": (full, tests),
            "floors and parameters": (told, floors_held),
            "differences of cohorts": (told, differing),
            "participation over rounds": (told, updates),
            "metadata": (told, metadata_of),
            "leakage of the searches": (told, searches),
        }
        is_cut = damaged and not self._closed
        return tuple(
            CheckResult(name, outcome_of(name, findings, rounds, every, is_cut=is_cut), detail)
            for name, (rounds, detail) in rounds_of.items()
        )


def _optimizer_of(source: Source) -> ServerOptimizer:
    """How the run's settings say that the server steps; a bare transcript does not say."""
    declared = None if source.config is None else server_optimizer_of(source.config.strategy)
    return questions.PLAIN_STEP if declared is None else declared


def _devices(session: SessionView, slot: SlotView) -> tuple[int, ...]:
    survivors = slot.survivors
    return () if survivors is None else contributors(session, survivors)


def _knows(slot: SlotView, released: Sum) -> str:
    """What a server knows by a sum, in a few words."""
    count = len(released.contributors)
    if isinstance(slot.question, Query):
        pivots = len(slot.question.pivots)
        return f"ranks of {count} devices at {pivots} {'pivot' if pivots == 1 else 'pivots'}"
    return f"the sum of updates over those of {count} devices that passed"


def _report_in_clear(source: Source, options: Options) -> AuditReport:
    """The verdict on a run that masks nothing: its server sees losses or updates as they are."""
    algorithm = source.config.federation.algorithm if source.config else "unknown"
    detail = f"the run's algorithm is {algorithm}, which has no masks"
    expected = expected_of(source, options)
    return AuditReport(
        source=str(source.given),
        head="",
        run_id="",
        facts=facts_of_run(source, None, expected),
        rounds=len(source.events or {}),
        full_rounds=0,
        records=0,
        size=0,
        sums_released=0,
        sums_replayed=0,
        has_truth=False,
        checks=(CheckResult("values in clear", Outcome.FAILED, detail),),
        findings=(found("clear.by-design", detail, [Evidence()]),),
        observed=(),
        timeline=(),
        timeline_round=None,
        searches=(),
        statistics=StatisticsFacts(0, None, options.false_alarm_rate, 0),
        participation=ParticipationFacts(0, 0, 0, 0, None),
        limits=LIMITS,
        reproduce=reproduce(source, options),
    )
