"""Does the real server, given what the record says that it received, do what the record says?"""

from collections.abc import Iterator

from deltafl.sim.inspect.audit.check import Check, Premises
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Record, Sum


class ServerAgain(Check):
    """Plays the server of every round again."""

    name = "the server played again"
    table = """\
messages.missing high server A24: a message was due, and was not sent
    The server chose whom it asks, or the answer was taken out of the record.
messages.untimely medium server A20: a message was sent out of turn
    A device that does not refuse it may answer twice, or for a sum that is not known yet.
messages.repeated medium somebody A16: a message was sent again
    How often it was sent may be a message of its own, such as a digit of a loss.
messages.twice medium somebody A16: two different messages were sent where there is one
    A server has to drop the device for it: one may be invented, to have a reason.
session.impossible high server A8: no server can announce this session
    Devices cannot tell whether all were shown the same model and settings.
session.unannounced high server A20: a message belongs to another session than that of its round
    Two sums over different devices differ by the inputs of those that are in only one of them.
cohort.uninvited high server A4: a device is in the session that was not invited to it
    The server may have added devices of its own, of which it knows the inputs.
cohort.grown high server A1: a device is back that had been left out before
    A server that loses devices and finds them again chooses who is in which sum.
answers.ignored high server A5: an answer that came in time was not counted
    With the secrets of a device that it calls lost, a server unmasks the vector that it holds.
broadcast.announcement high server A8: devices were shown different models or settings
    Their masks do not cancel. Without this binding, a device's update would be isolated.
question.unfounded high server A14: a question does not follow from the sums before it
    A server that chooses thresholds at will can isolate the device with the largest loss.
proof.missing high server A19: a question was asked without the proof of the sum before it
    Devices cannot tell whether the question follows from a true sum.
proof.differs high server A17: devices were proved another sum than the one in the record
    The server told its record and its devices different things.
proof.impossible medium device A22: devices' commitments do not open to the sum of their vectors
    A device committed to another answer than it sent, and the sum cannot be proved.
keys.substituted high server A3: a device's keys were replaced on the way
    Whoever replaced them can read the shares that were sealed with the new keys.
boxes.exchanged medium somebody A3: a box did not arrive as it was sent
    Two devices have no link if a box was changed. A device without links is easier to isolate.
links.tags high server A3: tags of links were replaced, withheld, or shown to others
    Devices share masks only with neighbours whose tags they see: the others leave one alone.
lists.strange-signature high server A1: a list has a signature that its device did not send
    The server made it, so it has the device's identity; or a message is missing from the record.
lists.no-quorum high server A1: devices were told a list that too few devices had signed
    Without enough signatures of one list, the server can tell every device another one.
lists.chosen-signatures medium server A16: devices were shown other signatures than the first ones
    Which signatures a device is shown may be a message to it, which no other device sees.
shares.asked-twice critical server A2: the server asked for shares that are not due
    Shares of both secrets of a device reveal its vector; a whole slot has none to give.
sums.differ high server A17: a sum is not what the messages add up to
    The server reported something other than what it received.
sums.out-of-range medium device A17: a sum is outside its range
    A device did not follow the layout of what it answers.
sums.unreplayable high server A17: a sum cannot be computed from the messages
    Either messages are missing from the record, or the server got the sum from elsewhere.
sums.unrecorded high server A24: the server could compute a sum that is not in the record
    The server learnt a sum that it did not record.
round.given-up high server A20: the reason for giving a round up does not follow from its messages
    A server that gives rounds up at will gets the earlier sums for nothing.
"""

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._again = premises.rounds
        self._sums = 0

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Hand a message to the server, or compare it with what the server sends."""
        del round_
        yield from self._take(seen.record, seen.data)

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """Hand what is no message to the server."""
        del digest
        self._sums += isinstance(record, Sum)
        if not isinstance(record, Message):
            yield from self._take(record)

    def _take(self, record: Record, data: bytes = b"") -> Iterator[Finding]:
        place = Evidence(getattr(record, "round", None), record.number)
        for rule, detail, *places in self._again.take(record, data):
            yield self.rules.found(rule, detail, places or [place])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that were played to their end."""
        played = self._again.played
        detail = f"{played} of {tally.rounds} rounds were played again to their end"
        return Coverage(played, detail)

    def facts(self) -> CheckFacts:
        """How many sums there are, and how many the server has learnt again."""
        return {"sums_released": self._sums, "sums_replayed": self._again.sums}
