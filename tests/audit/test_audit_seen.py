"""Messages as records hold them: whole, cut, repeated, or invented."""

import functools
from dataclasses import replace
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
from deltafl.sim.inspect.audit.seen import NUM_FIELDS, Decoder
from deltafl.sim.record.transcript import HEAD_RECEIVED, HEAD_SENT, Message, kept_of

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
FROM_DEVICES = set(NUM_FIELDS)


@functools.cache
def said(name):
    """The first round of an honest run: (sent, peer, data) in order."""
    return messages_of(rounds=1, federation={"cohort_size": 7}, **RUNS[name])


def record(number, sent, peer, data, *, head=None, repeats=None):
    kept = data if head is None else head
    return Message(number, 0, 1, sent, peer, len(data), sha256(data).digest(), kept, repeats)


def content(decoder, sent, data, *, head=None, number=99):
    return decoder.decode(record(number, sent, 1, data, head=head)).content


@functools.cache
def contents(name):
    """What the messages of a run say, whole."""
    decoder = Decoder()
    return [content(decoder, sent, data) for sent, _, data in said(name)]


def prepared(name):
    """A decoder that has heard of the session."""
    decoder = Decoder()
    sent, _, data = said(name)[0]
    content(decoder, sent, data)
    return decoder


def public(envelope):
    """An envelope without what is long: the model, and the session's message."""
    if isinstance(envelope, Announce):
        return replace(envelope, models=b"")
    return envelope and replace(envelope, session=b"")


def same_members(first, second):
    return (first is None) == (second is None) and (first is None or np.array_equal(first, second))


@pytest.mark.parametrize("name", RUNS)
def test_whole_messages_are_understood_to_the_last_byte(name):
    for (sent, _, _), seen in zip(said(name), contents(name), strict=True):
        assert seen.problem == ""
        assert seen.message is not None
        assert (seen.envelope is not None) == sent
        assert (seen.kind in FROM_DEVICES) == (not sent)
        named = getattr(seen.message, "members", getattr(seen.message, "survivors", None))
        assert same_members(seen.members, named)
        assert seen.slot == getattr(seen.message, "slot", None)


def test_together_the_runs_have_every_kind_of_message():
    every = {seen.kind for name in RUNS for seen in contents(name)}
    assert every == set(Kind) - {Kind.OPENING}  # which comes with a question only
    assert any(seen.proof for seen in contents("verified"))
    envelopes = {type(seen.envelope) for name in RUNS for seen in contents(name)}
    assert envelopes == {Announce, Ask, Relay, type(None)}


@pytest.mark.parametrize("name", RUNS)
def test_what_headers_keep_tells_kind_slot_devices_and_public_part(name):
    decoder, cut = Decoder(), 0
    for (sent, _, data), whole in zip(said(name), contents(name), strict=True):
        head = kept_of(data, "headers", 1, sent=sent)
        seen = content(decoder, sent, data, head=head)
        assert (seen.problem, seen.kind, seen.tag) == ("", whole.kind, whole.tag)
        assert seen.slot == whole.slot
        assert same_members(seen.members, whole.members)
        assert public(seen.envelope) == public(whole.envelope)
        assert (seen.proof is None) == (whole.proof is None)
        cut += len(head) < len(data)
    assert cut > 0


