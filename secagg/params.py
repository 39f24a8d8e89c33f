"""A session's parameters: slots, graph, threshold and more, all public and bound to every mask."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NewType, Self

from deltafl.secagg import labels, ring
from deltafl.secagg.errors import UsageError, whole_number
from deltafl.secagg.labels import Label
from deltafl.secagg.pedersen import BLINDING_SIZE
from deltafl.secagg.threat import (
    ThreatModel,
    complete_threshold,
    sparse_parameters,
)

ClientId = NewType("ClientId", int)
SessionId = NewType("SessionId", bytes)

DIGEST_SIZE: Final = 32
TAG_SIZE: Final = 16
MAX_SLOTS: Final = 1 << 12
MAX_LENGTH: Final = 1 << 28
MAX_LABEL_BYTES: Final = 64
MAX_PROOF_BYTES: Final = 1 << 24
PROOF_UNIT: Final = 32
"""A proof consists of points and scalars of so many bytes."""


class GraphKind(StrEnum):
    """Who shares masks with whom: everyone, or a random few (see `deltafl.secagg.graph`)."""

    COMPLETE = "complete"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """One secure sum: a vector of `length` elements of Z_2^ring_bits.

    Spec: §3.1.

    Attributes:
        label: What the sum is for; part of every key derivation of the slot. At most 64 bytes of
            UTF-8.
        length: Elements, in [1, 2^28].
        ring_bits: b, in [1, 64].
        whole: Whether the slot is all-or-nothing: its sum is revealed over all devices that the
            slot is opened with, or not at all. A second sum over one device fewer would reveal
            that device's vector. Slots that are not whole are *tolerant*: they survive
            drop-outs.
        verified: Whether devices commit to their vectors, and can check the sum. Elements of such a
            slot are read as two's complement.
        proof_size: Bytes of the proof that a device's vector is valid, a multiple of 32 in
            [0, 2^24]; 0 for none. Only a verified slot has one. What is valid, and how it is
            proved, is the caller's.
    """

    label: str
    length: int
    ring_bits: int
    whole: bool = False
    verified: bool = False
    proof_size: int = 0
    canonical: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.label, str):
            raise UsageError(f"slot label {self.label!r} is not a string")
        for name in ("length", "ring_bits", "proof_size"):
            number = whole_number(f"slot {self.label!r}: {name}", getattr(self, name))
            object.__setattr__(self, name, number)
        if not 1 <= self.length <= MAX_LENGTH:
            raise UsageError(f"slot {self.label!r}: length={self.length} is not in [1, 2^28]")
        if not 1 <= self.ring_bits <= ring.MAX_BITS:
            raise UsageError(f"slot {self.label!r}: ring_bits={self.ring_bits} is not in [1, 64]")
        if len(self.label.encode()) > MAX_LABEL_BYTES:
            raise UsageError(f"slot label {self.label!r} is longer than {MAX_LABEL_BYTES} bytes")
        most = MAX_PROOF_BYTES if self.verified else 0
        if self.proof_size not in range(0, most + 1, PROOF_UNIT):
            raise UsageError(
                f"slot {self.label!r}: proof_size={self.proof_size} is not a multiple of "
                f"{PROOF_UNIT} in [0, {most}], with verified={bool(self.verified)}"
            )
        numbers = (self.length, self.ring_bits, int(self.whole), self.assurance)
        object.__setattr__(self, "canonical", labels.pack(self.label.encode(), *numbers))

    @property
    def assurance(self) -> int:
        """One number for `verified` and `proof_size`: 0, or 1 and the bytes of the proof.

        Spec: §3.1.
        """
        return int(self.verified) + self.proof_size

    @property
    def packed_size(self) -> int:
        """Bytes of a masked vector: in a verified slot, the blinding follows the vector."""
        return ring.packed_size(self.length, self.ring_bits) + BLINDING_SIZE * self.verified


@dataclass(frozen=True, slots=True)
class SessionParams:
    """Everything public that all parties of a session must agree on beforehand.

    Spec: §3.2.

    Attributes:
        slots: The session's sums, in the order in which they may be opened.
        num_invited: Devices that the session is opened with.
        degree: Neighbours of a device; num_invited − 1 or more means the complete graph.
        threshold: Shares needed to rebuild a secret; at least 2.
        min_cohort: Fewest devices to sum over; with fewer, the session ends.
        graph_seed: 32 public bytes; unique to the session, unknown when colluders are chosen.
        context: 32 bytes, the caller's digest of what the session is for.
        min_roster: Fewest devices to draw the graph over; with fewer, the session ends. A sparse
            graph is safe for the expected share of colluding devices, and that share rises when
            devices stay away.
        digest: 32 bytes, derived from all of these.
        tag: Its first 16 bytes, which every message of the session carries.
        longest_vector: Bytes of the longest packed vector, its blinding included.
        longest_proof: Bytes of the longest proof that a vector is valid.
        columns: The tolerant slots (those that are not whole), numbered from 0. Only they have
            recovery keys, seeds and shares, in this order.
    """

    slots: tuple[SlotSpec, ...]
    num_invited: int
    degree: int
    threshold: int
    min_cohort: int
    graph_seed: bytes
    context: bytes
    min_roster: int = 2
    digest: bytes = field(init=False, repr=False, compare=False)
    tag: bytes = field(init=False, repr=False, compare=False)
    longest_vector: int = field(init=False, repr=False, compare=False)
    longest_proof: int = field(init=False, repr=False, compare=False)
    columns: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.slots, tuple):  # a list could be changed later
            raise UsageError(f"slots are a tuple of `SlotSpec`, not a {type(self.slots).__name__}")
        for name in ("num_invited", "degree", "threshold", "min_cohort", "min_roster"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if not 1 <= len(self.slots) <= MAX_SLOTS:
            raise UsageError(f"{len(self.slots)} slots: a session has 1 to {MAX_SLOTS}")
        if not 2 <= self.threshold <= self.num_holders:
            raise UsageError(
                f"threshold={self.threshold} is not in [2, {self.num_holders}], the number of "
                "devices that hold shares of one device's secrets"
            )
        if self.degree % 2 and not self.is_complete:
            raise UsageError(f"degree={self.degree} of a sparse graph must be even")
        if not self.threshold <= self.min_cohort <= self.num_invited:
            raise UsageError(
                f"min_cohort={self.min_cohort} is not in [threshold = {self.threshold}, "
                f"num_invited = {self.num_invited}]"
            )
        if not 2 <= self.min_roster <= self.num_invited:
            raise UsageError(
                f"min_roster={self.min_roster} is not in [2, num_invited = {self.num_invited}]"
            )
        for slot in self.slots:
            if slot.verified:
                self._check_verified(slot)
        for name in ("graph_seed", "context"):
            value = getattr(self, name)
            if not isinstance(value, bytes):
                raise UsageError(f"{name} is {DIGEST_SIZE} bytes, not a {type(value).__name__}")
            size = len(value)
            if size != DIGEST_SIZE:
                raise UsageError(f"{name} has {size} bytes, not {DIGEST_SIZE}")
        digest = labels.digest(Label.PARAMETERS, self.canonical())
        longest = max(slot.packed_size for slot in self.slots)
        tolerant = [index for index, slot in enumerate(self.slots) if not slot.whole]
        columns = MappingProxyType({index: column for column, index in enumerate(tolerant)})
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "tag", digest[:TAG_SIZE])
        object.__setattr__(self, "longest_vector", longest)
        object.__setattr__(self, "longest_proof", max(slot.proof_size for slot in self.slots))
        object.__setattr__(self, "columns", columns)

    @classmethod
    def for_threat(
        cls,
        num_invited: int,
        slots: tuple[SlotSpec, ...],
        *,
        threat: ThreatModel,
        graph: GraphKind,
        min_cohort: int = 2,
        graph_seed: bytes,
        context: bytes,
    ) -> Self:
        """Parameters computed from what the session must withstand.

        Args:
            num_invited: Devices that the session is opened with.
            slots: The session's sums.
            threat: Shares of colluding and vanishing devices, and the adversary.
            graph: The complete graph, or the sparse one.
            min_cohort: Smallest cohort to sum over; raised if necessary to the threshold, and on a
                sparse graph to all devices but those that may vanish. Both leave two honest devices
                in the sum.
            graph_seed: See the class.
            context: See the class.

        Raises:
            UsageError: with so few devices, no parameters withstand this threat.
        """
        if graph not in list(GraphKind):
            raise UsageError(f"graph={graph!r} is neither 'complete' nor 'sparse'")
        if not isinstance(threat, ThreatModel):
            raise UsageError(f"threat={threat!r} is no `ThreatModel`")
        num_invited = whole_number("num_invited", num_invited)
        if GraphKind(graph) is GraphKind.COMPLETE:
            degree, threshold = num_invited - 1, complete_threshold(num_invited, threat)
            min_roster = threshold
        else:
            degree, threshold = sparse_parameters(num_invited, threat)
            min_roster = num_invited - threat.num_dropped(num_invited)
        return cls(
            slots=slots,
            num_invited=num_invited,
            degree=degree,
            threshold=threshold,
            min_cohort=max(min_cohort, min_roster),
            graph_seed=graph_seed,
            context=context,
            min_roster=min_roster,
        )

    @property
    def is_complete(self) -> bool:
        """Whether everyone shares masks with everyone."""
        return self.degree >= self.num_invited - 1

    @property
    def num_holders(self) -> int:
        """Devices that hold shares of one device's secrets (see `graph.Graph.holders_of`)."""
        return self.num_invited if self.is_complete else self.degree

    def _check_verified(self, slot: SlotSpec) -> None:
        """Refuse a verified slot whose sum devices could not check."""
        if not self.is_complete:
            raise UsageError(
                f"slot {slot.label!r}: a verified slot takes the complete graph, on which every "
                "device knows the identity of every other"
            )

    def canonical(self) -> bytes:
        """An injective description of the parameters, for hashing. Spec: §3.3."""
        numbers = (
            self.num_invited,
            self.degree,
            self.threshold,
            self.min_cohort,
            self.min_roster,
        )
        slots = labels.pack(*(slot.canonical for slot in self.slots))
        return labels.pack(slots, *numbers, self.graph_seed, self.context)

    def session_id(self, roster: bytes) -> SessionId:
        """The session's id, bound to its parameters and roster (as on the wire); 32 bytes.

        Spec: §3.3, §4.1.
        """
        return SessionId(labels.digest(Label.SESSION, self.canonical(), roster))
