"""Every attack succeeds without its defence, and ends as registered with it."""

import numpy as np
import pytest

from deltafl.sim.inspect.attacks.attack import NotPlayed, played, presuppose, surprise
from deltafl.sim.inspect.attacks.catalogue import ATTACKS
from deltafl.sim.inspect.attacks.own_round import UPDATE_ROUND, make_devices

OFF, ON = "off", "on"
RUNS = [
    pytest.param(attack, defended, id=f"{attack.name}-{ON if defended else OFF}")
    for attack in ATTACKS
    for defended in (False, True)
    if attack.is_prevented or defended
]
BY_NAME = {attack.name: attack for attack in ATTACKS}


@pytest.mark.parametrize(("attack", "defended"), RUNS)
def test_an_attack_ends_as_registered(attack, defended):
    assert surprise(attack, played(attack, defended=defended), defended=defended) == ""


def test_what_is_taken_is_the_update_to_the_last_digit_that_is_sent():
    loot = BY_NAME["model-inconsistency"].play(False)
    devices = make_devices(UPDATE_ROUND)
    error = np.abs(loot.read(loot.taken) - devices[max(devices)].update).max()
    assert 0 < error <= 2.0**-UPDATE_ROUND.update.resolution_bits


def test_an_attack_that_rests_on_nothing_is_not_played():
    with pytest.raises(NotPlayed, match="this does not hold: pigs fly"):
        presuppose(False, "pigs fly")
