"""Shares of noise: drawn exactly, clipped next to never, and together as much as is said."""

import ast
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from deltafl.protocol import noise as noise_module
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.noise import (
    Noise,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    uniform_below,
)
from deltafl.secagg.randomness import SeededRandomness

SAMPLERS = [
    uniform_below,
    noise_module._bernoulli_exp_of_at_most_1,
    bernoulli_exp,
    discrete_laplace,
    discrete_gaussian,
]


def seeded(number):
    return SeededRandomness(bytes([number]) * 32)


# --- exactness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100, 128, 129, 255, 256])
def test_each_number_below_a_limit_comes_from_as_many_bytes(limit):
    accepted = []
    for byte in range(256):
        asked = []

        def one(size, byte=byte, asked=asked):
            asked.append(size)
            if len(asked) > 1:
                raise StopIteration
            return bytes([byte] * size)

        try:
            accepted.append(uniform_below(limit, one))
        except StopIteration:
            continue
    counts = np.bincount(accepted, minlength=limit)
    assert set(counts) == {counts[0]}
    assert counts[0] == 256 >> (limit - 1).bit_length()


def test_numbers_of_many_bytes_cover_their_range():
    limit = 3 * 2**70
    drawn = [uniform_below(limit, seeded(1)) for _ in range(1)]
    source = seeded(2)
    drawn += [uniform_below(limit, source) for _ in range(400)]
    assert max(drawn) < limit
    thirds = np.bincount([x >> 70 for x in drawn], minlength=3)
    assert stats.chisquare(thirds).pvalue > 1e-3


class Toss(Exception):
    """A coin whose outcome the script does not tell."""


class Drawn:
    """What stands for a number below a limit: compared, it is a coin of exact odds."""

    def __init__(self, limit, script):
        self.limit, self.script = limit, script

    def __lt__(self, other):
        for outcome in self.script:
            return outcome
        raise Toss(Fraction(other, self.limit))


def odds(sampler, monkeypatch, least=Fraction(1, 10**14)):
    """Bounds of the probability that a sampler returns True, over all that its coins may do."""
    yes = unknown = Fraction(0)
    open_ = [((), Fraction(1))]
    while open_:
        script, share = open_.pop()
        if share < least:
            unknown += share
            continue
        coins = iter(script)
        monkeypatch.setattr(
            noise_module, "uniform_below", lambda limit, _, c=coins: Drawn(limit, c)
        )
        try:
            yes += share * sampler()
        except Toss as toss:
            heads = min(toss.args[0], Fraction(1))
            open_ += [((*script, True), share * heads), ((*script, False), share * (1 - heads))]
    return yes, yes + unknown


@pytest.mark.parametrize(
    ("num", "den"), [(0, 1), (1, 10**6), (1, 3), (1, 1), (10**9 - 1, 10**9), (3, 2), (7, 2), (5, 1)]
)
def test_the_odds_of_the_coin_are_those_of_the_exponential(num, den, monkeypatch):
    low, high = odds(lambda: bernoulli_exp(num, den, None), monkeypatch)
    assert high - low < Fraction(1, 10**11)
    exact = math.exp(-num / den)
    assert low - Fraction(1, 10**12) <= exact <= high + Fraction(1, 10**12)


def test_wrong_odds_are_seen(monkeypatch):
    low, high = odds(lambda: bernoulli_exp(1000, 1001, None), monkeypatch)
    assert not low - Fraction(1, 10**6) <= math.exp(-1) <= high + Fraction(1, 10**6)


def uses_floats(function):
    """Whether its source divides, names a float, or calls what returns one."""
    tree = ast.parse(inspect.getsource(function))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return (
        any(isinstance(node, ast.Div) for node in ast.walk(tree))
        or any(
            isinstance(node, ast.Constant) and isinstance(node.value, float)
            for node in ast.walk(tree)
        )
        or bool(names & {"float", "math", "np", "round", "pow"})
    )


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.__name__)
def test_no_sampler_touches_a_float(sampler):
    assert not uses_floats(sampler)


def test_a_sampler_that_touches_floats_is_seen():
    assert uses_floats(gaussian_pmf)
    assert uses_floats(seeded_mean)


def seeded_mean():
    return 0.5


def gaussian_pmf(variance, values):
    return np.exp(-(values**2) / (2 * float(variance)))


