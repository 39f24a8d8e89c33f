"""Is the record whole, and does the run's own account agree with it?"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from deltafl.fl.read.exact import shortened
from deltafl.protocol import wire
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg.messages import ConsistencySignature, OpenSlot, UnmaskRequest
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.prefixes import scan
from deltafl.sim.inspect.audit.rules import A24, Rule, Rules
from deltafl.sim.inspect.audit.settled import departures
from deltafl.sim.inspect.audit.views import RoundView, SessionView, place_of
from deltafl.sim.record.events import Event
from deltafl.sim.record.transcript import (
    HEAD_RECEIVED,
    HEAD_SENT,
    Closing,
    Message,
    Opening,
    Record,
    RoundEnd,
    Sum,
    keeps_whole,
)
from deltafl.sim.settings.config_io import show

_AT_PROOF: Final = 4  # field of a question: version, kind, two fields that say what is asked, …
_RULE_OF: Final = {
    Damage.CUT: "record.cut",
    Damage.EDITED: "record.edited",
    Damage.MISSING: "record.missing",
    Damage.REORDERED: "record.reordered",
    Damage.MALFORMED: "record.malformed",
}


RULES: Final = Rules(
    {
        "record.edited": Rule(
            Severity.HIGH,
            "a record was edited",
            "The record may be invented, and nothing after it in the file proves anything.",
            "Get the file from where it was written, and compare its digest with the one in the "
            "run's summary.",
            A24,
        ),
        "record.missing": Rule(
            Severity.HIGH,
            "records were removed",
            "The removed records are not audited.",
            "Get the file from where it was written. A log that leaves the server's hands at "
            "once cannot be cut later.",
            A24,
        ),
        "record.reordered": Rule(
            Severity.HIGH,
            "records were moved or repeated",
            "Whether masks protect a vector depends on the order of events, and that order is "
            "not known.",
            "Get the file from where it was written.",
            A24,
        ),
        "record.cut": Rule(
            Severity.HIGH,
            "the file ends too early",
            "The rest of the file is not audited.",
            "Get the whole file. After a crash, resume the run: it cuts the file back to its "
            "last checkpoint and continues from there.",
            A24,
        ),
        "record.malformed": Rule(
            Severity.HIGH,
            "a record does not follow the format",
            "The file was not written by the program that the format describes.",
            "Write transcripts with the release whose version the file names.",
            A24,
        ),
        "record.unfinished": Rule(
            Severity.MEDIUM,
            "the file has no closing record",
            "The run was stopped, is still going, or the end of the file was cut off between two "
            "records.",
            "Finish the run (`--resume`), or give the digest that the run's checkpoint states.",
            A24,
        ),
        "record.head-differs": Rule(
            Severity.HIGH,
            "the digest of the file is not the one that the run states",
            "The file may not be the one that the run wrote.",
            "Get the file from where it was written.",
            A24,
        ),
        "record.disagrees": Rule(
            Severity.HIGH,
            "the run's own record disagrees with its messages",
            "The run published results that do not follow from what its server received.",
            "Find out which of the two was changed. Until then, trust neither.",
            A24,
        ),
        "record.unasked": Rule(
            Severity.HIGH,
            "an answer was recorded without its question",
            "The message that the server sent to get the answer is missing from the record, and "
            "may have been a lie.",
            "Get the file from where it was written. A log that leaves the server's hands at "
            "once cannot be cut later.",
            A24,
        ),
        "record.no-messages": Rule(
            Severity.MEDIUM,
            "no messages passed through the server",
            "Nothing can be said about the privacy of devices: the sums were computed without "
            "cryptography, or the record belongs to another run.",
            'Run with `privacy.sums = "masked"`.',
            A24,
        ),
    }
)


class Integrity(Check):
    """Follows the records from first to last, and compares them with the run's own account."""

    name = "integrity of the record"
    rules = RULES
    guards_record = True

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        # how many records the run vouches for; a digest that somebody gives is that of all
        self._vouched = premises.source.num_records if premises.digest is None else None
        self._mode: str | None = None
        self._rounds: set[int] = set()
        self._round = 0  # the last one
        self._num_records = 0
        self._digest = b""
        self._is_closed = False
        self._is_silent = True
        self._is_damaged = False

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """Note how far the transcript goes, and check that it continues as it must."""
        self._num_records, self._digest = record.number + 1, digest
        if self._is_closed:
            place = Evidence(None, record.number, record.offset)
            yield RULES.found("record.malformed", "it follows the closing record", [place])
        if isinstance(record, Message | Sum | RoundEnd):
            yield from self._counted(record)
            self._rounds.add(record.round)
            self._is_silent = self._is_silent and isinstance(record, RoundEnd)
        match record:
            case Opening():
                self._mode = record.mode
            case Message():
                yield from self._kept(record)
            case Closing():
                self._is_closed = True
                yield from self._closed(record)
        if self._num_records == self._vouched:
            yield from self._differs(self._premises.source.head, record.offset)

    def on_damage(self, error: ChainError, round_number: int | None) -> Iterator[Finding]:
        """Say how the file is damaged; past the last checkpoint, it may just be unfinished."""
        self._is_damaged = True
        place = Evidence(round_number, error.frame, error.offset)
        vouched = self._vouched
        if vouched is not None and error.frame >= vouched:
            detail = f"{error.problem}; the run's checkpoint vouches for {vouched} records only"
            yield RULES.found("record.unfinished", detail, [place])
        else:
            detail = f"record {error.frame}: {error.problem}"
            yield RULES.found(_RULE_OF[error.damage], detail, [place])

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look for messages missing from a round, and compare it with the run's events."""
        round_ = over.view
        if over.following is not None and round_.end is None:
            place = Evidence(round_.number, over.following.number, over.following.offset)
            detail = f"round {round_.number} has no end"
            yield RULES.found("record.missing", detail, [place])
        for session in round_.sessions.values():
            for seen in session.unasked:
                kind = seen.content.kind.name if seen.content.kind is not None else "unknown"
                detail = f"a {kind} message of device {seen.record.peer}, to which nothing was sent"
                yield RULES.found("record.unasked", detail, [seen.place])
            yield from _unsent(session)
        yield from self._settings(round_)
        event = (self._premises.source.events or {}).get(round_.number)
        if event is not None:
            yield from _compare_round(over, event)

    def on_end(self) -> Iterator[Finding]:
        """Check that the transcript goes as far as it should."""
        if self._is_damaged:
            return
        last = self._num_records - 1
        yield from self._differs(self._premises.digest)
        if self._vouched is not None and self._num_records < self._vouched:
            knows = f"the run's checkpoint knows of {self._vouched}"
            detail = f"{self._num_records} records, but {knows}"
            yield RULES.found("record.cut", detail, [Evidence(None, last)])
        elif not self._is_closed:
            detail = f"record {last} is the last"
            yield RULES.found("record.unfinished", detail, [Evidence(None, last)])
        if self._is_silent:
            detail = "no message is recorded"
            yield RULES.found("record.no-messages", detail, [Evidence(None, last)])
        yield from self._missing()

    def coverage(self, tally: Tally) -> Coverage:
        """Every record counts, even if it keeps little."""
        return Coverage(tally.rounds, f"{self._num_records} records")

    def _kept(self, message: Message) -> Iterator[Finding]:
        """A message of which less is kept than the mode says was cut to hide something."""
        is_whole = self._mode is not None and keeps_whole(self._mode, message.round)
        limit = HEAD_SENT if message.sent else HEAD_RECEIVED
        is_whole = is_whole or (message.sent and _has_proof(message.head))
        kept = message.size if is_whole else min(message.size, limit)
        if message.repeats is None and len(message.head) != kept:
            detail = f"it keeps {len(message.head)} bytes of a message instead of {kept}"
            place = Evidence(message.round, message.number, message.offset)
            yield RULES.found("record.malformed", detail, [place])

    def _counted(self, record: Message | Sum | RoundEnd) -> Iterator[Finding]:
        """Rounds are counted from 1, one by one."""
        before, self._round = self._round, record.round
        place = Evidence(record.round, record.number, record.offset)
        if record.round > before + 1:
            detail = f"round {record.round} follows round {before}"
            yield RULES.found("record.missing", detail, [place])
        elif record.round < before:
            detail = f"round {record.round} comes after round {before}"
            yield RULES.found("record.reordered", detail, [place])

    def _closed(self, closing: Closing) -> Iterator[Finding]:
        """The closing record says how many rounds there are."""
        if closing.rounds != len(self._rounds):
            played = len(self._rounds)
            detail = f"it says that {closing.rounds} rounds were played, but has {played}"
            place = Evidence(None, closing.number, closing.offset)
            yield RULES.found("record.disagrees", detail, [place])

    def _differs(self, wanted: bytes | None, offset: int | None = None) -> Iterator[Finding]:
        """The digest up to here is not the expected one."""
        if wanted is not None and self._digest != wanted:
            detail = f"it is {self._digest.hex()}, not {wanted.hex()}"
            place = Evidence(None, self._num_records - 1, offset)
            yield RULES.found("record.head-differs", detail, [place])

    def _settings(self, round_: RoundView) -> Iterator[Finding]:
        """What was announced is not what the run's settings say."""
        config = self._premises.source.config
        for session in round_.sessions.values():
            levels = session.levels
            if config is None or levels is None:
                continue
            for detail in departures(config, round_.number, levels, session.params.signed):
                place = session.announcements[0].place
                yield RULES.found("record.disagrees", detail, [place])

    def _missing(self) -> Iterator[Finding]:
        """Rounds that the run says it played and the transcript does not have."""
        source = self._premises.source
        is_ideal = source.config is not None and source.config.privacy.sums == "ideal"
        if self._is_closed and source.events is not None and not is_ideal:
            for number in sorted(self._rounds - set(source.events)):
                detail = f"round {number} is not in the run's events"
                yield RULES.found("record.disagrees", detail, [Evidence(number)])
        if missing := sorted(set(source.events or {}) - self._rounds):
            detail = f"rounds {', '.join(map(str, missing[:5]))} are in the run's events only"
            places = [Evidence(number) for number in missing]
            yield RULES.found("record.disagrees", detail, places)


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


