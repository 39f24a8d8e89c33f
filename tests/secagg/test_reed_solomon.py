"""Reed–Solomon decoding: what can be corrected is, what cannot is not made up."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.secagg.blame import locate, places_of_errors
from deltafl.secagg.shamir import PRIME, combine_plain, lagrange_at, split_plain


def decoded(points, values, threshold):
    """The secret, and the indices of the wrong values; None if too many are wrong to tell."""
    words = np.array(values, dtype=np.uint32)[:, None]
    wrong = locate(np.array(points, dtype=np.int64), words, threshold)
    if wrong is None:
        return None
    right = {p: v for p, v, bad in zip(points, values, wrong[:, 0], strict=True) if not bad}
    return combine_plain(dict(list(right.items())[:threshold]), PRIME), [*np.flatnonzero(wrong)]


def value_at(points, values, where):
    """The value at `where` of the polynomial through some points, by shifting it to zero."""
    shifted = {(point - where) % PRIME: value for point, value in zip(points, values, strict=True)}
    return combine_plain(shifted, PRIME)


def decode_plain(points, values, threshold):
    """The slow twin: tries every polynomial through t of the values."""
    most, found = (len(points) - threshold) // 2, set()
    for chosen in itertools.combinations(range(len(points)), threshold):
        through = [points[i] for i in chosen], [values[i] for i in chosen]
        wrong = [
            i
            for i, (point, value) in enumerate(zip(points, values, strict=True))
            if i not in chosen and value_at(*through, point) != value
        ]
        if len(wrong) <= most:
            found.add((value_at(*through, 0), tuple(wrong)))
    assert len(found) <= 1
    return next(((secret, list(wrong)) for secret, wrong in found), None)


elements = st.one_of(st.sampled_from([0, 1, PRIME - 1]), st.integers(0, PRIME - 1))


@st.composite
def code_words(draw, *, most_points=14):
    """Points, threshold, the secret, and its shares."""
    threshold = draw(st.integers(1, 7))
    num = draw(st.integers(threshold, max(threshold, most_points)))
    point = st.one_of(st.integers(1, 20), st.integers(1, PRIME - 1))
    points = draw(st.lists(point, min_size=num, max_size=num, unique=True))
    secret, *coefficients = draw(st.lists(elements, min_size=threshold, max_size=threshold))
    shares = split_plain(secret, points, coefficients, PRIME)
    return points, threshold, secret, [shares[point] for point in points]


def spoil(data, shares, count):
    """Other values at `count` places, anywhere; returns the places too."""
    wrong = sorted(data.draw(st.permutations(range(len(shares))))[:count])
    errors = data.draw(st.lists(st.integers(1, PRIME - 1), min_size=count, max_size=count))
    spoilt = list(shares)
    for place, error in zip(wrong, errors, strict=True):
        spoilt[place] = (spoilt[place] + error) % PRIME
    return spoilt, wrong


@settings(max_examples=100)
@given(word=code_words(), data=st.data())
def test_errors_up_to_the_radius_are_corrected_and_named(word, data):
    points, threshold, secret, shares = word
    radius = (len(points) - threshold) // 2
    spoilt, wrong = spoil(data, shares, data.draw(st.integers(0, radius)))
    assert decoded(points, spoilt, threshold) == (secret, wrong)


@pytest.mark.slow
@settings(max_examples=100)
@given(word=code_words(), data=st.data())
def test_whatever_is_decoded_lies_within_the_radius(word, data):
    # Beyond it the answer may be none, or another code word that really is that near: never one
    # that is further away than it says.
    points, threshold, _, shares = word
    radius = (len(points) - threshold) // 2
    spoilt, _ = spoil(data, shares, data.draw(st.integers(radius, len(points))))
    answer = decoded(points, spoilt, threshold)
    if answer is not None:
        secret, wrong = answer
        assert len(wrong) <= radius
        right = [i for i in range(len(points)) if i not in wrong]
        first = right[:threshold]
        through = [points[i] for i in first], [spoilt[i] for i in first]
        assert value_at(*through, 0) == secret
        assert all(value_at(*through, points[i]) == spoilt[i] for i in right)
        assert all(value_at(*through, points[i]) != spoilt[i] for i in wrong)


@settings(max_examples=60)
@given(word=code_words(), data=st.data())
def test_one_error_more_is_seen_wherever_no_code_word_can_be_that_near(word, data):
    # Two code words differ in m − t + 1 places. For odd m − t that is 2(radius + 1): what is
    # radius + 1 away from one is within the radius of none.
    points, threshold, _, shares = word
    if (len(points) - threshold) % 2 == 0:
        points, shares = points[1:], shares[1:]
    if len(points) > threshold:
        spoilt, _ = spoil(data, shares, (len(points) - threshold) // 2 + 1)
        assert decoded(points, spoilt, threshold) is None


@pytest.mark.slow
@settings(max_examples=200)
@given(
    points=st.lists(st.integers(1, 30), min_size=1, max_size=7, unique=True),
    values=st.lists(st.integers(0, 2), min_size=7, max_size=7),
    data=st.data(),
)
def test_equals_the_slow_twin(points, values, data):
    # Few and small values: polynomials of low degree pass through many of them.
    threshold = data.draw(st.integers(1, len(points)))
    values = values[: len(points)]
    assert decoded(points, values, threshold) == decode_plain(points, values, threshold)


def test_every_place_of_two_errors():
    points = [3, 1, 9, 4, 100, PRIME - 1, 7]
    shares = list(split_plain(11, points, [5, 6], PRIME).values())
    for wrong in itertools.chain.from_iterable(
        itertools.combinations(range(7), count) for count in range(3)
    ):
        spoilt = [(s + 1 + i) % PRIME if i in wrong else s for i, s in enumerate(shares)]
        assert decoded(points, spoilt, 3) == (11, list(wrong))
    for wrong in itertools.combinations(range(7), 3):
        spoilt = [(s + 1 + i**3) % PRIME if i in wrong else s for i, s in enumerate(shares)]
        assert decoded(points, spoilt, 3) is None


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_the_zero_polynomial(threshold):
    points = list(range(1, threshold + 5))
    assert decoded(points, [0] * len(points), threshold) == (0, [])
    spoilt = [0] * len(points)
    spoilt[0] = spoilt[-1] = PRIME - 1
    assert decoded(points, spoilt, threshold) == (0, [0, len(points) - 1])


def test_as_many_shares_as_the_threshold_fit_whatever_they_are():
    points, values = [2, 5, 6], [9, 8, 7]
    expected = combine_plain(dict(zip(points, values, strict=True)), PRIME)
    assert decoded(points, values, 3) == (expected, [])


def test_one_share_more_than_the_threshold_detects_and_corrects_nothing():
    points = [1, 2, 3, 4]
    shares = list(split_plain(5, points, [6, 7], PRIME).values())
    assert decoded(points, shares, 3) == (5, [])
    for place in range(4):
        spoilt = [s + 1 if i == place else s for i, s in enumerate(shares)]
        assert decoded(points, spoilt, 3) is None


def test_threshold_one_is_a_vote():
    assert decoded([1], [4], 1) == (4, [])
    assert decoded([1, 2, 3], [4, 5, 4], 1) == (4, [1])
    assert decoded([1, 2, 3], [4, 5, 6], 1) is None
    assert decoded([1, 2], [4, 5], 1) is None


def test_colluders_beyond_the_radius_can_agree_on_another_secret():
    # What the radius means. Of m = 7 shares for t = 3, two may be wrong. Three that know two of
    # the others' put themselves on one polynomial with these, and the rest pass for the liars.
    points = list(range(1, 8))
    shares = list(split_plain(11, points, [5, 6], PRIME).values())
    # Another polynomial of degree 2, which equals the first at the points 1 and 2.
    false = [share + (x - 1) * (x - 2) for share, x in zip(shares, points, strict=True)]
    assert decoded(points, shares[:4] + false[4:], 3) == (11 + 2, [2, 3])
    assert decoded(points, shares[:5] + false[5:], 3) == (11, [5, 6])


@settings(max_examples=60)
@given(
    size=st.integers(4, 12),
    threshold=st.integers(1, 4),
    first=st.integers(0, 1),
    errors=st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 4), st.integers(1, PRIME - 1)), max_size=14
    ),
)
def test_words_located_together_are_those_decoded_one_by_one(size, threshold, first, errors):
    points = np.arange(first, first + size)
    words = np.zeros((size, 5), dtype=np.uint32)
    for word in range(5):
        coefficients = [(7 * word + i) % PRIME for i in range(threshold - 1)]
        shares = split_plain(word + 3, points.tolist(), coefficients, PRIME)
        words[:, word] = [shares[point] for point in points.tolist()]
    for place, word, error in errors:
        if place < size:
            words[place, word] = (int(words[place, word]) + error) % PRIME
    each = [locate(points, words[:, [word]], threshold) for word in range(5)]
    together = locate(points, words, threshold)
    if any(found is None for found in each):
        assert together is None
    else:
        assert together.tolist() == np.hstack(each).tolist()


def test_one_liar_is_decoded_once_or_twice(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "deltafl.secagg.blame.places_of_errors",
        lambda *word: calls.append(0) or places_of_errors(*word),
    )
    for limbs, most in ((slice(None), 1), (slice(8, 9), 2)):
        words = np.ones((9, 9), dtype=np.uint32)
        words[1, limbs] = 2
        found = locate(np.arange(1, 10), words, 3)
        assert np.argwhere(found).tolist() == [[1, i] for i in range(9)[limbs]]
        assert len(calls) == most
        calls.clear()


@pytest.mark.slow
@given(st.lists(elements, min_size=2, max_size=9, unique=True), st.data())
def test_weights_carry_a_polynomial_from_some_points_to_others(points, data):
    points = [point % PRIME for point in points]
    cut = data.draw(st.integers(1, len(points) - 1))
    base, others = np.array(points[:cut]), np.array(points[cut:])
    coefficients = [5 + i for i in range(cut - 1)]
    values = split_plain(9, points, coefficients, PRIME)
    weights = lagrange_at(base, others).astype(object)
    carried = weights @ np.array([values[point] for point in points[:cut]], dtype=object) % PRIME
    assert carried.tolist() == [values[point] for point in points[cut:]]
