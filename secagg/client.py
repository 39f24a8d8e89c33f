"""A device's side of a session: a machine that takes messages and gives messages.

The device trusts nothing that the server says: it checks parameters against its own policy,
computes its neighbours and the session id itself, sees to it that its cohort only shrinks, uses a
slot once, and of each peer's two secrets gives away a share of one only, once. Whatever it refuses
ends its session for good (`PeerError`). It has no clock and no socket.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from secagg import keys, prg, ring, sealing, shamir, wire
from secagg.errors import DecodeError, PeerError, Refusal, UsageError, present
from secagg.graph import Graph, Members, Positions
from secagg.keys import KeyPair, PublicKey
from secagg.masks import SlotContext, seed_commitment, subtracts
from secagg.messages import (
    AdvertiseKeys,
    MaskedInput,
    OpenSlot,
    Roster,
    RosterMessage,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.params import ClientId, SessionId, SessionParams
from secagg.policy import DevicePolicy
from secagg.randomness import Randomness, system_randomness
from secagg.ring import Vector
from secagg.shamir import Limbs
from secagg.states import CLIENT_TRANSITIONS, ClientState, Contribute


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """What the device knows of one neighbour."""

    channel: sealing.SealedChannel = field(repr=False)
    mask_keys: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True)
class _HeldShares:
    """The shares that the device holds, of its neighbours' secrets and of its own.

    Attributes:
        positions: Whose, ascending; shape (n,).
        shares: Shape (n, slots, kinds, 9).
    """

    positions: Positions
    shares: Limbs = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Roster:
    """What the roster fixed: the device's place, its neighbours, the session's id."""

    ids: Roster
    position: int
    graph: Graph
    session_id: SessionId
    own_shares: Limbs = field(repr=False)


class Client:
    """One device in one session.

    Feed it with `receive`; when it is OPENED, give it the vector with `contribute`. What either
    returns goes to the server. After an error it is FAILED and says nothing more.

    Args:
        client_id: The device's id in the roster.
        policy: What the device insists on.
        randomness: Source of every secret.

    Attributes:
        state: Where the session stands.
        params: The session's parameters, once accepted.
    """

    def __init__(
        self,
        client_id: ClientId,
        policy: DevicePolicy,
        randomness: Randomness = system_randomness,
    ) -> None:
        self.client_id = client_id
        self.state = ClientState.IDLE
        self.params: SessionParams | None = None
        self._policy = policy
        self._randomness = randomness
        self._sealing: KeyPair | None = None
        self._mask_keys: list[KeyPair | None] = []
        self._seeds: list[bytes | None] = []
        self._roster: _Roster | None = None
        self._neighbours: dict[int, _Neighbour] = {}
        self._held: _HeldShares | None = None
        self._members: Members | None = None
        self._slot = -1
        self._seen: set[bytes] = set()

    def receive(self, data: bytes) -> bytes | None:
        """Take one message of the server; return the answer, where there is one to send at once.

        Repetitions of an earlier message and messages of other sessions are ignored.

        Raises:
            PeerError: the server broke the protocol or the device's policy; the session is over.
            UsageError: the session was over before.
        """
        if self.state is ClientState.FAILED:
            raise UsageError(f"device {self.client_id} has ended this session")
        if self.params is not None and wire.tag_of(data) not in (None, self.params.tag):
            return None
        fingerprint = sha256(data).digest()
        if fingerprint in self._seen:
            return None
        try:
            message = self._decode(data)
            following = CLIENT_TRANSITIONS[self.state].get(type(message))
            if following is None:
                raise PeerError(
                    _untimely(message, self._slot, self.state), f"in state {self.state}"
                )
            reply = self._take(message)
        except PeerError:
            self.close()
            raise
        self._seen.add(fingerprint)
        self.state = following
        return None if reply is None else wire.encode(reply, self._accepted)

    @property
    def slot(self) -> int:
        """The slot that was opened last; −1 before the first."""
        return self._slot

    def contribute(self, vector: Vector, binding: bytes) -> bytes:
        """Mask the vector of the open slot.

        Args:
            vector: Unsigned integers in [0, 2^b), shape (length,) as the slot says.
            binding: The caller's digest of every public value that all devices must agree on,
                computed from what this device was shown.

        Returns:
            The MaskedInput to send.

        Raises:
            UsageError: no slot is open, or the vector does not fit; nothing has changed.
        """
        following = CLIENT_TRANSITIONS[self.state].get(Contribute)
        if following is None:
            raise UsageError(f"contribute in state {self.state}: no slot is open")
        params, roster, slot = self._accepted, self._placed, self._slot
        spec = params.slots[slot]
        total = ring.as_vector(vector, spec.length, spec.ring_bits)
        own, seed = self._mask_keys[slot], self._seeds[slot]
        if own is None or seed is None:
            raise UsageError(f"slot {slot} was used before")
        context = SlotContext.of(params, roster.session_id, slot, binding)
        near = self._neighbours_among(self._cohort)
        peers = [self._neighbours[position].mask_keys[slot] for position in near]
        added, subtracted = [context.self_mask_key(seed)], list[bytes]()
        for position, key in zip(near, context.pairwise_mask_keys(own, peers), strict=True):
            (subtracted if subtracts(roster.position, position) else added).append(key)
        prg.add_masks(total, added, subtracted)
        ring.reduce(total, spec.ring_bits)
        # Spent: the slot's secrets are out of reach from here on, whatever comes.
        self._mask_keys[slot] = self._seeds[slot] = None
        self.state = following
        return wire.encode(MaskedInput(slot, ring.pack(total, spec.ring_bits)), params)

    def close(self) -> None:
        """End the session for good and let go of its secrets."""
        self.state = ClientState.FAILED
        self._sealing = None
        self._mask_keys, self._seeds = [], []
        self._neighbours, self._roster, self._held = {}, None, None

    def _decode(self, data: bytes) -> ServerMessage:
        try:
            if self.params is None:
                return wire.decode_open(data)
            message = wire.decode(data, self.params)
        except DecodeError as error:
            raise PeerError(Refusal.MALFORMED, str(error)) from None
        if not isinstance(message, ServerMessage):
            raise PeerError(Refusal.OUT_OF_ORDER, f"{type(message).__name__} is a device's message")
        return message

    def _take(self, message: ServerMessage) -> AdvertiseKeys | ShareKeys | UnmaskShares | None:
        match message:
            case SessionOpen():
                return self._advertise(message)
            case RosterMessage():
                return self._share(message)
            case ShareDelivery():
                self._store_shares(message)
                return None
            case OpenSlot():
                self._open(message)
                return None
            case UnmaskRequest():
                return self._reveal_shares(message)

    def _advertise(self, message: SessionOpen) -> AdvertiseKeys:
        self._policy.check(message.params)
        self.params = message.params
        self._sealing = keys.generate(self._randomness)
        pairs = [keys.generate(self._randomness) for _ in message.params.slots]
        self._mask_keys = list(pairs)
        return AdvertiseKeys(self._sealing.public, tuple(pair.public for pair in pairs))

    def _share(self, message: RosterMessage) -> ShareKeys:
        params, ids = self._accepted, message.roster
        if len(ids) < (fewest := max(params.min_cohort, params.min_roster)):
            raise PeerError(Refusal.COHORT_TOO_SMALL, f"{len(ids)} devices, fewer than {fewest}")
        if self.client_id not in ids:
            raise PeerError(Refusal.NOT_IN_ROSTER, f"no {self.client_id} among {len(ids)} ids")
        position = int(np.searchsorted(ids, self.client_id))
        graph = Graph(len(ids), params.degree, params.graph_seed)
        expected = graph.neighbours(position).tolist()
        self._check_neighbours(position, message.keys.keys(), set(expected))
        self._check_keys(message)
        session_id = params.session_id(ids.astype("<u4").tobytes())
        own = self._own_sealing
        self._neighbours = {
            peer: _Neighbour(
                sealing.SealedChannel(
                    own,
                    message.keys[peer].sealing_key,
                    position,
                    peer,
                    session_id,
                ),
                message.keys[peer].mask_keys,
            )
            for peer in expected
        }
        seeds = [self._randomness(prg.SEED_SIZE) for _ in params.slots]
        self._seeds = list(seeds)
        secrets = [s for pair in zip(seeds, self._own_mask_secrets(), strict=True) for s in pair]
        holders = [*expected, position]
        points = [holder + 1 for holder in holders]
        shares = shamir.split(secrets, points, params.threshold, self._randomness)
        boxes = {
            peer: self._neighbours[peer].channel.seal(
                share.astype("<u4").tobytes(), self._randomness
            )
            for peer, share in zip(expected, shares[:-1], strict=True)
        }
        own_shares = shares[-1].reshape(len(seeds), len(ShareKind), shamir.NUM_LIMBS)
        self._roster = _Roster(ids, position, graph, session_id, own_shares)
        commitments = [
            seed_commitment(session_id, slot, position, seed) for slot, seed in enumerate(seeds)
        ]
        return ShareKeys(tuple(commitments), boxes)

    def _store_shares(self, message: ShareDelivery) -> None:
        self._shrink_cohort(message.members)
        expected = set(self._neighbours_among(message.members))
        self._check_neighbours(self._placed.position, message.boxes.keys(), expected)
        held = {self._placed.position: self._placed.own_shares}
        for position, box in message.boxes.items():
            shares = self._read_shares(self._neighbours[position].channel.open(box))
            if shares is not None:  # else the server must do with the others' shares
                held[position] = shares
        positions = sorted(held)
        self._held = _HeldShares(np.array(positions), np.stack([held[p] for p in positions]))

    def _open(self, message: OpenSlot) -> None:
        if message.slot <= self._slot:
            raise PeerError(Refusal.SLOT_REUSED, f"slot {message.slot} after slot {self._slot}")
        self._shrink_cohort(message.members)
        self._slot = message.slot

    def _reveal_shares(self, message: UnmaskRequest) -> UnmaskShares:
        if message.slot != self._slot:
            raise PeerError(
                Refusal.OUT_OF_ORDER, f"slot {message.slot} to unmask, slot {self._slot} is open"
            )
        asked = self._cohort
        self._shrink_cohort(message.survivors)
        held = present(self._held)
        rows = np.flatnonzero(asked[held.positions])
        positions = held.positions[rows]
        kinds = np.where(message.survivors[positions], ShareKind.SEED, ShareKind.KEY)
        return UnmaskShares(
            message.slot,
            positions.astype(np.uint32),
            kinds.astype(np.uint8),
            held.shares[rows, message.slot, kinds],
        )

    def _shrink_cohort(self, members: Members) -> None:
        """Accept a set of devices as the cohort from now on.

        Were a device ever to return, or the neighbours fall below the threshold, the server could
        strip the masks that hide this device's vector.
        """
        params, roster = self._accepted, self._placed
        if len(members) != len(roster.ids):
            raise PeerError(
                Refusal.MALFORMED, f"a set over {len(members)} of {len(roster.ids)} devices"
            )
        if self._members is not None and (members & ~self._members).any():
            raise PeerError(Refusal.COHORT_GREW, "a device that had left is back")
        if not members[roster.position]:
            raise PeerError(Refusal.DEVICE_LEFT_OUT, f"{self.client_id} is asked but left out")
        if (num_members := int(np.count_nonzero(members))) < params.min_cohort:
            raise PeerError(
                Refusal.COHORT_TOO_SMALL,
                f"{num_members} devices are left, fewer than {params.min_cohort}",
            )
        near = len(self._neighbours_among(members)) + 1
        if near < params.threshold:
            raise PeerError(
                Refusal.TOO_FEW_NEIGHBOURS,
                f"{near} of the neighbourhood are left, fewer than t = {params.threshold}",
            )
        self._members = members

    def _check_neighbours(self, own: int, named: Collection[int], expected: set[int]) -> None:
        names = set(named)
        if own in names:
            raise PeerError(Refusal.NAMED_AS_ITS_OWN_PEER, f"position {own}")
        if unknown := names - expected:
            raise PeerError(Refusal.UNKNOWN_NEIGHBOUR, f"positions {sorted(unknown)[:5]}")
        if missing := expected - names:
            raise PeerError(Refusal.MISSING_NEIGHBOUR, f"positions {sorted(missing)[:5]}")

    def _check_keys(self, message: RosterMessage) -> None:
        """Refuse weak keys, and any key, its own or a peer's, that comes under a second name."""
        own = [self._own_sealing.public, *(p.public for p in self._mask_keys if p is not None)]
        seen = {keys.coordinate(key) for key in own}
        for position, advertised in message.keys.items():
            for key in (advertised.sealing_key, *advertised.mask_keys):
                if (coordinate := keys.coordinate(key)) in seen:
                    raise PeerError(Refusal.BAD_KEY, f"position {position}: a key named twice")
                if keys.is_low_order(key):
                    raise PeerError(Refusal.BAD_KEY, f"position {position}: a low-order key")
                seen.add(coordinate)

    def _read_shares(self, plaintext: bytes | None) -> Limbs | None:
        """A neighbour's shares, shape (slots, kinds, 9); None where the box held no shares."""
        if plaintext is None or len(plaintext) != wire.plaintext_size(self._accepted):
            return None
        limbs = np.frombuffer(plaintext, dtype="<u4").astype(np.uint32)
        if (limbs >= shamir.PRIME).any():
            return None
        return limbs.reshape(len(self._accepted.slots), len(ShareKind), shamir.NUM_LIMBS)

    def _neighbours_among(self, members: Members) -> list[int]:
        present = members.tolist()
        return [position for position in self._neighbours if present[position]]

    def _own_mask_secrets(self) -> list[bytes]:
        return [pair.secret for pair in self._mask_keys if pair is not None]

    @property
    def _accepted(self) -> SessionParams:
        return present(self.params)

    @property
    def _placed(self) -> _Roster:
        return present(self._roster)

    @property
    def _cohort(self) -> Members:
        return present(self._members)

    @property
    def _own_sealing(self) -> KeyPair:
        return present(self._sealing)


def _untimely(message: ServerMessage, slot: int, state: ClientState) -> Refusal:
    """The name of what a message out of its order amounts to."""
    match message:
        case OpenSlot() if message.slot <= slot:
            return Refusal.SLOT_REUSED
        case UnmaskRequest() if message.slot == slot and state is ClientState.READY:
            return Refusal.BOTH_SHARE_KINDS
        case _:
            return Refusal.OUT_OF_ORDER
