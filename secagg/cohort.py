"""The cohort as a device knows it: its place, its neighbours, and who is still there.

The device computes its neighbours and the session id itself, and makes sure that its cohort only
shrinks. The checks are pure functions that refuse with `PeerError`.

Spec: §9.4, §9.5, §9.6, §9.9, §9.10.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from deltafl.secagg import keys, shamir, signing, wire
from deltafl.secagg.directory import Credentials
from deltafl.secagg.errors import PeerError, Refusal
from deltafl.secagg.graph import Graph, Members, Positions
from deltafl.secagg.identity import IdentityKey, verify
from deltafl.secagg.keys import KeyPair, PublicKey, SealedChannel
from deltafl.secagg.masks import Link
from deltafl.secagg.messages import AdvertiseKeys, Roster, RosterMessage, ShareDelivery, ShareKind
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.shamir import Limbs
from deltafl.secagg.signing import Signer


class Neighbour(NamedTuple):
    """What a device knows of one neighbour."""

    channel: SealedChannel
    link: Link
    mask_keys: tuple[PublicKey, ...]
    signer: Signer


@dataclass(frozen=True, slots=True)
class HeldShares:
    """The shares that a device holds of its neighbours' secrets, and possibly of its own.

    Attributes:
        positions: The owners of the secrets, ascending; shape (n,).
        shares: Shape (n, tolerant slots, kinds, 9).
    """

    positions: Positions
    shares: Limbs = field(repr=False)


class Cohort:
    """The devices of a session whose roster the device accepts.

    Spec: §9.5.

    Args:
        message: The roster.
        client: The device's id.
        params: The session's parameters.
        own: The device's sealing key pair.
        mask_keys: Its public mask keys.
        credentials: Its own.

    Attributes:
        ids: All devices, ascending.
        position: The device's.
        session_id: Bound to the parameters and the roster.
        holders: The positions of those who hold its shares. On a complete graph, it is one of them.
        neighbours: By position.
        members: Who is still there.
        heard: All devices except the neighbours whose boxes could not be read.

    Raises:
        PeerError: the roster is refused.
    """

    def __init__(
        self,
        message: RosterMessage,
        client: ClientId,
        params: SessionParams,
        own: KeyPair,
        mask_keys: Sequence[bytes],
        credentials: Credentials,
    ) -> None:
        ids = message.roster
        position = check_roster(ids, client, params)
        graph = Graph(len(ids), params.degree, params.graph_seed)
        expected = graph.neighbours(position).tolist()
        check_neighbours(position, message.keys.keys(), set(expected))
        check_keys([own.public, *mask_keys], message.keys)
        identities = check_credentials(credentials, params, ids, message.keys)
        credentials.directory.learn(identities)  # nothing is refused after this
        self._own_signer = Signer(credentials.identity.public, own.public)
        self._params = params
        self._own_shares: Limbs | None = None
        self.ids = ids
        self.position = position
        self.session_id = params.session_id(ids.astype("<u4").tobytes())
        self.holders = graph.holders_of(position)
        self.neighbours = {
            peer: self._neighbour(own, peer, message.keys[peer]) for peer in expected
        }
        self.members: Members = np.ones(len(ids), dtype=np.bool_)
        self.heard: Members = np.ones(len(ids), dtype=np.bool_)

    def _neighbour(self, own: KeyPair, peer: int, theirs: AdvertiseKeys) -> Neighbour:
        """What the device knows of a neighbour, from the neighbour's advertisement."""
        link = Link.between(own, peer, theirs.sealing_key, self.session_id)
        channel = SealedChannel(link.secret, own.public, theirs.sealing_key, self.position, peer)
        signer = Signer(theirs.credential.identity, theirs.sealing_key)
        return Neighbour(channel, link, theirs.mask_keys, signer)

    def shrink(self, members: Members) -> None:
        """Accept a set of devices as the cohort from now on.

        Raises:
            PeerError: it is over another roster, or `check_members` refuses it.
        """
        if len(members) != len(self.ids):
            raise PeerError(
                Refusal.MALFORMED, f"a set over {len(members)} of {len(self.ids)} devices"
            )
        check_members(members, self.members, self.heard, self.position, self.holders, self._params)
        self.members = members

    def neighbours_among(self, members: Members) -> list[int]:
        """The positions of those neighbours that are in a set."""
        present = members.tolist()
        return [position for position in self.neighbours if present[position]]

    def signer_at(self, position: int) -> Signer:
        """The device itself or a neighbour."""
        if position == self.position:
            return self._own_signer
        return self.neighbours[position].signer

    def signers_of(self, named: Collection[int], expected: Members) -> tuple[Signer, ...]:
        """The devices named with a sum, in their order.

        Raises:
            PeerError: they are not exactly those expected.
        """
        check_named(named, set(np.flatnonzero(expected).tolist()))
        return tuple(map(self.signer_at, named))

    def deal(self, secrets: Sequence[bytes], randomness: Randomness) -> dict[int, bytes]:
        """Split the device's secrets among the holders; the neighbours' boxes, by position."""
        shares = shamir.split(
            secrets, (self.holders + 1).tolist(), self._params.threshold, randomness
        )
        share_of = dict(zip(self.holders.tolist(), shares.astype("<u4", copy=False), strict=True))
        own_shares = share_of.pop(self.position, None)
        if own_shares is not None:
            self._own_shares = own_shares.reshape(-1, len(ShareKind), shamir.NUM_LIMBS)
        return {
            peer: self.neighbours[peer].channel.seal(share.tobytes(), randomness)
            for peer, share in share_of.items()
        }

    def open_boxes(self, message: ShareDelivery) -> tuple[HeldShares, set[int]]:
        """The shares in the neighbours' boxes, and the neighbours whose box held none.

        Spec: §9.6.

        Raises:
            PeerError: the boxes are not those of exactly the neighbours that are left.
        """
        params = self._params
        expected = set(self.neighbours_among(message.members))
        check_neighbours(self.position, message.boxes.keys(), expected)
        senders, plaintexts = list[int](), list[bytes]()
        for sender, box in message.boxes.items():
            plaintext = self.neighbours[sender].channel.open(box)
            if plaintext is not None and len(plaintext) == wire.plaintext_size(params):
                senders.append(sender)
                plaintexts.append(plaintext)
        limbs = np.frombuffer(b"".join(plaintexts), dtype="<u4").astype(np.uint32)
        shape = (len(senders), len(params.columns), len(ShareKind), shamir.NUM_LIMBS)
        shares = limbs.reshape(shape)
        good = (shares < shamir.PRIME).all(axis=(1, 2, 3))
        positions, shares = np.array(senders, dtype=np.int64)[good], shares[good]
        refused = expected.difference(positions.tolist())
        if self._own_shares is not None:
            place = int(np.searchsorted(positions, self.position))
            positions = np.insert(positions, place, self.position)
            shares = np.insert(shares, place, self._own_shares, axis=0)
        self.heard[list(refused)] = False
        return HeldShares(positions, shares), refused

    def check_quorum(
        self, signatures: Mapping[int, bytes], statement: Callable[[PublicKey], bytes]
    ) -> None:
        """Check that t holders of the device's shares agree to its cohort.

        They are neighbours whose boxes it could read, and on a complete graph itself.

        Args:
            signatures: By position.
            statement: What a device with this sealing key signs, if it agrees.

        Raises:
            PeerError: they are fewer.
        """
        heard = self.heard
        signers = {
            position: self.signer_at(position) for position in self.neighbours if heard[position]
        }
        if self._own_shares is not None:
            signers[self.position] = self.signer_at(self.position)
        check_quorum(signatures, statement, signers, self.members, self._params.threshold)


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


