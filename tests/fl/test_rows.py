"""Columns of a table, by name; texts that are kept once."""

import numpy as np
import pytest

from deltafl.fl.data.tables import (
    MAX_COLUMNS,
    Columns,
    Texts,
    as_labels,
    check_filled,
    name_of,
)
from deltafl.fl.errors import DataError

NAMES = ["who", "height", "weight", "answer"]


def built(*texts):
    names = tuple(dict.fromkeys(texts))
    return Texts(names, np.array([names.index(text) for text in texts]))


def test_all_columns_that_are_nothing_else_are_features():
    found = Columns("who", ("answer",)).found_in("t", NAMES)
    assert found.features == ("height", "weight")
    assert Columns("who", ("height", "answer")).found_in("t", NAMES).features == ("weight",)


@pytest.mark.parametrize(
    ("columns", "names", "complaint"),
    [
        (Columns("whom", ("answer",)), NAMES, "t: no column 'whom': there are who, height"),
        (Columns("who", ("answer",), ("size",)), NAMES, "no column 'size'"),
        (Columns("who", ("answer",), ("height", "answer")), NAMES, "'answer' is named twice"),
        (Columns("who", ("who",)), NAMES, "'who' is named twice"),
        (Columns("who", ("answer",)), [*NAMES, "who"], "several columns are called 'who'"),
        (Columns("who", ("answer",)), ["who", "answer"], "no column is left for the inputs"),
        (Columns("", ("",)), NAMES, r"have no name: .*data\.user_column, data\.label_column"),
        (Columns("a", ("b",)), list(map(str, range(MAX_COLUMNS + 1))), "more than 65,536 columns"),
        (Columns("a", ("b",)), list(map(str, range(30))), "19 and 10 more"),
    ],
)
def test_columns_that_are_not_there_are_told_with_those_that_are(columns, names, complaint):
    with pytest.raises(DataError, match=complaint):
        columns.found_in("t", names)


def test_texts_are_kept_once():
    texts = built("b", "a", "b")
    assert (texts.names, texts.codes.tolist()) == (("b", "a"), [0, 1, 0])
    ordered = texts.in_order()
    assert (ordered.names, ordered.codes.tolist()) == (("a", "b"), [1, 0, 1])


def test_labels_are_numbers_if_all_of_them_are():
    assert as_labels(built("1", "0", "1.0")).tolist() == [1.0, 0.0, 1.0]
    assert as_labels(built("-1", "+.5", "2.", "1e3")).tolist() == [-1.0, 0.5, 2.0, 1000.0]
    for texts in (("1", "x"), ("1", "nan"), ("yes", "no"), ("01", "1"), ("1_0", "2"), ("1", "٣")):
        named = as_labels(built(*texts))
        assert isinstance(named, Texts)
        assert named.names == tuple(sorted(texts))
        assert np.array(named.names)[named.codes].tolist() == list(texts)


def test_a_word_for_nothing_is_refused_among_numbers_and_is_a_name_among_texts():
    check_filled("t", "land", built("NA", "DE", "FR"))
    check_filled("t", "land", built("1", "2"))
    with pytest.raises(DataError, match="t: column 'size' has 'NaN' in row 3 of the samples"):
        check_filled("t", "size", built("1", "2.5", "NaN", "1"))


def test_a_user_who_is_a_whole_number_has_one_name():
    assert [name_of(one) for one in (1, 1.0, np.float32(1), "1", 1.5)] == ["1"] * 4 + ["1.5"]
    assert name_of(1e300) == "1e+300"
    assert name_of(float("nan")) == "nan"
