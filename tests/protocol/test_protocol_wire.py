"""The server's envelopes as bytes: a bijection, and `DecodeError` for everything else."""

import math
import struct
import tracemalloc
from fractions import Fraction

import msgpack
import pytest
from flat_configs import round_of
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import make_config

from deltafl.protocol import wire
from deltafl.protocol.configuration import Exact, RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.radius import Clipped
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DecodeError
from deltafl.secagg.codec import write_fields

FAST = settings(deadline=None)
WORD = 2**63 - 1


def noises(cohort_size):
    variances = st.fractions(min_value=Fraction(1, 10**6), max_value=10**6, max_denominator=10**6)
    return st.builds(Noise, variances, st.integers(1, cohort_size))


@st.composite
def configs(draw) -> RoundConfig:
    method = draw(st.sampled_from(["mm", "bracketed", "histogram", "noisy"]))
    noisy = method == "noisy"
    denominator = draw(st.integers(1, 2**32 - 1))
    grid = LossGrid(draw(st.integers(0, 16)), draw(st.integers(1, 64)))
    cohort_size = draw(st.integers(1, 2000))
    long = st.floats(2.0**14, allow_infinity=False)  # longer than the least of any such round
    weightings = st.just(Weighting.EQUAL) if noisy else st.sampled_from(Weighting)
    fields = {
        "round_index": draw(st.integers(0, WORD)),
        "cohort_size": cohort_size,
        "theta": Fraction(draw(st.integers(1, denominator)), denominator),
        "method": method,
        "num_pivots": draw(st.none() | st.integers(1, 2**16))
        if method in ("histogram", "noisy")
        else None,
        "max_queries": draw(st.integers(0, 1 if noisy else 2**16)),
        "grid": grid,
        "max_weight": draw(st.integers(1, 2**12)),
        "update_length": draw(st.integers(1, 2**27)),
        "update_clip": draw(st.floats(0, 2**10, exclude_min=True)),
        "update_resolution_bits": draw(st.integers(0, 24)),
        "weighting": draw(weightings),
        "epsilon_ticks": draw(st.integers(0, grid.max_tick)) if method == "mm" else 0,
        "min_search_cohort": draw(st.integers(0, 2**32 - 1)),
        "noise": draw(noises(cohort_size)) if noisy else None,
        "warm_start": draw(st.none() | st.integers(0, grid.max_tick)),
        "verified": draw(st.booleans()),
        "aggregation": draw(st.just(Exact()) | long.map(Clipped)),
    }
    return round_of(**fields)


LEVELS = Levels.at(make_config(), (Fraction(1, 2), Fraction(1, 3)), (None, 7))

names = st.text(st.characters(max_codepoint=127), max_size=32)
questions = st.one_of(
    st.builds(Query, names, st.lists(st.integers(0, 2**64 - 1), max_size=40).map(tuple)),
    st.builds(Threshold, st.integers(0, WORD), st.integers(0, WORD)),
)
data = st.binary(max_size=300)
envelopes = st.one_of(
    st.builds(Announce, configs().map(lambda config: Levels((config,))), data, data),
    st.builds(Announce, st.just(LEVELS), st.binary(max_size=100).map(lambda m: 2 * m), data),
    st.builds(Relay, data),
    st.builds(Ask, questions, data, data),
)

