import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.secagg.errors import EncodingError, UsageError
from deltafl.secagg.layout import Field, Layout, Multiple

DETERMINISTIC = settings(max_examples=80, deadline=None, derandomize=True)


def ring_sum(layout, vectors):
    total = np.zeros(layout.length, dtype=np.uint64)
    for vector in vectors:
        total += vector  # wraps mod 2^64, of which 2^ring_bits is a divisor
    return total & np.uint64((1 << layout.ring_bits) - 1)


def signed(word, num_bits):
    return word - (1 << num_bits) if word >> (num_bits - 1) else word


@st.composite
def layouts(draw):
    fields = []
    for name in ("first", "second", "third")[: draw(st.integers(1, 3))]:
        low, high = sorted(draw(st.tuples(*[st.floats(-1000, 1000)] * 2)))
        bits = draw(st.integers(0, 30))
        fields.append(Field(name, draw(st.integers(1, 3)), low, high, bits))
    return Layout(tuple(fields), draw(st.integers(1, 9)))


@pytest.mark.slow
@DETERMINISTIC
@given(layouts(), st.data())
def test_the_decoded_sum_is_the_exact_sum_of_what_was_encoded(layout, data):
    vectors = []
    expected = {field.name: [0] * field.size for field in layout.fields}
    expected_clipped = num_clipped = 0
    for _ in range(data.draw(st.integers(1, layout.cohort_size))):
        values = {}
        for field in layout.fields:
            number = st.one_of(
                st.floats(field.low, field.high),
                st.sampled_from([field.low, field.high]),
                st.floats(-1e300, 1e300),
            )
            values[field.name] = data.draw(
                st.lists(number, min_size=field.size, max_size=field.size)
            )
            for index, value in enumerate(values[field.name]):
                nearest = round(Fraction(value) * 2**field.resolution_bits)
                inside = min(max(nearest, field.min_numerator), field.max_numerator)
                expected[field.name][index] += inside
                expected_clipped += inside != nearest
        vector, clipped = layout.encode(values)
        vectors.append(vector)
        num_clipped += clipped
    sums = layout.decode(ring_sum(layout, vectors))
    assert {name: array.tolist() for name, array in sums.items()} == expected
    assert num_clipped == expected_clipped


@pytest.mark.parametrize("cohort_size", [1, 2, 3, 7, 8, 1000])
@pytest.mark.parametrize(
    ("low", "high"), [(0, 5), (-4, 3), (-3, 4), (-1, 0), (3, 3), (0, 1), (-4, -1)]
)
def test_the_ring_is_as_narrow_as_it_can_be(low, high, cohort_size):
    field = Field("x", 1, low, high, 0)
    layout = Layout((field,), cohort_size)
    sums = [0, cohort_size * low, cohort_size * high]

    def decoded(total, num_bits):
        word = total % (1 << num_bits)
        return signed(word, num_bits) if low < 0 else word

    assert [decoded(total, layout.ring_bits) for total in sums] == sums
    words = ring_sum(layout, [layout.encode({"x": high})[0]] * cohort_size)
    assert layout.decode(words)["x"].tolist() == [cohort_size * high]
    nobody = np.zeros(1, np.uint64)
    assert layout.decode(nobody)["x"].tolist() == [0]
    if layout.ring_bits > 1:  # one bit fewer overflows
        assert [decoded(total, layout.ring_bits - 1) for total in sums] != sums


def test_the_widest_sums_are_exact():
    big = 2**53 - 1
    fields = (Field("plus", 1, 0, big, 0), Field("both", 1, -big, big, 0))
    layout = Layout(fields, 1024)
    assert layout.ring_bits == 64
    for sign in (-1, 1):
        vector, num_clipped = layout.encode({"plus": big, "both": sign * big})
        sums = layout.decode(ring_sum(layout, [vector] * 1024))
        assert num_clipped == 0
        assert sums["plus"].tolist() == [1024 * big]
        assert sums["both"].tolist() == [sign * 1024 * big]


