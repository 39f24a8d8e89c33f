"""The cohort as a device knows it: its place, its neighbours, its links, and who is still there.

The device computes its neighbours and the session id itself, and makes sure that its cohort only
shrinks. The checks are pure functions that refuse with `PeerError`.

Spec: §9.4, §9.5, §9.6, §9.9, §9.10.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np

from deltafl.secagg import keys, links, shamir, signing, wire
from deltafl.secagg.directory import Credentials
from deltafl.secagg.errors import PeerError, Refusal
from deltafl.secagg.graph import Graph, Members, Positions
from deltafl.secagg.identity import IdentityKey, verify
from deltafl.secagg.keys import PublicKey, Recipient
from deltafl.secagg.links import End
from deltafl.secagg.messages import AdvertiseKeys, Roster, RosterMessage, ShareDelivery, ShareKind
from deltafl.secagg.params import ClientId, SessionId, SessionParams
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.shamir import Limbs
from deltafl.secagg.signing import Signer


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """The devices of a session whose roster the device accepts.

    Spec: §9.5.

    Attributes:
        params: The session's parameters.
        position: The device's.
        session_id: Bound to the parameters and the roster.
        holders: The positions of those who hold its shares. On a complete graph, it is one of them.
        own: The device itself.
        neighbours: By position.
        members: Who is still there.
        linked: All devices except the neighbours with which it has no link.
    """

    params: SessionParams
    position: int
    session_id: SessionId
    holders: Positions
    own: Signer
    neighbours: Mapping[int, Signer]
    members: Members
    linked: Members

    @classmethod
    def accept(
        cls,
        message: RosterMessage,
        client: ClientId,
        params: SessionParams,
        key: PublicKey,
        credentials: Credentials,
    ) -> "Cohort":
        """The cohort of a roster.

        Args:
            message: The roster.
            client: The device's id.
            params: The session's parameters.
            key: The device's public key.
            credentials: Its own.

        Raises:
            PeerError: the roster is refused.
        """
        ids = message.roster
        position = check_roster(ids, client, params)
        graph = Graph(len(ids), params.degree, params.graph_seed)
        expected = graph.neighbours(position).tolist()
        check_neighbours(position, message.keys.keys(), set(expected))
        check_keys(key, message.keys)
        identities = check_credentials(credentials, params, ids, message.keys)
        credentials.directory.learn(identities)  # nothing is refused after this
        everyone: Members = np.ones(len(ids), dtype=np.bool_)
        return cls(
            params,
            position,
            params.session_id(ids.astype("<u4").tobytes()),
            graph.holders_of(position),
            Signer(credentials.identity.public, key),
            {
                peer: Signer(message.keys[peer].credential.identity, message.keys[peer].key)
                for peer in expected
            },
            everyone,
            everyone,
        )

    def shrunk(self, members: Members) -> "Cohort":
        """The cohort after a set of devices was accepted as it.

        Raises:
            PeerError: it is over another roster, or `check_members` refuses it.
        """
        if len(members) != len(self.members):
            raise PeerError(
                Refusal.MALFORMED, f"a set over {len(members)} of {len(self.members)} devices"
            )
        own = self.position, self.holders, self.params
        check_members(members, self.members, self.linked, *own)
        return replace(self, members=members)

    def confirmed(self, tags: Mapping[int, bytes], expected: Mapping[int, bytes]) -> "Cohort":
        """The cohort with links to those neighbours only that have shown the tags expected of them.

        Spec: §9.6.

        Raises:
            PeerError: a tag is no neighbour's.
        """
        if unknown := tags.keys() - self.neighbours.keys():
            raise PeerError(Refusal.UNKNOWN_NEIGHBOUR, f"positions {sorted(unknown)[:5]}")
        linked = self.linked.copy()
        for peer in self.neighbours:
            linked[peer] = peer in expected and tags.get(peer) == expected[peer]
        return replace(self, linked=linked)

    def neighbours_among(self, members: Members) -> list[int]:
        """The positions of those neighbours that are in a set."""
        present = members.tolist()
        return [position for position in self.neighbours if present[position]]

    def signer_at(self, position: int) -> Signer:
        """The device itself or a neighbour."""
        return self.own if position == self.position else self.neighbours[position]

    def signers_of(self, named: Collection[int], expected: Members) -> tuple[Signer, ...]:
        """The devices named with a sum, in their order.

        Raises:
            PeerError: they are not exactly those expected.
        """
        check_named(named, set(np.flatnonzero(expected).tolist()))
        return tuple(map(self.signer_at, named))

    def check_quorum(
        self, signatures: Mapping[int, bytes], statement: Callable[[PublicKey], bytes]
    ) -> None:
        """Check that t holders of the device's shares agree to its cohort.

        They are neighbours with whom it has a link, and on a complete graph itself.

        Args:
            signatures: By position.
            statement: What a device with this key signs, if it agrees.

        Raises:
            PeerError: they are fewer.
        """
        linked = self.linked
        signers = {p: self.signer_at(p) for p in self.holders.tolist() if linked[p]}
        check_quorum(signatures, statement, signers, self.members, self.params.threshold)

    def end(self, position: int, half: bytes = b"", box: bytes = b"") -> End:
        """The device itself or a neighbour, as an end of a link."""
        signer = self.signer_at(position)
        return End(position, signer.identity, signer.key, half, box)


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """What a device has drawn and shared out.

    Attributes:
        sent: The device's end of the link with each neighbour, by position.
        seeds: Of its self masks, one for each tolerant slot.
        recovery: Its recovery keys, likewise.
        own_shares: Its own shares of these, if it is one of the holders; shape (0 or 1, tolerant
            slots, kinds, 9).
    """

    sent: Mapping[int, End]
    seeds: tuple[bytes, ...] = field(repr=False)
    recovery: tuple[bytes, ...] = field(repr=False)
    own_shares: Limbs = field(repr=False)


def deal(
    cohort: Cohort, randomness: Randomness, primitives: Primitives
) -> tuple[Dealt, dict[int, bytes]]:
    """Draw the device's secrets and split them among the holders.

    Spec: §9.5, §9.12.

    Returns:
        What the device keeps, and the neighbours' boxes by position.
    """
    params = cohort.params
    drawn = [randomness(shamir.SECRET_SIZE) for _ in range(2 * len(params.columns))]
    points = (cohort.holders + 1).tolist()
    shares = shamir.split(drawn, points, params.threshold, randomness).astype("<u4", copy=False)
    own = cohort.holders == cohort.position
    share_of = dict(zip(cohort.holders.tolist(), shares, strict=True))
    sent, boxes = dict[int, End](), dict[int, bytes]()
    for peer, signer in cohort.neighbours.items():
        half = randomness(links.HALF_SIZE)
        info = links.info(cohort.session_id, cohort.end(cohort.position), cohort.end(peer))
        box = primitives.seal(half + share_of[peer].tobytes(), signer.key, info)
        boxes[peer], sent[peer] = box, cohort.end(cohort.position, half, sha256(box).digest())
    shape = (np.count_nonzero(own), len(params.columns), len(ShareKind), shamir.NUM_LIMBS)
    own_shares = shares[own].reshape(shape)
    return Dealt(sent, tuple(drawn[::2]), tuple(drawn[1::2]), own_shares), boxes


@dataclass(frozen=True, slots=True, eq=False)
class Secrets:
    """What a device keeps for the slots that are still to come.

    Attributes:
        pairs: For each slot, the keys of its links by the neighbour's position.
        seeds: Of its self masks, by tolerant slot.
        owners: Whose shares it holds, ascending; shape (n,).
        shares: By tolerant slot; shape (n, kinds, 9).
    """

    pairs: Mapping[int, Mapping[int, bytes]] = field(repr=False)
    seeds: Mapping[int, bytes] = field(repr=False)
    owners: Positions
    shares: Mapping[int, Limbs] = field(repr=False)

    def after(self, slot: int, *, keep_shares: bool = False) -> "Secrets":
        """What is left when a slot was used or passed. Spec: §9.7.

        Args:
            slot: Its index.
            keep_shares: Whether its shares may still be asked for.
        """
        return replace(
            self,
            pairs={i: of for i, of in self.pairs.items() if i > slot},
            seeds={i: of for i, of in self.seeds.items() if i > slot},
            shares={i: of for i, of in self.shares.items() if i > slot - keep_shares},
        )

    def among(self, cohort: Cohort) -> "Secrets":
        """What is left without the neighbours with which there is no link."""
        linked = cohort.linked
        pairs = {
            slot: {peer: key for peer, key in of.items() if linked[peer]}
            for slot, of in self.pairs.items()
        }
        kept = linked[self.owners]
        shares = {slot: of[kept] for slot, of in self.shares.items()}
        return replace(self, pairs=pairs, owners=self.owners[kept], shares=shares)


def open_boxes(
    cohort: Cohort, own: Recipient, dealt: Dealt, message: ShareDelivery, primitives: Primitives
) -> tuple[Secrets, dict[int, bytes], dict[int, bytes]]:
    """What a device makes of its neighbours' boxes.

    Spec: §9.6.

    Returns:
        Its secrets; what its receipt says, and the tags that its neighbours should show it, both by
        position, of those whose boxes could be read.

    Raises:
        PeerError: the boxes are not those of exactly the neighbours that are left.
    """
    params, position = cohort.params, cohort.position
    check_neighbours(position, message.boxes.keys(), set(cohort.neighbours_among(message.members)))
    receipt, expected = dict[int, bytes](), dict[int, bytes]()
    pairs: dict[int, dict[int, bytes]] = {slot: {} for slot in range(len(params.slots))}
    owners, held = list[int](), list[Limbs]()
    shape = (len(params.columns), len(ShareKind), shamir.NUM_LIMBS)
    for sender, box in message.boxes.items():
        info = links.info(cohort.session_id, cohort.end(sender), cohort.end(position))
        content = primitives.open(own, box, info)
        if content is None or len(content) != wire.plaintext_size(params):
            continue
        half, shares = content[: links.HALF_SIZE], content[links.HALF_SIZE :]
        limbs = np.frombuffer(shares, dtype="<u4").astype(np.uint32).reshape(shape)
        if (limbs >= shamir.PRIME).any():
            continue
        ends = dealt.sent[sender], cohort.end(sender, half, sha256(box).digest())
        low, high = ends if position < sender else (ends[1], ends[0])
        link = primitives.apply(links.link, cohort.session_id, low, high, len(params.slots))
        for slot, key in enumerate(link.keys):
            pairs[slot][sender] = key
        of_slots = (
            links.key_digest(link.keys[slot])
            + links.hide(dealt.recovery[column], position, sender, link.keys[slot])
            for slot, column in params.columns.items()
        )
        is_high = position > sender
        receipt[sender] = b"".join([link.tags[is_high], links.tags_digest(link.tags), *of_slots])
        expected[sender] = link.tags[not is_high]
        owners.append(sender)
        held.append(limbs)
    if len(dealt.own_shares):
        place = int(np.searchsorted(owners, position))
        owners.insert(place, position)
        held.insert(place, dealt.own_shares[0])
    stacked = np.array(held, dtype=np.uint32).reshape(len(held), *shape)
    secrets = Secrets(
        pairs,
        dict(zip(params.columns, dealt.seeds, strict=True)),
        np.array(owners, dtype=np.int64),
        {slot: stacked[:, column] for slot, column in params.columns.items()},
    )
    return secrets, receipt, expected


def check_roster(roster: Roster, own_id: ClientId, params: SessionParams) -> int:
    """The device's position in a roster that is large enough.

    Spec: §9.5.

    Raises:
        PeerError: the roster is too small, or lacks the device.
    """
    fewest = max(params.min_cohort, params.min_roster)
    if len(roster) < fewest:
        raise PeerError(Refusal.COHORT_TOO_SMALL, f"{len(roster)} devices, fewer than {fewest}")
    if own_id not in roster:
        raise PeerError(Refusal.NOT_IN_ROSTER, f"no {own_id} among {len(roster)} ids")
    return int(np.searchsorted(roster, own_id))


def check_neighbours(own: int, named: Collection[int], expected: set[int]) -> None:
    """Check that the positions named are exactly those of some neighbours.

    Spec: §9.5, §9.6.

    Raises:
        PeerError: the device itself or a stranger is named, or a neighbour is missing.
    """
    if own in named:
        raise PeerError(Refusal.NAMED_AS_ITS_OWN_PEER, f"position {own}")
    check_named(named, expected)


def check_named(named: Collection[int], expected: set[int]) -> None:
    """Check that the positions named are exactly those expected.

    Spec: §9.5, §9.6, §9.13.

    Raises:
        PeerError: one is not expected, or one is missing.
    """
    names = set(named)
    if unknown := names - expected:
        raise PeerError(Refusal.UNKNOWN_NEIGHBOUR, f"positions {sorted(unknown)[:5]}")
    if missing := expected - names:
        raise PeerError(Refusal.MISSING_NEIGHBOUR, f"positions {sorted(missing)[:5]}")


def check_keys(own: bytes, advertised: Mapping[int, AdvertiseKeys]) -> None:
    """Refuse keys to which nothing can be sealed, and any key that occurs more than once.

    Spec: §9.5.

    Raises:
        PeerError: there is such a key.
    """
    seen = {own}
    for position, message in advertised.items():
        if message.key in seen:
            raise PeerError(Refusal.BAD_KEY, f"position {position}: a key named twice")
        if not keys.is_key(message.key):
            raise PeerError(Refusal.BAD_KEY, f"position {position}: not an X-Wing key")
        seen.add(message.key)


def check_credentials(
    credentials: Credentials,
    params: SessionParams,
    roster: Roster,
    advertised: Mapping[int, AdvertiseKeys],
) -> dict[ClientId, IdentityKey]:
    """The neighbours' identities, by which their keys are signed for this session.

    Spec: §9.5.

    Raises:
        PeerError: a signature is wrong, the directory does not accept the identity, or
            two neighbours have one identity.
    """
    owners = dict[IdentityKey, ClientId]()
    for position, message in advertised.items():
        client = ClientId(int(roster[position]))
        credential = message.credential
        statement = signing.advertisement(params, client, message.key)
        if not verify(credential.identity, statement, credential.signature):
            raise PeerError(Refusal.BAD_SIGNATURE, f"the key of device {client}")
        identity = credential.identity
        if identity in owners or not credentials.directory.accepts(client, identity):
            raise PeerError(
                Refusal.UNKNOWN_IDENTITY,
                f"the directory does not accept the key that came for device {client}",
            )
        owners[identity] = client
    return {client: identity for identity, client in owners.items()}


def check_quorum(
    signatures: Mapping[int, bytes],
    statement: Callable[[PublicKey], bytes],
    signers: Mapping[int, Signer],
    agreed: Members,
    threshold: int,
) -> None:
    """Check that enough holders of this device's shares signed the list that the device signed.

    Spec: §9.9.

    Args:
        signatures: By position.
        statement: What a device with this key signs, if it agrees to the list.
        signers: The holders of this device's shares with whom it has a link, by position.
        agreed: The list that this device signed.
        threshold: t.

    Raises:
        PeerError: the list has fewer than t valid signatures.
    """
    for position, signature in signatures.items():
        signer = signers.get(position)
        if signer is None or not agreed[position]:
            raise PeerError(
                Refusal.UNKNOWN_NEIGHBOUR, f"position {position}, who has no say, signed"
            )
        if not verify(signer.identity, statement(signer.key), signature):
            raise PeerError(Refusal.BAD_SIGNATURE, f"the list of devices, by position {position}")
    if len(signatures) < threshold:
        raise PeerError(
            Refusal.TOO_FEW_SIGNATURES, f"{len(signatures)}, fewer than t = {threshold}"
        )


def check_members(
    members: Members,
    before: Members,
    linked: Members,
    own: int,
    holders: Positions,
    params: SessionParams,
) -> None:
    """Accept a set of devices as the cohort from now on.

    If a device could return, or the holders could fall below the threshold, the server could remove
    the masks that hide this device's vector.

    Spec: §9.4, §9.10.

    Args:
        members: The new cohort, over the roster.
        before: The cohort so far.
        linked: All devices except the neighbours with which it has no link. No mask is shared with
            these, so they hide nothing.
        own: The device's position.
        holders: The positions of the holders of its shares.
        params: The session's parameters.

    Raises:
        PeerError: the cohort grew, leaves the device out, or is too small.
    """
    if (members & ~before).any():
        raise PeerError(Refusal.COHORT_GREW, "a device that had left is back")
    if not members[own]:
        raise PeerError(Refusal.DEVICE_LEFT_OUT, f"position {own} is asked but left out")
    counted = members & linked
    if (num_members := int(np.count_nonzero(counted))) < params.min_cohort:
        raise PeerError(
            Refusal.COHORT_TOO_SMALL,
            f"{num_members} devices are left, fewer than {params.min_cohort}",
        )
    if (num_left := int(np.count_nonzero(counted[holders]))) < params.threshold:
        raise PeerError(
            Refusal.TOO_FEW_NEIGHBOURS,
            f"{num_left} who hold its shares are left, fewer than t = {params.threshold}",
        )
