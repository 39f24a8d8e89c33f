"""A device's side of a session: a state machine that takes messages and returns messages.

The device trusts nothing that the server says. It checks the parameters against its own policy,
and computes its neighbours and the session id itself. It knows its neighbours by their identities,
and masks only with those that have shown that they have the same link. It makes sure that its
cohort only shrinks, and uses each slot once. Each peer has two secrets per tolerant slot; the
device reveals its share of only one of them, only once, and only if at least t holders of its own
shares signed the same list of devices. A whole slot has no such secrets; the device takes part in
it only with exactly the devices of the list before. A sum that was committed to is believed only
if it is proved. If it refuses a message (see `deltafl.secagg.cohort`), its session is over for
good (`PeerError`). It has no clock and no socket.

Each state has a class that holds what exists then, and nothing else.

Spec: §9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import numpy as np

from deltafl.secagg import cohort as cohorts
from deltafl.secagg import masks, openings, ring, signing, wire
from deltafl.secagg.cohort import Cohort, Dealt, Secrets
from deltafl.secagg.directory import Credentials
from deltafl.secagg.errors import (
    DecodeError,
    PeerError,
    Refusal,
    UsageError,
    check_message,
    whole_number,
)
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import Recipient
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.masks import SlotContext, recovery_commitment, seed_commitment
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ClientMessage,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
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


@dataclass(frozen=True, slots=True)
class Advertised:
    """The device has sent its key."""

    params: SessionParams
    own: Recipient = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """The device has dealt its secrets."""

    cohort: Cohort
    own: Recipient = field(repr=False)
    dealt: Dealt = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """The device has derived its links, and waits for the tags of the other ends."""

    cohort: Cohort
    secrets: Secrets = field(repr=False)
    tags: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A slot waits for the device's vector.

    Attributes:
        cohort: Its members are those that the slot was opened with.
        secrets: For this slot and later ones.
        slot: Its index.
    """

    cohort: Cohort
    secrets: Secrets = field(repr=False)
    slot: int


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """The device has sent its masked vector; the slot is tolerant.

    Attributes:
        cohort: Once the survivors are accepted, its members.
        secrets: For later slots, and the shares of this one.
        slot: Its index.
        context: What its masks are bound to.
        opened: Those that it was opened with.
    """

    cohort: Cohort
    secrets: Secrets = field(repr=False)
    slot: int
    context: SlotContext
    opened: Members


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """The device has said all that it says in a slot.

    Attributes:
        cohort: Its members are those of the sum, with whom whole slots may follow.
        secrets: For later slots.
        slot: The slot.
        context: What its masks were bound to.
        is_proved: Whether its sum was shown and is proved.
    """

    cohort: Cohort
    secrets: Secrets = field(repr=False)
    slot: int
    context: SlotContext
    is_proved: bool = False


class Nothing:
    """What a device keeps before a session and after one."""


_InSlot = Opened | Masked | Answered
_InCohort = Shared | Linked | _InSlot
Phase = Nothing | Advertised | _InCohort