CONFIG = make_config()
RADIUS = make_config(aggregation=Clipped(0.25))
HIDDEN = make_config(max_weight=1, aggregation=UpdateNoise(1.0, 40, 3))
# Everything that an announcement is made of, in the order of the wire.
FIELDS = {
    "version": 3,
    "kind": 0x21,
    "round_index": 3,
    "cohort_size": 3,
    "theta_numerator": 1,
    "theta_denominator": 2,
    "method": b"mm",
    "max_queries": 1,
    "resolution_bits": 8,
    "bound": 8,
    "weighting": b"samples",
    "epsilon_ticks": 0,
    "min_search_cohort": 0,
    "verified": 0,
    "update_clip": struct.pack("<d", 4.0),
    "update_resolution_bits": 12,
    "max_weight": 500,
    "aggregation": 0,
    "parameters": b"",
    "update_length": 4,
    "warm_start": 0,
    "num_pivots": 0,
    "noise_numerator": 0,
    "noise_denominator": 0,
    "noise_devices": 0,
    "min_tail": 0,
    "other_levels": b"",
    "session": b"session",
    "model": b"model",
}
# What makes an announcement one of a noisy search.
NOISY = {
    "method": b"noisy",
    "weighting": b"equal",
    "noise_numerator": 9,
    "noise_denominator": 4,
    "noise_devices": 3,
}
# Sums of 64 bits, and none is left for a verified search.
WIDE = NOISY | {
    "noise_numerator": 2**56,
    "noise_denominator": 1,
    "noise_devices": 1,
    "cohort_size": 2**31,
    "max_weight": 1,
    "update_resolution_bits": 2,
}
# Noise in the sum of updates.
UNDER_NOISE = {
    "aggregation": 2,
    "parameters": struct.pack("<dQQ", 1.0, 40, 3),
    "max_weight": 1,
}
VALID = [
    Announce(Levels((CONFIG,)), b"model", b"session"),
    Relay(b"session"),
    Ask(Query("mm", (7,)), b"session"),
    Ask(Query("mm", (7,)), b"session", b"opening"),
    Ask(Threshold(700, 1), b"session"),
    Ask(Threshold(700, 1), b"session", b"opening"),
    Announce(LEVELS, b"model1model2", b"session"),
    Announce(Levels((RADIUS,)), b"model", b"session"),
    Announce(Levels((HIDDEN,)), b"model", b"session"),
]


def announcement(**changes: object) -> bytes:
    return msgpack.packb(list((FIELDS | changes).values()))


def double(value: float) -> bytes:
    return struct.pack("<d", value)


@FAST
@given(envelopes)
def test_decoding_inverts_encoding(envelope):
    assert wire.decode(wire.encode(envelope)) == envelope


@pytest.mark.slow
@FAST
@given(envelopes, envelopes)
def test_different_envelopes_have_different_bytes(one, other):
    assert (wire.encode(one) == wire.encode(other)) == (one == other)


def test_the_announcement_is_laid_out_as_listed_here():
    assert wire.encode(VALID[0]) == announcement()


def test_all_but_the_model_lies_at_the_head_of_an_announcement():
    levels = Levels((CONFIG,))
    short, long = (wire.encode(Announce(levels, model, b"session")) for model in (b"m", b"m" * 200))
    assert short[:-3] == long[:-202]  # a header of two bytes, and the model
    assert short[-10:-3] == b"session"


def accepted_only_if_canonical(received: bytes) -> bool:
    """Whether the bytes were accepted; fails unless they are canonical or raise `DecodeError`."""
    try:
        envelope = wire.decode(received)
    except DecodeError:
        return False
    assert wire.encode(envelope) == received
    return True


@settings(FAST, max_examples=150)
@given(st.binary(max_size=120))
def test_random_bytes_are_refused(received):
    accepted_only_if_canonical(received)


@st.composite
def edited(draw) -> bytes:
    """A valid envelope after a few edits anywhere in it."""
    received = bytearray(wire.encode(draw(st.sampled_from(VALID) | envelopes)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(received)))
        piece = draw(st.binary(max_size=4))
        received[place : place + draw(st.integers(0, 4))] = piece
    return bytes(received)


@pytest.mark.slow
@settings(FAST, max_examples=150)
@given(edited())
def test_edited_bytes_are_refused_or_are_another_envelope(received):
    accepted_only_if_canonical(received)


