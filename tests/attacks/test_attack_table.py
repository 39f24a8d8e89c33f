"""The catalogue of attacks is complete, and the documentation says what is in it."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from table import EXPOSED, PAGE, PREVENTED, inserted, markers, renewed, tables

from deltafl.secagg import Fault, PeerError, Refusal
from deltafl.sim.inspect.attacks.attack import LIAR, Left, Loot, NotPlayed, harm, refused, surprise
from deltafl.sim.inspect.attacks.catalogue import ATTACKS

TESTS = Path(__file__).parents[1]
LEAST = 33


ON_THE_RECORD = 24


def test_every_number_has_an_attack_but_that_on_the_record():
    audit = (PAGE.parent / "audit.md").read_text(encoding="utf-8")
    numbers = {int(number) for number in re.findall(r"^\| A(\d+) \|", audit, re.MULTILINE)}
    assert numbers == set(range(1, 27))
    assert {attack.number for attack in ATTACKS} == numbers - {ON_THE_RECORD}


def test_no_attack_is_lost():
    assert sum(attack.is_prevented for attack in ATTACKS) >= LEAST


NOT_PLAYED = tomllib.loads((TESTS / "attacks" / "not_played.toml").read_text(encoding="utf-8"))


CATALOGUE = tomllib.loads((TESTS / "mutants" / "catalogue.toml").read_text(encoding="utf-8"))
FAULTS = {fault["name"] for fault in CATALOGUE["fault"] if "survives" not in fault}


def stands_for_nothing(what):
    """Whether there is no such fault that a test notices, and no such test."""
    name, _, function = what.partition("::")
    if not function:
        return what not in FAULTS
    path = TESTS.parent / name
    return not path.is_file() or f"def {function}(" not in path.read_text(encoding="utf-8")


def test_what_is_not_played_is_stopped_by_a_test():
    assert NOT_PLAYED.keys() <= {f"A{number}" for number in range(1, 27)}
    pairs = [pair for group in NOT_PLAYED.values() for pair in group.items()]
    assert [name for name, what in pairs if stands_for_nothing(what)] == []
    assert {name for name, _ in pairs}.isdisjoint(attack.name for attack in ATTACKS)


@pytest.mark.parametrize(
    "what", ["no-such-fault", "tests/attacks/no_file.py::test_x", f"{__file__}::test_no_such_test"]
)
def test_what_stands_for_nothing_is_noticed(what):
    assert stands_for_nothing(what)


def test_names_are_unique_and_in_kebab_case():
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


def test_every_defence_is_asked_for_in_the_specification():
    spec = (PAGE.parent / "spec.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (\d+\.\d+) ", spec, re.MULTILINE))
    assert {attack.spec for attack in ATTACKS} <= sections


def test_no_row_is_there_twice():
    rows = [row for table in tables().values() for row in table.splitlines()]
    headings = 2 * len(tables())
    assert len(rows) == len(ATTACKS) + headings
    assert len({row.rpartition("`")[0].rpartition("`")[0] for row in rows}) >= len(ATTACKS)


def test_the_page_holds_the_tables():
    page = PAGE.read_text(encoding="utf-8")
    rendered = tables()
    assert renewed(page, rendered) == page, "run: python tests/attacks/table.py --write"
    for name, word in ((PREVENTED, "noise"), (EXPOSED, "exact")):
        changed = rendered | {name: rendered[name].replace(word, "other")}
        assert renewed(page, changed) != page


BEGIN, END = markers(PREVENTED)


@pytest.mark.parametrize("page", ["", BEGIN, END + BEGIN, BEGIN + BEGIN + END, BEGIN + END + END])
def test_a_page_without_its_markers_is_not_touched(page):
    with pytest.raises(ValueError, match="once, in this order"):
        inserted(page, PREVENTED, "table")


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
STOPPED = refused(REFUSED)
NAMED = frozenset({(LIAR, Fault.BAD_SHARE)})
OTHERS = frozenset({(LIAR + 1, Fault.BAD_SHARE)})
RECOVERED, NOISE = Loot(WANTED, WANTED), Loot(OTHER, WANTED)
IN_VAIN, IN_TIME = (replace(loot, refusals=(REFUSED,)) for loot in (RECOVERED, NOISE))
NOTHING_TO_TELL = Loot(np.array([False]), np.array([False]), 1)

WRONG = {
    "a refusal without the defence": (False, Refusal.BAD_KEY, STOPPED),
    "some refuse without the defence": (False, Refusal.BAD_KEY, IN_VAIN),
    "another refusal": (True, Refusal.POLICY, STOPPED),
    "a refusal for another cause": (
        True,
        Refusal.BAD_KEY,
        refused(PeerError(Refusal.BAD_KEY, "twice")),
    ),
    "no refusal": (True, Refusal.BAD_KEY, NOISE),
    "others refuse, in vain": (True, Refusal.BAD_KEY, IN_VAIN),
    "a refusal too many": (True, Left.NOISE, IN_TIME),
    "a refusal of what is bounded": (True, Left.BOUNDED, STOPPED),
    "a refusal of what is named": (True, Fault.BAD_SHARE, STOPPED),
    "an attack that fails without its defence": (False, Left.NOISE, NOISE),
    "harm that is noticed without the defence": (
        False,
        Fault.BAD_SHARE,
        harm(True, culprits=NAMED),
    ),
    "an attack that succeeds": (True, Left.NOISE, RECOVERED),
    "harm under the defence": (True, Left.HARMLESS, harm(True)),
    "more than its bound": (True, Left.BOUNDED, harm(True)),
    "harm with the right culprit": (True, Fault.BAD_SHARE, harm(True, culprits=NAMED)),
    "the wrong culprit": (True, Fault.BAD_SHARE, harm(False, culprits=OTHERS)),
    "another fault": (True, Fault.MALFORMED, harm(False, culprits=NAMED)),
    "no culprit": (True, Fault.BAD_SHARE, harm(False)),
    "somebody named for nothing": (True, Left.BOUNDED, harm(False, culprits=NAMED)),
    "something that is told": (True, Left.NOTHING, harm(True)),
    "a limitation that is none any more": (True, Left.EXPOSED, NOISE),
    "a limitation that a device refuses": (True, Left.EXPOSED, STOPPED),
    "no attack at all": (False, Left.NOISE, NotPlayed("it is not so")),
    "no defence at all": (True, Left.NOISE, NotPlayed("it is not so")),
    "nothing to tell": (True, Left.NOTHING, NOTHING_TO_TELL),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_another_end_than_the_register_says_is_a_surprise(wrong):
    defended, end, outcome = WRONG[wrong]
    attack = replace(ATTACKS[0], end=end, saying="low-order")
    assert surprise(attack, outcome, defended=defended)


RIGHT = {
    "the refusal": (True, Refusal.BAD_KEY, STOPPED),
    "some refuse, and what is left is noise": (True, Refusal.BAD_KEY, IN_TIME),
    "noise": (True, Left.NOISE, NOISE),
    "an attack that succeeds without the defence": (False, Left.NOISE, RECOVERED),
    "one that succeeds with it, as documented": (True, Left.EXPOSED, RECOVERED),
    "the culprit": (True, Fault.BAD_SHARE, harm(False, culprits=NAMED)),
    "harm that is unnoticed without the defence": (False, Fault.BAD_SHARE, harm(True)),
    "no harm": (True, Left.HARMLESS, harm(False)),
    "no more than its bound": (True, Left.BOUNDED, harm(False)),
    "nothing told": (True, Left.NOTHING, harm(False)),
}


@pytest.mark.parametrize("right", RIGHT)
def test_the_end_that_the_register_says_is_none(right):
    defended, end, outcome = RIGHT[right]
    attack = replace(ATTACKS[0], end=end, saying="low-order")
    assert surprise(attack, outcome, defended=defended) == ""
