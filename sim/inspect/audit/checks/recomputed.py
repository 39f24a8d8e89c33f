"""Did devices do with the secrets that they drew what the protocol says? Needs a truth file.

Everything here is exact: keys, commitments, boxes and masks are computed again, and a masked vector
without its masks must be the contribution of its device.
"""

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.secagg import openings, pedersen, shamir
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import SHARES_PER_SLOT, ShareKeys, ShareReceipt
from deltafl.secagg.ring import Vector
from deltafl.secagg.shamir import Limbs
from deltafl.sim.inspect.audit.check import Check, MaskedVector, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.drawn_secrets import OF_DRAWN, DrawnTests
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.recorded_secrets import SessionSecrets
from deltafl.sim.inspect.audit.round_replay import layout_of
from deltafl.sim.inspect.audit.rules import A3, A7, A22, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.sharing_tests import Dealt, SharingTests
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound, input_of
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView

RULES: Final = Rules(
    {
        "secrets.other": Rule(
            Severity.HIGH,
            "a device's keys are not those of the secrets that it drew",
            "Its secrets come from elsewhere, and somebody else may know them.",
            "Check how devices draw secrets; compare with the test vectors.",
            A7,
        ),
        "secrets.guessable": Rule(
            Severity.CRITICAL,
            "a secret that a device drew can be guessed",
            "Anybody can compute what it hides: masks, shares, or the answer in a commitment.",
            "Draw secrets from the operating system.",
            A7,
        ),
        "secrets.related": Rule(
            Severity.HIGH,
            "a secret follows from another one",
            "Whoever learns the one has the other: a seed that the server rebuilds may open boxes.",
            "Draw every key and every seed by itself.",
            A7,
        ),
        "masks.other": Rule(
            Severity.CRITICAL,
            "a masked vector is not its device's contribution under the masks of its keys",
            "Masks come from elsewhere or are missing, or the vector holds something else.",
            "Check how devices mask; compare with the test vectors.",
            A7,
        ),
        "boxes.other": Rule(
            Severity.CRITICAL,
            "a box does not hold its device's shares, sealed by its keys",
            "Others may read the shares, or the box holds something else.",
            "Check how devices seal boxes; compare with the test vectors.",
            A3,
        ),
        "boxes.few-shares": Rule(
            Severity.CRITICAL,
            "the shares in boxes reveal a secret to fewer devices than the threshold",
            "A few devices that collude are enough to remove a device's masks.",
            "Share secrets by polynomials of full degree with random coefficients.",
            A3,
        ),
        "boxes.refused": Rule(
            Severity.MEDIUM,
            "a device refused a box that holds its shares",
            "The device lies, or its receipt is invented. Complaints give a server a reason to "
            "leave devices out.",
            "Exclude the device that complained.",
            A22,
        ),
        "commitments.other": Rule(
            Severity.MEDIUM,
            "a device committed to another answer than the one that it masked",
            "The sum cannot be proved, and the round is lost.",
            "Find out why the device lies; without a truth file nobody can name it.",
            A22,
        ),
    }
)

_IN_BOXES: Final = "in boxes, "


