"""A server that shows each device whatever it likes, and pools what it gets with its own devices.

It has what devices send it and what its colluders know, and reads nothing else.
If a device refuses to go on with a slot, it goes on with the others. Devices are named by their
position in the roster.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final, TypeVar

import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    Credentials,
    PeerError,
    SessionParams,
    UsageError,
    links,
    openings,
    prg,
    ring,
    shamir,
    signing,
    wire,
)
from deltafl.secagg.client import Linked, Opened, Shared
from deltafl.secagg.cohort import Dealt
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
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.params import DIGEST_SIZE, SlotSpec
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.shamir import Limbs
from deltafl.sim.inspect.attacks.attack import Loot
from deltafl.sim.inspect.attacks.own_session import BINDING, POLICY, Devices

Survivors = frozenset[int]
Secret = tuple[int, ShareKind, int]
"""Which secret: slot, kind and owner."""

Answer = TypeVar("Answer", bound=Message)

_DEPOSIT_SIZE: Final = links.TAG_SIZE + DIGEST_SIZE

Lists = Mapping[int, Survivors]
"""A list of survivors for each of some devices."""


class Colluder(Client):
    """The attacker's device: it acts like any other, and the attacker knows everything it knows.

    Its vectors are zeros, so that it does not change sums.

    Args:
        client_id: Its id.
        credentials: As for `Client`.
    """

    _dealt: Dealt
    _linked: Linked

    def __init__(self, client_id: ClientId, credentials: Credentials) -> None:
        own = SeededRandomness(client_id.to_bytes(32, "big"))
        super().__init__(client_id, POLICY, credentials, own)

    def answer(self, data: bytes, binding: bytes) -> bytes | None:
        """Take a message; its own vector is zeros."""
        reply = self.receive(data)
        match self._phase:
            case Shared(dealt=dealt):
                self._dealt = dealt
            case Linked() as linked:
                self._linked = linked
            case Opened(cohort=cohort, slot=slot):
                spec = cohort.params.slots[slot]
                return self.contribute(ring.zeros(spec.length, spec.ring_bits), binding)
        return reply

    def own_secrets(self) -> dict[Secret, bytes]:
        """The secrets of all tolerant slots."""
        cohort, dealt = self._linked.cohort, self._dealt
        return {
            (slot, kind, cohort.position): secret
            for slot, *both in zip(cohort.params.columns, dealt.seeds, dealt.recovery, strict=True)
            for kind, secret in zip(ShareKind, both, strict=True)
        }

    def key(self, slot: int, peer: int) -> bytes:
        """The key of its link with the device at a position."""
        return self._linked.secrets.pairs[slot][peer]

    def shares(self, slot: int) -> dict[Secret, Limbs]:
        """Shares of both secrets of every device that it shares with."""
        secrets = self._linked.secrets
        return {
            (slot, kind, owner): secrets.shares[slot][row, kind]
            for row, owner in enumerate(secrets.owners.tolist())
            for kind in ShareKind
        }

    def sign(self, context: SlotContext, survivors: Members) -> bytes:
        """A signature of any list of survivors."""
        statement = signing.survivors(context, survivors, self._linked.cohort.own.key)
        return self._credentials.identity.sign(statement)

    def commit(self, context: SlotContext, spec: SlotSpec, vector: Vector) -> tuple[int, bytes]:
        """A commitment to any vector, and its blinding; see `openings.commit`."""
        identity, key = self._credentials.identity, self._linked.cohort.own.key
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
        keys: What came as each device's key; what is put here is what the others are shown.
        boxes: What came from each device for each other; what is put here is what these get.
        receipts: What came of each device's links; its tags are passed on, and none that is taken
            out here.
        opened: Who each slot was opened with, as it told each device, by slot and position.
        inputs: The masked vectors, by slot and position.
        blindings: The masked blindings; zeros in slots that are not verified.
        committed: What came with the vectors of a verified slot, by slot and position.
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
        self.boxes: dict[int, dict[int, bytes]] = {}
        self.receipts: dict[int, dict[int, bytes]] = {}
        self.opened: dict[int, dict[int, Survivors]] = defaultdict(dict)
        self.inputs: dict[int, dict[int, Vector]] = defaultdict(dict)
        self.blindings: dict[int, dict[int, int]] = defaultdict(dict)
        self.committed: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.signatures: dict[tuple[int, Survivors], dict[int, bytes]] = defaultdict(dict)
        self.refusals: dict[int, PeerError] = {}
        self.secrets: dict[Secret, bytes] = {}
        self._answer = answer
        self._colluders = {self.roster.index(c.client_id): c for c in colluders}
        self._shares: dict[Secret, dict[int, Limbs]] = defaultdict(dict)
        self._started = set[int]()

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

    def share(self) -> None:
        """Show the keys, those that there already are if any, and gather boxes."""
        if not self.keys:
            self.advertise()
        ids = np.array(self.roster, dtype=np.uint32)
        for p in self._in_turn():
            others = {q: self.keys[q] for q in sorted(self.everyone - {p})}
            told = _as(ShareKeys, self._tell(p, RosterMessage(ids, others)))
            self.boxes[p] = dict(told.boxes)

    def set_up(self) -> None:
        """Play everything before the first slot; hands out the boxes that there already are."""
        if not self.boxes:
            self.share()
        for p in self._in_turn():
            self.deliver(p)
        for colluder in self._colluders.values():
            self.secrets |= colluder.own_secrets()

    def deliver(self, position: int) -> None:
        """Hand a device the boxes for it, and take its receipt."""
        theirs = {q: self.boxes[q][position] for q in sorted(self.everyone - {position})}
        told = self._tell(position, ShareDelivery(self.members(self.everyone), theirs))
        self.receipts[position] = dict(_as(ShareReceipt, told).links)

    def open_slot(self, slot: int, cohort: Lists | Survivors | None = None) -> None:
        """Open a slot and gather the masked vectors.

        Args:
            slot: Which.
            cohort: The devices that it is opened over, as told to all or to each of them; by
                default, everyone.
        """
        if not isinstance(cohort, Mapping):
            some = self.everyone if cohort is None else cohort
            cohort = dict.fromkeys(some, some)
        spec = self.params.slots[slot]
        for p in self.honest if spec.whole else self._in_turn():
            if p not in cohort:
                continue
            tags = {} if p in self._started else self._tags_for(p)
            told = self._try(p, OpenSlot(slot, self.members(cohort[p]), tags))
            if told is None:
                continue
            self._started.add(p)
            answer = _as(MaskedInput, told)
            self.opened[slot][p] = cohort[p]
            vector, self.blindings[slot][p] = openings.unpack(spec, answer.packed)
            self.inputs[slot][p] = vector
            self.committed[slot][p] = answer.committed

    def _tags_for(self, position: int) -> dict[int, bytes]:
        """What other devices show a device."""
        shown = {q: of[position] for q, of in sorted(self.receipts.items()) if position in of}
        return {q: receipt[: links.TAG_SIZE] for q, receipt in shown.items()}

    def _linked_with(self, position: int) -> Survivors:
        """The devices that a device masks with: it read their boxes, and was shown their tags."""
        return frozenset(self._tags_for(position).keys() & self.receipts[position].keys())

    def unmask(self, slot: int, lists: Lists | Survivors) -> None:
        """Ask for shares, telling each honest device in `lists` its own list of survivors.

        One list is told to all the survivors that it names. Signatures come first.
        """
        if not isinstance(lists, Mapping):
            lists = {p: lists for p in self.honest if p in lists}
        self.confirm(slot, lists)
        self.ask(slot, lists)

    def ask(self, slot: int, lists: Lists) -> None:
        """Ask each device for shares, with the signatures of its own list that count."""
        for p, survivors in lists.items():
            heard = self._linked_with(p) | {p}
            signatures = {
                q: s for q, s in sorted(self.signatures[slot, survivors].items()) if q in heard
            }
            told = self._try(p, UnmaskRequest(slot, self.members(survivors), signatures))
            if told is None:
                continue
            given = _as(UnmaskShares, told)
            for owner, kind, share in zip(given.positions, given.kinds, given.shares, strict=True):
                self._shares[slot, ShareKind(int(kind)), int(owner)][p] = share
        self.pool(slot)

    def confirm(self, slot: int, lists: Lists) -> None:
        """Gather signatures: from each honest device for its own list, from colluders for all."""
        for p, survivors in lists.items():
            if told := self._try(p, ConsistencyCheck(slot, self.members(survivors))):
                self.signatures[slot, survivors][p] = _as(ConsistencySignature, told).signature
        context = self.context(slot)
        for survivors in lists.values():
            members = self.members(survivors)
            self.signatures[slot, survivors] |= {
                p: c.sign(context, members) for p, c in self._colluders.items() if p in survivors
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

        Masks that two devices share cancel. Other masks are removed if a
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
        summed = self.opened[slot].keys() & positions
        near = {p: self.opened[slot][p] & self._linked_with(p) for p in {own} | summed}
        mutual = {peer for peer in near[own] & summed if own in near[peer]}
        for peer in near[own] - mutual:
            if (key := self._key(slot, own, peer)) is not None:
                yield self.pair(slot, own, peer, key)

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

    def _key(self, slot: int, own: int, peer: int) -> bytes | None:
        """The key of the link of two devices, if that is known."""
        if peer in self._colluders:
            return self._colluders[peer].key(slot, own)
        for one, other in ((own, peer), (peer, own)):
            recovery = self.secrets.get((slot, ShareKind.RECOVERY, one))
            if recovery is not None:
                column = self.params.columns.get(slot, 0)  # a guess: whole slots have none
                start = 2 * links.TAG_SIZE + column * _DEPOSIT_SIZE
                deposit = self.receipts[one][other][start:][links.TAG_SIZE : _DEPOSIT_SIZE]
                return links.hide(recovery, one, other, deposit)
        return None

    def pair(self, slot: int, own: int, peer: int, key: bytes) -> PairSecret:
        """The mask that a device has put on for a peer, from the key of their link."""
        context, near = self.context(slot), {peer: key}
        if self.params.slots[slot].whole:
            (pair,) = context.whole(near, self.members(self.opened[slot][own]))
        else:
            (pair,) = context.tolerant(near)
        return pair

    def context(self, slot: int) -> SlotContext:
        """What masks are bound to in a slot."""
        session_id = self.params.session_id(np.array(self.roster, dtype="<u4").tobytes())
        return SlotContext.of(self.params, session_id, slot, self.binding)

    def members(self, positions: Survivors) -> Members:
        """Some devices, as messages name them: over the roster."""
        return np.isin(np.arange(len(self.roster)), list(positions))


def served(devices: Devices, num_colluders: int = 0) -> EvilServer:
    """The server of some devices, of which the last ones collude."""
    own = devices.roster[len(devices.roster) - num_colluders :]
    colluders = [Colluder(client, devices.enrolment.credentials(client)) for client in own]
    return EvilServer(devices.params, devices.roster, devices.answer, colluders)


def opened(devices: Devices, num_colluders: int = 0) -> EvilServer:
    """The same, which has set a session up and opened its first slot."""
    evil = served(devices, num_colluders)
    evil.set_up()
    evil.open_slot(0)
    return evil


def against_first(devices: Devices, evil: EvilServer) -> Loot:
    """What the server can make of the first device's masked vector, and that device's vector."""
    refusals = tuple(evil.refusals.values())
    return Loot(evil.sum_over(0, {0}), devices.vector(0), refusals=refusals)


def _as(kind: type[Answer], told: Message | None) -> Answer:
    """A device's answer, whose type follows from the order of messages."""
    if not isinstance(told, kind):
        raise UsageError(f"a device answered {type(told).__name__}, not {kind.__name__}")
    return told
