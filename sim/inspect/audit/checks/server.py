"""Does the real server, given what the record says that it received, do what the record says?"""

from collections.abc import Iterator

from deltafl.sim.inspect.audit.check import Check, Premises
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import (
    A1,
    A2,
    A3,
    A4,
    A5,
    A8,
    A14,
    A15,
    A16,
    A17,
    A19,
    A20,
    A22,
    A24,
    Rule,
    Rules,
)
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Record, Sum

RULES = Rules(
    {
        "messages.missing": Rule(
            Severity.HIGH,
            "a message was due, and was not sent",
            "The server chose whom it asks. A device that is not asked is missing from what "
            "follows, or its answer was taken out of the record.",
            "Find out why the server left the device out. Until then, do not use it.",
            A24,
        ),
        "messages.untimely": Rule(
            Severity.MEDIUM,
            "a message was sent out of turn",
            "Devices refuse it, and an honest server never sends it. A device that did not refuse "
            "might answer twice, or for a sum that is not known yet.",
            "Keep using devices that refuse such messages, and find out why the server sent it.",
            A20,
        ),
        "messages.repeated": Rule(
            Severity.MEDIUM,
            "a message was sent again",
            "How often it was sent may be a message of its own, such as a digit of a loss.",
            "Find out who sends it again, and why. What a network repeats does not belong in the "
            "record.",
            A16,
        ),
        "messages.twice": Rule(
            Severity.MEDIUM,
            "two different messages were sent where there is one",
            "A server has to drop the device for it, and a device refuses the second. One of the "
            "two may be invented, to have a reason.",
            "Find out who sent the second message, and exclude the device if it did.",
            A16,
        ),
        "messages.unreadable": Rule(
            Severity.MEDIUM,
            "the server sent what is no message of the protocol",
            "Devices refuse it. It may hold a message to somebody else.",
            "Find out what it is, and why the server sent it.",
            A15,
        ),
        "session.impossible": Rule(
            Severity.HIGH,
            "no server can announce this session",
            "Its parameters are not those of its model and settings, so devices cannot tell "
            "whether all were shown the same.",
            "Keep using devices that check the binding, and stop using this server.",
            A8,
        ),
        "session.unannounced": Rule(
            Severity.HIGH,
            "a message belongs to another session than that of its round",
            "Two sums of the same inputs over different devices differ by the inputs of the "
            "devices that are in only one of them.",
            "Keep the devices' ledgers. With them, devices refuse a round that they have already "
            "taken part in.",
            A20,
        ),
        "cohort.uninvited": Rule(
            Severity.HIGH,
            "a device is in the session that was not invited to it",
            "The server may have added devices of its own, of which it knows the inputs.",
            "Stop using this server.",
            A4,
        ),
        "cohort.grown": Rule(
            Severity.HIGH,
            "a device is back that had been left out before",
            "A server that loses devices and finds them again chooses who is in which sum, and "
            "may know the secrets of those that it called lost.",
            "Keep using devices that refuse lists that grow, and stop using this server.",
            A1,
        ),
        "answers.ignored": Rule(
            Severity.HIGH,
            "an answer that came in time was not counted",
            "The server said that the device had dropped out, and holds its message all the same. "
            "With the secrets of a lost device, it can unmask that device's vector.",
            "Find out why the server left the device out. Until then, do not use it.",
            A5,
        ),
        "broadcast.announcement": Rule(
            Severity.HIGH,
            "devices were shown different models or settings",
            "The masks of devices that were shown different ones do not cancel. Without this "
            "binding, a device's update would be isolated.",
            "Keep using devices that check the binding, and stop using this server.",
            A8,
        ),
        "question.unfounded": Rule(
            Severity.HIGH,
            "a question does not follow from the sums before it",
            "A server that chooses thresholds at will can isolate the device with the largest "
            "loss.",
            "Recompute every question from the sums, and stop using this server.",
            A14,
        ),
        "proof.missing": Rule(
            Severity.HIGH,
            "a question was asked without the proof of the sum before it",
            "Devices cannot tell whether the question follows from a true sum.",
            "Keep using devices that insist on the proof, and stop using this server.",
            A19,
        ),
        "proof.differs": Rule(
            Severity.HIGH,
            "devices were proved another sum than the one in the record",
            "The server told its record and its devices different things.",
            "Find out which of the two sums was used.",
            A17,
        ),
        "proof.impossible": Rule(
            Severity.MEDIUM,
            "devices' commitments do not open to the sum of their vectors",
            "A device committed to another answer than it sent. The sum cannot be proved, and the "
            "round is lost.",
            "If this is rare, do nothing. Otherwise search over other devices to find out which "
            "one it is.",
            A22,
        ),
        "keys.substituted": Rule(
            Severity.HIGH,
            "a device's keys were replaced on the way",
            "Whoever replaced them can read the shares that were sealed with the new keys, and "
            "compute the masks.",
            "Sign sessions with identities that the server does not choose.",
            A3,
        ),
        "boxes.exchanged": Rule(
            Severity.MEDIUM,
            "sealed shares did not arrive as they were sent",
            "Devices refuse a box that was changed. A device whose shares are missing is easier "
            "to isolate.",
            "Find out whether the network or the server changed them.",
            A3,
        ),
        "lists.strange-signature": Rule(
            Severity.HIGH,
            "a list was shown with a signature that its device did not send",
            "The server made it, so it has the device's identity; or a message is missing from the "
            "record.",
            "Find out who has the device's secret key. Give the device another identity.",
            A1,
        ),
        "lists.no-quorum": Rule(
            Severity.HIGH,
            "devices were told a list that too few devices had signed",
            "Without enough signatures of one list, the server can tell every device another one.",
            "Keep using devices that count signatures, and stop using this server.",
            A1,
        ),
        "lists.chosen-signatures": Rule(
            Severity.MEDIUM,
            "devices were shown other signatures than the first that they count",
            "Which signatures a device is shown may be a message to it, which no other device "
            "sees.",
            "Find out why the server chose them. Until then, do not use it.",
            A16,
        ),
        "shares.asked-twice": Rule(
            Severity.CRITICAL,
            "the server asked for shares that are not due",
            "Shares of both secrets of a device reveal its vector; a whole slot has none to give.",
            "Sign sessions. Keep using devices that give one kind of share for each device.",
            A2,
        ),
        "sums.differ": Rule(
            Severity.HIGH,
            "a sum is not what the messages add up to",
            "The server reported something other than what it received.",
            "Trust the replayed sums; find out why the server's differ.",
            A17,
        ),
        "sums.out-of-range": Rule(
            Severity.MEDIUM,
            "a sum is outside its range",
            "A device did not follow the layout of what it answers.",
            "Discard the round. If this is not rare, find out which device it is.",
            A17,
        ),
        "sums.unreplayable": Rule(
            Severity.HIGH,
            "a sum cannot be computed from the messages",
            "Either messages are missing from the record, or the server got the sum from "
            "elsewhere.",
            "Look at the evidence. A sum that no message explains was not learnt through this "
            "protocol.",
            A17,
        ),
        "sums.unrecorded": Rule(
            Severity.HIGH,
            "the server could compute a sum that is not in the record",
            "The server learnt a sum that it did not record.",
            "Find out what happened to it.",
            A24,
        ),
        "round.given-up": Rule(
            Severity.HIGH,
            "a round was given up for a reason that does not follow from its messages",
            "A server that gives rounds up at will gets the earlier sums for nothing, and the "
            "reason may hold a message.",
            "Find out why the server gave the round up. Until then, do not use it.",
            A20,
        ),
    }
)


class ServerAgain(Check):
    """Plays the server of every round again."""

    name = "the server played again"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._again = premises.rounds
        self._sums = 0

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Hand a message to the server, or compare it with what the server sends."""
        del round_
        return self._take(seen.record, seen.data)

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """Hand what is no message to the server."""
        del digest
        self._sums += isinstance(record, Sum)
        return iter(()) if isinstance(record, Message) else self._take(record)

    def _take(self, record: Record, data: bytes = b"") -> Iterator[Finding]:
        for one in self._again.take(record, data):
            yield RULES.found(one.rule, one.detail, [one.place])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that were played to their end."""
        played = self._again.played
        detail = f"{played} of {tally.rounds} rounds were played again to their end"
        return Coverage(played, detail)

    def facts(self) -> CheckFacts:
        """How many sums there are, and how many the server has learnt again."""
        return {"sums_released": self._sums, "sums_replayed": self._again.sums}
