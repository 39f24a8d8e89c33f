"""Who is admitted: whose key is on the list, and who has signed this server's challenge."""

from dataclasses import replace

import pytest

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.sim.net.frames import Challenge
from deltafl.sim.net.identities import OwnIdentity, certificate_hash, why_not

ANNA, BERT, MALLORY = (identity(bytes([i]) * 32) for i in range(3))
LISTED = TrustedKeys({ClientId(3): ANNA.public, ClientId(4): BERT.public})
CHALLENGE = Challenge(bytes(range(32)))
SERVER = certificate_hash(b"a certificate")
HELLO = OwnIdentity(ClientId(3), ANNA).hello(CHALLENGE, SERVER)


def test_a_device_on_the_list_is_admitted():
    assert not why_not(CHALLENGE, HELLO, SERVER, LISTED)


def test_without_tls_nothing_stands_for_the_server():
    hello = OwnIdentity(ClientId(3), ANNA).hello(CHALLENGE, certificate_hash(None))
    assert not why_not(CHALLENGE, hello, b"", LISTED)
    assert why_not(CHALLENGE, hello, SERVER, LISTED)


@pytest.mark.parametrize(
    ("challenge", "hello", "server", "cause"),
    [
        (Challenge(bytes(32)), HELLO, SERVER, "signature"),
        (CHALLENGE, HELLO, certificate_hash(b"somebody in the middle"), "signature"),
        (CHALLENGE, HELLO, b"", "signature"),
        (CHALLENGE, replace(HELLO, client=ClientId(4)), SERVER, "key"),
        (CHALLENGE, replace(HELLO, client=ClientId(5)), SERVER, "unlisted"),
        (CHALLENGE, replace(HELLO, key=BERT.public), SERVER, "key"),
        (CHALLENGE, replace(HELLO, signature=bytes(64)), SERVER, "signature"),
        (CHALLENGE, OwnIdentity(ClientId(3), MALLORY).hello(CHALLENGE, SERVER), SERVER, "key"),
        (CHALLENGE, OwnIdentity(ClientId(4), ANNA).hello(CHALLENGE, SERVER), SERVER, "key"),
        (CHALLENGE, OwnIdentity(ClientId(9), MALLORY).hello(CHALLENGE, SERVER), SERVER, "unlisted"),
    ],
)
def test_others_are_not_and_it_is_known_why(challenge, hello, server, cause):
    assert why_not(challenge, hello, server, LISTED) == cause
