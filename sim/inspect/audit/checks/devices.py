"""Do the real devices, given what the record says that they were sent, send what it says?

Needs a truth file, which has the seed of all that they draw.
"""

from collections import defaultdict
from collections.abc import Iterator

from deltafl.protocol.client import RoundClient
from deltafl.secagg import ClientId, Credentials, FirstUse, Ledger, MemoryLedger
from deltafl.secagg.identity import identity
from deltafl.secagg.primitives import Primitives
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.device_replay import LENIENT, DeviceReplay, ReplayedBoxes
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import Session
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.record.truth import sources_of
from deltafl.sim.run.algorithms import policy_of


class DevicesAgain(Check):
    """Plays the devices of every round again."""

    name = "the devices played again"
    table = """\
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
boxes.other critical device A3: a box does not hold a half and shares that its device drew
    Others may know what is in it, or the box holds something else.
links.other high device A7: a device said of its links what does not follow from its boxes
    It may have deposited a key that others can read, or deny a link, or be the cause of a lost sum.
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
    needs_truth = True

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        config = premises.source.config
        self._policy = LENIENT if config is None else policy_of(config)
        self._ledgers: dict[int, Ledger] = defaultdict(MemoryLedger)
        self._devices: dict[tuple[bytes, int], DeviceReplay | None] = {}  # None without a seed
        self._boxes: dict[bytes, ReplayedBoxes] = {}
        self._latest = b""  # the session
        self._found: list[Finding] = []  # in the round
        self._played = self._rounds = 0

    def on_message(self, seen: Seen, round_: RoundView) -> None:
        """Hand a message to its device, or compare one with what the device sends."""
        peer, session = seen.record.peer, round_.sessions.get(seen.content.tag)
        if session is not None:
            self._latest = seen.content.tag
        key = self._latest, peer  # of an answer that nobody can read, too
        if seen.record.sent and session is not None and key not in self._devices:
            self._devices[key] = self._device(key, session, round_)
            if self._devices[key] is None:
                detail = f"the truth has no seed of device {peer}"
                self._found.append(self.rules.found("truth.missing", detail, [seen.place]))
        if (device := self._devices.get(key)) is None:
            return
        if not seen.record.sent:
            for rule, detail in device.compare(seen.data):
                self._found.append(self.rules.found(rule, f"device {peer} {detail}", [seen.place]))
        elif session is not None:
            device.take(seen.data)

    def _device(
        self, key: tuple[bytes, int], session: Session, round_: RoundView
    ) -> DeviceReplay | None:
        """A device that is heard of for the first time; None if its seed is not known."""
        if (seed := round_.truth.seeds.get(key)) is None:
            return None
        (tag, peer), (secrets, noise) = key, sources_of(seed.seed)
        if tag not in self._boxes:
            seeds = round_.truth.seeds.values()
            self._boxes[tag] = ReplayedBoxes(one.seed for one in seeds if one.tag == tag)
        boxes, own = self._boxes[tag], Credentials(identity(seed.identity), FirstUse())
        about = ClientId(peer), self._policy, own, secrets, noise
        primitives = Primitives(seal=boxes.seal, open=boxes.open)
        client = RoundClient(*about, primitives=primitives, ledger=self._ledgers[peer])
        inputs = {level: one for (of, level), one in round_.truth.inputs.items() if of == peer}
        return DeviceReplay(client, session.params, inputs, boxes)

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Say what was found, and compare what the record says of its truth."""
        devices = [(peer, one) for (_, peer), one in self._devices.items() if one is not None]
        for _, one in devices:
            one.answer()
        played = sum(not one.lost_track for _, one in devices)
        self._played += played
        self._rounds += bool(played)
        kept = self._premises.rounds.kept.get(over.view.number)
        if kept is not None and self._devices:
            kept.refused = frozenset(peer for peer, one in devices if one.has_refused)
        end, config, digest = over.view.end, self._premises.source.config, over.view.truth.digest
        is_over = end is not None and end.aborted != INTERRUPTED
        # of a round without an end, nothing is in the truth
        yield from (one for one in self._found if is_over or one.rule != "truth.missing")
        self._devices, self._boxes, self._found = {}, {}, []
        is_due = config is not None and config.privacy.truth
        if end is not None and is_over and (end.truth or is_due) and end.truth != digest:
            said = f"has the digest {end.truth.hex()}" if end.truth else "has no digest"
            detail = f"the record {said} of the truth, which has {digest.hex()}"
            yield self.rules.found("truth.disagrees", detail, [place_of(end)])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds of which there are seeds."""
        del tally
        detail = f"{self._played} devices of rounds were played again, in {self._rounds} rounds"
        return Coverage(self._rounds, detail)
