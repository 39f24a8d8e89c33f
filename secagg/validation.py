"""What a device checks of the server's messages: pure functions that refuse with `PeerError`."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from deltafl.secagg import keys, signing
from deltafl.secagg.directory import Credentials
from deltafl.secagg.errors import PeerError, Refusal
from deltafl.secagg.graph import Members, Positions
from deltafl.secagg.identity import IdentityKey, verify
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.messages import AdvertiseKeys, Roster
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.signing import Signer


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
        PeerError: a signature is wrong or missing, the directory does not accept the identity, or
            two neighbours have one identity.
    """
    owners = dict[IdentityKey, ClientId]()
    for position, message in advertised.items():
        client = ClientId(int(roster[position]))
        credential = message.credential
        statement = signing.advertisement(params, client, message.sealing_key, message.mask_keys)
        if credential is None or not verify(credential.identity, statement, credential.signature):
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
    before: Members | None,
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
        before: The cohort so far; None at first.
        heard: All devices except the neighbours whose boxes could not be read. The server could
            have made up the keys it shows, but a box that opens was made for this device, by
            somebody who is there now.
        own: The device's position.
        holders: The positions of the holders of its shares.
        params: The session's parameters.

    Raises:
        PeerError: the cohort grew, leaves the device out, or is too small.
    """
    if before is not None and (members & ~before).any():
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
