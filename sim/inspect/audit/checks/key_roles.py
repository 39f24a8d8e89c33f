"""Is every key its device's own, and of one role?"""

from collections.abc import Iterator
from typing import Final

from deltafl.secagg import keys, pedersen
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.messages import AdvertiseKeys
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.public_keys import (
    is_in_group,
    is_multiple_of_base,
    is_on_curve,
    of_edwards,
)
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView

RULES: Final = Rules.read(
    """\
keys.shared-identity high device A4: several devices have one identity
    Whoever has this identity signs for several devices. They count as several wherever signatures
    are counted.
keys.two-roles high device A6: one secret has several roles
    Whoever learns it in one role can use it in the other: a rebuilt secret may open boxes, or
    sign.
keys.no-point high device A3: a public key is not on the curve
    Nobody has its secret. Its bytes may be a message, and masks that are agreed with it can be
    weak.
commitments.outside-group high device A15: a commitment is not of prime order, or oddly encoded
    The sum may open as before. What was added to the commitment may be a message that everybody
    can read.
keys.outside-group high device A15: a key is no multiple of the base point, or is not encoded as one
    Agreements work as before. What was added to the key, or to its encoding, may be a message
    that everybody can read.
"""
)


class KeyRoles(Check):
    """Compares keys with one another across roles, and looks for those that are no device's own."""

    name = "roles of keys"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._owners: dict[bytes, tuple[int, Evidence]] = {}  # of identities
        self._shared: set[tuple[int, int]] = set()  # pairs of devices that were named

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the keys of a round's sessions."""
        for session in over.view.sessions.values():
            yield from _points(session)
            yield from self._identities(session)
            yield from self._roles(session)

    def coverage(self, tally: Tally) -> Coverage:
        """Keys are in whole messages only."""
        return Coverage(tally.whole, f"{tally.whole} of {tally.rounds} rounds are recorded whole")

    def _identities(self, session: SessionView) -> Iterator[Finding]:
        for device, message, seen in session.advertised():
            if message.credential is None:
                continue
            identity = bytes(message.credential.identity)
            owner, place = self._owners.setdefault(identity, (device, seen.place))
            if owner != device and (owner, device) not in self._shared:
                self._shared.add((owner, device))
                detail = f"devices {owner} and {device} have one identity"
                yield RULES.found("keys.shared-identity", detail, [seen.place, place])

    def _roles(self, session: SessionView) -> Iterator[Finding]:
        """Keys and secrets that come up in two roles of a session."""
        roles: dict[bytes, str] = {}
        for device, message, _ in session.advertised():
            for role, public in _public(message):
                roles.setdefault(keys.canonical(public), f"{role} of device {device}")
        for device, message, seen in session.advertised():
            if message.credential is None:
                continue
            own = message.credential.identity
            for alike in (keys.canonical(own), of_edwards(own)):
                if alike in roles:
                    detail = f"the identity of device {device} is the {roles[alike]}"
                    yield RULES.found("keys.two-roles", detail, [seen.place])


def _public(message: AdvertiseKeys) -> Iterator[tuple[str, PublicKey]]:
    """The keys of an advertisement, with their roles."""
    yield "sealing key", message.sealing_key
    for public in message.mask_keys:
        yield "mask key", public


def _points(session: SessionView) -> Iterator[Finding]:
    """Keys that nobody can have the secret of, or that say something."""
    for device, message, seen in session.advertised():
        for role, public in _public(message):
            if not is_multiple_of_base(public) and not keys.is_low_order(public):
                rule = "keys.outside-group" if is_on_curve(public) else "keys.no-point"
                yield RULES.found(rule, f"the {role} of device {device}: {public!r}", [seen.place])
        if message.credential is None:
            continue
        identity = bytes(message.credential.identity)
        if not is_in_group(identity):
            detail = f"the identity of device {device}: {identity!r}"
            yield RULES.found("keys.outside-group", detail, [seen.place])
    for slot in session.slots.values():
        places = {seen.record.peer: seen.place for seen in slot.inputs}
        for device, committed in slot.committed.items():
            point = committed[: pedersen.COMMITMENT_SIZE]
            if not is_in_group(point):
                detail = f"that of device {device} in slot {slot.index}: {point!r}"
                yield RULES.found("commitments.outside-group", detail, [places[device]])