def test_integers_of_every_width_are_encoded_exactly():
    layout = Layout((Field("x", 2, 0, 2**53 - 1, 0),), 1)
    for dtype in (np.int64, np.uint64):
        values = np.array([2**53 - 1, 2**53 + 1], dtype=dtype)
        vector, num_clipped = layout.encode({"x": values})
        assert vector.tolist() == [2**53 - 1, 2**53 - 1]
        assert num_clipped == 1
    values = np.array([2**64 - 1, 2**53 - 2], dtype=np.uint64)
    assert layout.encode({"x": values})[0].tolist() == [2**53 - 1, 2**53 - 2]


def test_values_round_to_nearest_with_ties_to_even_before_they_are_clipped():
    layout = Layout((Field("x", 5, -1.0, 1.0, 1),), 1)
    vector, num_clipped = layout.encode({"x": [0.25, 0.75, -0.25, 1.2, 1.3]})
    assert [signed(int(word), layout.ring_bits) for word in vector] == [0, 2, 0, 2, 2]
    assert num_clipped == 1


def test_booleans_and_short_floats_are_numbers():
    layout = Layout((Field("flag", 2, 0, 1, 0), Field("x", 1, -1, 1, 10)), 3)
    vector, _ = layout.encode({"flag": np.array([True, False]), "x": np.float32(0.5)})
    assert vector.tolist() == [1, 0, 512]


@DETERMINISTIC
@given(
    factor=st.sampled_from([0, 1, 7, 8192, 2**53]),
    values=st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3),
    cohort_size=st.sampled_from([1, 2**20]),
)
def test_multiples_are_encoded_as_the_products_are(factor, values, cohort_size):
    layout = Layout((Field("x", 3, -1000, 1000, 10),), cohort_size)
    numbers = np.array(values, dtype=np.float32)
    words, num_clipped = layout.encode({"x": Multiple(numbers, factor)})
    expected, expected_clipped = layout.encode({"x": factor * numbers.astype(np.float64)})
    assert words.tolist() == expected.tolist()
    assert words.dtype == (np.uint32 if cohort_size == 1 else np.uint64)
    assert num_clipped == expected_clipped


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 2**32 - 1])
def test_unsigned_words_of_32_bits_are_used_to_the_last(value):
    layout = Layout((Field("x", 1, 0, 2**32 - 1, 0), Field("y", 1, -1, 1, 0)), 1)
    words, _ = layout.encode({"x": value, "y": -1})
    assert layout.ring_bits == 32
    assert words.dtype == np.uint32
    assert words.tolist() == [value, 2**32 - 1]
    assert {name: sums.tolist() for name, sums in layout.decode(words).items()} == {
        "x": [value],
        "y": [-1],
    }


def test_sums_convert_to_the_unit_of_their_field():
    layout = Layout((Field("x", 2, -1.0, 1.0, 10),), 4)
    sums = layout.decode(ring_sum(layout, [layout.encode({"x": [0.25, -1.0]})[0]] * 3))
    assert layout.to_float("x", sums["x"]).tolist() == [0.75, -3.0]
    with pytest.raises(EncodingError, match="unknown field 'y'"):
        layout.to_float("y", sums["x"])


@DETERMINISTIC
@given(
    field=st.sampled_from(
        [
            Field("x", 1, -1.0, 1.0, 2),
            Field("x", 1, 0, 500, 0),
            Field("x", 1, -(2.0**52), 2**52, 0),
            Field("x", 1, 3, 7.5, 1),
        ]
    ),
    value=st.floats(-9, 9).map(lambda x: round(8 * x) / 8)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-600, 600)
    | st.integers(-(2**63), 2**63 - 1),
)
def test_a_number_is_encoded_as_an_array_of_it(field, value):
    layout = Layout((field,), 3)
    words, num_clipped = layout.encode({"x": value})
    expected, expected_clipped = layout.encode({"x": np.array([value])})
    assert words.tolist() == expected.tolist()
    assert num_clipped == expected_clipped


