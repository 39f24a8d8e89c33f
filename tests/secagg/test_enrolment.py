"""Simulated devices: each has one identity, and everybody knows whose it is."""

import pytest

from deltafl.secagg import Enrolment, UsageError
from deltafl.secagg.identity import identity
from deltafl.secagg.randomness import SeededRandomness


def enrolment():
    return Enrolment(SeededRandomness(bytes(32)))


def test_a_device_has_one_identity():
    devices = enrolment()
    assert devices.credentials(3) is devices.credentials(3)
    assert devices.credentials(3).identity.public != devices.credentials(4).identity.public


def test_a_device_is_accepted_under_its_own_key_only():
    devices = enrolment()
    keys = {client: devices.credentials(client).identity.public for client in (3, 4)}
    for client in keys:
        for owner, key in keys.items():
            assert devices.accepts(client, key) == (client == owner)


def test_who_was_never_asked_for_is_not_accepted():
    devices = enrolment()
    key = identity(bytes(32)).public
    assert not devices.accepts(3, key)
    # Asking does not enrol: the directory does not learn from what it is shown.
    assert not devices.accepts(3, key)
    assert devices.credentials(3).identity.public != key
    assert not devices.accepts(3, key)


def test_credentials_know_all_devices():
    devices = enrolment()
    first = devices.credentials(3)
    later = devices.credentials(4).identity.public
    assert first.directory.accepts(4, later)
    first.check(3)
    with pytest.raises(UsageError, match="device 4"):
        first.check(4)


def test_a_device_has_one_ledger_of_its_own():
    devices = enrolment()
    assert devices.ledger(3).admit([bytes(32)])
    assert not devices.ledger(3).admit([bytes(32)])
    assert devices.ledger(4).admit([bytes(32)])
    assert enrolment().ledger(3).admit([bytes(32)])


def test_identities_come_from_the_randomness():
    first, again = enrolment(), enrolment()
    other = Enrolment(SeededRandomness(b"\1" * 32))
    public = first.credentials(3).identity.public
    assert again.credentials(3).identity.public == public
    assert other.credentials(3).identity.public != public
    assert Enrolment().credentials(3).identity != Enrolment().credentials(3).identity
