"""Do the real devices, given what the record says that they were sent, send what it says?

Needs a truth file, which has the seed of all that they draw.
"""

from collections import defaultdict
from collections.abc import Iterator

from deltafl.secagg import Ledger, MemoryLedger
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.device_replay import LENIENT, DeviceReplay
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.algorithms import policy_of

RULES = Rules.read(
    """\
secrets.other critical device A7: a device's keys are not those of the secrets that it drew
    Its secrets come from elsewhere, and somebody else may know them.
keys.unsworn high device A7: a device signed otherwise than its identity does
    The signature, or the number that it was made with, comes from elsewhere.
commitments.other high device A22: a device committed to something else than it drew or masked
    The sum cannot be proved, or a secret is not the one that others can rebuild.
masks.other critical device A7: a masked vector is not what its device masks with its keys
    Masks come from elsewhere or are missing, or the vector holds something else.
proof.predictable critical device A7: a device proved its answer by other numbers than it drew
    Whoever knows the numbers reads the answer and the weight from the proof.
boxes.other critical device A3: a box does not hold its device's shares, sealed by its keys
    Others may read the shares, or the box holds something else.
boxes.refused medium device A22: a device refused a box that holds its shares
    Complaints give a server a reason to leave devices out. This one may be invented.
shares.other medium device A22: a device gave other shares than those that it had been sent
    The sum may be wrong or lost.
policy.ignored high device A24: a device answered what devices refuse
    The device does not insist on what protects it.
messages.unasked medium device A16: a device sent what nobody had asked it for
    It may be a message of its own.
truth.missing high record A24: the truth file lacks rows that a simulation writes
    What these devices did is not compared with anything.
truth.disagrees high record A24: the truth file disagrees with the record
    The truth file was changed, or is of another run: it proves nothing.
"""
)


class DevicesAgain(Check):
    """Plays the devices of every round again."""

    name = "the devices played again"
    rules = RULES
    needs_truth = True

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        config = premises.source.config
        self._policy = LENIENT if config is None else policy_of(config)
        self._ledgers: dict[int, Ledger] = defaultdict(MemoryLedger)
        self._sessions: dict[bytes, DeviceReplay] = {}
        self._missing: list[Finding] = []
        self._played = self._rounds = 0

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Hand a message to its device, or compare one with what the device sends."""
        tag = seen.content.tag
        session = round_.sessions.get(tag)
        if session is not None and tag not in self._sessions:
            seeds = {d: seed for (own, d), seed in round_.seeds.items() if own == tag}
            self._sessions[tag] = DeviceReplay(
                session.params, self._policy, seeds, round_.inputs, self._ledgers
            )
        if session is None and (seen.record.sent or not self._sessions):
            return
        *_, latest = self._sessions.values()  # for an answer that nobody can read
        replay = self._sessions.get(tag, latest)
        take = replay.sent if seen.record.sent else replay.received
        for rule, detail in take(seen.record.peer, seen.data):
            found = RULES.found(rule, detail, [seen.place])
            if rule == "truth.missing":
                self._missing.append(found)
            else:
                yield found

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Count its devices, and compare what the record says of its truth."""
        played = sum(one.played for one in self._sessions.values())
        self._played += played
        self._rounds += bool(played)
        kept = self._premises.rounds.kept.get(over.view.number)
        if kept is not None and self._sessions:
            kept.refused = frozenset().union(*(one.refused for one in self._sessions.values()))
        self._sessions, missing, self._missing = {}, self._missing, []
        end, config = over.view.end, self._premises.source.config
        if end is None or end.aborted == INTERRUPTED:
            return  # of a round without an end, nothing is in the truth
        yield from missing
        is_due = config is not None and config.privacy.truth
        if (end.truth or is_due) and end.truth != over.truth_digest:
            said = f"has the digest {end.truth.hex()}" if end.truth else "has no digest"
            detail = f"the record {said} of the truth, which has {over.truth_digest.hex()}"
            yield RULES.found("truth.disagrees", detail, [place_of(end)])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds of which there are seeds."""
        del tally
        detail = f"{self._played} devices of rounds were played again, in {self._rounds} rounds"
        return Coverage(self._rounds, detail)