@pytest.mark.parametrize("envelope", VALID)
def test_every_single_byte_matters(envelope):
    encoded = wire.encode(envelope)
    num_accepted = 0
    for place in range(len(encoded)):
        for flip in (0x01, 0x80, 0xFF):
            received = bytearray(encoded)
            received[place] ^= flip
            if accepted_only_if_canonical(bytes(received)):
                num_accepted += 1
                assert wire.decode(bytes(received)) != envelope
    assert num_accepted > 0  # for example a byte of the session's message


@pytest.mark.parametrize("envelope", VALID)
def test_truncated_and_extended_bytes_are_refused(envelope):
    encoded = wire.encode(envelope)
    for size in range(len(encoded)):
        with pytest.raises(DecodeError):
            wire.decode(encoded[:size])
    for more in (b"\0", b"\xc0", b"\x90", encoded):
        with pytest.raises(DecodeError):
            wire.decode(encoded + more)


fields = st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.sampled_from([0x21, 0x22])


@pytest.mark.slow
@settings(FAST, max_examples=150)
@given(st.sampled_from(range(0x21, 0x29)), st.lists(fields, max_size=25))
def test_arrays_of_arbitrary_fields_are_refused_or_canonical(kind, rest):
    accepted_only_if_canonical(write_fields([wire.VERSION, kind, *rest]))


@pytest.mark.slow
@settings(FAST, max_examples=150)
@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), fields, min_size=1, max_size=3))
def test_announcements_with_arbitrary_fields_are_refused_or_canonical(changes):
    accepted_only_if_canonical(announcement(**changes))


