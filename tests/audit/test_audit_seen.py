"""Messages as records hold them: honest, repeated, or invented."""

import functools
from hashlib import sha256

import numpy as np
import pytest
from honest_runs import build_verified, messages_of
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.secagg.codec import read_fields, write_fields
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.transcript import Message

BY_MM = {"max_mm_pivots_per_device": 10}  # a small cohort accepts so many pivots of `mm`
RUNS = {
    "steep": {"quantile": {"method": "mm", "max_queries": 2}, "policy": BY_MM, "length": 700},
    "verified": {
        "quantile": {"method": "mm", "max_queries": 3, "min_cohort": 5},
        "policy": BY_MM,
        "privacy": {"adversary": "active"},
        "build": build_verified,
    },
    "histogram": {
        "quantile": {"method": "histogram", "max_queries": 0},
        "policy": {"max_pivots": 320},
    },
}
FROM_DEVICES = {kind for kind in Kind if kind > Kind.OPENING}


@functools.cache
def said(name):
    """The first round of an honest run: (sent, peer, data) in order."""
    return messages_of(rounds=1, federation={"cohort_size": 7}, **RUNS[name])


def record(number, sent, peer, data):
    return Message(number, 1, sent, peer, len(data), sha256(data).digest(), data)


def content(decoder, sent, data, *, number=99):
    return decoder.decode(record(number, sent, 1, data)).content


@functools.cache
def contents(name):
    """What the messages of a run say."""
    decoder = Decoder()
    return [content(decoder, sent, data) for sent, _, data in said(name)]


def prepared(name):
    """A decoder that has heard of the session."""
    decoder = Decoder()
    sent, _, data = said(name)[0]
    content(decoder, sent, data)
    return decoder


@pytest.mark.parametrize("name", RUNS)
def test_whole_messages_are_understood_to_the_last_byte(name):
    for (sent, _, _), seen in zip(said(name), contents(name), strict=True):
        assert seen.problem == ""
        assert seen.message is not None
        assert (seen.envelope is not None) == sent
        assert (seen.kind in FROM_DEVICES) == (not sent)
        named = getattr(seen.message, "members", getattr(seen.message, "survivors", None))
        assert np.array_equal(seen.members, named)
        assert seen.slot == getattr(seen.message, "slot", None)


def test_together_the_runs_have_every_kind_of_message():
    every = {seen.kind for name in RUNS for seen in contents(name)}
    assert every == set(Kind) - {Kind.OPENING}  # which comes with a question only
    assert any(seen.proof for seen in contents("verified"))
    envelopes = {type(seen.envelope) for name in RUNS for seen in contents(name)}
    assert envelopes == {Announce, Ask, Relay, type(None)}


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_no_bytes_at_all_are_an_error(data, sent, knows):
    decoder = prepared("verified") if knows else Decoder()
    seen = content(decoder, sent, data)
    assert (seen.kind is None) == (seen.message is None and seen.tag == b"")


@pytest.mark.parametrize("data", [b"", b"\x90", b"\xdc", b"\xdc\x00", b"\xdc\x00\x00", b"\x91\xc4"])
@pytest.mark.parametrize("sent", [True, False])
def test_messages_without_fields_are_no_error(data, sent):
    seen = content(Decoder(), sent, data)
    assert (seen.kind, seen.message) == (None, None)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(sorted(RUNS)), st.data())
def test_messages_with_an_edited_byte_are_no_error(name, data):
    index = data.draw(st.integers(0, len(said(name)) - 1))
    sent, _, whole = said(name)[index]
    edited = bytearray(whole)
    at = data.draw(st.integers(0, min(len(edited), 400) - 1))
    edited[at] = data.draw(st.integers(0, 255))
    seen = content(prepared(name), sent, bytes(edited))
    assert (seen.message is None) == bool(seen.problem)


def test_a_message_of_no_announced_session_is_strange():
    for sent, _, data in said("verified")[:30]:
        seen = content(Decoder(), sent, data)
        announces = sent and isinstance(round_wire.decode(data), Announce)
        assert bool(seen.problem) == (not announces)


def of_kind(name, kind):
    """The first message of a device of a kind, and a decoder that has heard of its session."""
    for (sent, _, data), seen in zip(said(name), contents(name), strict=True):
        if seen.kind is kind and not sent:
            return data, prepared(name)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", sorted(FROM_DEVICES))
def test_a_field_more_than_a_kind_has_is_strange(kind):
    data, decoder = of_kind("verified", kind)
    longer = write_fields([*read_fields(data, most=20), 7])
    assert content(decoder, False, data).problem == ""
    assert content(decoder, False, longer).problem != ""


def test_a_slot_that_the_session_does_not_have_is_strange():
    data, decoder = of_kind("verified", Kind.SIGNATURE)
    version, kind, tag, _, signature = read_fields(data, most=20)
    num_slots = len(decoder.params[tag].slots)
    for slot, strange in ((num_slots - 1, False), (num_slots, True), (2**63, True)):
        other = write_fields([version, kind, tag, slot, signature])
        seen = content(decoder, False, other)
        assert bool(seen.problem) == strange
        assert seen.slot == (None if strange else slot)


def test_a_repeated_message_says_what_it_repeats():
    decoder = prepared("steep")
    sent, _, data = said("steep")[0]
    first = decoder.decode(record(5, sent, 1, data))
    again = decoder.decode(record(6, sent, 2, data))
    assert again.content is first.content
    assert (again.place.record, again.record.peer) == (6, 2)


def test_nothing_repeats_what_the_server_did_not_send():
    decoder = prepared("steep")
    data, _ = of_kind("steep", Kind.ADVERTISE)
    assert decoder.decode(record(4, False, 1, data)).content.kind is Kind.ADVERTISE
    assert decoder.decode(record(7, True, 2, data)).content.kind is None


@pytest.mark.parametrize("kind", [Kind.MASKED, Kind.ADVERTISE])
def test_the_server_says_nothing_in_the_words_of_a_device(kind):
    """Control: the same bytes are understood where a device sends them."""
    data, decoder = of_kind("verified", kind)
    assert content(decoder, False, data).kind is kind
    assert content(decoder, True, data).problem
