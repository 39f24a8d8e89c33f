"""`deltafl attack`: what it prints, and its exit codes."""

import argparse
import json
from dataclasses import replace

import pytest

from deltafl.sim.inspect.attacks import cli
from deltafl.sim.inspect.attacks.attack import Left, NotPlayed, judged, presuppose
from deltafl.sim.inspect.attacks.catalogue import ATTACKS

BY_NAME = {attack.name: attack for attack in ATTACKS}
FEW = tuple(BY_NAME[name] for name in ("model-inconsistency", "late-masked-input", "many-rounds"))
IN_VAIN = replace(FEW[1], name="in-vain", play=lambda _: FEW[1].play(True))
NOT_STOPPED = replace(FEW[1], name="not-stopped", play=lambda _: FEW[1].play(False))


def words(text):
    return " ".join(text.split())


@pytest.fixture
def attack(capsys):
    """Runs the command; its exit code and what it prints."""

    def run(*arguments):
        parser = argparse.ArgumentParser()
        cli.add_arguments(parser)
        code = cli.main(parser.parse_args(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(cli, "ATTACKS", FEW)


def test_the_list_names_every_attack_its_power_and_its_defence(attack):
    code, out, _ = attack("list")
    assert code == 0
    told = words(out)
    for known in ATTACKS:
        assert f"{known.name} ({known.label}, {known.power})" in told
        assert known.deed in told
        assert f"defence {known.defence}" in told
    assert told.count("not prevented, by design") == sum(not a.is_prevented for a in ATTACKS)


def test_without_a_name_attacks_are_listed(attack):
    assert attack() == attack("list")


def test_the_list_for_programs(attack):
    code, out, _ = attack("list", "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)] == [known.name for known in ATTACKS]


def test_an_attack_shows_what_was_taken_beside_the_truth_and_who_refused(attack):
    code, out, _ = attack("model-inconsistency")
    assert code == 0
    off, _, on = out.partition("defence on")
    taken, truth = (
        line.split()[1:] for line in off.splitlines() if line[2:7] in ("taken", "truth")
    )
    assert taken == truth
    assert "complete yes" in words(off)
    assert "refusals malformed: the session is not bound to this model" in words(on)
    assert "complete no" in words(on)


def test_where_nobody_refuses_the_noise_is_measured(attack):
    code, out, _ = attack("late-masked-input")
    assert code == 0
    on = out.partition("defence on")[2]
    assert "noise yes bits 2048 differing bits 1" in words(on)


def test_one_that_nothing_prevents_is_played_once(attack):
    code, out, _ = attack("many-rounds")
    assert code == 0
    assert "defence off" not in out
    assert "complete yes" in words(out.partition("all defences on")[2])


def test_a_liar_is_named(attack):
    code, out, _ = attack("wrong-shares")
    assert code == 0
    assert "culprits device 3: bad share" in words(out)


@pytest.mark.usefixtures("few")
def test_all_sets_apart_what_is_not_prevented(attack):
    code, out, _ = attack("all")
    assert code == 0
    prevented, _, exposed = out.partition("not prevented, by design")
    assert "many-rounds" not in prevented
    assert "many-rounds" in exposed
    assert "2 of 2 attacks succeed without their defence" in exposed
    assert "1 of 1 known limitations are as documented" in exposed


@pytest.mark.usefixtures("few")
def test_all_for_programs(attack):
    code, out, _ = attack("all", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0
    assert all(entry["as_registered"] for entry in entries.values())
    assert entries["model-inconsistency"]["attack"] == "A8"
    assert entries["model-inconsistency"]["undefended"]["complete"] is True
    assert entries["model-inconsistency"]["defended"]["refusals"][0].startswith("malformed: ")
    assert entries["late-masked-input"]["defended"]["noise"] is True
    assert entries["many-rounds"]["undefended"] is None
    assert entries["many-rounds"]["prevented"] is False


@pytest.mark.slow
def test_every_outcome_is_json(attack):
    for name in (*(known.name for known in FEW), "silence-by-an-exception", "wrong-shares"):
        assert json.loads(attack(name, "--json")[1])["name"] == name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (IN_VAIN, "defence off: the attacker did not get what it was after"),
        (NOT_STOPPED, "defence on: what the attacker has is not noise"),
        (replace(FEW[2], end=Left.NOISE), "defence on: what the attacker has is not noise"),
        (replace(FEW[0], saying="the weather"), "does not mention 'the weather'"),
        (
            replace(IN_VAIN, play=lambda _: presuppose(False, "pigs fly")),
            "defence off: this does not hold: pigs fly",
        ),
    ],
)
@pytest.mark.parametrize("arguments", [["all"], ["all", "--json"]], ids=" ".join)
def test_what_is_not_as_registered_is_said_and_fails(attack, monkeypatch, wrong, said, arguments):
    monkeypatch.setattr(cli, "ATTACKS", (FEW[0], wrong))
    code, out, _ = attack(*arguments)
    assert code == 1
    assert said in out


def test_a_limitation_that_is_none_any_more_fails(attack, monkeypatch):
    monkeypatch.setattr(cli, "ATTACKS", (replace(IN_VAIN, end=Left.EXPOSED),))
    code, out, _ = attack("in-vain")
    assert code == 1
    assert "NOT as registered" in out


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("model-inconsistancy", "did you mean 'model-inconsistency'?"),
        ("key-substitute", "did you mean 'key-substitution'?"),
        ("al", "did you mean 'all'?"),
        ("xyzzy", "no attack is called 'xyzzy' ("),
    ],
)
def test_an_unknown_name_is_answered_by_names_like_it(attack, name, meant):
    code, out, err = attack(name)
    assert (code, out) == (2, "")
    assert meant in err


def test_an_attack_that_was_not_played_is_told(attack, monkeypatch):
    groundless = replace(IN_VAIN, play=lambda _: presuppose(False, "pigs fly"))
    monkeypatch.setattr(cli, "ATTACKS", (groundless,))
    assert isinstance(judged(groundless).undefended, NotPlayed)
    assert "not played" in attack("in-vain")[1]
    assert json.loads(attack("in-vain", "--json")[1])["undefended"]["kind"] == "not played"
