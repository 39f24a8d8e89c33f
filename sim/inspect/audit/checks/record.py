"""Is the record whole?"""

from collections.abc import Iterator, Sequence
from typing import Final

from deltafl.secagg.messages import ConsistencySignature, OpenSlot, UnmaskRequest
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView
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
from deltafl.sim.settings.constraints import FULL

_RULE_OF: Final = {
    Damage.CUT: "record.cut",
    Damage.EDITED: "record.edited",
    Damage.MISSING: "record.missing",
    Damage.REORDERED: "record.reordered",
    Damage.MALFORMED: "record.malformed",
}


RULES: Final = Rules.read(
    """\
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
record.unasked high record A24: an answer was recorded without its question
    The message that the server sent to get the answer is missing from the record, and may have
    been a lie.
record.no-messages medium settings A24: no messages passed through the server
    Nothing can be said about the privacy of devices: the sums were computed without cryptography,
    or the record belongs to another run.
"""
)


class Integrity(Check):
    """Follows the records from first to last."""

    name = "integrity of the record"
    rules = RULES
    guards_record = True
    needs_messages = False

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._keeps_all = False
        self._round = 0  # the last one
        self._is_open = False  # whether that one has begun and not ended
        self._num_records = 0
        self._digest = b""
        self._is_closed = False
        self._is_silent = True
        self._is_damaged = False

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """Note how far the transcript goes, and check that it continues as it must."""
        self._num_records, self._digest = record.number + 1, digest
        if self._is_closed and not isinstance(record, Resumed):
            place = Evidence(None, record.number)
            yield RULES.found("record.malformed", "it follows the closing record", [place])
        if isinstance(record, Message | Sum | RoundEnd | Begin):
            yield from self._counted(record)
            self._is_silent = self._is_silent and isinstance(record, RoundEnd | Begin)
        match record:
            case Opening():
                self._keeps_all = record.mode == FULL
            case Message() if self._keeps_all and not record.is_whole and record.repeats is None:
                place = Evidence(record.round, record.number)
                yield RULES.found("record.malformed", "its message is not kept", [place])
            case RoundEnd():
                self._is_open = False
            case Closing():
                self._is_closed = True
            case Resumed():
                self._is_closed = self._is_open = False

    def on_damage(self, error: ChainError, round_number: int | None) -> Iterator[Finding]:
        """Say how the file is damaged."""
        self._is_damaged = True
        place = Evidence(round_number, error.frame)
        detail = f"record {error.frame}: {error.problem}"
        yield RULES.found(_RULE_OF[error.damage], detail, [place])

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look for messages missing from a round."""
        round_ = over.view
        if over.following is not None and round_.end is None:
            place = Evidence(round_.number, over.following.number)
            detail = f"round {round_.number} has no end"
            yield RULES.found("record.missing", detail, [place])
        for session in round_.sessions.values():
            for seen in session.unasked:
                kind = seen.content.kind.name if seen.content.kind is not None else "unknown"
                detail = f"a {kind} message of device {seen.record.peer}, to which nothing was sent"
                yield RULES.found("record.unasked", detail, [seen.place])
            yield from _unsent(session)

    def on_end(self) -> Iterator[Finding]:
        """Check that the transcript goes as far as it should."""
        if self._is_damaged:
            return
        last = self._num_records - 1
        yield from self._differs(self._premises.digest or self._premises.source.head)
        if not self._is_closed:
            detail = f"record {last} is the last"
            yield RULES.found("record.unfinished", detail, [Evidence(None, last)])
        if self._is_silent and not self._premises.source.is_in_clear:
            detail = "no message is recorded"
            yield RULES.found("record.no-messages", detail, [Evidence(None, last)])
        yield from self._ends_early()

    def on_truth(self, untold: Sequence[int]) -> Iterator[Finding]:
        """Rounds that were played, since devices noted what they told in them."""
        if not untold:
            return
        shown = ", ".join(map(str, untold[:5]))
        detail = f"the truth file has rounds {shown}, and the record has not"
        places = [Evidence(number) for number in untold]
        yield RULES.found("record.cut", detail, places)

    def _ends_early(self) -> Iterator[Finding]:
        """A closing record before the last round of the run's settings."""
        config, summary = self._premises.source.config, self._premises.source.summary
        if config is None or not self._is_closed or self._premises.source.is_ideal:
            return
        if summary is None:
            return  # it may be about to be made longer (`run.unfinished`)
        if self._round < (wanted := config.federation.rounds):
            detail = f"it is closed after round {self._round}, and the settings say {wanted} rounds"
            yield RULES.found("record.cut", detail, [Evidence(None, self._num_records - 1)])

    def coverage(self, tally: Tally) -> Coverage:
        """Every record counts, even if it keeps little."""
        return Coverage(tally.rounds, f"{self._num_records} records")

    def _counted(self, record: Message | Sum | RoundEnd | Begin) -> Iterator[Finding]:
        """Rounds are counted from 1, one by one, and each begins and ends once."""
        before, self._round = self._round, record.round
        begins, was_open, self._is_open = isinstance(record, Begin), self._is_open, True
        place = Evidence(record.round, record.number)
        if record.round > before + 1:
            detail = f"round {record.round} follows round {before}"
            yield RULES.found("record.missing", detail, [place])
        elif record.round < before or (record.round == before and (begins or not was_open)):
            detail = f"round {record.round} comes after round {before}"
            if record.round == before:
                detail = f"round {before} {'begins again' if begins else 'goes on after its end'}"
            yield RULES.found("record.reordered", detail, [place])
        elif record.round > before and not begins:
            detail = f"the beginning of round {record.round} is not recorded"
            yield RULES.found("record.missing", detail, [place])
        if record.round < 1:
            yield RULES.found("record.malformed", "rounds are counted from 1", [place])

    def _differs(self, wanted: bytes | None) -> Iterator[Finding]:
        """The digest up to here is not the expected one."""
        if wanted is not None and self._digest != wanted:
            detail = f"it is {self._digest.hex()}, not {wanted.hex()}"
            place = Evidence(None, self._num_records - 1)
            yield RULES.found("record.head-differs", detail, [place])


def _unsent(session: SessionView) -> Iterator[Finding]:
    """Lists with signatures that, by the record, no device had sent."""
    ids = session.ids.tolist()
    for slot in session.slots.values():
        came = {
            (seen.record.peer, bytes(message.signature)): seen.record.number
            for seen in reversed(slot.signatures)
            if isinstance(message := seen.content.message, ConsistencySignature)
        }
        shown, devices = [], set[int]()
        for seen in (*slot.opened, *slot.requests):
            message = seen.content.message
            if not isinstance(message, OpenSlot | UnmaskRequest):
                continue
            unsent = {
                ids[position] if position < len(ids) else -1
                for position, signature in message.signatures.items()
                if position >= len(ids)
                or came.get((ids[position], bytes(signature)), seen.record.number)
                >= seen.record.number
            }
            if unsent:
                shown.append(seen.place)
                devices |= unsent
        if shown:
            detail = (
                f"slot {slot.index}: the list came with signatures of {len(devices)} devices that "
                f"are not recorded to have sent them before"
            )
            yield RULES.found("record.missing", detail, shown)
