"""One slot on the server: what has arrived for its sum, and how the sum is unmasked.

Masked vectors are added up as they arrive, and never stored. In a whole slot the masks cancel, and
nothing is left to remove.

Spec: §10.4, §10.5, §10.7, §10.9.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from deltafl.secagg import openings, pedersen, ring, signing, wire
from deltafl.secagg.errors import Fault, present
from deltafl.secagg.graph import Graph, Members
from deltafl.secagg.identity import verify
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    Letters,
    MaskedInput,
    OpenSlot,
    Roster,
    SumOpening,
    UnmaskRequest,
)
from deltafl.secagg.openings import Check, Commitment
from deltafl.secagg.params import ClientId, SessionId, SessionParams, SlotSpec
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.ring import Vector
from deltafl.secagg.signing import Signer
from deltafl.secagg.unmasking import Promises, Recovered, SlotSecrets, remove_masks


@dataclass(frozen=True, slots=True, eq=False)
class SlotSum:
    """What a slot reveals.

    Attributes:
        slot: Index into the session's slots.
        vector: The sum in Z_2^b, shape (length,), unsigned words in [0, 2^b).
        contributors: The devices whose vectors are in it, ascending.
        remaining: The devices still in the session afterwards, ascending.
        opening: In a verified slot, the message that proves the sum to devices, or None if there is
            no proof: a device has masked another vector than the one it committed to, or the sum
            is not in [-2^(b-1), 2^(b-1)). None also in other slots.
        recovered: The secrets that were rebuilt for it; None in a whole slot.
    """

    slot: int
    vector: Vector
    contributors: tuple[ClientId, ...]
    remaining: tuple[ClientId, ...]
    opening: bytes | None = None
    recovered: Recovered | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """The devices that advertised keys, by roster position."""

    ids: Roster
    positions: Mapping[ClientId, int]
    graph: Graph
    session_id: SessionId
    keys: Mapping[int, AdvertiseKeys]

    def id_at(self, position: int) -> ClientId:
        """A device's id."""
        return ClientId(int(self.ids[position]))

    def signer_at(self, position: int) -> Signer:
        """A device of a signed session."""
        advertised = self.keys[position]
        return Signer(present(advertised.credential).identity, advertised.sealing_key)


