import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import outside

from deltafl.secagg import prg, shamir
from deltafl.secagg.randomness import SeededRandomness

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
secrets_32 = st.binary(min_size=32, max_size=32)


def combined(points, shares):
    weights = shamir.lagrange_at_zero(np.array([points], dtype=np.int64))
    rows = np.broadcast_to(weights, (shares.shape[1], len(points)))
    return shamir.from_limbs(shamir.combine(rows, shares))


@st.composite
def sharings(draw):
    threshold = draw(st.integers(1, 8))
    points = draw(
        st.lists(st.integers(1, shamir.PRIME - 1), min_size=threshold, max_size=12, unique=True)
    )
    secrets = draw(st.lists(secrets_32, min_size=1, max_size=4))
    return secrets, points, threshold, draw(secrets_32)


@settings(max_examples=40)
@given(sharing=sharings(), data=st.data())
def test_any_threshold_of_shares_give_the_secrets(sharing, data):
    secrets, points, threshold, seed = sharing
    shares = shamir.split(secrets, points, threshold, SeededRandomness(seed))
    assert shares.shape == (len(points), len(secrets), shamir.NUM_LIMBS)
    assert shares.dtype == np.uint32
    assert int(shares.max()) < shamir.PRIME
    order = data.draw(st.permutations(range(len(points))))[:threshold]
    assert combined([points[i] for i in order], shares[order]) == secrets


@settings(max_examples=40)
@given(sharing=sharings())
def test_fast_and_plain_agree(sharing):
    secrets, points, threshold, seed = sharing
    shares = shamir.split(secrets, points, threshold, SeededRandomness(seed))
    limbs = shamir.to_limbs(secrets).reshape(-1).tolist()
    drawn = np.frombuffer(prg.keystream(seed, 4 * (threshold - 1) * len(limbs)), dtype="<u4")
    coefficients = (drawn & np.uint32(shamir.PRIME)).reshape(threshold - 1, len(limbs)).T.tolist()
    for index, (limb, row) in enumerate(zip(limbs, coefficients, strict=True)):
        plain = shamir.split_plain(limb, points, row, shamir.PRIME)
        assert shares.reshape(len(points), -1)[:, index].tolist() == list(plain.values())
        few = dict(list(plain.items())[:threshold])
        assert shamir.combine_plain(few, shamir.PRIME) == limb


def test_no_secrets_are_shared_as_nothing():
    # All slots of a session may be whole, and those have no secrets to share.
    shares = shamir.split([], [1, 2, 3], 2, SeededRandomness(bytes(32)))
    assert shares.shape == (3, 0, shamir.NUM_LIMBS)


def test_large_thresholds_are_exact():
    # The largest values and many terms: where doubles would lose bits first.
    points = [shamir.PRIME - 1 - i for i in range(600)]
    secrets = [bytes([255]) * 32, bytes(32)]
    shares = shamir.split(secrets, points, 600, SeededRandomness(bytes(32)))
    assert combined(points, shares) == secrets
    limb = shares[:, 0, 0].tolist()
    plain = shamir.combine_plain(dict(zip(points, limb, strict=True)), shamir.PRIME)
    assert plain == 2**30 - 1


def test_products_of_the_largest_elements():
    largest = np.full((1, 5000), shamir.PRIME - 1, dtype=np.uint32)
    shares = np.full((5000, 1, 9), shamir.PRIME - 1, np.uint32)
    # (−1)·(−1), 5000 times
    assert shamir.combine(largest, shares).tolist() == [[5000] * 9]
    assert shamir.multiply(largest, np.ascontiguousarray(largest.T)).tolist() == [[5000]]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 31), (5, 4, 33), (40, 700, 70), (2, 9000, 3)])
def test_a_product_in_tiles_is_the_product(shape, monkeypatch):
    rows, depth, columns = shape
    generator = np.random.default_rng(0)
    left = generator.integers(0, shamir.PRIME, (rows, depth), dtype=np.uint32)
    right = generator.integers(0, shamir.PRIME, (depth, columns), dtype=np.uint32)
    expected = (left.astype(object) @ right.astype(object)) % shamir.PRIME
    assert shamir.multiply(left, right).tolist() == expected.tolist()


def test_no_product_wakes_the_threads_of_blas(monkeypatch):
    """Small enough for one core, and no product with a vector: BLAS shares those out sooner."""
    tiles = []
    halves = shamir._halves

    def noted(matrix):
        tiles.append(matrix.shape)
        return halves(matrix)

    monkeypatch.setattr(shamir, "_halves", noted)
    shamir.split([bytes(32)] * 40, range(1, 301), 151, SeededRandomness(bytes(32)))
    deep = [shape for shape in tiles if shape[0] == 151]  # those of coefficients
    assert {width for _, width in deep} <= {32, 40 * 9 % 32}
    assert all(rows * 151 * 32 <= 2**18 for rows, depth in tiles if (rows, depth) not in deep)
    assert max(rows for rows, depth in tiles if (rows, depth) not in deep) == 54