def _has_proof(head: bytes) -> bool:
    """Whether a message begins as a question with the proof of a sum does."""
    prefix = scan(head[:HEAD_SENT])
    if prefix is None or len(prefix.fields) <= _AT_PROOF:
        return False
    kind, proof = prefix.fields[1], prefix.fields[_AT_PROOF]
    return kind in (wire.Kind.QUERY, wire.Kind.THRESHOLD) and bool(proof)


def _compare_round(over: RoundOver, event: Event) -> Iterator[Finding]:
    """Compare what the run says of a round, and of its levels, with what its sums come to."""
    round_, played = over.view, over.played
    outcome = played[0].outcome if len(played) == 1 else None
    stated: dict[str, object] = {"secure_sums": len(round_.sums)}
    announced = sorted(
        {seen.record.peer for one in round_.sessions.values() for seen in one.announcements}
    )
    if "cohort" in event and announced:
        stated["cohort"] = announced
    if round_.end is not None:
        stated["aborted"] = round_.end.aborted or None
        yield from _finished(over)
    yield from _compare(round_, event, stated | _stated(event, outcome), "")
    if len(round_.sessions) == 1 < len(played):
        for one in played:
            yield from _compare_level(round_, event, show(one.theta), one.outcome)


def _finished(over: RoundOver) -> Iterator[Finding]:
    """A round that was given up although all its sums are there."""
    end, played = over.view.end, over.played
    outcomes = [one.outcome for one in played]
    if end is None or not end.aborted or len(over.view.sessions) != 1:
        return
    if all(outcome is not None and outcome.aborted is None for outcome in outcomes):
        detail = f"it was given up ({end.aborted}), but it has all its sums"
        yield RULES.found("record.disagrees", detail, [place_of(end)])