# What does not differ in its bytes differs in its meaning: out of range, or impossible together.
IMPOSSIBLE = {
    "the version before": {"version": 2},
    "another version": {"version": 4},
    "unknown kind": {"kind": 0x29},
    "a kind of noise that is gone": {"kind": 0x27},
    "a kind of radius that is gone": {"kind": 0x28},
    "an unknown aggregation": {"aggregation": 3},
    "a negative aggregation": {"aggregation": -1},
    "parameters of exact sums": {"parameters": bytes(8)},
    "a radius without its number": {"aggregation": 1},
    "a radius of four bytes": {"aggregation": 1, "parameters": struct.pack("<f", 1.0)},
    "a radius under the tag of noise": {"aggregation": 2, "parameters": double(1.0)},
    "noise under the tag of a radius": UNDER_NOISE | {"aggregation": 1},
    "noise and weights that differ": UNDER_NOISE | {"max_weight": 2},
    "noise of a norm of zero": UNDER_NOISE | {"parameters": struct.pack("<dQQ", 0.0, 40, 3)},
    "noise of a norm that is NaN": UNDER_NOISE
    | {"parameters": struct.pack("<dQQ", math.nan, 40, 3)},
    "noise of one step": UNDER_NOISE | {"parameters": struct.pack("<dQQ", 1.0, 1, 3)},
    "noise of too many steps": UNDER_NOISE | {"parameters": struct.pack("<dQQ", 1.0, 2**20 + 1, 3)},
    "noise in updates from nobody": UNDER_NOISE | {"parameters": struct.pack("<dQQ", 1.0, 40, 0)},
    "noise in updates from more than there are": UNDER_NOISE
    | {"parameters": struct.pack("<dQQ", 1.0, 40, 4)},
    "a kind of the session": {"kind": 0x01},
    "a kind above all": {"kind": 0x80},
    "theta of zero": {"theta_numerator": 0},
    "theta over zero": {"theta_denominator": 0},
    "theta above one": {"theta_numerator": 3},
    "theta below zero": {"theta_numerator": -1},
    "theta not reduced": {"theta_numerator": 2, "theta_denominator": 4},
    "theta of 33 bits": {"theta_denominator": 2**32},
    "no cohort": {"cohort_size": 0},
    "a cohort beyond the ids": {"cohort_size": 2**32},
    "a negative round": {"round_index": -1},
    "a round of 64 bits": {"round_index": 2**63},
    "unknown method": {"method": b"median"},
    "no method": {"method": b""},
    "method in other letters": {"method": b"MM"},
    "method not in ASCII": {"method": b"m\xff"},
    "method too long": {"method": b"m" * 33},
    "pivots for mm": {"num_pivots": 5},
    "pivots for bracketed": {"method": b"bracketed", "num_pivots": 1},
    "too many pivots": {"method": b"histogram", "num_pivots": 2**16 + 1},
    "negative pivots": {"method": b"histogram", "num_pivots": -1},
    "negative queries": {"max_queries": -1},
    "too many queries": {"max_queries": 2**16 + 1},
    "negative resolution": {"resolution_bits": -1},
    "a grid too fine": {"resolution_bits": 50},
    "resolution bomb": {"resolution_bits": 2**40},
    "no bound": {"bound": 0},
    "bound beyond 32 bits": {"bound": 2**32},
    "weights of zero": {"max_weight": 0},
    "negative weights": {"max_weight": -5},
    "weights beyond float64": {"max_weight": 2**53 + 1},
    "no update": {"update_length": 0},
    "an update longer than a slot": {"update_length": 2**28 - 3},
    "update length bomb": {"update_length": 2**32 - 1},
    "clip NaN": {"update_clip": double(float("nan"))},
    "clip infinite": {"update_clip": double(float("inf"))},
    "clip negative": {"update_clip": double(-4.0)},
    "clip zero": {"update_clip": double(0.0)},
    "clip minus zero": {"update_clip": double(-0.0)},
    "clip times weight overflows": {"update_clip": double(1.7e308)},
    "clip of four bytes": {"update_clip": struct.pack("<f", 4.0)},
    "clip a float": {"update_clip": 4.0},
    "update needs 54 bits": {"update_resolution_bits": 43},
    "update resolution bomb": {"update_resolution_bits": 64},
    "unknown weighting": {"weighting": b"squares"},
    "no weighting": {"weighting": b""},
    "weighting in other letters": {"weighting": b"EQUAL"},
    "weighting not in ASCII": {"weighting": b"equal\xff"},
    "a number for the weighting": {"weighting": 0},
    "negative epsilon": {"epsilon_ticks": -1},
    "epsilon beyond the grid": {"epsilon_ticks": 8 * 2**8 + 1},
    "epsilon without mm": {"method": b"bracketed", "epsilon_ticks": 1},
    "a negative search cohort": {"min_search_cohort": -1},
    "a search cohort beyond the ids": {"min_search_cohort": 2**32},
    "noise without noisy": NOISY | {"method": b"histogram"},
    "noisy without noise": {"method": b"noisy", "weighting": b"equal"},
    "noise of no variance": NOISY | {"noise_numerator": 0},
    "noise over zero": NOISY | {"noise_denominator": 0},
    "noise not reduced": NOISY | {"noise_numerator": 18, "noise_denominator": 8},
    "noise of 64 bits": NOISY | {"noise_numerator": 2**63},
    "noise over 64 bits": NOISY | {"noise_denominator": 2**63},
    "negative noise": NOISY | {"noise_numerator": -9},
    "noise from nobody": NOISY | {"noise_devices": 0},
    "noise from more than there are": NOISY | {"noise_devices": 4},
    "a second noisy query": NOISY | {"max_queries": 2},
    "noisy by samples": NOISY | {"weighting": b"samples"},
    "noisy by powers of two": NOISY | {"weighting": b"powers-of-two"},
    "noisy with epsilon": NOISY | {"epsilon_ticks": 1},
    "too many noisy pivots": NOISY | {"num_pivots": 2**16 + 1},
    "a negative warm start": {"warm_start": -1},
    "a warm start beyond the grid": {"warm_start": 8 * 2**8 + 2},
    "verified twice": {"verified": 2},
    "verified with a boolean": {"verified": True},
    "a verified ring overflow": WIDE | {"verified": 1},
    "the same level twice": {"other_levels": struct.pack("<IIQ", 1, 2, 0)},
    "half a level": {"other_levels": bytes(8)},
    "ring overflow": {"cohort_size": 2**20, "update_resolution_bits": 40},
    "ring overflow of the weights": {"cohort_size": 2**32 - 1, "max_weight": 2**40},
    "a text": {"model": "model"},
    "a nil": {"session": None},
    "a boolean": {"max_queries": True},
    "a nested array": {"model": [b"model"]},
    "a map": {"session": {b"a": 1}},
    "an extension": {"model": msgpack.ExtType(5, b"model")},
    "a number for bytes": {"session": 5},
    "bytes for a number": {"round_index": b"3"},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_announcements_are_refused(changes):
    with pytest.raises(DecodeError):
        wire.decode(announcement(**changes))


def test_the_impossible_ones_are_at_the_edge_of_possible_ones():
    possible = [
        {"theta_numerator": 1, "theta_denominator": 1},
        {"theta_denominator": 2**32 - 1},
        {"round_index": WORD},
        {"method": b"histogram", "num_pivots": 2**16},
        {"max_queries": 2**16},
        {"update_length": 2**28 - 4},
        {"update_resolution_bits": 42},
        {"update_clip": double(5e-324)},
        {"weighting": b"equal"},
        {"weighting": b"powers-of-two"},
        {"epsilon_ticks": 8 * 2**8},
        {"method": b"bracketed", "epsilon_ticks": 0},
        {"min_search_cohort": 2**32 - 1},
        {"warm_start": 8 * 2**8 + 1},
        {"verified": 1},
        {"min_tail": 3},
        WIDE,
        WIDE | {"verified": 1, "cohort_size": 2**30},
        {"other_levels": struct.pack("<IIQ", 1, 3, 8), "model": b"models"},
        NOISY,
        NOISY | {"noise_numerator": WORD, "noise_denominator": 1},
        NOISY | {"noise_denominator": WORD, "num_pivots": 2**16, "max_queries": 0},
        UNDER_NOISE,
        UNDER_NOISE | {"parameters": struct.pack("<dQQ", 1.0, 2**20, 1)},
    ]
    for changes in possible:
        assert accepted_only_if_canonical(announcement(**changes)), changes


def bounded(radius: float) -> bytes:
    """An announcement of a round with a radius."""
    return announcement(aggregation=1, parameters=double(radius))


@pytest.mark.parametrize(
    "radius", [*map(float, ("nan", "inf", "-inf")), 0.0, -0.0, -1.5, 2.0**-12, 5e-324]
)
def test_a_radius_out_of_its_range_is_refused(radius):
    """2^-11 is √4 steps of 2^-12."""
    assert wire.decode(bounded(2.0**-11)).levels.common.update.aggregation == Clipped(2.0**-11)
    assert accepted_only_if_canonical(bounded(1.7e308))
    with pytest.raises(DecodeError, match="impossible configuration: radius="):
        wire.decode(bounded(radius))


def test_an_impossible_configuration_names_the_value():
    for changes, named in (
        ({"update_clip": double(float("nan"))}, "update_clip=nan"),
        ({"theta_numerator": 3}, "theta=3/2"),
        ({"method": b"median"}, "'median'"),
        ({"weighting": b"squares"}, "'squares'"),
        ({"epsilon_ticks": 2049}, "epsilon_ticks=2049"),
    ):
        with pytest.raises(DecodeError, match=named):
            wire.decode(announcement(**changes))


def test_fields_missing_or_left_over_are_refused():
    values = list(FIELDS.values())
    for received in ([], values[:2], values[:-1], [*values, 0], [*values, *[0] * 40]):
        with pytest.raises(DecodeError):
            wire.decode(msgpack.packb(received))


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"\x93\x03\xcc\x22\xc4\x00",  # the kind in two bytes
        b"\x93\xcd\x00\x03\x22\xc4\x00",  # the version in three
        b"\x93\xd0\x03\x22\xc4\x00",  # the version signed
        b"\x93\x03\x22\xc5\x00\x00",  # a string's length in two bytes
        b"\x93\x03\x22\xc6\x00\x00\x00\x00",
        b"\xdc\x00\x03\x03\x22\xc4\x00",  # the array's length in two bytes
        b"\xdd\x00\x00\x00\x03\x03\x22\xc4\x00",
    ],
)
def test_only_the_shortest_encoding_is_accepted(received):
    assert wire.decode(b"\x93\x03\x22\xc4\x00") == Relay(b"")
    with pytest.raises(DecodeError):
        wire.decode(received)


