from fractions import Fraction

import pytest

from deltafl.fl.read.exact import MAX_DIGITS, exact_number, shortened


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.8", Fraction(4, 5)),
        ("-.5", Fraction(-1, 2)),
        ("+2.", Fraction(2)),
        ("1e-3", Fraction(1, 1000)),
        ("12/8", Fraction(3, 2)),
        ("1E400", Fraction(10) ** 400),
        ("1e-400", 1 / Fraction(10) ** 400),
        ("9" * MAX_DIGITS, Fraction(10**MAX_DIGITS - 1)),
        ("1/" + "9" * MAX_DIGITS, Fraction(1, 10**MAX_DIGITS - 1)),
    ],
)
def test_decimals_and_fractions_are_exact(text, number):
    assert exact_number(text) == number


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1e99999999", "not a decimal or a fraction"),
        ("1e401", "exponent"),
        ("1e-401", "exponent"),
        ("9" * (MAX_DIGITS + 1), "up to 64 digits"),
        ("0." + "9" * (MAX_DIGITS + 1), "up to 64 digits"),
        ("1/" + "9" * (MAX_DIGITS + 1), "up to 64 digits"),
        ("1/0", "divides by zero"),
        *((text, "not a decimal") for text in ("", ".", "nan", "inf", "1_0", " 1", "1\n", "٣")),
    ],
)
def test_anything_else_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        exact_number(text)
    assert len(str(caught.value)) < 150


def test_values_are_shown_in_short():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert shortened("ab") == "'ab'"
    assert len(shortened("x" * 10**6)) == 41
    assert (
        shortened(10**5000)
        == shortened(-(10**9999))
        == ("a value of type int that is too large to show")
    )
    assert "list" in shortened(deep)