class Client:
    """One device in one session.

    Pass it each message with `receive`; when it is OPENED, give it the vector with `contribute`.
    Send what either returns to the server. After an error it is FAILED and sends nothing more.

    Spec: §9.5, §9.6, §9.7, §9.8, §9.9, §9.12, §9.13.

    Args:
        client_id: The device's id in the roster.
        policy: What the device insists on.
        credentials: Its identity, and how it recognises others.
        randomness: Source of every secret but those that encapsulate keys.
        primitives: What the device computes with.
        ledger: The sessions that the device answered in. It belongs to the device and outlives its
            sessions; by default, nothing is remembered.

    Attributes:
        proved: The sum that was proved last; None before the first one.

    Raises:
        UsageError: the directory does not accept the device's own identity.
    """

    def __init__(
        self,
        client_id: ClientId,
        policy: DevicePolicy,
        credentials: Credentials,
        randomness: Randomness = system_randomness,
        primitives: Primitives = PLAIN,
        ledger: Ledger | None = None,
    ) -> None:
        if not 0 <= whole_number("client_id", client_id) < 2**32:
            raise UsageError(f"client_id={client_id} is not in [0, 2^32)")
        if not isinstance(policy, DevicePolicy):
            raise UsageError(f"policy={policy!r:.80} is no `DevicePolicy`, such as DevicePolicy()")
        if not isinstance(credentials, Credentials):
            raise UsageError(f"credentials={credentials!r:.80} are no `Credentials`")
        credentials.check(client_id)
        self.client_id = client_id
        self.proved: ProvedSum | None = None
        self._state = ClientState.IDLE
        self._phase: Phase = Nothing()
        self._policy = policy
        self._randomness = randomness
        self._credentials = credentials
        self._primitives = primitives
        self._ledger = MemoryLedger() if ledger is None else ledger
        self._is_in_ledger = False
        self._seen: set[bytes] = set()

    @property
    def state(self) -> ClientState:
        """The session's state."""
        return self._state

    @property
    def params(self) -> SessionParams | None:
        """The session's parameters, once accepted and until it is over."""
        match self._phase:
            case Nothing():
                return None
            case Advertised(params=params):
                return params
            case phase:
                return phase.cohort.params

    @property
    def num_members(self) -> int:
        """Devices in the cohort, as the device knows; zero before the first list and at the end."""
        match self._phase:
            case Nothing() | Advertised() | Shared():
                return 0
            case phase:
                return int(np.count_nonzero(phase.cohort.members))

    @property
    def slot(self) -> int:
        """The slot that was opened last; −1 before the first one is opened."""
        return self._phase.slot if isinstance(self._phase, _InSlot) else -1

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
        params = self.params
        if params is not None and wire.tag_of(data) not in (None, params.tag):
            return None
        fingerprint = sha256(data).digest()
        if fingerprint in self._seen:
            return None
        try:
            message = self._decode(data, params)
            if type(message) not in CLIENT_TRANSITIONS[self.state]:
                raise PeerError(untimely(message, self.slot, self.state), f"in state {self.state}")
            reply, phase = self._take(message)
        except PeerError:
            self.close()
            raise
        self._seen.add(fingerprint)
        self._move(type(message), phase)
        return None if reply is None else wire.encode(reply, self._known)

    def admit(self, entries: Sequence[bytes] = ()) -> bool:
        """Admit the session's context, and entries of the caller, to the ledger.

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
        context = self._opened("admit").cohort.params.context
        if self._ledger.admit(entries if self._is_in_ledger else [context, *entries]):
            self._is_in_ledger = True
            return True
        if not self._is_in_ledger and (not entries or self._ledger.knows(context)):
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
        phase = self._opened("contribute")
        cohort, slot, params = phase.cohort, phase.slot, phase.cohort.params
        spec = params.slots[slot]
        total = ring.as_vector(vector, spec.length, spec.ring_bits)
        context = SlotContext.of(params, cohort.session_id, slot, binding)
        committed, proof, blinding = b"", b"", 0
        if spec.verified:
            identity, key = self._credentials.identity, cohort.own.key
            blinding, committed = openings.commit(
                context, spec, total, identity, key, self._randomness
            )
        if spec.proof_size:
            if prove is None:
                raise UsageError(f"slot {slot}: a vector of this slot needs a proof")
            point = committed[:COMMITMENT_SIZE]
            commitment = Commitment(context, cohort.position, cohort.own, point)
            proof = prove(commitment, blinding)
            if len(proof) != spec.proof_size:
                raise UsageError(f"slot {slot}: a proof of {len(proof)} bytes, not proof_size")
        if not self._is_in_ledger:
            self.admit()
        # From here on the device can no longer use this slot's secrets, whatever happens.
        left = phase.secrets.after(slot, keep_shares=True)
        if spec.whole:
            self._move(ContributeWhole, Answered(cohort, left, slot, context))
        else:
            self._move(Contribute, Masked(cohort, left, slot, context, cohort.members))
        blinding += self._mask(total, phase, context)
        ring.reduce(total, spec.ring_bits)
        packed = openings.pack(spec, total, blinding)
        return wire.encode(MaskedInput(slot, packed, committed, proof), params)

    def _mask(self, total: Vector, phase: Opened, context: SlotContext) -> int:
        """Add the masks of the open slot to a vector.

        Returns:
            What the masks add to the blinding; 0 in a slot that is not verified.
        """
        cohort, slot, of_blinding = phase.cohort, phase.slot, 0
        spec, members = cohort.params.slots[slot], cohort.members.tolist()
        near = {p: key for p, key in phase.secrets.pairs[slot].items() if members[p]}
        if spec.whole:
            pairs = context.whole(near, cohort.members)
        else:
            pairs = context.tolerant(near)
            seed = phase.secrets.seeds[slot]
            self._primitives.add_masks(total, [context.self_mask_key(seed)], [])
            if spec.verified:
                of_blinding = context.self_mask_of_blinding(seed)
        self._primitives.add_pairwise(total, cohort.position, pairs)
        if spec.verified:
            of_blinding += masks.of_blinding(cohort.position, pairs)
        return of_blinding

    def close(self) -> None:
        """End the session for good and discard its secrets. Spec: §9.11."""
        if self.state is not ClientState.FAILED:
            self._move(Close, Nothing())

    def _move(self, event: type, phase: Phase) -> None:
        self._state = follow(CLIENT_TRANSITIONS, self._state, event)
        self._phase = phase

    def _opened(self, call: str) -> Opened:
        if not isinstance(self._phase, Opened):
            raise UsageError(f"{call} in state {self.state}: no slot is open")
        return self._phase

    @property
    def _known(self) -> SessionParams:
        if (params := self.params) is None:
            raise UsageError("no session has been opened")
        return params

    def _decode(self, data: bytes, params: SessionParams | None) -> ServerMessage:
        try:
            if params is None:
                return self._primitives.apply(wire.decode_open, data)
            message = self._primitives.apply(wire.reader(params), data)
        except DecodeError as error:
            raise PeerError(Refusal.MALFORMED, str(error)) from None
        if not isinstance(message, ServerMessage):
            raise PeerError(Refusal.OUT_OF_ORDER, f"{type(message).__name__} is a device's message")
        return message

    def _take(self, message: ServerMessage) -> tuple[ClientMessage | None, Phase]:
        """The answer to a message that the state allows, and what the device keeps then."""
        match self._phase, message:
            case Nothing(), SessionOpen():
                return self._advertise(message.params)
            case Advertised() as phase, RosterMessage():
                return self._share(phase, message)
            case Shared() as phase, ShareDelivery():
                return self._link(phase, message)
            case Linked() | Answered() as phase, OpenSlot():
                return None, _open(phase, message)
            case Masked() as phase, ConsistencyCheck():
                return self._confirm(phase, message)
            case Masked() as phase, UnmaskRequest():
                return _reveal_shares(phase, message)
            case Answered() as phase, SumOpening():
                return None, self._check_sum(phase, message)
            case _:
                raise PeerError(Refusal.OUT_OF_ORDER, f"in state {self.state}")

    def _advertise(self, params: SessionParams) -> tuple[AdvertiseKeys, Advertised]:
        self._policy.check(params)
        # Nothing is admitted before the first vector, or announcements would fill the ledger.
        # Until then the device says nothing that depends on its data. All of it is of keys that
        # are new in this session, and signatures name them: it is of no use in another session
        # of this context, where to others the device is one that fell silent (docs/spec.md,
        # 14.2).
        if self._ledger.knows(params.context):
            raise PeerError(Refusal.SESSION_REPEATED, _REPEATED)
        own = self._primitives.generate(self._randomness)
        identity = self._credentials.identity
        signature = identity.sign(signing.advertisement(params, self.client_id, own.public))
        credential = Credential(identity.public, signature)
        return AdvertiseKeys(own.public, credential), Advertised(params, own)

    def _share(self, phase: Advertised, message: RosterMessage) -> tuple[ShareKeys, Shared]:
        params, own = phase.params, phase.own
        cohort = Cohort.accept(message, self.client_id, params, own.public, self._credentials)
        dealt, boxes = cohorts.deal(cohort, self._randomness, self._primitives)
        commitments = [
            commit(cohort.session_id, slot, cohort.position, secret)
            for slot, *both in zip(params.columns, dealt.seeds, dealt.recovery, strict=True)
            for commit, secret in zip((seed_commitment, recovery_commitment), both, strict=True)
        ]
        return ShareKeys(tuple(commitments), boxes), Shared(cohort, own, dealt)

    def _link(self, phase: Shared, message: ShareDelivery) -> tuple[ShareReceipt, Linked]:
        cohort = phase.cohort.shrunk(message.members)
        secrets, receipt, tags = cohorts.open_boxes(
            cohort, phase.own, phase.dealt, message, self._primitives
        )
        return ShareReceipt(receipt), Linked(cohort, secrets, tags)

    def _confirm(
        self, phase: Masked, message: ConsistencyCheck
    ) -> tuple[ConsistencySignature, Masked]:
        _require_slot(message.slot, phase.slot)
        cohort = phase.cohort.shrunk(message.survivors)
        statement = signing.survivors(phase.context, message.survivors, cohort.own.key)
        signature = self._credentials.identity.sign(statement)
        return ConsistencySignature(message.slot, signature), replace(phase, cohort=cohort)

    def _check_sum(self, phase: Answered, message: SumOpening) -> Answered:
        """Believe a sum only if the devices' commitments open to it. Spec: §9.13."""
        _require_slot(message.slot, phase.slot)
        if phase.is_proved:
            raise PeerError(Refusal.OUT_OF_ORDER, f"a second sum of slot {message.slot}")
        cohort = phase.cohort
        signers = cohort.signers_of(message.committed.keys(), cohort.members)
        spec = cohort.params.slots[message.slot]
        committed = tuple(bytes(committed) for committed in message.committed.values())
        flaw = self._primitives.examine(
            openings.Opening(phase.context, spec, message.packed, signers, committed)
        )
        if flaw is not None:
            raise PeerError(*flaw)
        vector, _ = openings.unpack(spec, message.packed)
        self.proved = ProvedSum(message.slot, vector)
        return replace(phase, is_proved=True)


