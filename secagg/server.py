"""The server's side of a session: a state machine that collects, relays, and learns sums.

Messages arrive through `receive`, in any order and with any repetitions. The caller, who owns time,
ends each round with `close_round`. A device's mistake drops that device and is recorded in `drops`;
it never raises an exception. Masked vectors are added up as they arrive, and never stored. A whole
slot is over once all its vectors are there: its masks cancel, and nothing is left to remove.

The server also checks the devices' identities and signatures. This gives it no advantage. It only
lets the server name a device that signs wrongly, before others refuse the session because of it.

Spec: §10.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

import numpy as np

from deltafl.secagg import keys, signing, wire
from deltafl.secagg.blame import trace
from deltafl.secagg.codec import Records
from deltafl.secagg.directory import Directory
from deltafl.secagg.errors import (
    DecodeError,
    Fault,
    SessionAborted,
    UsageError,
    check_message,
    present,
    whole_number,
)
from deltafl.secagg.graph import Graph, Members
from deltafl.secagg.identity import verify
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    Letters,
    MaskedInput,
    Message,
    OpenSlot,
    Outgoing,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    UnmaskShares,
)
from deltafl.secagg.openings import Check
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.receipts import Receipts
from deltafl.secagg.states import (
    AWAITED,
    COLLECTED_AT,
    SERVER_TRANSITIONS,
    Abort,
    Dispute,
    Drop,
    OpenSlotCall,
    ServerState,
    Step,
    closing,
    follow,
    is_late,
)
from deltafl.secagg.summing import Devices, SlotSum, Summing
from deltafl.secagg.survival import (
    check_invited,
    require_cohort,
    require_recoverable,
    require_roster,
    settle,
)
from deltafl.secagg.unmasking import SlotSecrets

_NO_BOXES: Final = np.zeros((0, 0, 0), dtype=np.uint8)
_NOT_ROUNDS: Final = frozenset({OpenSlotCall, Abort})


class Server:
    """One session: `start`, then `receive` and `close_round`; then slot by slot `open_slot`.

    Spec: §10.4, §10.5, §10.8, §10.9.

    Args:
        params: The session's parameters.
        invited: The devices to open the session with, as many as params.num_invited.
        directory: Decides which identity keys to accept.
        primitives: What the server computes with.

    Attributes:
        drops: The devices that were dropped, each with its first fault and the step of that
            fault; instead of silence, a lie that was found out later.
        disputes: Shares that two devices disagree about; a single dispute drops neither.

    Raises:
        UsageError: the ids are not num_invited distinct numbers in [0, 2^32).
    """

    def __init__(
        self,
        params: SessionParams,
        invited: Iterable[ClientId],
        directory: Directory,
        primitives: Primitives = PLAIN,
    ) -> None:
        self._directory = directory
        self._primitives = primitives
        self.params = params
        self._state = ServerState.ADVERTISE
        self.drops: dict[ClientId, Drop] = {}
        self.disputes: set[Dispute] = set()
        self._invited = check_invited(params, invited)
        self._invited_set = frozenset(self._invited)
        self._heard: dict[ClientId, bytes] = {}
        self._advertised: dict[ClientId, AdvertiseKeys] = {}
        self._known_keys: set[bytes] = set()
        self._cohort: Devices | None = None
        self._members: Members = np.zeros(0, dtype=np.bool_)
        self._boxes = _NO_BOXES
        self._receipts: Receipts | None = None
        self._linked: Members = np.zeros((0, 0), dtype=np.bool_)
        self._commitments: dict[int, tuple[bytes, ...]] = {}
        self._slot = -1
        self._open: Summing | None = None
        self._agreed: Members | None = None
        self._sum: SlotSum | None = None

    @property
    def state(self) -> ServerState:
        """What is being collected."""
        return self._state

    @property
    def step(self) -> Step:
        """The message that devices must send next.

        Raises:
            KeyError: the session is over.
        """
        return Step(COLLECTED_AT[self.state], max(self._slot, 0))

    def start(self) -> Outgoing:
        """The opening message for everyone invited."""
        return dict.fromkeys(self._invited, wire.encode(SessionOpen(self.params), self.params))

    @property
    def remaining(self) -> tuple[ClientId, ...]:
        """The devices that are still in the session, ascending."""
        if self._cohort is None:
            return tuple(i for i in self._invited if i not in self.drops)
        return tuple(ClientId(i) for i in self._cohort.ids[self._members].tolist())

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Take one message that arrived over `sender`'s authenticated channel.

        A message is ignored if it is late or repeated, belongs to another session, or comes from a
        stranger or a dropped device. A malformed or out-of-order message drops its sender, and so
        does a second, different message in one round.

        Spec: §10.2.

        Raises:
            UsageError: the sender is no whole number, or the message is not bytes.
        """
        # otherwise everything of this sender would be a stranger's, and ignored
        whole_number("sender", sender)
        check_message(data)
        awaited = AWAITED[self.state]
        if not awaited or not self._is_remaining(sender):
            return
        if wire.tag_of(data) not in (None, self.params.tag):
            return
        fingerprint = sha256(data).digest()
        earlier = self._heard.get(sender)
        if earlier == fingerprint:
            return
        try:
            message = wire.decode(data, self.params)
        except DecodeError:
            self._drop(sender, Fault.MALFORMED)
            return
        if type(message) not in awaited or getattr(message, "slot", self._slot) != self._slot:
            if not is_late(message, self.step):
                self._drop(sender, Fault.UNEXPECTED)
        elif earlier is not None:
            self._drop(sender, Fault.EQUIVOCATED)
        elif fault := self._take(sender, message):
            self._drop(sender, fault)
        else:
            self._heard[sender] = fingerprint
            self._move(type(message))

    def is_awaited(self, client: ClientId) -> bool:
        """Whether a device has still to answer in the round that is open.

        Ask this, and do not count what arrives: a message may be an earlier one that was repeated.
        """
        is_open = bool(AWAITED[self.state])
        return is_open and self._is_remaining(client) and client not in self._heard

    def close_round(self) -> Outgoing:
        """End the round: drop the devices that did not answer, and return the next messages.

        When all vectors of a whole (all-or-nothing) slot have arrived, its sum is known. If one is
        missing, the slot ends without a sum. No messages are returned in either case.

        Spec: §10.3.

        Raises:
            UsageError: no round is open.
            SessionAborted: too few devices are left; the session is over.
        """
        closed, was_open = self.state, self._open is not None
        if SERVER_TRANSITIONS[closed].keys() <= _NOT_ROUNDS:
            raise UsageError(f"close_round in state {closed}: no round is open")
        for silent in [client for client in self.remaining if client not in self._heard]:
            self._drop(silent, Fault.TIMED_OUT)
        try:
            outgoing = self._close(closed)
        except SessionAborted:
            self._move(Abort)
            raise
        self._heard = {}
        is_last = self._slot + 1 == len(self.params.slots)
        self._move(closing(was_open=was_open, is_open=self._open is not None, is_last=is_last))
        return outgoing

    def can_sum(self, slot: int) -> bool:
        """Whether a slot can still have a sum.

        A whole slot has none if a device is gone that was on the list that was agreed on last.
        """
        if self._agreed is None or not self.params.slots[slot].whole:
            return True
        return bool(self._members[self._agreed].all())

    def open_slot(self, slot: int, binding: bytes, check: Check | None = None) -> Outgoing:
        """Open a slot over the remaining devices, or a whole one over those agreed on last.

        Spec: §10.7.

        Args:
            slot: Index into the session's slots, above every slot opened before.
            binding: The caller's digest of every public value that all devices must agree on.
            check: Whether a vector is proved to be valid, in a slot that has such proofs. Vectors
                that are not are left out, and their devices dropped.

        Raises:
            UsageError: a round is open, or the slot cannot be opened, or not again, or the binding
                is not bytes, or there is no check where the slot has proofs; nothing has changed.
            SessionAborted: too few devices are left; the session is over.
        """
        if OpenSlotCall not in SERVER_TRANSITIONS[self.state]:
            raise UsageError(f"open_slot in state {self.state}")
        if not self._slot < slot < len(self.params.slots):
            raise UsageError(
                f"slot={slot} is not in ({self._slot}, {len(self.params.slots)}): slots are "
                "opened in order, once each"
            )
        if not self.can_sum(slot):
            raise UsageError(f"slot={slot}: a device of this whole slot is gone")
        context = SlotContext.of(self.params, self._formed.session_id, slot, binding)
        spec = self.params.slots[slot]
        if spec.proof_size and check is None:
            raise UsageError(f"slot={slot}: its vectors come with proofs, which need a check")
        is_first, self._slot = self._slot < 0, slot
        if self._agreed is None or not spec.whole:
            try:
                self._settle()
            except SessionAborted:
                self._move(Abort)
                raise
        members = self._members.copy()
        self._open = Summing(self.params, slot, self._formed, members, context, check)
        if spec.whole:
            self._agreed = members
        self._move(OpenSlotCall)
        if not is_first:
            return self._broadcast(OpenSlot(slot, members, {}))
        cohort, receipts, linked = self._formed, present(self._receipts), self._linked

        def write(client: ClientId) -> bytes:
            position = cohort.positions[client]
            tags = receipts.tags_for(position, linked[position])
            return wire.encode(OpenSlot(slot, members, tags), self.params)

        return Letters(self.remaining, write)

    @property
    def num_contributed(self) -> int:
        """Devices whose vectors are in the sum of the open slot; 0 if none is open."""
        return 0 if self._open is None else int(np.count_nonzero(self._open.contributed))

    @property
    def has_sum(self) -> bool:
        """Whether there is a sum to take."""
        return self._sum is not None

    def take_sum(self) -> SlotSum:
        """The sum of the slot that ended last; each sum can be taken only once.

        Raises:
            UsageError: there is none to take.
        """
        if self._sum is None:
            raise UsageError(f"no sum to take in state {self.state}")
        taken, self._sum = self._sum, None
        return taken

    def _move(self, event: type) -> None:
        self._state = follow(SERVER_TRANSITIONS, self._state, event)

    def _is_remaining(self, sender: ClientId) -> bool:
        known = self._invited_set if self._cohort is None else self._cohort.positions
        return sender in known and sender not in self.drops

    def _close(self, state: ServerState) -> Outgoing:
        match state:
            case ServerState.ADVERTISE:
                return self._close_advertise()
            case ServerState.SHARE:
                return self._close_share()
            case ServerState.RECEIPT:
                return self._close_receipt()
            case ServerState.MASK:
                return self._close_mask()
            case ServerState.CONFIRM:
                return self._close_confirm()
            case _:
                return self._close_unmask()

    def _take(self, sender: ClientId, message: Message) -> Fault | None:
        match message:
            case AdvertiseKeys():
                return self._take_keys(sender, message)
            case ShareKeys():
                return self._take_boxes(sender, message)
            case ShareReceipt():
                return self._take_receipt(sender, message)
            case MaskedInput():
                return self._take_input(sender, message)
            case ConsistencySignature():
                return self._take_signature(sender, message)
            case UnmaskShares():
                return self._take_shares(sender, message)
            case _:
                return Fault.UNEXPECTED

    def _take_keys(self, sender: ClientId, message: AdvertiseKeys) -> Fault | None:
        # Devices refuse a roster that contains a key twice, whichever device repeated it.
        if message.key in self._known_keys or not keys.is_key(message.key):
            return Fault.BAD_KEY
        if fault := self._check_credential(sender, message):
            return fault
        self._known_keys.add(message.key)
        self._advertised[sender] = message
        return None

    def _check_credential(self, sender: ClientId, message: AdvertiseKeys) -> Fault | None:
        credential = message.credential
        statement = signing.advertisement(self.params, sender, message.key)
        if not verify(credential.identity, statement, credential.signature):
            return Fault.BAD_SIGNATURE
        if not self._directory.accepts(sender, credential.identity):
            return Fault.UNKNOWN_IDENTITY
        self._directory.learn({sender: credential.identity})  # nothing is refused after this
        return None

    def _close_advertise(self) -> Outgoing:
        ids = np.array(self.remaining, dtype=np.uint32)
        require_roster(self.params, len(ids))
        positions = {ClientId(i): p for p, i in enumerate(ids.tolist())}
        by_position = {positions[i]: m for i, m in self._advertised.items() if i in positions}
        self._cohort = cohort = Devices(
            ids,
            positions,
            Graph(len(ids), self.params.degree, self.params.graph_seed),
            self.params.session_id(ids.astype("<u4").tobytes()),
            by_position,
        )
        self._members = np.ones(len(ids), dtype=np.bool_)
        self._advertised = {}
        # Indexed by sender and by column among its neighbours. Memory is used only as boxes arrive.
        shape = (len(ids), cohort.graph.degree, wire.box_size(self.params))
        self._boxes = np.empty(shape, dtype=np.uint8)
        self._linked = cohort.graph.all_linked()
        joined = b"".join(wire.advertisement(by_position[p]) for p in range(len(ids)))
        rows = np.frombuffer(joined, dtype=np.uint8).reshape(len(ids), -1)

        def write(client: ClientId) -> bytes:
            near = cohort.graph.neighbours(positions[client])
            return wire.encode_roster(ids, Records(near, rows[near]), self.params)

        return Letters(self.remaining, write)

    def _take_boxes(self, sender: ClientId, message: ShareKeys) -> Fault | None:
        cohort = self._formed
        position = cohort.positions[sender]
        boxes = Records.of(message.boxes, wire.box_size(self.params))
        if not np.array_equal(boxes.positions, cohort.graph.neighbours(position)):
            return Fault.MALFORMED
        self._boxes[position] = boxes.rows
        self._commitments[position] = message.commitments
        return None

    def _close_share(self) -> Outgoing:
        cohort = self._formed
        self._settle()
        members = self._members.copy()
        self._receipts = Receipts(cohort.graph, wire.receipt_size(self.params))
        every, self._boxes = self._boxes, _NO_BOXES

        def write(client: ClientId) -> bytes:
            position = cohort.positions[client]
            near = cohort.graph.neighbours(position)
            near = near[members[near]]
            boxes = every[near, cohort.graph.neighbour_column_of(position, near)]
            return wire.encode(ShareDelivery(members, Records(near, boxes)), self.params)

        return Letters(self.remaining, write)

    def _take_receipt(self, sender: ClientId, message: ShareReceipt) -> Fault | None:
        return present(self._receipts).take(self._formed.positions[sender], message.links)

    def _close_receipt(self) -> Outgoing:
        self._linked = present(self._receipts).linked()
        return {}

    def _take_input(self, sender: ClientId, message: MaskedInput) -> Fault | None:
        return present(self._open).take_input(self._formed.positions[sender], message)

    def _close_mask(self) -> Outgoing:
        slot = present(self._open)
        if self.params.slots[self._slot].whole:
            if np.array_equal(slot.contributed, slot.members):
                self._sum = slot.revealed(self.remaining)
            self._open = None
            return {}
        require_cohort(self.params, int(slot.contributed.sum()))
        self._require_recoverable(slot.members, slot.contributed)
        return self._broadcast(ConsistencyCheck(self._slot, slot.contributed))

    def _take_signature(self, sender: ClientId, message: ConsistencySignature) -> Fault | None:
        return present(self._open).take_signature(self._formed.positions[sender], message)

    def _close_confirm(self) -> Outgoing:
        slot = present(self._open)
        self._require_recoverable(slot.members, self._helpers())
        graph = self._formed.graph
        slot.secrets = SlotSecrets(graph, self.params.threshold, slot.members, slot.contributed)
        return slot.requests(self.remaining, self._linked)

    def _take_shares(self, sender: ClientId, message: UnmaskShares) -> Fault | None:
        secrets = present(present(self._open).secrets)
        position = self._formed.positions[sender]
        linked = self._formed.graph.linked_with(position, self._linked)
        return secrets.take(position, message, linked)

    def _close_unmask(self) -> Outgoing:
        slot = present(self._open)
        self._require_recoverable(slot.members, self._helpers())
        shares, promises = present(slot.secrets), slot.promises(self._commitments)
        nobody = np.zeros_like(slot.members)
        secrets: Mapping[int, bytes]
        secrets = shares.rebuild(promises, np.flatnonzero(slot.members), nobody)
        if len(secrets) < np.count_nonzero(slot.members):
            blame = trace(shares, promises)
            for owner, holder in blame.disputes:
                self._dispute(owner, holder)
            for position, fault in blame.faults.items():
                self._drop(self._formed.id_at(position), fault)
            secrets = blame.secrets
        add_masks, recovered = self._primitives.add_masks, shares.recovered(secrets)
        lied = slot.unmask(recovered, present(self._receipts), self._linked, add_masks)
        for position, fault in lied.items():
            self._drop(self._formed.id_at(position), fault)
            raise SessionAborted(
                f"the device at position {position}, which is gone, had deposited other keys than "
                "it said: this slot's sum is lost"
            )
        self._agreed = slot.contributed
        self._sum = slot.revealed(self.remaining)
        self._open = None
        return {}

    def _helpers(self) -> Members:
        """The devices that answered in this round."""
        heard = np.zeros_like(self._members)
        heard[[self._formed.positions[client] for client in self._heard]] = True
        return heard

    def _require_recoverable(self, cohort: Members, helpers: Members) -> None:
        require_recoverable(self._formed.graph, self.params, self._linked, cohort, helpers)

    def _settle(self) -> None:
        """Drop isolated devices, which would rightly refuse to go on."""
        cohort = self._formed
        settled = settle(cohort.graph, self.params, self._members, self._linked)
        for position in np.flatnonzero(self._members & ~settled).tolist():
            self._drop(cohort.id_at(position), Fault.ISOLATED)

    def _drop(self, client: ClientId, fault: Fault) -> None:
        known = self.drops.setdefault(client, Drop(fault, self.step))
        if known.fault is Fault.TIMED_OUT:  # its lie was found out after it had fallen silent
            self.drops[client] = Drop(fault, known.step)
        if self._cohort is not None:
            self._members[self._cohort.positions[client]] = False

    def _dispute(self, owner: int, holder: int) -> None:
        cohort = self._formed
        self.disputes.add(Dispute(cohort.id_at(owner), cohort.id_at(holder), self.step))

    def _broadcast(self, message: ServerMessage) -> Outgoing:
        return dict.fromkeys(self.remaining, wire.encode(message, self.params))

    @property
    def _formed(self) -> Devices:
        return present(self._cohort)
