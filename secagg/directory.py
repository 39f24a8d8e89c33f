"""The directory: which identity key belongs to which device.

An active server can impersonate any device whose key the directory does not already know. So the
directory must not come from the server. It is either a list that people compare, or it is learned
at first contact, after which a device's key at least cannot change. Simulated devices, which all
know each other, have an `Enrolment`.

Spec: §6.2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Self

from deltafl.secagg import labels
from deltafl.secagg.errors import UsageError
from deltafl.secagg.identity import (
    IDENTITY_SIZE,
    SEED_SIZE,
    Identity,
    IdentityKey,
    grouped,
    identity,
)
from deltafl.secagg.labels import Label
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.params import ClientId
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.threat import MAX_DEVICES

_ID_LIMIT: Final = 2**32
_ENTRY: Final = re.compile(r"(0|[1-9][0-9]{0,9})[ \t]+([0-9a-fA-F]{64})")


class Directory(Protocol):
    """Decides whether a device is who it says it is."""

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether a device may go by this key. To ask changes nothing.

        Args:
            client: The device's id.
            key: Its public key.
        """
        ...

    def learn(self, keys: Mapping[ClientId, IdentityKey]) -> None:
        """Take note of keys that were accepted. A directory that does not learn does nothing.

        Args:
            keys: By id; no key twice. The message that showed them was accepted as a whole, and
                each of them verified a signature: others could be claimed by anybody.
        """
        del keys


