"""A device's side of a session: a state machine that takes messages and returns messages.

The device trusts nothing that the server says. It checks the parameters against its own policy,
and computes its neighbours and the session id itself. It makes sure that its cohort only shrinks,
and uses each slot once. Each peer has two secrets per tolerant slot; the device reveals its share
of only one of them, and only once. A whole slot has no such secrets; the device takes part in it
only with exactly the devices that were agreed on last. In a signed session it knows its neighbours
by their identities, and helps to unmask a slot, or answers in a whole one, only if at least t
holders of its shares signed the same list of devices. A sum that was committed to is believed only
if it is proved. If it refuses a message (see `deltafl.secagg.cohort`), its session is over for
good (`PeerError`). It has no clock and no socket.

Spec: §9.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final

import numpy as np

from deltafl.secagg import masks, openings, prg, ring, signing, wire
from deltafl.secagg.cohort import Cohort, HeldShares
from deltafl.secagg.directory import Credentials
from deltafl.secagg.errors import (
    DecodeError,
    PeerError,
    Refusal,
    UsageError,
    check_message,
    present,
    whole_number,
)
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import KeyPair
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.masks import SlotContext, seed_commitment
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ClientMessage,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.openings import Commitment, Prove, ProvedSum
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.pedersen import COMMITMENT_SIZE
from deltafl.secagg.policy import DevicePolicy
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.states import (
    CLIENT_TRANSITIONS,
    ClientState,
    Close,
    Contribute,
    ContributeWhole,
    follow,
    untimely,
)

_REPEATED: Final = "the device took part in one of the same context"


class Client:
    """One device in one session.

    Pass it each message with `receive`; when it is OPENED, give it the vector with `contribute`.
    Send what either returns to the server. After an error it is FAILED and sends nothing more.

    Spec: §9.5, §9.6, §9.7, §9.8, §9.9, §9.12, §9.13.

    Args:
        client_id: The device's id in the roster.
        policy: What the device insists on.
        randomness: Source of every secret.
        credentials: Needed for signed sessions; without them, the device refuses such sessions.
        primitives: What the device computes with.
        ledger: The signed sessions that the device answered in. It belongs to the device and
            outlives its sessions; by default, nothing is remembered.

    Attributes:
        params: The session's parameters, once accepted.
        proved: The sum that was proved last; None before the first one.

    Raises:
        UsageError: the directory does not accept the device's own identity.
    """

    def __init__(
        self,
        client_id: ClientId,
        policy: DevicePolicy,
        randomness: Randomness = system_randomness,
        credentials: Credentials | None = None,
        primitives: Primitives = PLAIN,
        ledger: Ledger | None = None,
    ) -> None:
        if not 0 <= whole_number("client_id", client_id) < 2**32:
            raise UsageError(f"client_id={client_id} is not in [0, 2^32)")
        if not isinstance(policy, DevicePolicy):
            raise UsageError(f"policy={policy!r:.80} is no `DevicePolicy`, such as DevicePolicy()")
        if credentials is not None:
            credentials.check(client_id)
        self.client_id = client_id
        self._state = ClientState.IDLE
        self.params: SessionParams | None = None
        self.proved: ProvedSum | None = None
        self._read: Callable[[bytes], Message] | None = None
        self._policy = policy
        self._randomness = randomness
        self._credentials = credentials
        self._primitives = primitives
        self._ledger = MemoryLedger() if ledger is None else ledger
        self._is_in_ledger = False
        self._sealing: KeyPair | None = None
        self._mask_keys: list[KeyPair | None] = []
        self._seeds: list[bytes | None] = []
        self._cohort: Cohort | None = None
        self._held: HeldShares | None = None
        self._opened: Members | None = None
        self._agreed: Members | None = None
        self._listed: ConsistencyCheck | None = None
        self._slot = -1
        self._context: SlotContext | None = None
        self._seen: set[bytes] = set()

    @property
    def state(self) -> ClientState:
        """The session's state."""
        return self._state

    def receive(self, data: bytes) -> bytes | None:
        """Take one message from the server; return the answer if one must be sent at once.

        Repeated messages and messages of other sessions are ignored.

        Spec: §9.2.

        Raises:
            PeerError: the server broke the protocol or the device's policy; the session is over.
            LedgerError: the device's ledger cannot be used; nothing has changed.
            UsageError: the session was already over, or the message is not bytes.
        """
        check_message(data)
        if self.state is ClientState.FAILED:
            raise UsageError(f"device {self.client_id} has ended this session")
        if self.params is not None and wire.tag_of(data) not in (None, self.params.tag):
            return None
        fingerprint = sha256(data).digest()
        if fingerprint in self._seen:
            return None
        try:
            message = self._decode(data)
            if type(message) not in self._table[self.state]:
                raise PeerError(untimely(message, self._slot, self.state), f"in state {self.state}")
            reply = self._take(message)
        except PeerError:
            self.close()
            raise
        self._seen.add(fingerprint)
        self._move(type(message))
        return None if reply is None else wire.encode(reply, self._accepted)

    @property
    def num_members(self) -> int:
        """Devices in the cohort, as the device knows; zero before the first list and at the end."""
        return int(np.count_nonzero(self._formed.members)) if self._held is not None else 0

    @property
    def slot(self) -> int:
        """The slot that was opened last; −1 before the first one is opened."""
        return self._slot

    def admit(self, entries: Sequence[bytes] = ()) -> bool:
        """Admit the session's context, if it is signed, and entries of the caller to the ledger.

        `contribute` does so before its first vector. A caller with entries of its own calls this
        before that: they are admitted together with the context, or not at all.

        Spec: §12.13.

        Args:
            entries: 32 bytes each.

        Returns:
            Whether all of them are new; if not, nothing has changed.

        Raises:
            PeerError: the device answered in another session of this context; this one is over.
            LedgerError: the device's ledger cannot be used or is full; nothing has changed.
            UsageError: no slot is open.
        """
        self._require_opened("admit")
        context = self._accepted.context
        is_first = self._accepted.signed and not self._is_in_ledger
        if self._ledger.admit([context, *entries] if is_first else entries):
            self._is_in_ledger |= is_first
            return True
        if is_first and (not entries or self._ledger.knows(context)):
            self.close()
            raise PeerError(Refusal.SESSION_REPEATED, _REPEATED)
        return False

    def contribute(self, vector: Vector, binding: bytes, prove: Prove | None = None) -> bytes:
        """Mask the vector of the open slot.

        Spec: §5.5, §9.7.

        Args:
            vector: Unsigned integers in [0, 2^b), of the slot's shape (length,).
            binding: The caller's digest of every public value that all devices must agree on,
                computed from the values that this device was shown.
            prove: Makes the proof that the vector is valid, in a slot that has one.

        Returns:
            The MaskedInput to send.

        Raises:
            PeerError: the device answered in another session of this context; this one is over.
            LedgerError: the device's ledger cannot be used or is full; nothing has changed.
            UsageError: no slot is open, or the vector or its proof does not fit, or there is no
                proof where the slot has one; nothing has changed.
        """
        self._require_opened("contribute")
        params, slot = self._accepted, self._slot
        spec = params.slots[slot]
        total = ring.as_vector(vector, spec.length, spec.ring_bits)
        context = SlotContext.of(params, self._formed.session_id, slot, binding)
        committed, proof, blinding = b"", b"", 0
        if spec.verified:
            identity = present(self._credentials).identity
            blinding, committed = openings.commit(
                context, spec, total, identity, self._own_sealing.public, self._randomness
            )
        if spec.proof_size:
            if prove is None:
                raise UsageError(f"slot {slot}: a vector of this slot needs a proof")
            signer = self._formed.signer_at(self._formed.position)
            point = committed[:COMMITMENT_SIZE]
            commitment = Commitment(context, self._formed.position, signer, point)
            proof = prove(commitment, blinding)
            if len(proof) != spec.proof_size:
                raise UsageError(f"slot {slot}: a proof of {len(proof)} bytes, not proof_size")
        if params.signed and not self._is_in_ledger:
            self.admit()
        blinding += self._mask(total, context)
        ring.reduce(total, spec.ring_bits)
        self._context = context
        self._move(ContributeWhole if spec.whole else Contribute)
        packed = openings.pack(spec, total, blinding)
        return wire.encode(MaskedInput(slot, packed, committed, proof), params)

    def _mask(self, total: Vector, context: SlotContext) -> int:
        """Add the masks of the open slot to a vector, and use the slot's secrets up.

        Returns:
            What the masks add to the blinding; 0 in a slot that is not verified.
        """
        params, slot, primitives = self._accepted, self._slot, self._primitives
        verified, of_blinding = params.slots[slot].verified, 0
        near = self._formed.neighbours_among(self._formed.members)
        if params.slots[slot].whole:
            info = context.whole_slot_info(self._formed.members)
            pairs = [self._formed.neighbours[position].link.whole(info) for position in near]
        else:
            column = params.columns[slot]
            own, seed = self._mask_keys[column], self._seeds[column]
            if own is None or seed is None:
                raise UsageError(f"slot {slot} was used before")
            keys = [self._formed.neighbours[position].mask_keys[column] for position in near]
            pairs = context.pair_secrets(own, near, keys)
            primitives.add_masks(total, [context.self_mask_key(seed)], [])
            if verified:
                of_blinding = context.self_mask_of_blinding(seed)
            # From here on the device can no longer use this slot's secrets, whatever happens.
            self._mask_keys[column] = self._seeds[column] = None
        primitives.add_pairwise(total, self._formed.position, pairs)
        if verified:
            of_blinding += masks.of_blinding(self._formed.position, pairs)
        return of_blinding

    def close(self) -> None:
        """End the session for good and discard its secrets. Spec: §9.11."""
        if self.state is not ClientState.FAILED:
            self._move(Close)
        self._sealing = None
        self._mask_keys, self._seeds = [], []
        self._cohort = self._held = None

    def _move(self, event: type) -> None:
        self._state = follow(self._table, self._state, event)

    def _decode(self, data: bytes) -> ServerMessage:
        try:
            if self.params is None:
                return self._primitives.apply(wire.decode_open, data)
            message = self._primitives.apply(present(self._read), data)
        except DecodeError as error:
            raise PeerError(Refusal.MALFORMED, str(error)) from None
        if not isinstance(message, ServerMessage):
            raise PeerError(Refusal.OUT_OF_ORDER, f"{type(message).__name__} is a device's message")
        return message

    def _take(self, message: ServerMessage) -> ClientMessage | None:
        match message:
            case SessionOpen():
                return self._advertise(message)
            case RosterMessage():
                return self._share(message)
            case ShareDelivery():
                return self._store_shares(message)
            case OpenSlot():
                self._open(message)
                return None
            case ConsistencyCheck():
                return self._confirm(message)
            case UnmaskRequest():
                return self._reveal_shares(message)
            case SumOpening():
                self._check_sum(message)
                return None

    def _advertise(self, message: SessionOpen) -> AdvertiseKeys:
        params = message.params
        self._policy.check(params)
        if params.signed:
            if self._credentials is None:
                raise PeerError(
                    Refusal.POLICY, "the session is signed, and the device has no identity"
                )
            # Nothing is admitted before the first vector, or announcements would fill the ledger.
            # Until then the device says nothing that depends on its data. All of it is of keys that
            # are new in this session, and signatures name them: it is of no use in another session
            # of this context, where to others the device is one that fell silent (docs/spec.md,
            # 14.2).
            if self._ledger.knows(params.context):
                raise PeerError(Refusal.SESSION_REPEATED, _REPEATED)
        self.params, self._read = params, wire.reader(params)
        generate = self._primitives.generate
        self._sealing = generate(self._randomness)
        pairs = [generate(self._randomness) for _ in params.columns]
        self._mask_keys = list(pairs)
        public = tuple(pair.public for pair in pairs)
        credential = None
        if params.signed:
            identity = present(self._credentials).identity
            statement = signing.advertisement(params, self.client_id, self._sealing.public, public)
            credential = Credential(identity.public, identity.sign(statement))
        return AdvertiseKeys(self._sealing.public, public, credential)

    def _share(self, message: RosterMessage) -> ShareKeys:
        params = self._accepted
        self._cohort = cohort = Cohort(
            message,
            self.client_id,
            params,
            self._own_sealing,
            [pair.public for pair in self._mask_keys if pair is not None],
            self._credentials,
        )
        seeds = [self._randomness(prg.SEED_SIZE) for _ in params.columns]
        self._seeds = list(seeds)
        secrets = [s for pair in zip(seeds, self._own_mask_secrets(), strict=True) for s in pair]
        boxes = cohort.deal(secrets, self._randomness)
        commitments = [
            seed_commitment(cohort.session_id, slot, cohort.position, seed)
            for slot, seed in zip(params.columns, seeds, strict=True)
        ]
        return ShareKeys(tuple(commitments), boxes)

    def _store_shares(self, message: ShareDelivery) -> ShareReceipt:
        cohort = self._formed
        cohort.shrink(message.members)
        self._held, refused = cohort.open_boxes(message)
        cohort.shrink(message.members)
        return ShareReceipt(tuple(sorted(refused)))

    def _open(self, message: OpenSlot) -> None:
        if message.slot <= self._slot:
            raise PeerError(Refusal.SLOT_REUSED, f"slot {message.slot} after slot {self._slot}")
        if self._accepted.slots[message.slot].whole:
            self._agree(message)
        elif message.signatures:
            raise PeerError(Refusal.MALFORMED, "signatures with a slot that needs none")
        else:
            self._formed.shrink(message.members)
        self._slot, self._opened, self._listed = message.slot, message.members, None

    def _agree(self, message: OpenSlot) -> None:
        """Accept the members of a whole slot: those that were agreed on last, or a first list.

        Spec: §9.7.
        """
        if self._agreed is not None:
            if message.signatures:
                raise PeerError(Refusal.MALFORMED, "signatures of what was agreed on before")
            if not np.array_equal(message.members, self._agreed):
                raise PeerError(Refusal.NOT_AGREED, "not the devices of the last list")
            return
        if self._accepted.signed:
            listed = self._listed
            if listed is None or listed.slot != message.slot:
                raise PeerError(Refusal.NOT_AGREED, "no list of devices was signed")
            if not np.array_equal(message.members, listed.survivors):
                raise PeerError(Refusal.INCONSISTENT_SURVIVORS, "not the list that was signed")
            session_id = self._formed.session_id
            self._formed.check_quorum(
                message.signatures,
                lambda key: signing.members(session_id, message.slot, listed.survivors, key),
            )
        else:
            self._formed.shrink(message.members)
        self._agreed = message.members

    def _confirm(self, message: ConsistencyCheck) -> ConsistencySignature:
        key = self._own_sealing.public
        if self._state is ClientState.READY:
            self._accept_list(message)
            session_id = self._formed.session_id
            statement = signing.members(session_id, message.slot, message.survivors, key)
        else:
            self._accept_survivors(message.slot, message.survivors)
            statement = signing.survivors(present(self._context), message.survivors, key)
        return ConsistencySignature(
            message.slot, present(self._credentials).identity.sign(statement)
        )

    def _accept_list(self, message: ConsistencyCheck) -> None:
        """Accept a list of devices to sign before a whole slot. Spec: §9.8."""
        if message.slot <= self._slot or not self._accepted.slots[message.slot].whole:
            raise PeerError(Refusal.OUT_OF_ORDER, f"a list of devices for slot {message.slot}")
        if self._agreed is not None:
            raise PeerError(Refusal.INCONSISTENT_SURVIVORS, "a list was agreed on before")
        self._formed.shrink(message.survivors)
        self._listed = message

    def _check_sum(self, message: SumOpening) -> None:
        """Believe a sum only if the devices' commitments open to it. Spec: §9.13."""
        self._require_open(message.slot)
        cohort, agreed = self._formed, self._agreed
        if agreed is None or (self.proved is not None and self.proved.slot == message.slot):
            raise PeerError(Refusal.OUT_OF_ORDER, f"a second sum of slot {message.slot}, or none")
        signers = cohort.signers_of(message.committed.keys(), agreed)
        spec = self._accepted.slots[message.slot]
        flaw = self._primitives.examine(
            openings.Opening(
                present(self._context),
                spec,
                message.packed,
                signers,
                tuple(bytes(committed) for committed in message.committed.values()),
            )
        )
        if flaw is not None:
            raise PeerError(*flaw)
        vector, _ = openings.unpack(spec, message.packed)
        self.proved = ProvedSum(message.slot, vector)

    def _reveal_shares(self, message: UnmaskRequest) -> UnmaskShares:
        params = self._accepted
        if params.signed:
            self._require_open(message.slot)
            if not np.array_equal(message.survivors, self._formed.members):
                raise PeerError(Refusal.INCONSISTENT_SURVIVORS, "not the list that was signed")
            context = present(self._context)
            self._formed.check_quorum(
                message.signatures,
                lambda key: signing.survivors(context, message.survivors, key),
            )
        else:
            self._accept_survivors(message.slot, message.survivors)
        self._agreed = message.survivors
        held, column = present(self._held), params.columns[message.slot]
        rows = np.flatnonzero(present(self._opened)[held.positions])
        positions = held.positions[rows]
        kinds = np.where(message.survivors[positions], ShareKind.SEED, ShareKind.KEY)
        return UnmaskShares(
            message.slot,
            positions.astype(np.uint32),
            kinds.astype(np.uint8),
            held.shares[rows, column, kinds],
        )

    def _accept_survivors(self, slot: int, survivors: Members) -> None:
        self._require_open(slot)
        self._formed.shrink(survivors)

    def _require_opened(self, call: str) -> None:
        """Refuse a caller's call unless a slot waits for a vector."""
        if Contribute not in self._table[self.state]:
            raise UsageError(f"{call} in state {self.state}: no slot is open")

    def _require_open(self, slot: int) -> None:
        if slot != self._slot:
            raise PeerError(
                Refusal.OUT_OF_ORDER, f"slot {slot} to unmask, slot {self._slot} is open"
            )

    def _own_mask_secrets(self) -> list[bytes]:
        return [pair.secret for pair in self._mask_keys if pair is not None]

    @property
    def _table(self) -> Mapping[ClientState, Mapping[type, ClientState]]:
        return CLIENT_TRANSITIONS[self.params is not None and self.params.signed]

    @property
    def _accepted(self) -> SessionParams:
        return present(self.params)

    @property
    def _formed(self) -> Cohort:
        return present(self._cohort)

    @property
    def _own_sealing(self) -> KeyPair:
        return present(self._sealing)
