"""Degree and threshold: floating point against exact arithmetic, row by row."""

import pytest
from exact_threat import LARGE, SMALL, Exact, differences, table, ways

from deltafl.secagg import threat as threat_module


@pytest.mark.parametrize("size", [n for n in SMALL if n % 6 == 0])
def test_small_sizes_come_to_the_same(size):
    for row in table((size,)):
        assert differences(row)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [n for n in LARGE if n <= 500])
def test_larger_sizes_come_to_the_same(size):
    for row in table((size,)):
        assert differences(row)[0] == []


def test_no_comparison_of_the_table_is_as_near_as_rounding():
    """A limit that is missed by less than rounding would be decided by it."""
    nearest = min(differences(row)[1] for row in table((24, 48, 60)))
    assert nearest > 1e-9


def test_ways_add_up():
    for total, marked, drawn in [(10, 4, 3), (10, 0, 4), (10, 10, 4), (7, 5, 4), (60, 6, 48)]:
        found = ways(total, marked, drawn)
        assert sum(found) == threat_module.math.comb(total, drawn)
        floating = threat_module._hypergeometric(total, marked, drawn)
        assert floating == pytest.approx([w / sum(found) for w in found], rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("_INSECURE", 2.0**-39),
        ("_overlapping", lambda holders, colluding: (holders + colluding) // 2 + 2),
        ("CORRECTNESS_BITS", 30),
    ],
)
def test_code_that_is_off_is_found(name, other, monkeypatch):
    monkeypatch.setattr(threat_module, name, other)
    assert any(differences(row)[0] for row in table((48, 100)))


def test_what_is_exact_is_the_limit_itself():
    """Probability 1/1024 against a limit of 1/1024: at most, and not below."""
    exact = Exact(10, "0.1", "0.1", False)
    assert exact._below(1, 1024, 1024)
    assert not exact._below(1, 1024, 1024, strict=True)
    assert exact.nearest == 0
