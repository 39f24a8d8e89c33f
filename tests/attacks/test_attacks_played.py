"""Every attack succeeds without its defence, and ends as registered with it."""

from functools import cache

import numpy as np
import pytest

from deltafl.secagg import PeerError, Refusal
from deltafl.sim.inspect.attacks.attack import NotPlayed, presuppose
from deltafl.sim.inspect.attacks.catalogue import ATTACKS
from deltafl.sim.inspect.attacks.own_round import UPDATE_ROUND, make_devices
from deltafl.sim.inspect.attacks.play import played, surprise
from deltafl.sim.inspect.attacks.replaced import replaced

OFF, ON = "off", "on"
RUNS = [
    pytest.param(attack, defended, id=f"{attack.name}-{ON if defended else OFF}")
    for attack in ATTACKS
    for defended in (False, True)
    if attack.is_prevented or defended
]
BY_NAME = {attack.name: attack for attack in ATTACKS}


once = cache(played)  # attacks are deterministic


@pytest.mark.parametrize(("attack", "defended"), RUNS)
def test_an_attack_ends_as_registered(attack, defended):
    assert surprise(attack, once(attack, defended=defended), defended=defended) == ""


@pytest.mark.parametrize(("attack", "defended"), RUNS)
def test_the_other_end_is_a_surprise(attack, defended):
    assert not attack.is_prevented or surprise(
        attack, once(attack, defended=defended), defended=not defended
    )


@pytest.mark.parametrize("name", ["threshold-inconsistency", "model-inconsistency"])
def test_what_is_taken_is_the_update_to_the_last_digit_that_is_sent(name):
    loot = once(BY_NAME[name], defended=False)
    devices = make_devices(UPDATE_ROUND)
    error = np.abs(loot.read(loot.taken) - devices[max(devices)].update).max()
    assert 0 < error <= 2.0**-UPDATE_ROUND.update.resolution_bits


def test_two_radii_give_the_longest_update_of_the_tail_if_devices_trust_the_server():
    loot = once(BY_NAME["difference-of-two-radii"], defended=False)
    devices = list(make_devices(UPDATE_ROUND).values())
    in_tail = [one.update for one in devices if one.loss >= 2.5]
    longest = max(in_tail, key=np.linalg.norm)
    assert np.abs(loot.read(loot.taken) - longest).max() <= 2.0**-9
    others = [one.update for one in devices if one.update is not longest]
    assert all(np.abs(loot.read(loot.taken) - other).max() > 0.5 for other in others)


def test_two_radii_are_refused_in_the_first_round_by_default():
    with pytest.raises(PeerError, match="unverified_if_active is not set") as refused:
        BY_NAME["difference-of-two-radii"].play(True)
    assert refused.value.reason is Refusal.POLICY


# --- how defences are taken away ----------------------------------------------------------------


class Guarded:
    @classmethod
    def check(cls):
        return "checked"


def fail():
    raise ValueError("within")


def test_a_defence_is_away_for_a_while_and_back_in_the_end():
    original = vars(Guarded)["check"]
    with replaced(Guarded, "check", lambda: "not checked", unless=False):
        assert Guarded.check() == "not checked"
    assert vars(Guarded)["check"] is original


def test_a_defence_is_back_whatever_comes():
    original = vars(Guarded)["check"]
    with (
        pytest.raises(ValueError, match="within"),
        replaced(Guarded, "check", fail, unless=False),
    ):
        Guarded.check()
    assert vars(Guarded)["check"] is original


def test_a_defence_that_stays_on_is_not_touched():
    with replaced(Guarded, "check", None, unless=True):
        assert Guarded.check() == "checked"


def test_an_attack_that_rests_on_nothing_is_not_played():
    with pytest.raises(NotPlayed, match="this does not hold: pigs fly"):
        presuppose(False, "pigs fly")
