"""Computes again what devices made of the secrets that they drew: keys, commitments, boxes, masks.

A simulation records the secrets of its devices beside their values, in the truth file. With them
the auditor does what a device does, with the same primitives, and compares byte by byte.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from deltafl.protocol.configuration import binding
from deltafl.protocol.messages import Ask
from deltafl.secagg import keys, prg, ring
from deltafl.secagg.errors import PeerError
from deltafl.secagg.graph import Graph, Members
from deltafl.secagg.keys import KeyPair, SealedChannel
from deltafl.secagg.masks import Link, SlotContext, seed_commitment, subtracts
from deltafl.secagg.messages import AdvertiseKeys
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.truth_rounds import SecretsOfRound
from deltafl.sim.inspect.audit.views import SessionView, SlotView


@dataclass(frozen=True, slots=True)
class OwnSecrets:
    """What a device drew in a session.

    Attributes:
        sealing: Of its sealing key.
        mask_keys: Of its mask keys, one for each tolerant slot.
        seeds: Its self-mask seeds, one for each tolerant slot; none if it never drew them.
    """

    sealing: KeyPair
    mask_keys: tuple[KeyPair, ...]
    seeds: tuple[bytes, ...]

    @property
    def shared(self) -> list[bytes]:
        """The secrets that it shares: of each tolerant slot its seed, then its mask key."""
        pairs = zip(self.seeds, self.mask_keys, strict=True)
        return [secret for seed, pair in pairs for secret in (seed, pair.secret)]

    @classmethod
    def of(cls, drawn: tuple[bytes, ...], columns: int) -> "OwnSecrets | None":
        """The draws by their roles; None if the device did not come to draw all its keys."""
        if len(drawn) < 1 + columns:
            return None
        sealing, *mask_keys = [keys.key_pair(secret) for secret in drawn[: 1 + columns]]
        seeds = drawn[1 + columns : 1 + 2 * columns]
        return cls(sealing, tuple(mask_keys), seeds if len(seeds) == columns else ())


@dataclass(eq=False)
class SessionSecrets:
    """A session whose devices' secrets are recorded.

    Args:
        session: What the server saw of it; its roster was sent.
        secrets: What devices drew in the round.
    """

    session: SessionView
    secrets: SecretsOfRound
    _links: dict[tuple[int, int], Link | None] = field(default_factory=dict)
    _pairs: dict[tuple[int, int, int, bytes], bytes | None] = field(default_factory=dict)

    @cached_property
    def ids(self) -> list[int]:
        """Its roster."""
        found: list[int] = self.session.ids.tolist()
        return found

    @cached_property
    def graph(self) -> Graph:
        """Its graph."""
        return self.session.graph

    @cached_property
    def own(self) -> Mapping[int, OwnSecrets]:
        """What is recorded of its devices, by device."""
        columns, tag = len(self.session.params.columns), self.session.params.tag
        found = {
            device: OwnSecrets.of(drawn, columns)
            for (of, device), drawn in self.secrets.items()
            if of == tag
        }
        return {device: own for device, own in found.items() if own is not None}

    @cached_property
    def public(self) -> Mapping[int, AdvertiseKeys]:
        """The keys that devices advertised, by device."""
        return {device: message for device, message, _ in self.session.advertised()}

    def other_keys(self) -> Iterator[int]:
        """Devices whose keys, or commitments, are not those of what they drew."""
        params, session_id = self.session.params, self.session.session_id
        for device, own in self.own.items():
            message = self.public.get(device)
            drawn = (own.sealing.public, *(pair.public for pair in own.mask_keys))
            is_own = message is None or (message.sealing_key, *message.mask_keys) == drawn
            at, made = self.session.positions.get(device), self.session.commitments.get(device)
            if made is not None and at is not None:
                promised = tuple(
                    seed_commitment(session_id, slot, at, seed)
                    for slot, seed in zip(params.columns, own.seeds, strict=False)
                )
                is_own = is_own and tuple(map(bytes, made)) == promised
            if not is_own:
                yield device

    def open(self, sender: int, recipient: int, box: bytes) -> bytes | None:
        """What a box holds; None if it was not sealed by the sender's key for the recipient's.

        Args:
            sender: Roster position.
            recipient: Roster position.
            box: The box.
        """
        link, ids = self._link(sender, recipient), self.ids
        if link is None:
            return None
        own, peer = (self.public[ids[at]].sealing_key for at in (recipient, sender))
        return SealedChannel(link.secret, own, peer, recipient, sender).open(box)

    def unmasked(self, slot: SlotView, seen: Seen, words: Vector) -> Vector | None:
        """A masked vector without its masks, in the ring; None where they are not all known.

        Args:
            slot: Its slot.
            seen: Its message.
            words: Its words.
        """
        session, device = self.session, seen.record.peer
        own, at = self.own.get(device), session.positions.get(device)
        asked = next((one for one in slot.opened if one.record.peer == device), None)
        if own is None or at is None or asked is None or session.context is None:
            return None
        members, envelope = asked.content.members, asked.content.envelope
        if members is None or len(members) != len(self.ids) or not isinstance(envelope, Ask):
            return None
        bound = binding(session.context, envelope.question)
        context = SlotContext.of(session.params, session.session_id, slot.index, bound)
        pairs = self._pairwise(slot, at, members, context)
        if pairs is None:
            return None
        total: Vector = words.copy()
        removed = [key for peer, key in pairs if not subtracts(at, peer)]
        if not session.is_whole_slot(slot):
            column = session.params.columns[slot.index]
            if column >= len(own.seeds):
                return None
            removed.append(context.self_mask_key(own.seeds[column]))
        prg.add_masks(total, [key for peer, key in pairs if subtracts(at, peer)], removed)
        ring.reduce(total, session.params.slots[slot.index].ring_bits)
        return total

    def _pairwise(
        self, slot: SlotView, at: int, members: Members, context: SlotContext
    ) -> list[tuple[int, bytes]] | None:
        """The keys of the masks that a device shares with its neighbours, by position."""
        near = [peer for peer in self.graph.neighbours(at).tolist() if members[peer]]
        is_whole = self.session.is_whole_slot(slot)
        info = context.whole_slot_info(members) if is_whole else context.info
        found = []
        for peer in near:
            pair = (min(at, peer), max(at, peer), slot.index, info)
            if pair not in self._pairs:
                self._pairs[pair] = self._pair_key(slot, at, peer, context, info)
            key = self._pairs[pair]
            if key is None:
                return None
            found.append((peer, key))
        return found

    def _pair_key(
        self, slot: SlotView, at: int, peer: int, context: SlotContext, info: bytes
    ) -> bytes | None:
        if self.session.is_whole_slot(slot):
            link = self._link(at, peer)
            return None if link is None else link.whole(info).key()
        ids, column = self.ids, self.session.params.columns[slot.index]
        theirs = self.public.get(ids[peer])
        if theirs is None:
            return None
        own = self.own[ids[at]].mask_keys[column]
        try:
            (shared,) = context.pair_secrets(own, [peer], [theirs.mask_keys[column]])
        except PeerError:
            return None
        return shared.key()

    def _link(self, one: int, other: int) -> Link | None:
        """The agreement of two devices, from what one of them drew."""
        pair = (min(one, other), max(one, other))
        if pair not in self._links:
            self._links[pair] = self._agree(*pair)
        return self._links[pair]

    def _agree(self, one: int, other: int) -> Link | None:
        ids = self.ids
        if max(one, other) >= len(ids):
            return None
        for own, peer in ((one, other), (other, one)):
            drawn, theirs = self.own.get(ids[own]), self.public.get(ids[peer])
            if drawn is not None and theirs is not None and ids[own] in self.public:
                try:
                    return Link.between(
                        drawn.sealing, peer, theirs.sealing_key, self.session.session_id
                    )
                except PeerError:
                    return None
        return None