@pytest.mark.parametrize(
    "received",
    [
        b"\x93\x03\x22\xc6\xff\xff\xff\xff",  # a string of 4 GiB
        b"\xdd\xff\xff\xff\xff",  # 2^32 fields
        b"\xdd\xff\xff\xff\xff\x03\x22",
        b"\x93\x03\x22\xdd\xff\xff\xff\xff",  # a field of 2^32 fields
        b"\x93\x03\x22\xdf\xff\xff\xff\xff",  # a map
        b"\x93\x03\x22\xdb\xff\xff\xff\xff",  # a text
        b"\x93\x03\x22\xc9\xff\xff\xff\xff\x05",  # an extension
        b"\xdd\x00\xff\xff\xff" * 2000,  # arrays in arrays
        b"\x91" * 100_000,
        b"\x93\x03\x22" + b"\x91" * 100_000,
        b"\x81\x03\x22",
        b"\xc1" * 10,
    ],
)
def test_size_bombs_are_refused_without_allocating_what_they_claim(received):
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            wire.decode(received)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_configuration_as_large_as_the_wire_allows_costs_next_to_nothing():
    received = announcement(
        method=b"histogram", num_pivots=2**16, max_queries=2**16, update_length=2**28 - 4
    )
    tracemalloc.start()
    try:
        wire.decode(received)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_envelopes_have_a_largest_size(monkeypatch):
    encoded = wire.encode(Relay(bytes(100)))
    monkeypatch.setattr(wire, "MAX_BYTES", len(encoded))
    assert wire.decode(encoded) == Relay(bytes(100))
    with pytest.raises(DecodeError, match="at most"):
        wire.decode(wire.encode(Relay(bytes(101))))


