"""What others wrote cannot rewrite what a terminal shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.sim.cli import main
from deltafl.sim.visible import on_one_line, visible


@given(st.text(st.characters(exclude_categories=())))
def test_only_printable_text_and_newlines_are_left(text):
    shown = visible(text)
    assert all(one.isprintable() or one == "\n" for one in shown)
    shown.encode("utf-8")  # without a surrogate


@given(st.text().filter(lambda text: all(c.isprintable() or c == "\n" for c in text)))
def test_plain_text_is_left_as_it_is(text):
    assert visible(text) == text


@given(st.text(st.characters(exclude_categories=())))
def test_a_line_stays_one(text):
    assert len(on_one_line(f"a{text}").splitlines()) == 1
    assert len(on_one_line("a\nb\x85c").splitlines()) == 1


ESCAPED = "run\x1b[2J\u202e"


@pytest.mark.parametrize(
    "arguments",
    [["audit", ESCAPED], ["data", "describe", ESCAPED], ["run", "--data", ESCAPED]],
    ids=["audit", "data", "run"],
)
def test_the_name_of_a_file_reaches_the_terminal_as_text(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert r"run\x1b[2J\u202e" in printed.err
    assert "\x1b" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("arguments", "requirement"),
    [
        (["bench", "round", "--queries", "1000000000"], "lie in [1, 4095]"),
        (["bench", "secagg", "--clients", "1000000"], "lie in [2, 100000]"),
        (["bench", "audit", "--rounds", "ten"], "ten must be a whole number"),
        (["reproduce", "table1", "--seeds", "0"], "lie in [1, 100000]"),
    ],
)
def test_a_number_that_would_never_end_is_refused_at_once(arguments, requirement, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert requirement in capsys.readouterr().err