def check_keys(own: Collection[bytes], advertised: Mapping[int, AdvertiseKeys]) -> None:
    """Refuse weak keys, and any key, the device's own or a peer's, that occurs more than once.

    Spec: §9.5.

    Raises:
        PeerError: there is such a key.
    """
    seen = {keys.canonical(key) for key in own}
    for position, message in advertised.items():
        for key in (message.sealing_key, *message.mask_keys):
            if (spelling := keys.canonical(key)) in seen:
                raise PeerError(Refusal.BAD_KEY, f"position {position}: a key named twice")
            if keys.is_low_order(key):
                raise PeerError(Refusal.BAD_KEY, f"position {position}: a low-order key")
            seen.add(spelling)


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
        statement = signing.advertisement(params, client, message.sealing_key, message.mask_keys)
        if not verify(credential.identity, statement, credential.signature):
            raise PeerError(Refusal.BAD_SIGNATURE, f"the keys of device {client}")
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
        statement: What a device with this sealing key signs, if it agrees to the list.
        signers: The holders of this device's shares whose own boxes it could read, by position.
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
        if not verify(signer.identity, statement(signer.sealing_key), signature):
            raise PeerError(Refusal.BAD_SIGNATURE, f"the list of devices, by position {position}")
    if len(signatures) < threshold:
        raise PeerError(
            Refusal.TOO_FEW_SIGNATURES, f"{len(signatures)}, fewer than t = {threshold}"
        )


def check_members(
    members: Members,
    before: Members,
    heard: Members,
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
        heard: All devices except the neighbours whose boxes could not be read. The server could
            have made up the keys it shows, but a box that opens was made for this device, by
            somebody who is there now.
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
    counted = members & heard
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
