"""Is the record whole?"""

from collections.abc import Iterator, Sequence

from deltafl.sim.errors import ChainError
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.record.transcript import (
    Begin,
    Closing,
    Message,
    Opening,
    Record,
    Resumed,
    RoundEnd,
    Sum,
)
from deltafl.sim.settings.config import Sums
from deltafl.sim.settings.constraints import FULL


class Integrity(Check):
    """Follows the records from first to last."""

    name = "integrity of the record"
    table = """\
record.edited high record A24: a record was edited
    The record may be invented, and nothing after it in the file proves anything.
record.missing high record A24: records were removed
    The removed records are not audited.
record.reordered high record A24: records were moved or repeated
    Whether masks protect a vector depends on the order of events, and that order is not known.
record.cut high record A24: the file ends too early
    The rest of the file is not audited.
record.malformed high record A24: a record does not follow the format
    The file was not written by the program that the format describes.
record.unfinished medium record A24: the file has no closing record
    The run was stopped, is still going, or the end of the file was cut off between two records.
record.head-differs high record A24: the digest of the file is not the one that the run states
    The file may not be the one that the run wrote.
record.no-messages medium settings A24: no messages passed through the server
    Nothing can be said about privacy: sums were computed without cryptography, or elsewhere.
"""
    guards_record = True
    needs_messages = False

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._last: Record | None = None
        self._digest = b""
        self._keeps_all = False
        self._round = 0  # the last one
        self._is_open = False  # whether that one has begun and not ended
        self._is_closed = self._is_damaged = False
        self._is_silent = True

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """Note how far the transcript goes, and check that it continues as it must."""
        self._last, self._digest = record, digest
        if self._is_closed and not isinstance(record, Resumed):
            yield self._of_last("record.malformed", "it follows the closing record")
        match record:
            case Opening():
                self._keeps_all = record.mode == FULL
            case Message() | Sum() | RoundEnd() | Begin():
                yield from self._counted(record)
            case Closing():
                self._is_closed = True
            case Resumed():
                self._is_closed = self._is_open = False

    def _counted(self, record: Message | Sum | RoundEnd | Begin) -> Iterator[Finding]:
        """Rounds are counted from 1, one by one, and each begins and ends once."""
        begins, further = isinstance(record, Begin), record.round - self._round
        fits = further == 1 if begins else further == 0 and self._is_open
        if not fits:
            rule = "record.missing" if further > 0 else "record.reordered"
            before = f"round {self._round} {'is under way' if self._is_open else 'is over'}"
            what = "begins" if begins else "goes on"
            place = Evidence(record.round, record.number)
            yield self.rules.found(rule, f"round {record.round} {what}, where {before}", [place])
        self._round, self._is_open = record.round, not isinstance(record, RoundEnd)
        self._is_silent &= isinstance(record, RoundEnd | Begin)
        if self._keeps_all and isinstance(record, Message) and not record.is_whole:
            yield self._of_last("record.malformed", "its message is not kept")

    def on_damage(self, error: ChainError, round_number: int | None) -> Iterator[Finding]:
        """Say how the file is damaged."""
        self._is_damaged = True
        place = Evidence(round_number, error.frame)
        detail = f"record {error.frame}: {error.problem}"
        yield self.rules.found(f"record.{error.damage}", detail, [place])

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look whether a round has an end."""
        round_ = over.view
        if over.following is not None and round_.end is None:
            place = Evidence(round_.number, over.following.number)
            yield self.rules.found("record.missing", f"round {round_.number} has no end", [place])

    def on_end(self) -> Iterator[Finding]:
        """Check that the transcript goes as far as it should."""
        if self._is_damaged:
            return
        wanted = self._premises.digest or self._premises.source.head
        if wanted is not None and self._digest != wanted:
            detail = f"it is {self._digest.hex()}, not {wanted.hex()}"
            yield self._of_last("record.head-differs", detail)
        if not self._is_closed:
            yield self._of_last("record.unfinished", "this record is the last")
        elif self._round < (rounds := self._rounds_due()):
            detail = f"it is closed after round {self._round}, and the settings say {rounds} rounds"
            yield self._of_last("record.cut", detail)
        if self._is_silent and not self._premises.source.is_in_clear:
            yield self._of_last("record.no-messages", "no message is recorded")

    def _rounds_due(self) -> int:
        """How many rounds there must be; 0 where nothing says so."""
        source = self._premises.source
        if source.config is None or source.config.privacy.sums == Sums.IDEAL:
            return 0
        if source.summary is None:
            return 0  # without a summary, it may be about to be made longer (`run.unfinished`)
        return source.config.federation.rounds

    def _of_last(self, rule: str, detail: str) -> Finding:
        number = None if self._last is None else self._last.number
        return self.rules.found(rule, detail, [Evidence(None, number)])

    def on_truth(self, untold: Sequence[int]) -> Iterator[Finding]:
        """Rounds that were played, since devices noted what they told in them."""
        if not untold:
            return
        shown = ", ".join(map(str, untold[:5]))
        detail = f"the truth file has rounds {shown}, and the record has not"
        yield self.rules.found("record.cut", detail, map(Evidence, untold))

    def coverage(self, tally: Tally) -> Coverage:
        """Every record counts, even if it keeps little."""
        records = 0 if self._last is None else self._last.number + 1
        return Coverage(tally.rounds, f"{records} records")
