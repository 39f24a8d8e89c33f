"""Who attacks follows from the seed and the share, and from nothing else."""

from fractions import Fraction
from itertools import pairwise

import pytest

from deltafl.sim.cohort.attackers import attackers_of
from deltafl.sim.cohort.seeds import Purpose, Seeds


@pytest.mark.parametrize(
    ("share", "number"), [("0", 0), ("0.004", 0), ("0.01", 1), ("0.1", 10), ("1/3", 33)]
)
def test_the_share_is_rounded_to_whole_devices(share, number):
    found = attackers_of(Seeds(1), Fraction(share), 100)
    assert len(found) == number
    assert found <= set(range(100))


def test_a_larger_share_has_those_of_a_smaller_one():
    shares = [attackers_of(Seeds(1), Fraction(percent, 100), 60) for percent in (5, 10, 40, 99)]
    assert all(few < many for few, many in pairwise(shares))


def test_another_seed_has_others():
    assert attackers_of(Seeds(1), Fraction(1, 4), 60) != attackers_of(Seeds(2), Fraction(1, 4), 60)


def test_their_stream_is_nobody_elses():
    digests = {purpose: Seeds(1).digest(purpose) for purpose in Purpose}
    assert len(set(digests.values())) == len(Purpose)