@st.composite
def sets_of_points(draw):
    """Some sets of as many distinct points each."""
    size = draw(st.integers(1, 8))
    edges = st.sampled_from([1, 2, shamir.PRIME - 2, shamir.PRIME - 1])
    point = st.one_of(edges, st.integers(1, 12), st.integers(1, shamir.PRIME - 1))
    distinct = st.lists(point, min_size=size, max_size=size, unique=True)
    return draw(st.lists(distinct, min_size=1, max_size=5))


@pytest.mark.slow
@given(sets=sets_of_points())
def test_weights_equal_those_of_the_plain_twin(sets):
    weights = shamir.lagrange_at_zero(np.array(sets, dtype=np.int64))
    assert weights.shape == (len(sets), len(sets[0]))
    assert weights.dtype == np.uint32
    plain = [shamir.lagrange_at_zero_plain(points, shamir.PRIME) for points in sets]
    assert weights.tolist() == plain


def test_weights_of_no_sets_are_none():
    assert shamir.lagrange_at_zero(np.zeros((0, 3), dtype=np.int64)).shape == (0, 3)


def test_weights_of_other_points_do_not_give_the_secret():
    secret = bytes(range(32))
    shares = shamir.split([secret], range(1, 6), 3, SeededRandomness(bytes(32)))
    assert combined([1, 2, 3], shares[:3]) == [secret]
    assert combined([1, 2, 4], shares[:3]) != [secret]
    assert combined([2, 1, 3], shares[:3]) != [secret]


@given(numbers=st.lists(st.integers(1, shamir.PRIME - 1), max_size=8))
def test_inverses_multiply_to_one(numbers):
    inverses = shamir.inverse(np.array(numbers, dtype=np.uint64)).tolist()
    assert [a * b % shamir.PRIME for a, b in zip(numbers, inverses, strict=True)] == [1] * len(
        numbers
    )


def test_fewer_shares_do_not_give_the_secret():
    secret = bytes(range(32))
    shares = shamir.split([secret], range(1, 6), 4, SeededRandomness(bytes(32)))
    for few in itertools.combinations(range(5), 3):
        assert combined([i + 1 for i in few], shares[list(few)]) != [secret]


def test_fewer_shares_say_nothing():
    # Over the field of 13 elements: for every two shares of a threshold of three, each secret
    # has exactly one pair of coefficients that explains them.
    prime, points = 13, (1, 2, 5)
    explained: dict[tuple[int, int], list[int]] = {}
    for secret, *coefficients in itertools.product(range(prime), repeat=3):
        shares = shamir.split_plain(secret, points, coefficients, prime)
        explained.setdefault((shares[2], shares[5]), []).append(secret)
    assert len(explained) == prime**2
    assert all(sorted(secrets) == list(range(prime)) for secrets in explained.values())


def test_different_randomness_gives_different_shares_of_the_same_secret():
    first, second = (
        shamir.split([bytes(32)], [1, 2], 2, SeededRandomness(bytes([i]) * 32)) for i in range(2)
    )
    assert (first != second).all()


def test_value_outside_the_field_is_drawn_again():
    answers = [b"\xff" * 4 * 8 + b"\x05\0\0\0", b"\xff\xff\xff\x7f" * 8, b"\x07\0\0\0" * 8]
    asked = []

    def randomness(size):
        asked.append(size)
        return answers[len(asked) - 1]

    shares = shamir.split([bytes(32)], [1], 2, randomness)
    assert asked == [36, 32, 32]
    assert shares[0, 0].tolist() == [7] * 8 + [5]


@given(secrets=st.lists(secrets_32, max_size=3))
def test_limbs_round_trip(secrets):
    limbs = shamir.to_limbs(secrets)
    assert limbs.shape == (len(secrets), shamir.NUM_LIMBS)
    assert shamir.from_limbs(limbs) == secrets


def test_limbs_that_are_no_secret():
    limbs = np.zeros((4, shamir.NUM_LIMBS), dtype=np.uint32)
    limbs[1, 0] = 1 << 30
    limbs[2, 8] = 1 << 16
    limbs[3, 8] = (1 << 16) - 1
    assert shamir.from_limbs(limbs) == [bytes(32), None, None, bytes(30) + b"\xff\xff"]


@pytest.mark.parametrize("name", ["frost_p256.json", "frost_p256_big_identifier.json"])
def test_plain_twin_against_frost(name):
    (inputs,) = outside(name)
    threshold = int(inputs["MIN_PARTICIPANTS"])
    secret = int(inputs["group_secret_key"], 16)
    shares = {
        share["identifier"]: int(share["participant_share"], 16)
        for share in inputs["participant_shares"]
    }
    coefficients = [int(c, 16) for c in inputs["share_polynomial_coefficients"]]
    assert len(coefficients) == threshold - 1
    assert shamir.split_plain(secret, list(shares), coefficients, P256_ORDER) == shares
    signers = inputs["participant_list"]
    choices = [signers, *itertools.islice(itertools.combinations(shares, threshold), 200)]
    for chosen in choices:
        assert shamir.combine_plain({i: shares[i] for i in chosen}, P256_ORDER) == secret
    alone = {signers[0]: shares[signers[0]]}
    assert shamir.combine_plain(alone, P256_ORDER) != secret