@pytest.mark.parametrize(("value", "end"), [(-9, -1), (9, 1), (-1.2, -1), (1.2, 1)])
def test_a_number_out_of_range_is_clipped_to_the_nearer_end(value, end):
    layout = Layout((Field("x", 1, -1.0, 1.0, 0),), 1)
    words, num_clipped = layout.encode({"x": value})
    assert [signed(int(word), layout.ring_bits) for word in words] == [end]
    assert num_clipped == (abs(value) >= 1.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(bad):
    layout = Layout((Field("loss", 1, -1.0, 1.0, 10),), 4)
    with pytest.raises(EncodingError, match=r"'loss': element 0 is -?(nan|inf)"):
        layout.encode({"loss": bad})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_by_name_and_index(bad):
    layout = Layout((Field("delta", 3, -1.0, 1.0, 10),), 4)
    with pytest.raises(EncodingError, match=r"'delta': element 1 is -?(nan|inf)"):
        layout.encode({"delta": [0.0, bad, 0.0]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"missing fields \['x'\]"),
        ({"x": [0.0, 0.0], "y": 1}, r"unknown fields \['y'\]"),
        ({"x": [0.0]}, r"shape \(1,\) is not \(2,\)"),
        ({"x": 0.0}, r"shape \(\) is not \(2,\)"),
        ({"x": [[0.0, 0.0]]}, r"shape \(1, 2\) is not \(2,\)"),
        ({"x": ["1", "2"]}, "is not real numbers"),
        ({"x": [1j, 2j]}, "is not real numbers"),
        ({"x": [2**70, 0]}, "dtype object is not real numbers"),
    ],
)
def test_values_of_another_form_are_refused(values, message):
    with pytest.raises(EncodingError, match=message):
        Layout((Field("x", 2, -1.0, 1.0, 10),), 4).encode(values)


@pytest.mark.parametrize(
    ("total", "message"),
    [
        (np.zeros(1, np.uint64), "shape"),
        (np.zeros(2, np.int64), "dtype int64"),
        (np.array([8, 0], np.uint64), r"not in \[0, 2\^3\)"),
        (np.array([7, 0], np.uint64), r"'x': sums in \[7, 7\] leave \[0, 4\]"),
    ],
)
def test_sums_that_no_cohort_gives_are_refused(total, message):
    layout = Layout((Field("x", 1, 0, 1, 0), Field("y", 1, 0, 1, 0)), 4)
    with pytest.raises(EncodingError, match=message):
        layout.decode(total)


def test_decoding_leaves_the_sum_alone():
    layout = Layout((Field("x", 2, 0, 1, 0),), 4)
    total = np.array([1, 2], np.uint64)
    layout.decode(total)["x"][0] = 4
    assert total.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Field("", 1, 0, 1, 0), "empty name"),
        (lambda: Field("x", 0, 0, 1, 0), "size=0"),
        (lambda: Field("x", 2.0, 0, 1, 0), r"'x': size=2\.0 is not a whole number"),
        (lambda: Field("x", 2, 0, 1, 8.0), r"'x': resolution_bits=8\.0 is not a whole number"),
        (lambda: Field("x", 2, "0", 1, 8), "'x': low='0' is not a number"),
        (lambda: Field("x", 2, 0, None, 8), "'x': high=None is not a number"),
        (lambda: Layout((Field("x", 1, 0, 1, 0),), 9.0), r"cohort_size=9\.0 is not a whole"),
        (lambda: Field("x", 1, 0, 1, -1), "resolution_bits=-1"),
        (lambda: Field("x", 1, 1, 0, 0), "interval"),
        (lambda: Field("x", 1, 0, math.inf, 0), "interval"),
        (lambda: Field("x", 1, math.nan, 0, 0), "interval"),
        (lambda: Field("x", 1, -(2**53), 0, 0), "needs 54 bits"),
        (lambda: Field("x", 1, 0, 2, 52), "needs 54 bits"),
        (lambda: Layout((), 1), "field names"),
        (lambda: Layout((Field("x", 1, 0, 1, 0),) * 2, 1), "different names"),
        (lambda: Layout((Field("x", 1, 0, 1, 0),), 0), "cohort_size=0"),
        (
            lambda: Layout((Field("x", 1, 0, 1, 50),), 2**13),
            r"'x': sums over 8192 devices need 64 bits.*bound.*resolution_bits.*cohort_size",
        ),
        (lambda: Layout((Field("x", 1, -1, 1, 50),), 2**13), "need 65 bits"),
    ],
)
def test_layouts_that_cannot_be_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_the_canonical_bytes_tell_layouts_apart():
    def layout(*fields, cohort_size=10):
        return Layout(tuple(fields), cohort_size)

    base = Field("ab", 1, 0, 1, 0)
    different = [
        layout(base),
        layout(base, cohort_size=11),
        layout(Field("a", 1, 0, 1, 0)),
        layout(Field("ab", 2, 0, 1, 0)),
        layout(Field("ab", 1, -1, 1, 0)),
        layout(Field("ab", 1, 0, 2, 0)),
        layout(Field("ab", 1, 0, 0.5, 1)),
        layout(base, Field("c", 1, 0, 1, 0)),
        layout(Field("c", 1, 0, 1, 0), base),
    ]
    assert len({value.canonical() for value in different}) == len(different)
    assert layout(base).canonical() == layout(Field("ab", 1, 0.0, 1.0, 0)).canonical()