@dataclass(slots=True, eq=False)
class Summing:
    """The slot that is being summed: the devices it was opened with, and what has arrived.

    Attributes:
        params: The session's parameters.
        index: The slot.
        devices: All devices of the session.
        members: Those that the slot was opened with.
        context: What the masks are bound to.
        check: Whether a vector is proved to be valid, in a slot with such proofs.
        total: The sum of the masked vectors that have arrived.
        blinding: The sum of their masked blindings, not reduced; 0 in a slot that is not verified.
        contributed: Whose these are.
        signatures: Of the list of devices that is being agreed on, by position.
        committed: In a verified slot, what devices committed to, by position.
        secrets: The shares that have arrived, once they are asked for.
        recovered: What they give.
    """

    params: SessionParams
    index: int
    devices: Devices
    members: Members
    context: SlotContext
    check: Check | None = None
    total: Vector = field(init=False)
    blinding: int = 0
    contributed: Members = field(init=False)
    signatures: dict[int, bytes] = field(default_factory=dict)
    committed: dict[int, bytes] = field(default_factory=dict)
    secrets: SlotSecrets | None = None
    recovered: Recovered | None = None

    def __post_init__(self) -> None:
        self.total = ring.zeros(self.spec.length, self.spec.ring_bits)
        self.contributed = np.zeros_like(self.members)

    @property
    def spec(self) -> SlotSpec:
        """What is summed."""
        return self.params.slots[self.index]

    def take_input(self, position: int, message: MaskedInput) -> Fault | None:
        """Add a device's masked vector, unless it is at fault."""
        spec = self.spec
        if spec.verified:
            signer = self.devices.signer_at(position)
            if not openings.is_signed(self.context, signer, message.committed):
                return Fault.BAD_SIGNATURE
            if not openings.is_point(message.committed):
                return Fault.BAD_COMMITMENT
            if spec.proof_size:
                point = message.committed[: pedersen.COMMITMENT_SIZE]
                commitment = Commitment(self.context, position, signer, point)
                if not present(self.check)(commitment, message.proof):
                    return Fault.BAD_PROOF
            self.committed[position] = message.committed
        masked, blinding = openings.unpack(spec, message.packed)
        np.add(self.total, masked, out=self.total)
        self.blinding += blinding
        self.contributed[position] = True
        return None

    def take_signature(
        self, position: int, message: ConsistencySignature, *, is_list: bool
    ) -> Fault | None:
        """Keep a device's signature: of the slot's members before it opens, or of its survivors."""
        signer = self.devices.signer_at(position)
        if is_list:
            session_id = self.devices.session_id
            statement = signing.members(session_id, self.index, self.members, signer.sealing_key)
        else:
            statement = signing.survivors(self.context, self.contributed, signer.sealing_key)
        if not verify(signer.identity, statement, message.signature):
            return Fault.BAD_SIGNATURE
        self.signatures[position] = message.signature
        return None

    def with_signatures(
        self,
        message: Callable[[int, Members, Mapping[int, bytes]], OpenSlot | UnmaskRequest],
        members: Members,
        recipients: Sequence[ClientId],
        refusals: Mapping[int, frozenset[int]],
    ) -> Letters:
        """A message for each device, with the signatures that it counts of a list of devices.

        Args:
            message: Its type.
            members: The list.
            recipients: The devices.
            refusals: Whose boxes each device refused, by position.
        """
        graph, positions = self.devices.graph, self.devices.positions

        def write(client: ClientId) -> bytes:
            position = positions[client]
            # A device does not accept the signature of a neighbour whose box it could not read.
            credible = self.signatures.keys() - refusals[position]
            holders = graph.holders_of(position).tolist()
            signers = [p for p in holders if p in credible][: self.params.threshold]
            signatures = {p: self.signatures[p] for p in signers}
            return wire.encode(message(self.index, members, signatures), self.params)

        return Letters(recipients, write)

    def promises(self, commitments: Mapping[int, Sequence[bytes]]) -> Promises:
        """What the secrets of the slot must match.

        Args:
            commitments: To the seeds of every tolerant slot, by position.
        """
        column = self.params.columns[self.index]
        mask_keys = {p: k.mask_keys[column] for p, k in self.devices.keys.items()}
        of_slot = {p: c[column] for p, c in commitments.items()}
        return Promises(self.context, self.index, of_slot, mask_keys)

    def unmask(self, recovered: Recovered, promises: Promises, add_masks: AddMasks) -> None:
        """Remove all masks from the sum; `add_masks` adds masks to it."""
        self.recovered = recovered
        summed = self.total, recovered, self.context, self.devices.graph, self.contributed
        masks = remove_masks(*summed, promises.mask_keys, add_masks, verified=self.spec.verified)
        self.blinding += masks

    def revealed(self, remaining: tuple[ClientId, ...]) -> SlotSum:
        """The sum, from which all masks are gone, and its proof."""
        spec = self.spec
        ring.reduce(self.total, spec.ring_bits)
        opening = None
        if spec.verified:
            committed = {p: self.committed[p] for p in np.flatnonzero(self.contributed).tolist()}
            if openings.opens(spec, self.total, self.blinding, list(committed.values())):
                packed = openings.pack(spec, self.total, self.blinding)
                opening = wire.encode(SumOpening(self.index, packed, committed), self.params)
        contributors = tuple(ClientId(i) for i in self.devices.ids[self.contributed].tolist())
        return SlotSum(self.index, self.total, contributors, remaining, opening, self.recovered)
