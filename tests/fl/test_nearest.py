import pytest

from deltafl.fl.nearest import alike, meant, nearest

KNOWN = ["fedavg", "delta-fl", "private-delta-fl"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("fedarvg", "fedavg"), ("deltafl", "delta-fl"), ("private-delta", "private-delta-fl")],
)
def test_a_name_with_a_mistake_is_recognised(word, expected):
    assert alike(word, KNOWN) == [expected]
    assert meant(word, KNOWN) == f"; did you mean {expected!r}?"
    assert nearest(word, KNOWN) == f"did you mean {expected!r}?"


def test_what_is_like_nothing_is_answered_with_everything():
    assert alike("xyz", KNOWN) == []
    assert meant("xyz", KNOWN) == ""
    assert nearest("xyz", KNOWN) == "known are fedavg, delta-fl, private-delta-fl"


def test_a_word_of_any_length_is_compared_at_once():
    assert alike("fedavg" * 1_000_000, KNOWN) == []
