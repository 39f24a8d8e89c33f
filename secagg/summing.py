"""One slot on the server: what has arrived for its sum, and how the sum is unmasked.

Masked vectors are added up as they arrive, and never stored. In a whole slot the masks cancel, and
nothing is left to remove.

Spec: §10.4, §10.5, §10.7, §10.9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    Roster,
    SumOpening,
    UnmaskRequest,
)
from deltafl.secagg.openings import Check, Commitment
from deltafl.secagg.params import ClientId, SessionId, SessionParams, SlotSpec
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.receipts import Receipts
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
        """A device."""
        advertised = self.keys[position]
        return Signer(advertised.credential.identity, advertised.key)


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

    def take_signature(self, position: int, message: ConsistencySignature) -> Fault | None:
        """Keep a device's signature of the survivors."""
        signer = self.devices.signer_at(position)
        statement = signing.survivors(self.context, self.contributed, signer.key)
        if not verify(signer.identity, statement, message.signature):
            return Fault.BAD_SIGNATURE
        self.signatures[position] = message.signature
        return None

    def requests(self, recipients: Sequence[ClientId], linked: Members) -> Letters:
        """A request for each device, with signatures that it counts.

        Args:
            recipients: The devices.
            linked: Who has a link with whom, by device and column among its neighbours.
        """
        graph, positions = self.devices.graph, self.devices.positions

        def write(client: ClientId) -> bytes:
            position = positions[client]
            holders = graph.holders_of(position)
            near = holders[graph.linked_with(position, linked)[holders]].tolist()
            signers = [p for p in near if p in self.signatures][: self.params.threshold]
            signatures = {p: self.signatures[p] for p in signers}
            request = UnmaskRequest(self.index, self.contributed, signatures)
            return wire.encode(request, self.params)

        return Letters(recipients, write)

    def promises(self, commitments: Mapping[int, Sequence[bytes]]) -> Promises:
        """What the secrets of the slot must match.

        Args:
            commitments: To both secrets of every tolerant slot, by position.
        """
        first = 2 * self.params.columns[self.index]
        of_slot = {p: (c[first], c[first + 1]) for p, c in commitments.items()}
        return Promises(self.context, self.index, of_slot)

    def unmask(
        self, recovered: Recovered, receipts: Receipts, linked: Members, add_masks: AddMasks
    ) -> dict[int, Fault]:
        """Remove all masks from the sum.

        Args:
            recovered: The slot's secrets.
            receipts: What devices deposited.
            linked: Who has a link with whom, by device and column among its neighbours.
            add_masks: The function that adds masks.

        Returns:
            The devices, by position, that deposited other keys than they said; then the sum is
            lost.
        """
        column, opened = self.params.columns[self.index], dict[int, Mapping[int, bytes]]()
        left = dict[int, Mapping[int, bytes]]()
        for lost, recovery in recovered.recovery.items():
            peers = self.devices.graph.linked_with(lost, linked) & self.members
            peers[lost] = False
            opened[lost] = receipts.revealed(lost, column, recovery, np.flatnonzero(peers))
            needed = np.flatnonzero(peers & self.contributed).tolist()
            if not opened[lost].keys() >= set(needed):
                return {lost: Fault.BAD_COMMITMENT}
            left[lost] = {peer: opened[lost][peer] for peer in needed}
        self.recovered = replace(recovered, opened=opened)
        summed = self.total, recovered.seeds.values(), left, self.context
        self.blinding += remove_masks(*summed, add_masks, verified=self.spec.verified)
        return {}

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