def fit(drawn, density):
    """P-value of draws being from a density on the integers, tails pooled."""
    most = max(map(abs, drawn))
    values = np.arange(-most - 60, most + 61)
    expected = density(values)
    expected *= len(drawn) / expected.sum()
    observed = np.bincount(np.array(drawn) + most + 60, minlength=len(values))
    inner = expected >= 8
    cells = [observed[inner], expected[inner]]
    outer = [[counts[~inner].sum()] for counts in (observed, expected)]
    return stats.chisquare(*map(np.concatenate, zip(cells, outer, strict=True))).pvalue


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_laplace_draws_are_from_the_discrete_laplace(scale):
    source = seeded(scale)
    drawn = [discrete_laplace(scale, source) for _ in range(6000)]
    assert fit(drawn, lambda x: np.exp(-np.abs(x) / scale)) > 1e-3
    assert fit(drawn, lambda x: np.exp(-np.abs(x) / (1.15 * scale))) < 1e-3


@pytest.mark.parametrize(
    "variance", [Fraction(1, 3), Fraction(1), Fraction(4), Fraction(32, 3), Fraction(10001, 1000)]
)
def test_gaussian_draws_are_from_the_discrete_gaussian(variance):
    source, shift = seeded(variance.denominator % 251), 0.1 * max(1.0, float(variance) ** 0.5)
    drawn = [discrete_gaussian(variance, source) for _ in range(6000)]
    assert fit(drawn, lambda x: gaussian_pmf(variance, x)) > 1e-3
    assert fit(drawn, lambda x: gaussian_pmf(variance * Fraction(5, 4), x)) < 1e-3
    assert fit(drawn, lambda x: gaussian_pmf(variance, x - shift)) < 1e-3  # not symmetric


def test_a_source_that_repeats_gives_the_same_draws():
    first, again, other = (
        Noise(Fraction(3), 4).share(20, 99, source) for source in (seeded(1), seeded(1), seeded(2))
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


# --- amounts ------------------------------------------------------------------------------------


variances = st.fractions(min_value=Fraction(1, 10**4), max_value=10**4, max_denominator=10**4)
numbers = st.integers(1, 2000)


@pytest.mark.slow
@given(variances, numbers)
def test_steps_are_as_coarse_as_shares_of_a_variance_of_four_allow(variance, num_devices):
    noise = Noise(variance, num_devices)
    assert noise.share_variance >= 4
    assert noise.resolution_bits == 0 or noise.share_variance < 16
    assert noise.share_variance * num_devices == variance * 4**noise.resolution_bits


@pytest.mark.slow
@given(variances, numbers, st.integers(1, 2**20))
def test_of_all_shares_one_is_clipped_with_a_probability_of_2_to_the_minus_64(
    variance, num_devices, num_draws
):
    noise = Noise(variance, num_devices)
    bound, twice = noise.bound(num_draws), 2 * float(noise.share_variance)
    at, below = (math.log2(2 * num_draws) - c**2 / twice / math.log(2) for c in (bound, bound - 1))
    assert at <= -64 < below + 2  # nor is the bound much wider than it need be


def test_what_lies_beyond_the_bound_is_clipped():
    drawn = Noise(Fraction(400), 4).share(200, 7, seeded(3))
    assert (drawn.min(), drawn.max()) == (-7, 7)
    assert drawn.dtype == np.int64
    assert len(set(drawn.tolist())) == 15


@pytest.mark.slow
@pytest.mark.parametrize(("variance", "num_devices"), [(Fraction(2), 8), (Fraction(1, 2), 3)])
def test_the_shares_of_h_devices_add_up_to_the_variance(variance, num_devices):
    noise, size = Noise(variance, num_devices), 1200
    total = sum(noise.share(size, 10**6, seeded(40 + k)) for k in range(num_devices))
    measured = np.var(total / 2**noise.resolution_bits) / float(variance)
    deviation = math.sqrt(2 / size)
    assert abs(measured - 1) < 4 * deviation
    fewer = sum(noise.share(size, 10**6, seeded(40 + k)) for k in range(num_devices // 2 + 1))
    assert np.var(fewer / 2**noise.resolution_bits) / float(variance) < 1 - 4 * deviation


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variance", "num_devices", "named"),
    [
        (Fraction(0), 1, "noise variance 0"),
        (Fraction(-1), 1, "noise variance -1"),
        (Fraction(2**63), 1, "63-bit"),
        (Fraction(1, 2**63), 1, "63-bit"),
        (Fraction(1), 0, "noise from 0 devices"),
        (Fraction(1), -3, "noise from -3 devices"),
        (Fraction(1), 2**32, f"noise from {2**32} devices"),
    ],
)
def test_noise_out_of_range_is_refused(variance, num_devices, named):
    with pytest.raises(ConfigurationError, match=named):
        Noise(variance, num_devices)


def test_the_refused_noise_is_next_to_accepted():
    for variance in (Fraction(2**63 - 1), Fraction(1, 2**63 - 1)):
        assert Noise(variance, 2**32 - 1).share_variance >= 4