def test_queries_have_a_largest_number_of_pivots():
    most = Ask(Query("histogram", (5,) * 2**16), b"")
    assert wire.decode(wire.encode(most)) == most
    with pytest.raises(DecodeError):
        wire.decode(wire.encode(Ask(Query("histogram", (5,) * (2**16 + 1)), b"")))
    with pytest.raises(DecodeError):
        wire.decode(
            write_fields([wire.VERSION, 0x23, b"mm", bytes(9), b"", b""])
        )  # a pivot and a byte


@pytest.mark.parametrize("number", [-1, 2**63])
def test_thresholds_are_of_63_bits_and_not_negative(number):
    for eta, half_width in ((number, 0), (0, number)):
        with pytest.raises(DecodeError):
            wire.decode(write_fields([wire.VERSION, 0x24, eta, half_width, b"", b""]))


def test_questions_come_with_room_for_a_proof():
    for kind, fields in ((0x23, [b"mm", bytes(8)]), (0x24, [0, 0])):
        assert wire.decode(
            write_fields([wire.VERSION, kind, *fields, b"opening", b"session"])
        ) == Ask(Query("mm", (0,)) if kind == 0x23 else Threshold(0, 0), b"session", b"opening")
        with pytest.raises(DecodeError):
            wire.decode(write_fields([wire.VERSION, kind, *fields, b"session"]))


def test_what_is_no_envelope_is_not_encoded():
    with pytest.raises(TypeError, match="Query is no envelope"):
        wire.encode(Query("mm", (1,)))