def _compare_level(
    round_: RoundView, event: Event, level: str, outcome: RoundOutcome | None
) -> Iterator[Finding]:
    """Compare what the run says of one level of a round with what the level's sums come to.

    Args:
        round_: The round.
        event: What the run says of it.
        level: The level, as the run's events name it.
        outcome: What the sums come to; None where that is not known.
    """
    levels = event.get("levels")
    told = levels.get(level) if isinstance(levels, dict) else None
    if isinstance(told, dict):
        yield from _compare(round_, told, _stated(told, outcome), f" at θ = {level}")
    else:
        detail = f"the run's events do not mention the level θ = {level}"
        place = place_of(round_.end) if round_.end else Evidence(round_.number)
        yield RULES.found("record.disagrees", detail, [place])


def _stated(event: Event, outcome: RoundOutcome | None) -> dict[str, object]:
    """What the events must say of a round of this outcome."""
    stated: dict[str, object] = {}
    if outcome is not None and outcome.aborted is None:
        search = outcome.search
        stated |= {
            "kept_devices": outcome.kept_devices,
            "kept_weight": outcome.kept_weight,
            "train_loss": outcome.train_loss,
            "clipped": outcome.clipped,
        }
        if search is not None:
            stated |= {"num_queries": search.num_queries, "certified": search.certified}
            # rounds that search nothing record none
            if "eta" in event and (event["eta"] is not None or search.num_queries):
                stated |= {"eta": search.eta, "half_width": search.half_width}
            if "search_ended" in event:
                stated["search_ended"] = str(search.ended)
        if "empty" in event:
            stated["empty"] = outcome.kept_weight == 0
    return stated


def _compare(
    round_: RoundView, event: Event, stated: Mapping[str, object], where: str
) -> Iterator[Finding]:
    for key, value in stated.items():
        if not _same(event.get(key), value):
            said = f"{key}{where} is {shortened(event.get(key))} in the run's events"
            detail = f"{said}, but {value!r} by its sums"
            place = place_of(round_.end) if round_.end else Evidence(round_.number)
            yield RULES.found("record.disagrees", detail, [place])


def _same(first: object, second: object) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-9)
    return first == second
