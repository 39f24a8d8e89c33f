from functools import cache
from itertools import count

import pytest
from edwards import (
    BASE_Y,
    LOW_ORDER,
    NEUTRAL,
    ORDER,
    P,
    affine_sum,
    compressed,
    decoded,
    encoded,
    times,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nacl.exceptions import UnavailableError

from deltafl.secagg import labels, pedersen
from deltafl.secagg.labels import Label
from deltafl.secagg.randomness import SeededRandomness

IDENTITY = encoded(1)
BASE = decoded(encoded(BASE_Y))
FIRST_GENERATORS = [
    "cb28fd84b1e9a86692c7ee7b090f6314766c95c451baf0c21a094e7c2a455db1",
    "fa3df601fefed3495afd64e6e8ac4db940e7c88ff9e55a3ba053437f4e0ae351",
    "14701432dab8fbff7c98c70f6acbac57cdabbfe706486a575bf1215603cace50",
]

BLINDINGS = st.sampled_from([0, 1, ORDER - 1]) | st.integers(0, ORDER - 1)
NUMBERS = st.one_of(
    st.integers(-2, 2),
    st.integers(-(2**48), 2**48),
    st.sampled_from([ORDER - 1, ORDER, ORDER + 1, -ORDER, ORDER // 2, ORDER // 2 + 1, 3 * ORDER]),
    st.integers(-(2**300), 2**300),
)
# Runs of equal values, and values that come again.
VECTORS = st.lists(st.tuples(NUMBERS, st.integers(1, 4)), max_size=5).map(
    lambda runs: [value for value, length in runs for _ in range(length)]
)


def sized(length):
    return st.lists(NUMBERS, min_size=length, max_size=length)


def decoded_strictly(data):
    """RFC 8032 section 5.1.3 with all its refusals."""
    point = decoded(data) if len(data) == 32 else None
    return point if point is not None and compressed(point) == data else None


@cache
def generator_plain(index):
    for attempt in count():
        point = decoded_strictly(labels.digest(Label.GENERATOR, index, attempt))
        if point is not None and times(8, point) != NEUTRAL:
            return times(8, point)
    raise AssertionError


def commit_plain(values, blinding):
    terms = [times(value % ORDER, generator_plain(j)) for j, value in enumerate(values)]
    return compressed(affine_sum([times(blinding, BASE), *terms]))


def test_the_first_generators_never_change():
    assert [pedersen.generator(index).hex() for index in range(3)] == FIRST_GENERATORS


def test_generators_are_distinct_points_of_prime_order():
    generators = [pedersen.generator(index) for index in range(40)]
    assert len({*generators, IDENTITY, encoded(BASE_Y)}) == 42
    for index, data in enumerate(generators):
        point = decoded_strictly(data)
        assert point == generator_plain(index)
        assert times(8, point) != NEUTRAL
        assert times(ORDER, point) == NEUTRAL


def test_some_hashes_are_skipped_as_no_point():
    first = [labels.digest(Label.GENERATOR, index, 0) for index in range(40)]
    assert 5 < sum(decoded_strictly(digest) is None for digest in first) < 35


@pytest.mark.parametrize("unusable", LOW_ORDER)
def test_a_hash_of_small_order_or_not_canonical_is_skipped(monkeypatch, unusable):
    tried = (labels.digest(Label.GENERATOR, 7, attempt) for attempt in count())
    good = next(digest for digest in tried if decoded_strictly(digest) is not None)
    hashes = {0: unusable, 1: good}
    monkeypatch.setattr(labels, "digest", lambda _label, _index, attempt: hashes[attempt])
    expected = compressed(times(8, decoded(good)))
    assert pedersen.generator.__wrapped__(7) == expected


@given(values=VECTORS, blinding=BLINDINGS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_commitments_are_those_of_the_plain_twin(values, blinding):
    assert pedersen.commit(values, blinding) == commit_plain(values, blinding)


@pytest.mark.parametrize("weight", [0, 1, 12345678901])
@pytest.mark.parametrize("first", [0, 1, 17, 62])
def test_histograms_commit_as_in_the_plain_twin(weight, first):
    weights = [weight if index >= first else 0 for index in range(63)]
    ones = [int(index >= first) for index in range(62)]
    values = [weight, 1, *weights, *ones]
    assert pedersen.commit(values, 5) == commit_plain(values, 5)


@pytest.fixture
def computed(monkeypatch):
    """The generators that have been computed since the process began, as if it began now."""
    fresh = cache(pedersen.generator.__wrapped__)
    monkeypatch.setattr(pedersen, "_sums", {0: IDENTITY})
    monkeypatch.setattr(pedersen, "generator", fresh)
    return lambda: (fresh.cache_info().currsize, len(pedersen._sums))


SECRETS = [[0] * 9, [1] * 9, [0, 0, 0, 5, 5, 5, 1, 1, 1], [3, *[0] * 8], [*[0] * 8, -2]]


@pytest.mark.parametrize("values", SECRETS)
def test_what_a_first_commitment_computes_does_not_depend_on_its_values(computed, values):
    """It takes tens of milliseconds: a first answer would tell a loss above every pivot."""
    pedersen.commit(values, 5)
    assert computed() == (9, 10)
    pedersen.commit(values[::-1], 5)
    assert computed() == (9, 10)


def test_runs_of_values_by_themselves_take_only_the_generators_that_they_need(computed):
    """The control: it did depend on the values."""
    found = []
    for values in SECRETS:
        before = computed()
        pedersen._grouped(values)
        found.append(computed() != before)
    assert found == [False, True, False, False, False]
    pedersen._grouped([*[0] * 9, 1])
    assert computed() == (10, 10)


@pytest.mark.parametrize("values", [[], [0], [0, 0, 0], [ORDER], [0, -ORDER, 5 * ORDER]])
def test_zeros_without_blinding_are_the_identity(values):
    assert pedersen.commit(values, 0) == IDENTITY
    assert pedersen.commit(values, 1) == encoded(BASE_Y)
    assert pedersen.opens([], values, ORDER)


@given(values=VECTORS, zeros=st.integers(0, 5), blinding=BLINDINGS)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_zeros_at_the_end_change_nothing(values, zeros, blinding):
    longer = values + [0] * zeros
    assert pedersen.commit(longer, blinding) == pedersen.commit(values, blinding)


@given(values=VECTORS, blinding=BLINDINGS)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_commitment_and_its_opposite_cancel(values, blinding):
    commitment = pedersen.commit(values, blinding)
    opposite = pedersen.commit([-value for value in values], -blinding % ORDER)
    assert pedersen.add([commitment, opposite]) == IDENTITY


@pytest.mark.slow
@given(
    openings=st.integers(1, 6).flatmap(
        lambda length: st.lists(st.tuples(sized(length), BLINDINGS), min_size=1, max_size=5)
    )
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_sum_of_commitments_opens_to_the_sums(openings):
    commitments = [pedersen.commit(values, blinding) for values, blinding in openings]
    sums = [sum(column) for column in zip(*(values for values, _ in openings), strict=True)]
    blinding = sum(blinding for _, blinding in openings)
    assert pedersen.opens(commitments, sums, blinding)
    assert pedersen.opens(commitments[::-1], sums, blinding - 7 * ORDER)


@pytest.mark.slow
@given(
    values=sized(4), blinding=BLINDINGS, index=st.integers(0, 3), change=NUMBERS, other=BLINDINGS
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_nothing_else_opens(values, blinding, index, change, other):
    assume(change % ORDER)
    commitments = [pedersen.commit(values, blinding), pedersen.commit([1, 2, 3, 4], other)]
    sums = [value + more for value, more in zip(values, (1, 2, 3, 4), strict=True)]
    assert pedersen.opens(commitments, sums, blinding + other)
    wrong = [value + change * (position == index) for position, value in enumerate(sums)]
    assert not pedersen.opens(commitments, wrong, blinding + other)
    assert not pedersen.opens(commitments, sums, blinding + other + change)
    forged = pedersen.commit(values, (blinding + change) % ORDER)
    assert not pedersen.opens([forged, commitments[1]], sums, blinding + other)
    assert not pedersen.opens([*commitments, encoded(BASE_Y)], sums, blinding + other)


def test_values_are_bound_to_their_positions():
    commitment = pedersen.commit([1, 2], 9)
    assert not pedersen.opens([commitment], [2, 1], 9)
    assert not pedersen.opens([commitment], [0, 1, 2], 9)
    assert not pedersen.opens([commitment], [1], 9)


@pytest.mark.slow
@given(data=st.binary(min_size=32, max_size=32) | st.binary(max_size=70))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_sums_take_what_decodes_strictly_and_never_raise(data):
    expected = data if decoded_strictly(data) is not None else None
    assert pedersen.add([data]) == expected
    assert (pedersen.add([data, IDENTITY, data]) is None) == (expected is None)
    assert not pedersen.opens([data], [1, 2], 3)


NOT_CANONICAL = [
    *(encoded(y, 1) for y in (1, P - 1)),
    *(encoded(y, sign) for y in range(P, 2**255) for sign in (0, 1)),
]


@pytest.mark.parametrize(
    "bad", [b"", bytes(31), IDENTITY + b"\0", b"\xff" * 32, encoded(2), *NOT_CANONICAL]
)
def test_one_bad_point_spoils_the_sum(bad):
    good = pedersen.commit([1], 2)
    for commitments in ([bad], [good, bad], [bad, good]):
        assert pedersen.add(commitments) is None
        assert not pedersen.opens(commitments, [1], 2)


def test_parts_of_small_order_matter_unless_they_cancel():
    good = pedersen.commit([1], 2)
    canonical = [data for data in LOW_ORDER if decoded_strictly(data) is not None]
    assert len(canonical) == 8
    for small in canonical:
        shifted = pedersen.add([good, small])
        assert pedersen.opens([shifted], [1], 2) == (small == IDENTITY)
        x, y = decoded(small)
        assert pedersen.opens([shifted, compressed((-x % P, y))], [1], 2)


def test_a_library_without_points_is_no_bad_point(monkeypatch):
    def unavailable(first, second):
        raise UnavailableError

    monkeypatch.setattr(pedersen, "crypto_core_ed25519_add", unavailable)
    with pytest.raises(UnavailableError):
        pedersen.add([IDENTITY])


def test_a_blinding_is_64_bytes_modulo_the_order():
    drawn = SeededRandomness(bytes(32))(64)
    blinding = pedersen.draw_blinding(SeededRandomness(bytes(32)))
    assert blinding == int.from_bytes(drawn, "little") % ORDER
    assert pedersen.draw_blinding(lambda size: b"\xff" * size) == (2**512 - 1) % ORDER
