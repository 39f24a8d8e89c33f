"""`secure_sum`: whatever can be summed is summed rightly, and what cannot is named."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.secagg import (
    Adversary,
    PeerError,
    SessionAborted,
    Stage,
    ThreatModel,
    UsageError,
    one_process,
    secure_sum,
)

FEW = settings(max_examples=25)
LARGEST = 2**53 - 1
FIVE = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


def weights_for(draw, count, largest):
    return draw(st.none() | st.lists(st.integers(0, largest), min_size=count, max_size=count))


def times(weights, values):
    return (
        list(values) if weights is None else [w * v for w, v in zip(weights, values, strict=True)]
    )


@pytest.mark.slow
@FEW
@given(st.data())
def test_sums_of_integers_are_exact(data):
    count, length = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    most = data.draw(st.sampled_from([0, 1, 1000, 2**40]))
    numbers = st.integers(-most, most)
    vectors = [data.draw(st.lists(numbers, min_size=length, max_size=length)) for _ in range(count)]
    weights = weights_for(data.draw, count, 2**12)
    result = secure_sum(vectors, weights=weights, min_cohort=2)
    assert result.vector.dtype == np.int64
    columns = zip(*vectors, strict=True)
    assert result.vector.tolist() == [sum(times(weights, column)) for column in columns]
    assert result.total_weight == (count if weights is None else sum(weights))
    assert result.contributors == tuple(range(count))


@pytest.mark.slow
@FEW
@given(st.data())
def test_sums_of_floats_are_as_near_as_is_said(data):
    """Exponents from the smallest subnormal on, in one vector: the error is that of the largest."""
    count = data.draw(st.integers(2, 6))
    numbers = finite if data.draw(st.booleans()) else st.floats(-1e-300, 1e-300)
    vectors = [data.draw(st.lists(numbers, min_size=2, max_size=2)) for _ in range(count)]
    weights = weights_for(data.draw, count, 2**12)
    result = secure_sum(vectors, weights=weights, min_cohort=2)
    assert result.vector.dtype == np.float64
    largest = max(abs(Fraction(number)) for vector in vectors for number in vector)
    largest *= max(1, *(weights or [1]))
    unit = 2 * largest / 2**53  # at least u, as 2·largest is at least the power of two above it
    for found, column in zip(result.vector.tolist(), zip(*vectors, strict=True), strict=True):
        exact = sum(times(weights, map(Fraction, column)))
        rounding = abs(exact) / 2**52 + Fraction(5e-324)
        assert abs(Fraction(found) - exact) <= count * unit + rounding


def test_floats_of_one_magnitude_are_summed_exactly():
    values = [1.0 + n * 2.0**-52 for n in range(5)]
    assert float(secure_sum(values).vector) == float(sum(map(Fraction, values)))


def test_more_devices_than_53_bits_have_room_for():
    arrays = {number: np.array([1.5 - 2.0**-52]) for number in range(1024)}
    exponent, field = one_process._float_field(arrays, 1)
    assert (exponent, field.resolution_bits) == (1, 52)
    assert field.ring_bits(1024) <= 64
    exponent, field = one_process._float_field(dict(list(arrays.items())[:-1]), 1)
    assert (exponent, field.resolution_bits) == (1, 53)
    assert field.ring_bits(1023) == 64


@pytest.mark.parametrize("zero", [0.0, -0.0, 5e-324])
def test_zeros_of_either_sign_and_the_smallest_number(zero):
    result = secure_sum([[zero, 0.0]] * 5)
    assert result.vector.tolist() == [5 * abs(zero), 0.0]
    assert not np.signbit(result.vector).any()


def test_opposite_numbers_cancel_to_a_plain_zero():
    result = secure_sum([[1e300], [-1e300], [2.5], [-2.5], [-0.0]])
    assert result.vector.tolist() == [0.0]
    assert not np.signbit(result.vector).any()


@pytest.mark.parametrize(
    "values",
    [
        [np.int8(-128)] * 5,
        [np.uint64(LARGEST), -LARGEST, np.int16(3), True, np.bool_(True)],
        [np.int64(-LARGEST)] * 5,
    ],
)
def test_integers_of_any_type_are_summed(values):
    assert int(secure_sum(values).vector) == sum(map(int, values))


def test_integers_beside_floats_are_floats():
    result = secure_sum([[1, 2], [0.5, 0.25], np.float16([1, 1]), np.float32([0, 1]), [3, 3]])
    assert result.vector.dtype == np.float64
    assert result.vector.tolist() == [5.5, 7.25]


def test_matrices_and_numbers_keep_their_shape():
    result = secure_sum(np.arange(30).reshape(5, 2, 3))
    assert result.vector.tolist() == np.arange(30).reshape(5, 2, 3).sum(axis=0).tolist()
    assert secure_sum([1, 2, 3, 4, 5]).vector.shape == ()
    assert secure_sum(n for n in range(5)).vector.tolist() == 10


def test_vectors_are_left_alone():
    vectors = {7 * n: np.array([n, -n]) for n in range(5)}
    secure_sum(vectors, weights={7 * n: n for n in range(5)})
    assert [vector.tolist() for vector in vectors.values()] == [[n, -n] for n in range(5)]


def test_devices_may_have_names():
    values = {"eve": 1.0, "ann": 2.0, "dan": 4.0, "ben": 8.0, "cat": 16.0, "fay": 32.0}
    result = secure_sum(
        values, weights=dict.fromkeys(values, 1) | {"ann": 2}, dropouts={"cat": Stage.MASK}
    )
    assert result.contributors == ("eve", "ann", "dan", "ben", "fay")
    assert (float(result.vector), result.total_weight) == (49.0, 6)


def test_a_mean_is_over_those_who_stayed():
    values = {n: float(n) for n in range(10)}
    result = secure_sum(
        values, weights=dict.fromkeys(values, 3) | {9: 90}, dropouts={9: Stage.MASK}
    )
    assert result.contributors == tuple(range(9))
    assert (result.total_weight, float(result.mean)) == (27, 4.0)
    assert float(secure_sum(values).mean) == 4.5


@pytest.mark.parametrize("stage", list(Stage))
def test_who_vanishes_before_its_vector_is_not_in_the_sum(stage):
    result = secure_sum(range(10), dropouts={9: stage})
    stayed = 10 if stage > Stage.MASK else 9
    assert result.contributors == tuple(range(stayed))
    assert int(result.vector) == sum(range(stayed))
    assert result.total_weight == stayed


def test_too_few_that_stay_have_no_sum():
    with pytest.raises(SessionAborted, match="5 devices are left and min_cohort is 6"):
        secure_sum(range(10), dropouts=dict.fromkeys(range(5), Stage.MASK))


def test_every_sum_is_a_session_of_its_own(monkeypatch):
    run, seen = one_process.run_session, []

    def watched(params, *arguments, **options):
        seen.append(params)
        return run(params, *arguments, **options)

    monkeypatch.setattr(one_process, "run_session", watched)
    active = ThreatModel(adversary=Adversary.ACTIVE)
    assert int(secure_sum(range(10), threat=active, dropouts={2: Stage.CONFIRM}).vector) == 45
    assert int(secure_sum(range(10)).vector) == 45
    assert len({params.graph_seed for params in seen} | {params.context for params in seen}) == 4


def test_a_cohort_is_as_large_as_was_asked_for():
    assert int(secure_sum([1, 2, 3], min_cohort=np.int64(3)).vector) == 6
    assert int(secure_sum([1, 2], min_cohort=2).vector) == 3
    with pytest.raises(UsageError, match="4 vectors are fewer than the 5 of a cohort"):
        secure_sum([1, 2, 3, 4])
    with pytest.raises(SessionAborted, match="min_cohort is 10"):
        secure_sum(range(10), min_cohort=10, dropouts={0: Stage.SHARE})


def test_what_devices_do_not_accept_is_their_refusal(monkeypatch):
    monkeypatch.setattr(one_process, "DevicePolicy", lambda *a, **k: _POLICY(*a, **k, max_length=3))
    with pytest.raises(PeerError, match="vector length=4 is above the device's 3"):
        secure_sum([[1, 2, 3, 4]] * 5)


_POLICY = one_process.DevicePolicy


class Tensor:
    """One that NumPy cannot read, as one with a gradient, or of bfloat16."""

    def __array__(self, *_):
        raise TypeError("no")

    def detach(self):
        """As tensors have it."""


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        ([], {}, "0 vectors"),
        ([[1, 2]], {"min_cohort": 1}, "1 vectors: a secure sum is over at least 2"),
        (None, {}, "vectors of type NoneType"),
        (7, {}, "vectors of type int"),
        ([*FIVE[:4], [1]], {}, r"device 4: shape \(1,\) is not that of device 0, \(2,\)"),
        ([*FIVE[:4], 3], {}, r"device 4: shape \(\)"),
        ([[]] * 5, {}, r"device 0: an array of shape \(0,\) has no elements"),
        (np.zeros((5, 2, 0)), {}, "device 0: an array of shape"),
        ([*FIVE[:4], [1, [2]]], {}, "device 4: list is no array: join the parts into one vector"),
        ([[np.eye(2), np.ones(2)]] * 5, {}, "device 0: list is no array: join the parts into one"),
        ([{"w": [1.0]}] * 5, {}, "device 0: dtype object is not real numbers: join the parts into"),
        ([Tensor()] * 5, {}, r"Tensor is no array: give tensor.detach\(\).float\(\).cpu\(\)"),
        (FIVE, {"threat": "active"}, "threat=.active. is no `ThreatModel`"),
        (["a", "b", "c", "d", "e"], {}, "device 0: dtype <U1 is not real numbers"),
        ([1j] * 5, {}, "device 0: dtype complex128"),
        ([None] * 5, {}, "device 0: dtype object"),
        ([2**70] * 5, {}, "device 0: dtype object"),
        ([0, 0, 0, 0, np.uint64(2**64 - 1)], {}, "device 4: integers of magnitude 1844"),
        ([0, 0, -(2**53), 0, 0], {}, "device 2: integers of magnitude 9007199254740992"),
        ([*FIVE[:4], [0.5, np.nan]], {}, "device 4: element 1 is nan"),
        ([*FIVE[:4], [-np.inf, 0.5]], {}, "device 4: element 0 is -inf"),
        ([1e308] * 5, {}, r"numbers up to 1e\+308"),
        ([1e300] * 5, {"weights": [2**40] * 5}, r"numbers up to 1e\+300 times"),
        ([2**50] * 5, {"weights": [8] * 5}, "integers times weights up to 9007199254740992"),
        ([np.ma.array([1, 2], mask=[True, False])] * 5, {}, "device 0: a masked array"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, 0: 5}, {}, "called by ids and by names"),
        ({None: 1, "b": 2, "c": 3, "d": 4, "e": 5}, {}, "called by ids and by names"),
        ({0: 1, 1: 2, 2: 3, 3: 4, None: 5}, {}, "id None of a device"),
        ({"ann": 1, "ben": [2], "c": 3, "d": 4, "e": 5}, {}, "device ben: shape"),
        ({0: 1, 1: 1, 2: 1, 3: 1, -4: 1}, {}, "ids -4…3 are not in"),
        ({0: 1, 1: 1, 2: 1, 3: 1, 2**32: 1}, {}, "are not in"),
        (FIVE, {"weights": [1] * 4}, r"missing for devices \[4\] and have no vector .* \[\]"),
        (FIVE, {"weights": [1] * 6}, r"have no vector for devices \[5\]"),
        (FIVE, {"weights": 3}, "weights of type int"),
        (FIVE, {"weights": [1, 1, 1, 1, 0.5]}, r"device 4: weight 0\.5 is not a whole number"),
        (FIVE, {"weights": [1, 1, -1, 1, 1]}, "device 2: weight -1"),
        (FIVE, {"weights": [1, 2**53, 1, 1, 1]}, "device 1: weight 9007199254740992"),
        (FIVE, {"min_cohort": 6}, "min_cohort=6 is not a whole number from 2 to 5"),
        (FIVE, {"min_cohort": 1}, "min_cohort=1 is not"),
        (FIVE, {"min_cohort": 2.5}, r"min_cohort=2\.5 is not"),
        (FIVE, {"dropouts": {5: Stage.MASK}}, "there is no device 5"),
        (FIVE, {"dropouts": {0: "mask"}}, "device 0: 'mask' is no Stage: ADVERTISE, SHARE"),
        (FIVE, {"dropouts": [0]}, "dropouts are stages by device, not a list"),
        (FIVE, {"threat": "active"}, "threat='active' is no `ThreatModel`"),
        (FIVE, {"graph": "dense"}, "graph='dense' is neither"),
        (FIVE, {"threat": ThreatModel(0.5, 0.4)}, "no threshold is both safe and reachable"),
    ],
)
def test_what_cannot_be_summed_is_named(vectors, options, message, monkeypatch):
    sent = []
    start = one_process.run_session.__globals__["Server"].start
    monkeypatch.setattr(
        one_process.run_session.__globals__["Server"],
        "start",
        lambda server: sent.append(server) or start(server),
    )
    with pytest.raises(UsageError, match=message):
        secure_sum(vectors, **options)
    assert sent == []


def test_weights_that_are_all_zero_have_a_sum_and_no_mean():
    result = secure_sum(FIVE, weights=[0] * 5)
    assert (result.vector.tolist(), result.total_weight) == ([0, 0], 0)
    with pytest.raises(UsageError, match="there is no mean"):
        _ = result.mean


def test_a_device_without_weight_counts_for_nothing():
    result = secure_sum([1e300, 1.5, 2.5, 3.5, 4.5], weights=[0, 1, 1, 1, 1])
    assert result.contributors == (0, 1, 2, 3, 4)
    assert abs(float(result.vector)) <= 5 * 2.0**-53 * 2 * 1e300
