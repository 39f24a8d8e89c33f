"""An attack on rounds of several passes over the updates, which medians are computed by."""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.robust import FACTOR_BITS
from deltafl.secagg import Refusal, SlotSum
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    POLICY,
    UPDATE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)

_BITS: Final = UPDATE_ROUND.update.resolution_bits
_PASSES: Final = UpdateParams(
    clip=4.0, resolution_bits=_BITS, max_weight=500, passes=2, smoothing=4.0
)


def _one_far_away() -> list[npt.NDArray[np.float32]]:
    """Updates of which the last is far from the others, in whole steps of the resolution."""
    generator = np.random.default_rng(0)
    shape = UPDATE_ROUND.cohort_size, UPDATE_ROUND.update_length
    steps = generator.integers(-40, 40, shape)
    steps[-1] = 4096 * generator.choice((-1, 1), shape[1]) + steps[-1]
    return list((steps / 2**_BITS).astype(np.float32))


@attack(
    "difference-of-two-passes",
    13,
    "has the updates summed twice, the second time by their distance from the mean, and subtracts",
    power=Power.SERVER,
    gain="the update of the one device that is far from the others",
    defence="a device gives one sum of its update, unless its owner sets max_passes",
    spec="12.14",
    end=Refusal.POLICY,
    saying="passes=2 is above max_passes=1",
)
def difference_of_two_passes(defended: bool) -> Loot:
    """The server follows the protocol. All devices but one count in full in the second sum.

    So 2^16 times the first sum less the second is that device's update, times a number that comes
    out of the weights in the same way.
    """
    config = replace(UPDATE_ROUND, update=_PASSES)
    devices = {
        client: Device(device.loss, device.weight, update)
        for (client, device), update in zip(
            make_devices(config).items(), _one_far_away(), strict=True
        )
    }
    policy = POLICY if defended else replace(POLICY, max_passes=_PASSES.passes)
    learnt = list[SlotSum]()
    network = RoundDevices(config, devices, policy=policy)
    with_an_honest_server(network, lambda _step, _client, data: data, learnt)
    presuppose(len(learnt) == _PASSES.passes, "there are two sums")
    layouts = config.update_layout, config.pass_layout
    first, second = (
        layout.decode(one.vector.astype(np.uint64))
        for layout, one in zip(layouts, learnt, strict=True)
    )
    missing = {
        name: (first[name].astype(np.int64) << FACTOR_BITS) - second[name].astype(np.int64)
        for name in ("update", "weight")
    }
    taken = np.rint(missing["update"] / missing["weight"][0]).astype(np.int64)
    victim = devices[max(devices)]
    wanted = np.rint(victim.update * 2.0**_BITS).astype(np.int64)
    return Loot(
        taken.astype(np.uint32),
        wanted.astype(np.uint32),
        note="to the last step of the resolution",
        read=lambda words: words.view(np.int32) / 2**_BITS,
    )
