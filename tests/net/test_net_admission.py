"""Who is admitted: whose key is on the list, and who has signed this server's challenge."""

from dataclasses import replace

import pytest

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.sim.net.frames import Challenge
from deltafl.sim.net.identities import OwnIdentity, certificate_hash, is_admitted

ANNA, BERT, MALLORY = (identity(bytes([i]) * 32) for i in range(3))
LISTED = TrustedKeys({ClientId(3): ANNA.public, ClientId(4): BERT.public})
CHALLENGE = Challenge(bytes(range(32)))
SERVER = certificate_hash(b"a certificate")
HELLO = OwnIdentity(ClientId(3), ANNA).hello(CHALLENGE, SERVER)


def test_a_device_on_the_list_is_admitted():
    assert is_admitted(CHALLENGE, HELLO, SERVER, LISTED)


def test_without_tls_nothing_stands_for_the_server():
    hello = OwnIdentity(ClientId(3), ANNA).hello(CHALLENGE, certificate_hash(None))
    assert is_admitted(CHALLENGE, hello, b"", LISTED)
    assert not is_admitted(CHALLENGE, hello, SERVER, LISTED)


@pytest.mark.parametrize(
    ("challenge", "hello", "server"),
    [
        (Challenge(bytes(32)), HELLO, SERVER),
        (CHALLENGE, HELLO, certificate_hash(b"somebody in the middle")),
        (CHALLENGE, HELLO, b""),
        (CHALLENGE, replace(HELLO, client=ClientId(4)), SERVER),
        (CHALLENGE, replace(HELLO, client=ClientId(5)), SERVER),
        (CHALLENGE, replace(HELLO, key=BERT.public), SERVER),
        (CHALLENGE, replace(HELLO, signature=bytes(64)), SERVER),
        (CHALLENGE, OwnIdentity(ClientId(3), MALLORY).hello(CHALLENGE, SERVER), SERVER),
        (CHALLENGE, OwnIdentity(ClientId(4), ANNA).hello(CHALLENGE, SERVER), SERVER),
        (CHALLENGE, OwnIdentity(ClientId(9), MALLORY).hello(CHALLENGE, SERVER), SERVER),
    ],
)
def test_others_are_not(challenge, hello, server):
    assert not is_admitted(challenge, hello, server, LISTED)