@pytest.mark.parametrize(("word", "total"), [(5, 5), (11, -5), (8, -8)])
def test_signed_sums_out_of_range_are_refused_on_both_sides(word, total):
    layout = Layout((Field("x", 1, -1, 1, 0),), 4)
    assert layout.ring_bits == 4
    with pytest.raises(EncodingError, match=rf"\[{total}, {total}\] leave \[-4, 4\]"):
        layout.decode(np.array([word], np.uint64))


def test_numbers_of_numpy_do_not_overflow_unnoticed():
    """Shifted or multiplied, 64-bit integers of NumPy would wrap."""
    of_numpy = Layout(
        (Field("x", np.int64(1), np.int64(-(2**49)), np.int32(5), np.int8(3)),), np.int64(2000)
    )
    own = Layout((Field("x", 1, -(2**49), 5, 3),), 2000)
    assert of_numpy == own
    assert of_numpy.ring_bits == own.ring_bits == 64
    assert of_numpy.fields[0].min_numerator == -(2**52)
    assert of_numpy.canonical() == own.canonical()
    half = Field("x", 1, np.float32(-0.5), np.float16(0.5), 3)
    assert (half.min_numerator, half.max_numerator) == (-4, 4)


def test_a_factor_of_numpy_does_not_overflow_unnoticed():
    layout = Layout((Field("x", 2, 0, 2**42, 10),), 1)
    words, num_clipped = layout.encode({"x": Multiple([2.0**-13, 0.5], np.int64(2**53))})
    assert (words.tolist(), num_clipped) == ([2**50, 2**52], 1)


class NoArray:
    """As a tensor that has a gradient."""

    def __array__(self, *_, **__):
        raise RuntimeError("use tensor.detach()")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], "list instead of a value by name"),
        ({"x": [[1], [2, 3]]}, "'x': list is no array"),
        ({"x": NoArray()}, "'x': NoArray is no array"),
        ({"x": None}, "'x': dtype object"),
        ({"x": ["1", "2"]}, "'x': dtype <U1"),
        ({"x": np.ma.array([0.5, 7.0], mask=[False, True])}, "'x': a masked array"),
        ({"x": Multiple([0.5, 0.5], -1)}, "'x': factor -1 is no whole number"),
        ({"x": Multiple([0.5, 0.5], 0.5)}, r"'x': factor 0\.5 is no whole number"),
        ({"x": Multiple([0.5, 0.5], 2**53 + 1)}, "'x': factor 9007199254740993"),
        ({"x": Multiple(np.ma.array([0.5, 7.0], mask=[False, True]), 1)}, "'x': a masked array"),
    ],
)
def test_what_is_no_array_is_named(values, message):
    layout = Layout((Field("x", 2, -1, 1, 8),), 10)
    with pytest.raises(EncodingError, match=message):
        layout.encode(values)


def test_sums_that_are_no_arrays_are_named():
    with pytest.raises(EncodingError, match="a NumPy array, not a list"):
        Layout((Field("x", 2, -1, 1, 8),), 10).decode([1, 2])


def test_sums_may_come_as_lists():
    layout = Layout((Field("x", 2, 0, 1, 3),), 4)
    assert layout.to_float("x", [4, 6]).tolist() == [0.5, 0.75]