class Recomputed(Check):
    """Opens boxes with recorded secrets, and removes the masks that follow from them."""

    name = "recorded secrets"
    rules = RULES
    tests = MappingProxyType({_IN_BOXES: "boxes.few-shares", OF_DRAWN: "secrets.guessable"})
    needs_truth = True

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._sharing = SharingTests(premises.budget, _IN_BOXES)
        self._drawn = DrawnTests(premises.budget)
        self._sessions: dict[bytes, SessionSecrets] = {}
        self._boxes: dict[bytes, dict[int, tuple[Seen, ShareKeys]]] = {}
        self._wrong: list[tuple[str, str, Evidence]] = []
        self._rounds, self._vectors = 0, 0

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[Finding, ...]:
        """Keep boxes until the round is over."""
        message = seen.content.message
        if round_.keeps_whole and isinstance(message, ShareKeys):
            of_session = self._boxes.setdefault(seen.content.tag, {})
            of_session.setdefault(seen.record.peer, (seen, message))
        return ()

    def on_vector(self, vector: MaskedVector) -> None:
        """Remove a vector's masks, and compare what is left with its device's contribution."""
        session, slot = vector.session, vector.slot
        tag = session.params.tag
        if (tag, vector.seen.record.peer) not in vector.secrets:
            return
        if tag not in self._sessions:
            self._sessions[tag] = SessionSecrets(session, vector.secrets)
        bare = self._sessions[tag].unmasked(slot, vector.seen, vector.words)
        if bare is None:
            return
        self._vectors += 1
        self._compare(session, slot, vector.seen, bare, vector.truth)

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the keys and boxes of a round."""
        if over.secrets:
            self._rounds += 1
            place = Evidence(over.view.number)
            for detail, where in self._drawn.end_round(over.view, over.secrets, over.truth or {}):
                yield RULES.found("secrets.guessable", detail, [where])
            for detail in self._drawn.related(over.secrets):
                yield RULES.found("secrets.related", detail, [place])
            for tag, session in over.view.sessions.items():
                known = self._sessions.get(tag) or SessionSecrets(session, over.secrets)
                for device in known.other_keys():
                    came = (session.advertisements.get(device), session.share_keys.get(device))
                    places = [seen.place for seen in came if seen is not None]
                    yield RULES.found("secrets.other", f"the keys of device {device}", places)
                boxes = self._boxes.get(tag, {})
                yield from self._look_into_boxes(known, boxes)
                yield from _false_complaints(known, boxes)
        for rule, detail, place in self._wrong:
            yield RULES.found(rule, detail, [place])
        self._sessions, self._boxes, self._wrong = {}, {}, []

    def on_end(self) -> tuple[Finding, ...]:
        """Make the last tests; the alarms come when all tests are made."""
        self._sharing.finish()
        self._drawn.finish()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Covers the rounds of which the truth file has the secrets of devices."""
        del tally
        detail = f"{self._vectors} vectors and the boxes of {self._rounds} rounds computed again"
        return Coverage(self._rounds, detail)

    def _compare(
        self, session: SessionView, slot: SlotView, seen: Seen, bare: Vector, truth: TruthOfRound
    ) -> None:
        """Compare a vector without its masks with what the device had to send."""
        device, spec, asked = seen.record.peer, session.params.slots[slot.index], slot.question
        if spec.verified:
            self._drawn.add_blinding(device, bare[spec.length :], seen.place)
        words = bare[: spec.length]
        own = truth.get(device)
        config = _config_of(session, slot)
        if config is None or asked is None:
            return
        is_single = session.config is not None
        expected = input_of(own, config, asked) if own is not None and is_single else None
        if expected is not None:
            is_right = bool(np.array_equal(words, expected))
        else:
            is_right = _is_in_range(layout_of(config, asked).decode, words)
        if not is_right:
            detail = f"the vector of device {device} for slot {slot.index}"
            self._wrong.append(("masks.other", detail, seen.place))
        committed = slot.committed.get(device)
        if spec.verified and committed is not None and is_right:
            values = openings.signed(words, spec.ring_bits)
            blinding = pedersen.join_blinding(bare[spec.length :].tolist())
            if not pedersen.opens([committed[: pedersen.COMMITMENT_SIZE]], values, blinding):
                detail = f"device {device}, slot {slot.index}"
                self._wrong.append(("commitments.other", detail, seen.place))

    def _look_into_boxes(
        self, known: SessionSecrets, sent: dict[int, tuple[Seen, ShareKeys]]
    ) -> Iterator[Finding]:
        """Open boxes, and compare the shares in them with their device's secrets."""
        session = known.session
        columns, threshold = len(session.params.columns), session.params.threshold
        shape = (SHARES_PER_SLOT * columns, shamir.NUM_LIMBS)
        for device, (seen, message) in sent.items():
            own, at = known.own.get(device), session.positions.get(device)
            if own is None or at is None or not columns:
                continue
            points, rows = [], []
            for recipient, box in message.boxes.items():
                limbs = _limbs(known.open(at, recipient, bytes(box)), shape)
                if limbs is None:
                    detail = f"that of device {device} for position {recipient}"
                    yield RULES.found("boxes.other", detail, [seen.place])
                    break
                points.append(recipient + 1)
                rows.append(limbs)
            else:
                if len(rows) >= threshold and own.seeds:
                    yield from self._shares(
                        device, own.shared, _dealt(points, rows, threshold), seen
                    )

    def _shares(
        self, device: int, shared: list[bytes], slot: Dealt, seen: Seen
    ) -> Iterator[Finding]:
        secrets = shamir.combine(shamir.lagrange_at_zero(slot.points), slot.shares)
        unfitting = self._sharing.add(slot, f"device {device}", seen.place)
        if unfitting or not np.array_equal(secrets, shamir.to_limbs(shared)):
            detail = f"the shares of device {device} are not those of its secrets"
            yield RULES.found("boxes.other", detail, [seen.place])


