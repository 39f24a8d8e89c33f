"""What attackers send, against the formulas of its sources written out by hand."""

import math

import numpy as np
import pytest

from deltafl.sim.cohort.attackers import (
    inner_product,
    little_is_enough,
    noise_like,
    scaled,
)

OWN = np.array([3.0, -4.0, 0.0, 12.0], dtype=np.float32)
THREE = [np.array(row, dtype=np.float32) for row in ([1, 2], [3, 2], [5, 8])]


def generator():
    return np.random.default_rng(7)


def test_a_multiple_is_a_multiple_of_every_number():
    assert scaled(OWN, -2.0).tolist() == [-6.0, 8.0, 0.0, -24.0]
    assert scaled(OWN, 1.0).tobytes() == OWN.tobytes()


def test_noise_is_as_large_as_what_it_replaces_times_the_scale():
    own = np.resize(OWN, 40_000)
    noise = noise_like(own, 3.0, generator())
    size = math.sqrt((9 + 16 + 0 + 144) / 4)
    assert noise.std() == pytest.approx(3 * size, rel=0.02)
    assert abs(noise.mean()) < 5 * 3 * size / math.sqrt(len(own))
    assert abs(np.corrcoef(noise, own)[0, 1]) < 0.03
    assert noise_like(own, 3.0, generator()).tobytes() == noise.tobytes()
    assert not noise_like(np.zeros(4, np.float32), 3.0, generator()).any()


def test_little_is_mean_less_deviations_by_coordinate():
    first = 3 - 1.5 * math.sqrt((4 + 0 + 4) / 3)
    second = 4 - 1.5 * math.sqrt((4 + 4 + 16) / 3)
    assert little_is_enough(THREE, 1.5) == pytest.approx([first, second])
    assert little_is_enough(THREE, 0.0).tolist() == [3.0, 4.0]


def test_one_attacker_alone_has_no_deviation():
    assert little_is_enough([OWN], 1.5).tobytes() == OWN.tobytes()


def test_the_inner_product_with_the_mean_is_negative():
    sent = inner_product(THREE, 0.5)
    assert sent.tolist() == [-1.5, -2.0]
    assert float(sent @ np.mean(THREE, axis=0)) < 0


@pytest.mark.parametrize(
    "sent",
    [
        scaled(OWN, 1e300),
        noise_like(OWN, 1e300, generator()),
        little_is_enough([OWN, -OWN], 1e300),
        inner_product([OWN], 1e300),
    ],
)
def test_all_are_float32_and_too_large_a_number_is_infinite_without_a_warning(sent):
    assert sent.dtype == np.float32
    assert sent.shape == OWN.shape
    assert np.isinf(sent).any()
