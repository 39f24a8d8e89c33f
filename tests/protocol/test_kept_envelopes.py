"""A device's round and a server's keep nothing of messages that are not for them."""

import pytest
from kept import kept_bytes
from round_parties import Point, RoundParties, make_config

from deltafl.protocol import wire
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.secagg import PeerError, UsageError
from deltafl.secagg.wire import tag_of

ENVELOPES = 7
"""What a device of the small round takes."""


@pytest.fixture(scope="module")
def foreign_log():
    """All envelopes of another round."""
    parties = RoundParties(make_config(round_index=8), seed=1)
    parties.play()
    return list(dict.fromkeys(parties.log))


def retagged(data, count):
    """The same envelope around messages of many other sessions."""
    envelope = wire.decode(data)
    session = envelope.session
    tag = tag_of(session)
    at = session.index(tag)
    for i in range(1, count + 1):
        other = session[:at] + i.to_bytes(len(tag), "big") + session[at + len(tag) :]
        match envelope:
            case Relay():
                yield wire.encode(Relay(other))
            case Ask(question, _, opening):
                yield wire.encode(Ask(question, other, opening))
            case Announce(levels, models, _):
                yield wire.encode(Announce(levels, models, other))


POINTS = [Point(taken, done) for taken in range(1, ENVELOPES + 1) for done in (True, False)]


@pytest.mark.parametrize("point", POINTS)
def test_a_device_keeps_nothing_of_other_rounds(point, foreign_log):
    parties = RoundParties()
    parties.bring(point)
    machine = parties.machine
    before, state = kept_bytes(machine), machine.state
    for data in foreign_log:
        for foreign in retagged(data, 10):
            assert machine.receive(foreign) is None
    assert kept_bytes(machine) == before
    assert machine.state is state


def test_a_device_keeps_nothing_of_repeats():
    parties = RoundParties()
    parties.play()
    before = kept_bytes(parties.machine)
    for data in parties.taken * 20:
        assert parties.machine.receive(data) is None
    assert kept_bytes(parties.machine) == before


def test_a_round_that_is_over_keeps_nothing(foreign_log):
    parties = RoundParties()
    parties.bring(Point(3))
    machine = parties.machine
    was = kept_bytes(machine)
    machine.close()
    before = kept_bytes(machine)
    assert before < was
    for data in [*parties.taken, *foreign_log]:
        with pytest.raises(UsageError):
            machine.receive(data)
    assert kept_bytes(machine) == before


def test_before_the_announcement_the_first_envelope_decides(foreign_log):
    """Whatever comes first is the round, or ends it: nothing waits for an announcement."""
    for data in foreign_log:
        machine = RoundParties().machine
        if isinstance(wire.decode(data), Announce):
            continue
        with pytest.raises(PeerError):
            machine.receive(data)
        before = kept_bytes(machine)
        for foreign in retagged(data, 10):
            with pytest.raises(UsageError):
                machine.receive(foreign)
        assert kept_bytes(machine) == before


def test_a_server_keeps_nothing_of_strangers_repeats_and_other_rounds():
    other = RoundParties(make_config(round_index=8), seed=1)
    other.play()
    parties = RoundParties()
    outgoing = parties.server.start()
    while outgoing:
        replies = {c: parties.answer(c, data) for c, data in outgoing.items()}
        for client, data in replies.items():
            parties.server.receive(client, data)
        before = kept_bytes(parties.server)
        for client, data in replies.items():
            for foreign in other.sent:
                parties.server.receive(client, foreign)
                parties.server.receive(1000 + len(foreign), foreign)
            for _ in range(20):
                parties.server.receive(client, data)
        assert kept_bytes(parties.server) == before
        outgoing = parties.server.close_round()
    assert parties.server.outcomes[0].drops == {}


def test_what_is_kept_is_counted():
    parties = RoundParties()
    parties.bring(Point(2))
    before = kept_bytes(parties.machine)
    parties.machine._seen.add(b"one more fingerprint of 32 bytes")
    assert kept_bytes(parties.machine) >= before + 32
