"""What docs/limitations.md says that a server can do, it can."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from attack import Loot
from evil_server import EvilServer
from round_network import RoundNetwork
from round_parties import MODEL, make_config, make_devices
from searches import CONFIG, LOST, Searches

from protocol.configuration import binding
from protocol.selection import Threshold


def test_one_model_in_two_rounds_tells_the_answer_of_the_device_that_the_second_lacks():
    searches = Searches()
    for round_index, lost in ((1, set()), (2, {LOST})):
        evil = searches.session(replace(CONFIG, round_index=round_index), remembering=True)
        searches.ask(evil, 0, evil.everyone, evil.everyone - lost)
        assert not evil.refusals
    assert searches.loot().is_complete


def test_a_threshold_that_one_device_passes_tells_its_update():
    config = make_config(cohort_size=5, theta=Fraction(1), update_length=64)
    devices = make_devices(config)
    last = devices[max(devices)]
    # Every device is shown the same one, so that the masks cancel.
    threshold = Threshold(2 * last.measured(config).tick, 0)
    network = RoundNetwork(
        config,
        dict.fromkeys(devices, threshold),
        dict.fromkeys(devices, MODEL),
        devices=devices,
        signed=True,
    )
    bound = binding(config.context(MODEL), threshold)
    evil = EvilServer(network.params, devices, network.carry, binding_of=lambda _: bound)
    evil.set_up()
    evil.open_slot(config.update_slot)
    evil.unmask(config.update_slot, evil.everyone)
    assert not evil.refusals
    taken = evil.sum_over(config.update_slot, evil.everyone).astype(np.uint64)
    assert Loot(taken, last.measured(config).contribution(last.update)).is_complete
