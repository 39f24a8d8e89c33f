"""Boxes and links that a simulation knows from both ends are those of devices that know one."""

from dataclasses import replace

import numpy as np
import pytest

from deltafl.secagg import Client, ClientId, DevicePolicy, Enrolment, Server, SlotSpec, keys, links
from deltafl.secagg.keys import Recipient
from deltafl.secagg.links import End
from deltafl.secagg.params import SessionId, SessionParams
from deltafl.secagg.primitives import PLAIN
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState
from deltafl.sim.cohort.shared import SharedBoxes, SharedResults, simulated

OWN, OTHER = keys.recipient(bytes(32)), keys.recipient(bytes([1]) * 32)


@pytest.fixture
def opened(monkeypatch):
    """The boxes that were opened by a key."""
    found, honest = [], Recipient.open
    monkeypatch.setattr(
        Recipient, "open", lambda own, box, info: found.append(box) or honest(own, box, info)
    )
    return found


def test_a_box_that_was_sealed_here_takes_no_key_to_open_once(opened):
    boxes = SharedBoxes()
    box = boxes.seal(b"content", OWN.public, b"info")
    assert boxes.open(OWN, box, b"info") == b"content"
    assert not opened
    assert boxes.open(OWN, box, b"info") == b"content"
    assert opened == [box]


@pytest.mark.parametrize("other", ["key", "info", "box", "foreign"])
def test_any_other_box_key_or_binding_is_tried(opened, other):
    boxes = SharedBoxes()
    box = boxes.seal(b"content", OWN.public, b"info")
    key = OTHER if other == "key" else OWN
    info = b"another" if other == "info" else b"info"
    shown = {
        "box": box[:-1] + bytes([box[-1] ^ 1]),
        "foreign": keys.seal(b"x", OWN.public, b"info"),
    }
    assert boxes.open(key, shown.get(other, box), info) == (b"x" if other == "foreign" else None)
    assert len(opened) == 1


def ends(half=bytes(32)):
    """Both ends of a link, of values that are new objects each time."""
    return (
        End(0, bytes(32), OWN.public, bytes(bytearray(half)), bytes(32)),
        End(4, bytes([1]) * 32, OTHER.public, bytes([2] * 32), bytes([3] * 32)),
    )


def test_a_link_is_derived_once_for_both_ends_and_then_forgotten():
    results, session = SharedResults(), SessionId(bytes(32))
    first = results.apply(links.link, session, *ends(), 3)
    assert first == links.link(session, *ends(), 3)
    assert results.apply(links.link, session, *ends(), 3) is first
    assert not results._links
    assert results.apply(links.link, session, *ends(), 3) is not first


@pytest.mark.parametrize(
    "other",
    [(bytes(32), bytes([1]) * 32, 3), (bytes([1]) * 32, bytes(32), 3), (bytes(32), bytes(32), 2)],
)
def test_ends_that_were_shown_different_things_derive_their_own_link(other):
    results = SharedResults()
    results.apply(links.link, SessionId(bytes(32)), *ends(), 3)
    session, half, slots = other
    found = results.apply(links.link, SessionId(session), *ends(half), slots)
    assert found == links.link(SessionId(session), *ends(half), slots)
    assert len(results._links) == 2


def played(primitives):
    """All messages of a session of five devices, in which the last one has no vector."""
    slots = SlotSpec("tolerant", 3, 16), SlotSpec("whole", 3, 16, whole=True)
    params = SessionParams(slots, 5, 4, 3, 3, graph_seed=bytes(32), context=bytes(32))
    ids, enrolment = list(map(ClientId, range(5))), Enrolment(SeededRandomness(bytes(32)))
    policy = DevicePolicy(min_cohort=2, min_threshold_share=0.0, colluding_rate=0.0)
    clients = {
        i: Client(
            i,
            policy,
            enrolment.credentials(i),
            SeededRandomness(bytes([i]) * 32),
            primitives=primitives,
        )
        for i in ids
    }
    server, seen = Server(params, ids, enrolment, primitives), list[bytes]()

    def play(outgoing, slot=0, absent=()):
        while outgoing:
            for i, data in outgoing.items():
                reply = clients[i].receive(data)
                if clients[i].state is ClientState.OPENED and i not in absent:
                    reply = clients[i].contribute(np.array([slot, i, 1], np.uint32), b"")
                seen.extend([data, reply or b""])
                if reply is not None:
                    server.receive(i, reply)
            outgoing = server.close_round()

    play(server.start())
    play(server.open_slot(0, b""), absent=[4])
    tolerant = server.take_sum().vector.tolist()
    play(server.open_slot(1, b""), 1)
    return seen, tolerant, server.take_sum().vector.tolist()


@pytest.fixture
def plain(monkeypatch):
    """Plain primitives, but that equal contents have equal boxes: what encapsulates has no seed."""
    known, honest = {}, keys.seal

    def seal(*sealed):
        if sealed not in known:
            known[sealed] = honest(*sealed)
        return known[sealed]

    monkeypatch.setattr(keys, "seal", seal)
    return replace(PLAIN, seal=seal, open=lambda *asked: Recipient.open(*asked))


def test_every_byte_of_a_session_is_that_of_plain_devices(plain, opened):
    messages, *sums = played(plain)
    assert len(opened) == 5 * 4
    opened.clear()
    assert played(simulated()) == (messages, *sums)
    assert not opened
    assert sums == [[0, 6, 4], [4, 6, 4]]


def test_a_byte_that_is_another_would_be_seen(plain, monkeypatch):
    messages, *sums = played(plain)

    def other(*ends):
        link = links.link(*ends)
        return replace(link, keys=link.keys[::-1])

    monkeypatch.setattr(
        SharedResults,
        "apply",
        lambda _, function, *given: (other if function is links.link else function)(*given),
    )
    others, *same = played(simulated())
    assert same == sums
    assert others != messages