@dataclass(frozen=True, slots=True)
class TrustedKeys(Directory):
    """A closed list: exactly these devices, exactly these keys.

    Attributes:
        keys: 32-byte public keys by id in [0, 2^32); at most `MAX_DEVICES`, no key twice.

    Raises:
        UsageError: an id or key is invalid, a key occurs twice, or there are too many devices.
    """

    keys: Mapping[ClientId, IdentityKey]

    def __post_init__(self) -> None:
        if len(self.keys) > MAX_DEVICES:
            raise UsageError(f"{len(self.keys)} devices in a directory of at most {MAX_DEVICES}")
        owners: dict[IdentityKey, ClientId] = {}
        for client, key in self.keys.items():
            if not 0 <= client < _ID_LIMIT:
                raise UsageError(f"device id {client} is not in [0, {_ID_LIMIT})")
            if len(key) != IDENTITY_SIZE:
                raise UsageError(
                    f"the key of device {client} has {len(key)} bytes, not {IDENTITY_SIZE}"
                )
            if key in owners:
                raise UsageError(f"devices {owners[key]} and {client} have one and the same key")
            owners[key] = client
        # Sorted for `dump`; copied so that the caller cannot change it later.
        object.__setattr__(self, "keys", dict(sorted(self.keys.items())))

    @classmethod
    def parse(cls, text: str) -> Self:
        r"""Read a list with one device per line: its id, and its key as 64 hex digits.

        Text after `#` is a comment; blank lines are ignored; the lines may be in any order.

        >>> TrustedKeys.parse("# our phones\n\n7 " + "ab" * 32 + "  # the old one").keys.keys()
        dict_keys([7])

        Raises:
            UsageError: a line is malformed, or repeats an id or a key; the message names the line.
        """
        keys: dict[ClientId, IdentityKey] = {}
        lines: dict[int | bytes, int] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            entry = line.partition("#")[0].strip(" \t\r")
            if not entry:
                continue
            match = _ENTRY.fullmatch(entry)
            if match is None or int(match[1]) >= _ID_LIMIT:
                raise UsageError(
                    f"line {number}: expected a device id in [0, {_ID_LIMIT}) without leading "
                    "zeros, a space and a public key as 64 hex digits"
                )
            client, key = ClientId(int(match[1])), IdentityKey(bytes.fromhex(match[2]))
            if client in lines:
                raise UsageError(
                    f"line {number}: device {client} is in line {lines[client]} already; "
                    "every device is listed once"
                )
            if key in lines:
                raise UsageError(
                    f"line {number}: the key is in line {lines[key]} already; "
                    "every device has a key of its own"
                )
            if len(keys) == MAX_DEVICES:
                raise UsageError(f"line {number}: a directory has at most {MAX_DEVICES} devices")
            lines[client] = lines[key] = number
            keys[client] = key
        return cls(keys)

    def dump(self) -> str:
        """The list in the format that `parse` reads, one device per line, sorted by id."""
        return "".join(f"{client} {key.hex()}\n" for client, key in self.keys.items())

    def fingerprint(self) -> str:
        """A short form of the list for people to compare: 256 bits as sixteen groups of hex digits.

        It is twice as long as a key's fingerprint. Somebody who writes both lists can search for
        any pair with the same fingerprint, which takes only the square root of the tries.
        """
        return grouped(labels.digest(Label.DIRECTORY_FINGERPRINT, self.dump().encode()))

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether the list gives this device exactly this key."""
        return self.keys.get(client) == key


class FirstUse(Directory):
    """Trust on first use, for experiments: a device keeps the first key that is learnt of it.

    This does not catch a server that lies from the first contact: it can present keys of its own
    for every device. It does catch a key that changes later, and one key under two ids.

    Args:
        known: Devices whose keys are known in advance.
    """

    def __init__(self, known: TrustedKeys | None = None) -> None:
        self._keys = dict(known.keys) if known is not None else {}
        self._owners = {key: client for client, key in self._keys.items()}

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether this is the device's key, or the device and its key are both new.

        False for a new device if `MAX_DEVICES` are already remembered, and for an invalid id or
        key.
        """
        if client in self._keys or key in self._owners:
            return self._keys.get(client) == key
        is_valid = 0 <= client < _ID_LIMIT and len(key) == IDENTITY_SIZE
        return is_valid and len(self._keys) < MAX_DEVICES

    def learn(self, keys: Mapping[ClientId, IdentityKey]) -> None:
        """Remember the keys of new devices, as long as they are accepted."""
        for client, key in keys.items():
            if self.accepts(client, key):
                self._keys[client] = key
                self._owners[key] = client

    def pinned(self) -> TrustedKeys:
        """The keys remembered so far, for the caller to save."""
        return TrustedKeys(self._keys)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A device's own identity, and how it recognises other devices.

    Attributes:
        identity: The device's key pair.
        directory: Decides whether a key belongs to a device.
    """

    identity: Identity
    directory: Directory

    def check(self, client: ClientId) -> None:
        """Check that the directory accepts the device's own key, and let it learn that.

        Raises:
            UsageError: the directory has another key, or none, under the device's id.
        """
        if not self.directory.accepts(client, self.identity.public):
            raise UsageError(f"the directory does not accept this identity for device {client}")
        self.directory.learn({client: self.identity.public})


class Enrolment(Directory):
    """Creates each device's identity when it is first asked for, and accepts only that one.

    It stands in for what real devices do before any session: they create their keys, and a list of
    the keys (`TrustedKeys`) reaches every device. Real devices each have their own `Credentials`.

    Args:
        randomness: Source of the secret keys.
    """

    def __init__(self, randomness: Randomness = system_randomness) -> None:
        self._randomness = randomness
        self._seeds: dict[ClientId, bytes] = {}
        self._enrolled: dict[ClientId, Credentials] = {}
        self._ledgers: dict[ClientId, Ledger] = {}

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether this is the key that was created for the device here."""
        known = self._enrolled.get(client)
        return known is not None and known.identity.public == key

    def credentials(self, client: ClientId) -> Credentials:
        """A device's credentials; the same every time."""
        if client not in self._enrolled:
            self._enrolled[client] = Credentials(identity(self.seed(client)), self)
        return self._enrolled[client]

    def seed(self, client: ClientId) -> bytes:
        """The secret seed of a device's identity, 32 bytes; the same every time."""
        if client not in self._seeds:
            self._seeds[client] = self._randomness(SEED_SIZE)
        return self._seeds[client]

    def ledger(self, client: ClientId) -> Ledger:
        """A device's ledger; the same every time."""
        return self._ledgers.setdefault(client, MemoryLedger())