def _open(phase: Linked | Answered, message: OpenSlot) -> Opened:
    """Accept the members of a slot: of a whole one, those of the list before, or a first list.

    Spec: §9.7.
    """
    cohort, secrets, slot = phase.cohort, phase.secrets, message.slot
    if isinstance(phase, Linked):
        cohort = cohort.confirmed(message.tags, phase.tags)
        secrets = secrets.among(cohort)
    elif message.tags:
        raise PeerError(Refusal.MALFORMED, "tags with a slot that is not the first")
    elif slot <= phase.slot:
        raise PeerError(Refusal.SLOT_REUSED, f"slot {slot} after slot {phase.slot}")
    elif cohort.params.slots[slot].whole and not np.array_equal(message.members, cohort.members):
        raise PeerError(Refusal.NOT_AGREED, "not the devices of the last list")
    return Opened(cohort.shrunk(message.members), secrets.after(slot - 1), slot)


def _reveal_shares(phase: Masked, message: UnmaskRequest) -> tuple[UnmaskShares, Answered]:
    """Give the shares of a slot that t holders want to unmask over the same list. Spec: §9.9."""
    slot, cohort, context = phase.slot, phase.cohort, phase.context
    _require_slot(message.slot, slot)
    if not np.array_equal(message.survivors, cohort.members):
        raise PeerError(Refusal.INCONSISTENT_SURVIVORS, "not the list that was signed")
    cohort.check_quorum(
        message.signatures, lambda key: signing.survivors(context, message.survivors, key)
    )
    rows = np.flatnonzero(phase.opened[phase.secrets.owners])
    positions = phase.secrets.owners[rows]
    kinds = np.where(message.survivors[positions], ShareKind.SEED, ShareKind.RECOVERY)
    shares = UnmaskShares(
        slot,
        positions.astype(np.uint32),
        kinds.astype(np.uint8),
        phase.secrets.shares[slot][rows, kinds],
    )
    return shares, Answered(cohort, phase.secrets.after(slot), slot, context)


def _require_slot(named: int, is_open: int) -> None:
    if named != is_open:
        raise PeerError(Refusal.OUT_OF_ORDER, f"slot {named}, and slot {is_open} is open")
