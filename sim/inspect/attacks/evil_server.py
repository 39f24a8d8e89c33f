"""A server that shows each device whatever it likes, and pools what it gets with its own devices.

It has what devices send it and what its colluders know, and reads nothing else.
If a device refuses to go on with a slot, it goes on with the others. Devices are named by their
position in the roster.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TypeVar

import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    Credentials,
    PeerError,
    SessionParams,
    UsageError,
    keys,
    openings,
    prg,
    ring,
    shamir,
    signing,
    wire,
)
from deltafl.secagg.errors import present
from deltafl.secagg.graph import Members
from deltafl.secagg.masks import PairSecret, SlotContext, of_blinding, subtracts
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.params import SlotSpec
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.shamir import Limbs
from deltafl.secagg.states import ClientState
from deltafl.sim.inspect.attacks.own_session import BINDING, POLICY

Survivors = frozenset[int]
Secret = tuple[int, ShareKind, int]
"""Which secret: slot, kind and owner."""

Answer = TypeVar("Answer", bound=Message)

Lists = Mapping[int, Survivors]
"""A list of survivors for each of some devices."""


class Colluder(Client):
    """The attacker's device: it acts like any other, and the attacker knows everything it knows.

    Its vectors are zeros, so that it does not change sums.

    Args:
        client_id: Its id.
        credentials: As for `Client`.
        randomness: Source of its secrets; its own by default.
    """

    def __init__(
        self,
        client_id: ClientId,
        credentials: Credentials | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        own = SeededRandomness(client_id.to_bytes(32, "big"))
        super().__init__(client_id, POLICY, randomness or own, credentials)

    def answer(self, data: bytes, binding: bytes) -> bytes | None:
        """Take a message; its own vector is zeros."""
        reply = self.receive(data)
        if self.state is not ClientState.OPENED:
            return reply
        spec = present(self.params).slots[self.slot]
        return self.contribute(ring.zeros(spec.length, spec.ring_bits), binding)

    def own_secrets(self) -> dict[Secret, bytes]:
        """The secrets of all tolerant slots, before any slot is used."""
        own, secrets = self._formed.position, dict[Secret, bytes]()
        for slot, column in present(self.params).columns.items():
            secrets[slot, ShareKind.SEED, own] = present(self._seeds[column])
            secrets[slot, ShareKind.KEY, own] = present(self._mask_keys[column]).secret
        return secrets

    def pair(self, peer: int, info: bytes) -> PairSecret:
        """What its mask of a whole slot with the device at a position comes from."""
        return self._formed.neighbours[peer].link.whole(info)

    def shares(self, slot: int) -> dict[Secret, Limbs]:
        """Shares of both secrets of every device that it shares with."""
        held, column = present(self._held), present(self.params).columns[slot]
        return {
            (slot, kind, owner): held.shares[row, column, kind]
            for row, owner in enumerate(held.positions.tolist())
            for kind in ShareKind
        }

    def sign(self, slot: int, devices: Members) -> bytes:
        """A signature of any list of survivors or, before a whole slot, of members."""
        key = self._own_sealing.public
        if present(self.params).slots[slot].whole:
            statement = signing.members(self._formed.session_id, slot, devices, key)
        else:
            statement = signing.survivors(present(self._context), devices, key)
        return present(self._credentials).identity.sign(statement)

    def commit(self, context: SlotContext, spec: SlotSpec, vector: Vector) -> tuple[int, bytes]:
        """A commitment to any vector, and its blinding; see `openings.commit`."""
        identity = present(self._credentials).identity
        key = self._own_sealing.public
        return openings.commit(context, spec, vector, identity, key, self._randomness)


class EvilServer:
    """One session on the complete graph, under a server that follows no rules.

    Its colluders take part in tolerant slots only. In a whole slot they would add zeros, under
    masks that the server knows.

    Args:
        params: What it tells the devices.
        ids: The roster that it shows.
        answer: Gives a device a message; returns what the device answers.
        colluders: Devices of its own, whose ids are in the roster too.

    Attributes:
        binding: What devices bind their masks to, which may change from slot to slot.
        keys: What came as each device's keys; what is put here is what the others are shown.
        opened: Who each slot was opened with, as it told each device, by slot and position.
        inputs: The masked vectors, by slot and position.
        blindings: The masked blindings; zeros in slots that are not verified.
        committed: What came with the vectors of a verified slot, by slot and position.
        agreed: The last list that a device accepted for good, by position.
        signatures: What devices have signed, by slot and list of survivors, and by position.
        refusals: Of the devices that refused to go on with a slot, by position.
        secrets: Those that it has rebuilt, or that are its colluders'.
    """

    def __init__(
        self,
        params: SessionParams,
        ids: Iterable[ClientId],
        answer: Callable[[ClientId, bytes], bytes | None],
        colluders: Iterable[Colluder] = (),
    ) -> None:
        self.params = params
        self.binding = BINDING
        self.roster = sorted(ids)
        self.keys: dict[int, AdvertiseKeys] = {}
        self.opened: dict[int, dict[int, Survivors]] = defaultdict(dict)
        self.inputs: dict[int, dict[int, Vector]] = defaultdict(dict)
        self.blindings: dict[int, dict[int, int]] = defaultdict(dict)
        self.committed: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.agreed: dict[int, Survivors] = {}
        self.signatures: dict[tuple[int, Survivors], dict[int, bytes]] = defaultdict(dict)
        self.refusals: dict[int, PeerError] = {}
        self.secrets: dict[Secret, bytes] = {}
        self._answer = answer
        self._colluders = {self.roster.index(c.client_id): c for c in colluders}
        self._shares: dict[Secret, dict[int, Limbs]] = defaultdict(dict)

    @property
    def everyone(self) -> Survivors:
        """All positions."""
        return frozenset(range(len(self.roster)))

    @property
    def honest(self) -> list[int]:
        """Devices that are not its own."""
        return sorted(self.everyone - self._colluders.keys())

    def advertise(self) -> None:
        """Open the session, and gather keys."""
        for position in self._in_turn():
            told = self._tell(position, SessionOpen(self.params))
            self.keys[position] = _as(AdvertiseKeys, told)

    def set_up(self) -> None:
        """Play everything before the first slot; shows the keys that there already are, if any."""
        if not self.keys:
            self.advertise()
        ids = np.array(self.roster, dtype=np.uint32)
        boxes: dict[int, Mapping[int, bytes]] = {}
        for p in self._in_turn():
            others = {q: self.keys[q] for q in sorted(self.everyone - {p})}
            boxes[p] = _as(ShareKeys, self._tell(p, RosterMessage(ids, others))).boxes
        for p in self._in_turn():
            theirs = {q: boxes[q][p] for q in sorted(self.everyone - {p})}
            self._tell(p, ShareDelivery(self.members(self.everyone), theirs))
        for colluder in self._colluders.values():
            self.secrets |= colluder.own_secrets()

    def open_slot(self, slot: int, cohort: Lists | Survivors | None = None) -> None:
        """Open a slot and gather the masked vectors.

        Before a whole slot of a signed session, each device that has not accepted any list is made
        to sign its own list first, and is sent all signatures that there are on it.

        Args:
            slot: Which.
            cohort: The devices that it is opened over, as told to all or to each of them; by
                default, everyone.
        """
        if not isinstance(cohort, Mapping):
            some = self.everyone if cohort is None else cohort
            cohort = dict.fromkeys(some, some)
        spec, signed = self.params.slots[slot], dict[int, Survivors]()
        if spec.whole:
            cohort = {p: cohort[p] for p in self.honest if p in cohort}
            if self.params.signed:
                signed = {p: told for p, told in cohort.items() if p not in self.agreed}
                self.confirm(slot, signed)
        for p in self._in_turn():
            if p not in cohort:
                continue
            signatures = self.signatures[slot, signed[p]] if p in signed else {}
            told = self._try(p, OpenSlot(slot, self.members(cohort[p]), signatures))
            if told is None:
                continue
            answer = _as(MaskedInput, told)
            self.opened[slot][p] = cohort[p]
            vector, self.blindings[slot][p] = openings.unpack(spec, answer.packed)
            self.inputs[slot][p] = vector
            self.committed[slot][p] = answer.committed
            if spec.whole:
                self.agreed[p] = cohort[p]

    def unmask(self, slot: int, lists: Lists | Survivors) -> None:
        """Ask for shares, telling each honest device in `lists` its own list of survivors.

        One list is told to all the survivors that it names. In a signed session, signatures come
        first, and every device is sent all that there are on its own list.
        """
        if not isinstance(lists, Mapping):
            lists = {p: lists for p in self.honest if p in lists}
        if self.params.signed:
            self.confirm(slot, lists)
        for p, survivors in lists.items():
            signatures = self.signatures[slot, survivors]
            told = self._try(p, UnmaskRequest(slot, self.members(survivors), signatures))
            if told is None:
                continue
            self.agreed[p] = survivors
            given = _as(UnmaskShares, told)
            for owner, kind, share in zip(given.positions, given.kinds, given.shares, strict=True):
                self._shares[slot, ShareKind(int(kind)), int(owner)][p] = share
        self.pool(slot)

    def confirm(self, slot: int, lists: Lists) -> None:
        """Gather signatures: from each honest device for its own list, from colluders for all."""
        for p, survivors in lists.items():
            if told := self._try(p, ConsistencyCheck(slot, self.members(survivors))):
                self.signatures[slot, survivors][p] = _as(ConsistencySignature, told).signature
        for survivors in lists.values():
            members = self.members(survivors)
            self.signatures[slot, survivors] |= {
                p: c.sign(slot, members) for p, c in self._colluders.items() if p in survivors
            }

    def pool(self, slot: int) -> None:
        """Add the colluders' shares, and rebuild every secret that has t shares."""
        for p, colluder in self._colluders.items():
            for secret, share in colluder.shares(slot).items():
                self._shares[secret][p] = share
        for secret, shares in self._shares.items():
            if secret[0] == slot and len(shares) >= self.params.threshold:
                holders = sorted(shares)[: self.params.threshold]
                weights = shamir.lagrange_at_zero(np.array([holders]) + 1)
                limbs = shamir.combine(weights, (shares[p][None] for p in holders))
                if (rebuilt := shamir.from_limbs(limbs)[0]) is not None:
                    self.secrets[secret] = rebuilt

    def sum_over(self, slot: int, positions: Set[int]) -> Vector:
        """The best it can compute from some devices' masked vectors: if all goes well, their sum.

        Masks between two devices that were told of each other cancel. Other masks are removed if a
        secret is known; an unknown seed is guessed as zeros. Whoever sent no vector is
        left out.
        """
        spec, context = self.params.slots[slot], self.context(slot)
        total = ring.zeros(spec.length, spec.ring_bits)
        for own in self.opened[slot].keys() & positions:
            total += self.inputs[slot][own]
            if not spec.whole:
                prg.add_mask(total, context.self_mask_key(self._seed(slot, own)), negative=True)
            for pair in self._left(slot, own, positions):
                prg.add_mask(total, pair.key(), negative=not subtracts(own, pair.peer))
        ring.reduce(total, spec.ring_bits)
        return total

    def blinding_over(self, slot: int, positions: Set[int]) -> int:
        """As `sum_over`, the sum of the blindings of a verified slot, not reduced."""
        total, context = 0, self.context(slot)
        for own in self.opened[slot].keys() & positions:
            total += self.blindings[slot][own]
            if not self.params.slots[slot].whole:
                total -= context.self_mask_of_blinding(self._seed(slot, own))
            total -= of_blinding(own, self._left(slot, own, positions))
        return total

    def _seed(self, slot: int, own: int) -> bytes:
        return self.secrets.get((slot, ShareKind.SEED, own), bytes(prg.SEED_SIZE))

    def _left(self, slot: int, own: int, positions: Set[int]) -> Iterator[PairSecret]:
        """The masks of a device that it knows, of those that do not cancel in a sum."""
        opened, context = self.opened[slot], self.context(slot)
        summed = opened.keys() & positions
        mutual = {peer for peer in opened[own] & summed if own in opened[peer]}
        for peer in opened[own] - mutual - {own}:
            if (pair := self._pair(context, slot, own, peer)) is not None:
                yield pair._replace(peer=peer)  # whichever end it was computed from

    def _tell(self, position: int, message: Message) -> Message | None:
        data = wire.encode(message, self.params)
        if position in self._colluders:
            reply = self._colluders[position].answer(data, self.binding)
        else:
            reply = self._answer(self.roster[position], data)
        return None if reply is None else wire.decode(reply, self.params)

    def _try(self, position: int, message: Message) -> Message | None:
        """Tell a device something if it still listens; its answer, if it gives one."""
        if position in self.refusals:
            return None
        try:
            return self._tell(position, message)
        except PeerError as refusal:
            self.refusals[position] = refusal
            return None

    def _in_turn(self) -> list[int]:
        """Honest devices first: if they refuse, the attack has failed."""
        return [*self.honest, *self._colluders]

    def prove(
        self, slot: int, total: Vector, blinding: int, committed: Mapping[int, bytes]
    ) -> bytes:
        """The message that proves a sum to devices, or is meant to.

        Args:
            slot: A verified one.
            total: The sum, shape (length,).
            blinding: The sum of the blindings; any integer.
            committed: Commitment and signature of each device, by position.
        """
        packed = openings.pack(self.params.slots[slot], total, blinding)
        return wire.encode(SumOpening(slot, packed, committed), self.params)

    def _pair(self, context: SlotContext, slot: int, own: int, peer: int) -> PairSecret | None:
        """What two devices derive their mask from, if that is known."""
        if self.params.slots[slot].whole:
            colluder = self._colluders.get(peer)
            if colluder is None:
                return None
            told = self.members(self.opened[slot][own])
            return colluder.pair(own, context.whole_slot_info(told))
        for one, other in ((own, peer), (peer, own)):
            secret = self.secrets.get((slot, ShareKind.KEY, one))
            if secret is not None:
                theirs = self.keys[other].mask_keys[self.params.columns[slot]]
                return context.pair_secrets(keys.key_pair(secret), [other], [theirs])[0]
        return None

    def context(self, slot: int) -> SlotContext:
        """What masks are bound to in a slot."""
        session_id = self.params.session_id(np.array(self.roster, dtype="<u4").tobytes())
        return SlotContext.of(self.params, session_id, slot, self.binding)

    def members(self, positions: Survivors) -> Members:
        """Some devices, as messages name them: over the roster."""
        return np.isin(np.arange(len(self.roster)), list(positions))


def _as(kind: type[Answer], told: Message | None) -> Answer:
    """A device's answer, whose type follows from the order of messages."""
    if not isinstance(told, kind):
        raise UsageError(f"a device answered {type(told).__name__}, not {kind.__name__}")
    return told