def _false_complaints(
    known: SessionSecrets, sent: dict[int, tuple[Seen, ShareKeys]]
) -> Iterator[Finding]:
    """Receipts that refuse boxes which were relayed as they came, and hold shares."""
    session, ids = known.session, known.ids
    shape = (SHARES_PER_SLOT * len(session.params.columns), shamir.NUM_LIMBS)
    exchanged = {seen.record.peer for seen in session.exchanged}
    for seen in session.receipts:
        device, message = seen.record.peer, seen.content.message
        at = session.positions.get(device)
        if not isinstance(message, ShareReceipt) or at is None or device in exchanged:
            continue
        for sender in message.refused:
            _, came = sent.get(ids[sender] if sender < len(ids) else -1, (seen, None))
            box = came.boxes.get(at) if came is not None else None
            if box is not None and _limbs(known.open(sender, at, bytes(box)), shape) is not None:
                detail = f"device {device} refused the box of device {ids[sender]}"
                yield RULES.found("boxes.refused", detail, [seen.place])


def _config_of(session: SessionView, slot: SlotView) -> RoundConfig | None:
    """The configuration of the level that a slot is of."""
    levels = session.levels
    if levels is None:
        return None
    at = (i for i in range(len(levels.rounds)) if slot.index < levels.first_slot(i + 1))
    return next((levels.rounds[level] for level in at), None)


def _is_in_range(decode: Callable[[Vector], object], words: Vector) -> bool:
    try:
        decode(words.astype(np.uint64))
    except EncodingError:
        return False
    return True


def _limbs(plaintext: bytes | None, shape: tuple[int, int]) -> Limbs | None:
    """The shares that a box holds; None if it did not open, or holds something else."""
    if plaintext is None or len(plaintext) != 4 * shape[0] * shape[1]:
        return None
    limbs = np.frombuffer(plaintext, dtype="<u4").astype(np.uint32).reshape(shape)
    return limbs if (limbs < shamir.PRIME).all() else None


def _dealt(points: list[int], rows: list[Limbs], threshold: int) -> Dealt:
    """The shares of one device's secrets, whose holders are the same."""
    shares, at = np.stack(rows, axis=1), np.array(points, dtype=np.int64)
    count, left = len(shares), len(points) - threshold
    return Dealt(
        np.arange(count),
        np.tile(at[:threshold], (count, 1)),
        shares[:, :threshold],
        np.repeat(np.arange(count), left),
        np.tile(at[threshold:], count),
        shares[:, threshold:].reshape(-1, shamir.NUM_LIMBS),
    )