@pytest.mark.slow
@given(st.sampled_from(sorted(RUNS)), st.data())
def test_any_beginning_of_a_message_tells_the_same_or_less(name, data):
    index = data.draw(st.integers(0, len(said(name)) - 1))
    (sent, _, whole), known = said(name)[index], contents(name)[index]
    decoder = prepared(name)
    head = whole[: data.draw(st.integers(0, min(len(whole) - 1, HEAD_SENT)))]
    seen = content(decoder, sent, whole, head=head)
    if seen.problem or seen.kind is None:
        assert (seen.slot, seen.members) == (None, None)
        return
    assert (seen.kind, seen.tag) == (known.kind, known.tag)
    assert seen.slot in (None, known.slot)
    assert seen.members is None or np.array_equal(seen.members, known.members)
    assert seen.message is None or isinstance(seen.envelope, Announce)
    assert public(seen.envelope) == public(known.envelope)


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 3), st.booleans())
def test_no_bytes_at_all_are_an_error(data, sent, more, knows):
    decoder = prepared("verified") if knows else Decoder()
    seen = decoder.decode(record(0, sent, 1, data + bytes(more), head=data)).content
    assert (seen.kind is None) == (seen.message is None and seen.tag == b"")


@pytest.mark.parametrize("data", [b"", b"\x90", b"\xdc", b"\xdc\x00", b"\xdc\x00\x00", b"\x91\xc4"])
@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("more", [0, 1])
def test_messages_without_fields_are_no_error(data, sent, more):
    seen = Decoder().decode(record(0, sent, 1, data + bytes(more), head=data)).content
    assert (seen.kind, seen.message) == (None, None)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(sorted(RUNS)), st.booleans(), st.data())
def test_messages_with_an_edited_byte_are_no_error(name, cut, data):
    index = data.draw(st.integers(0, len(said(name)) - 1))
    sent, _, whole = said(name)[index]
    edited = bytearray(whole)
    at = data.draw(st.integers(0, min(len(edited), 400) - 1))
    edited[at] = data.draw(st.integers(0, 255))
    head = bytes(edited[: HEAD_RECEIVED if cut else None])
    seen = content(prepared(name), sent, whole, head=head)
    assert seen.data == (head if seen.problem else b"")


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
@pytest.mark.parametrize("whole", [True, False])
def test_a_field_more_than_a_kind_has_is_strange_however_little_is_kept(kind, whole):
    data, decoder = of_kind("verified", kind)
    longer = write_fields([*read_fields(data, most=20), 7])
    head = longer if whole else longer[:40]
    assert content(decoder, False, data, head=data if whole else data[:40]).problem == ""
    assert "fields" in content(decoder, False, longer, head=head).problem


@pytest.mark.parametrize("whole", [True, False])
def test_a_slot_that_the_session_does_not_have_is_strange(whole):
    data, decoder = of_kind("verified", Kind.SIGNATURE)
    version, kind, tag, _, signature = read_fields(data, most=20)
    num_slots = len(decoder.params[tag].slots)
    for slot, strange in ((num_slots - 1, False), (num_slots, True), (2**63, True)):
        other = write_fields([version, kind, tag, slot, signature])
        seen = content(decoder, False, other, head=other if whole else other[:50])
        assert bool(seen.problem) == strange
        assert seen.slot == (None if strange else slot)


def test_a_repeated_message_says_what_it_repeats():
    decoder = prepared("steep")
    sent, _, data = said("steep")[0]
    first = decoder.decode(record(5, sent, 1, data))
    again = decoder.decode(record(6, sent, 2, data, head=b"", repeats=5))
    assert again.content is first.content
    assert (again.place.record, again.record.peer) == (6, 2)


@pytest.mark.parametrize("repeats", [4, 6])
def test_nothing_repeats_what_the_server_did_not_send(repeats):
    decoder = prepared("steep")
    data, _ = of_kind("steep", Kind.ADVERTISE)
    decoder.decode(record(4, False, 1, data))
    seen = decoder.decode(record(7, True, 2, data, head=b"", repeats=repeats)).content
    assert seen.kind is None
    assert str(repeats) in seen.problem


@pytest.mark.parametrize("kind", [Kind.MASKED, Kind.ADVERTISE])
def test_the_server_says_nothing_in_the_words_of_a_device(kind):
    """Control: the same bytes are understood where a device sends them."""
    data, decoder = of_kind("verified", kind)
    assert content(decoder, False, data).kind is kind
    assert content(decoder, True, data).problem
