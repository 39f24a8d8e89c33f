"""The register of attacks is complete, and the documentation says what is in it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from attack import OFF, ON, Harm, Left, Loot, check_outcome
from table import BEGIN, END, PAGE, inserted, registered, render

from secagg import Fault, PeerError, Refusal

ABOUT_SYSTEMS = {1, 2, 3, 4, 5, 6, 8, 13, 16, 17, 19, 20, 21, 22, 23}
ELSEWHERE = {7, 9, 10, 11, 12, 14, 15, 18}


def runs(attack):
    """The ids of the runs that a test has."""
    marks = [mark for mark in attack.test.pytestmark if mark.args[0] == "defended"]
    return [list(zip(mark.args[1], mark.kwargs["ids"], strict=True)) for mark in marks]


def test_every_attack_is_played_with_its_defence_off_and_on():
    for attack in registered():
        assert runs(attack) == [[(False, OFF), (True, ON)]], attack.name


def test_a_missing_run_is_found():
    @pytest.mark.parametrize("defended", [True], ids=[ON])
    def test(defended):
        pass

    assert runs(replace(registered()[0], test=test)) != [[(False, OFF), (True, ON)]]


def test_every_number_has_an_attack_or_is_named_under_the_table():
    assert {attack.number for attack in registered()} == ABOUT_SYSTEMS
    assert not ABOUT_SYSTEMS & ELSEWHERE
    assert len(ABOUT_SYSTEMS | ELSEWHERE) == 23


def test_every_defence_is_asked_for_in_the_specification():
    spec = (PAGE.parent / "spec.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (\d+\.\d+) ", spec, re.MULTILINE))
    assert {attack.spec for attack in registered()} <= sections


def test_no_row_is_there_twice():
    rows = render(registered()).splitlines()
    assert len(set(rows)) == len(rows) == len(registered()) + 2


def test_the_page_holds_the_table():
    page = PAGE.read_text(encoding="utf-8")
    table = render(registered())
    assert inserted(page, table) == page, "run: python tests/attacks/table.py --write"
    assert inserted(page, table.replace("noise", "nothing")) != page


@pytest.mark.parametrize("page", ["", BEGIN, END + BEGIN, BEGIN + BEGIN + END, BEGIN + END + END])
def test_a_page_without_its_markers_is_not_touched(page):
    with pytest.raises(ValueError, match="once, in this order"):
        inserted(page, "table")


# --- what counts as an end ----------------------------------------------------------------------

WANTED = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
OTHER = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
NEAR = {
    "the same": WANTED,
    "one more": WANTED + np.uint32(1),
    "half of it": np.where(np.arange(64) < 32, WANTED, OTHER),
    "the lower bits": WANTED & np.uint32(0xFFFF),
}


def test_noise_is_noise():
    assert Loot(OTHER, WANTED).is_noise
    assert not Loot(OTHER, WANTED).is_complete


@pytest.mark.parametrize("near", NEAR)
def test_what_tells_something_is_no_noise(near):
    assert not Loot(NEAR[near], WANTED).is_noise


REFUSED = PeerError(Refusal.BAD_KEY, "a low-order key")

WRONG = {
    "a refusal without the defence": (False, Refusal.BAD_KEY, REFUSED),
    "some refuse without the defence": (
        False,
        Refusal.BAD_KEY,
        Loot(WANTED, WANTED, refusals=(REFUSED,)),
    ),
    "another refusal": (True, Refusal.BAD_KEY, PeerError(Refusal.POLICY, "a low-order key")),
    "a refusal for another cause": (True, Refusal.BAD_KEY, PeerError(Refusal.BAD_KEY, "twice")),
    "no refusal": (True, Refusal.BAD_KEY, Loot(OTHER, WANTED)),
    "others refuse, in vain": (
        True,
        Refusal.BAD_KEY,
        Loot(WANTED, WANTED, refusals=(REFUSED,)),
    ),
    "a refusal too many": (True, Left.NOISE, Loot(OTHER, WANTED, refusals=(REFUSED,))),
    "an attack that fails without its defence": (False, Left.NOISE, Loot(OTHER, WANTED)),
    "harm that is noticed without the defence": (
        False,
        Fault.BAD_SHARE,
        Harm(True, frozenset({(1, Fault.BAD_SHARE)})),
    ),
    "an attack that succeeds": (True, Left.NOISE, Loot(WANTED, WANTED)),
    "harm under the defence": (True, Left.HARMLESS, Harm(True)),
    "harm with the right culprit": (
        True,
        Fault.BAD_SHARE,
        Harm(True, frozenset({(1, Fault.BAD_SHARE)})),
    ),
    "the wrong culprit": (True, Fault.BAD_SHARE, Harm(False, frozenset({(2, Fault.BAD_SHARE)}))),
    "another fault": (True, Fault.BAD_SHARE, Harm(False, frozenset({(1, Fault.MALFORMED)}))),
    "no culprit": (True, Fault.BAD_SHARE, Harm(False)),
    "something that is told": (
        True,
        Left.NOTHING,
        Loot(np.array([False, True]), np.array([False, True]), 1),
    ),
    "nothing to tell": (
        True,
        Left.NOTHING,
        Loot(np.array([False, False]), np.array([False, False]), 1),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_another_end_than_the_register_says_fails(wrong):
    defended, end, outcome = WRONG[wrong]
    with pytest.raises(AssertionError):
        check_outcome(defended, end, outcome, saying="low-order", culprit=1)
