"""Attacks that nothing stops yet. They succeed; docs/threat-model.md says so under its table.

Whoever stops one registers it with its defence, and takes it out here.
"""

from dataclasses import replace

import numpy as np
from attack import Loot
from evil_server import EvilServer
from parties import Parties, make_params
from round_network import RoundNetwork
from round_parties import MODEL, make_config, make_devices

from protocol.configuration import binding
from protocol.quantile.search import Query
from secagg import Adversary, DevicePolicy, ring, wire
from secagg.messages import (
    MaskedInput,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    ShareReceipt,
)

ACTIVE = DevicePolicy(
    adversary=Adversary.ACTIVE,
    colluding_rate=0.0,
    min_cohort=3,
    min_threshold=3,
    min_threshold_share=0.5,
)
QUERY = Query("mm", (1 << 9,))


def opened(params, seed):
    """A session whose first slot is open; other seeds, other keys."""
    parties = Parties(params, policy=ACTIVE, seed=seed)
    evil = EvilServer(params, parties.ids, parties.answer)
    evil.set_up()
    evil.open_slot(0)
    return parties, evil


def summed(parties, positions):
    """The sum of some devices' vectors."""
    return sum(parties.inputs[parties.roster[position]][0] for position in positions)


def test_signatures_of_earlier_sessions_of_the_same_parameters_pass():
    params = make_params(5, threshold=3, slots=((64, 32),), signed=True)
    # Every device is told of two losses; 1, 2 and 3 are lost to three devices each.
    one, two, three = (frozenset({0, lost, 4}) for lost in (1, 2, 3))
    parties, evil = opened(params, seed=0)
    # Devices 0 and 4 sign the lists of the others in sessions that go no further.
    for seed, lists in enumerate(({0: one, 4: one}, {0: two, 4: three}), start=1):
        _, earlier = opened(params, seed)
        earlier.confirm(0, lists)
        for of, signed in earlier.signatures.items():
            evil.signatures[of] |= signed
    evil.unmask(0, {0: three, 1: one, 2: two, 3: three, 4: two})
    assert not evil.refusals
    # Fewer than min_cohort = 3.
    assert Loot(evil.sum_over(0, {0, 4}), summed(parties, {0, 4})).is_complete


def test_keys_of_earlier_sessions_of_the_same_parameters_pass():
    params = make_params(6, threshold=4, min_cohort=5, slots=((64, 32),), signed=True)
    said, secrets = {}, {}
    for seed, lost in enumerate((4, 5), start=1):
        _, earlier = opened(params, seed)
        earlier.unmask(0, earlier.everyone - {lost})
        said[earlier.roster[lost]] = earlier.keys[lost]
        secrets[0, ShareKind.KEY, lost] = earlier.secrets[0, ShareKind.KEY, lost]
    parties = Parties(params, policy=ACTIVE)

    def answer(client, data):
        """Nobody asks devices 4 and 5; their keys are old, and what else they say is made up."""
        if client not in said:
            return parties.answer(client, data)
        match parties.decode(data):
            case SessionOpen():
                reply = said[client]
            case RosterMessage() as message:
                box = bytes(wire.box_size(params))
                reply = ShareKeys((bytes(32),), dict.fromkeys(message.keys, box))
            case ShareDelivery():
                reply = ShareReceipt(())
            case OpenSlot():
                reply = MaskedInput(0, bytes(4 * 64))
        return parties.encode(reply)

    evil = EvilServer(params, parties.ids, answer)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, dict.fromkeys(range(4), evil.everyone))
    evil.secrets |= secrets
    assert not evil.refusals
    # Fewer than min_cohort = 5.
    assert Loot(evil.sum_over(0, range(4)), summed(parties, range(4))).is_complete


def asked(config, slots, lost=None, ids=None):
    """What the server learns when it asks one query in some slots, the last without a device."""
    devices = {i: d for i, d in make_devices(config).items() if ids is None or i in ids}
    config = replace(config, cohort_size=len(devices))
    network = RoundNetwork(
        config,
        dict.fromkeys(devices, QUERY),
        dict.fromkeys(devices, MODEL),
        devices=devices,
        signed=True,
    )
    bound = binding(config.context(MODEL), QUERY)
    evil = EvilServer(network.params, devices, network.carry, binding_of=lambda _: bound)
    evil.set_up()
    answers = []
    for slot in slots:
        evil.open_slot(slot)
        left = evil.everyone - ({lost} if slot == max(slots) else set())
        evil.unmask(slot, left)
        answers.append(evil.sum_over(slot, left).astype(np.uint64))
    return network, answers


def test_one_query_twice_tells_the_answer_of_a_device_called_lost_in_between():
    config = make_config(cohort_size=5, max_queries=2)
    network, (all_five, four) = asked(config, slots=(0, 1), lost=1)
    device = network.devices[sorted(network.devices)[1]]
    taken = all_five - four
    ring.reduce(taken, config.search_layout.ring_bits)
    assert Loot(taken, device.measured(config).answer(QUERY)).is_complete
    # With it the loss: β = n / |F − μ| in ticks, on the side that the sign tells.
    numbers = config.search_layout.decode(taken)
    told = {name: float(config.search_layout.to_float(name, numbers[name])[0]) for name in numbers}
    from_cut = np.sign(told["signed_weight"]) * told["weight"] / told["beta"]
    assert round(QUERY.cuts[0] - 0.5 + from_cut) == device.measured(config).tick


def test_one_round_in_two_sessions_tells_the_answer_of_the_device_that_the_second_lacks():
    config = make_config(cohort_size=5, max_queries=1)
    network, [all_five] = asked(config, slots=(0,))
    ids = sorted(network.devices)
    smaller, [four] = asked(config, slots=(0,), ids=set(ids) - {ids[1]})
    device = network.devices[ids[1]]
    sums = [
        n.config.search_layout.decode(words) for n, words in ((network, all_five), (smaller, four))
    ]
    wanted = config.search_layout.decode(device.measured(config).answer(QUERY))
    assert {name: sums[0][name] - sums[1][name] for name in wanted} == wanted
