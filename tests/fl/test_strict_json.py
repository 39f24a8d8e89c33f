import pytest

from deltafl.fl.read.strict_json import MAX_INTEGER, MAX_NESTING, nesting, parse_json


def test_json_is_read():
    text = b'{"a": [1, -2.5, true, null, "\\u00e9\\ud83d\\ude00\\\\"], "b": {}}'
    assert parse_json(text) == {"a": [1, -2.5, True, None, "é😀\\"], "b": {}}
    deep = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    assert nesting(deep) == MAX_NESTING
    assert parse_json(deep)
    assert parse_json(b"1" * MAX_INTEGER)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1), "more than 32 levels"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "more than 32 levels"),
        (b"[" * 100_000, "brackets do not match"),
        (b"1" * (MAX_INTEGER + 1), "has 21 characters"),
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' twice"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b"\xef\xbb\xbf[]", "BOM"),
        (b'["\xff"]', "utf-8"),
        ("[]".encode("utf-16"), "utf-8"),
    ],
)
def test_what_python_would_take_or_choke_on_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_json(text)


def test_brackets_in_texts_are_no_levels():
    assert nesting(b'["[[[\\"[[", "\\\\", [1]]') == 2


def test_texts_cut_inside_a_character_are_taken_where_they_may_be():
    assert parse_json(b'["\\ud800"]', halves=True) == ["\ud800"]
