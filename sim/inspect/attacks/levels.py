"""An attack on sessions of several levels: what one device put into one level and not the next."""

from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.protocol.client import RoundClient
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, PeerError, Refusal
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    POLICY,
    QUORUM,
    VERIFIED_ROUND,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    make_devices,
)
from deltafl.sim.inspect.attacks.replaced import replaced
from deltafl.sim.inspect.attacks.rounds import as_update

_THETAS: Final = (Fraction(1), Fraction(9, 10))
_MODELS: Final = b"model Amodel B"
_LOST: Final = ClientId(10)
_NEARBY: Final = (Fraction(3, 5), Fraction(2, 5))
_WEIGHT: Final = 100


def _sums_of_updates(devices: RoundDevices, lost: ClientId | None = None) -> list[Vector]:
    """Play all levels, and claim from the second level on that a device has dropped out, if any.

    Raises:
        PeerError: all devices that are left refuse.
    """
    levels = devices.levels
    server = RoundServer(
        levels,
        _MODELS,
        devices.params,
        devices.devices,
        directory=devices.enrolment if devices.params.signed else None,
    )
    update_slots = {
        levels.first_slot(level) + config.update_slot for level, config in enumerate(levels.rounds)
    }
    sums = list[Vector]()
    outgoing = server.start()
    while outgoing:
        refusals = list[PeerError]()
        for client, data in outgoing.items():
            if sums and client == lost:
                continue
            try:
                reply = devices.answer(client, data)
            except PeerError as refusal:
                refusals.append(refusal)
                continue
            if reply is not None:
                server.receive(client, reply)
        if refusals:
            raise refusals[0]
        outgoing = server.close_round()
        if server.revealed is not None and server.revealed.slot in update_slots:
            sums.append(server.revealed.vector.astype(np.uint64))
    return sums


@attack(
    "nearly-one-model-at-two-levels",
    13,
    "gives two levels models that hardly differ, and claims a drop-out between their updates",
    power=Power.SERVER,
    gain="the update of that device, by its name, as the difference of the sums",
    defence="devices that expect an active server take no drop-out after the first level",
    spec="12.11",
    end=Refusal.NOT_AGREED,
    saying="of the first level",
)
def nearly_one_model_at_two_levels(defended: bool) -> Loot:
    """The first level keeps everybody, and so does the second once its search has lost a device."""
    devices = RoundDevices(
        replace(VERIFIED_ROUND, min_tail=0),
        policy=replace(ACTIVE, min_honest_tail=0),  # the levels are too near for others
        threshold=QUORUM,
        model=_MODELS,
        signed=True,
        thetas=_THETAS,
    )
    with replaced(RoundClient, "_check_cohort", lambda *_: None, unless=defended):
        sums = _sums_of_updates(devices, _LOST)
    presuppose(len(sums) == len(_THETAS), "both levels have a sum of updates")
    device, layout = devices.devices[_LOST], VERIFIED_ROUND.update_layout
    ring = np.uint64(2**layout.ring_bits - 1)
    return Loot(
        (sums[0] - sums[1]) & ring,
        device.measured(VERIFIED_ROUND).contribution(device.update),
        layout.ring_bits,
        read=as_update(device),
    )


@attack(
    "two-levels-of-nearly-one-tail",
    13,
    "gives two levels models that hardly differ, and so near θ that the tails differ by one device",
    power=Power.SERVER,
    gain="that device's update, as the difference of the sums",
    defence="a device works out how many devices lie between two levels, and insists on two that "
    "do not collude",
    spec="12.14",
    end=Refusal.POLICY,
    saying="fewer than min_honest_tail=2",
)
def two_levels_of_nearly_one_tail(defended: bool) -> Loot:
    """All parties follow the protocol; five devices of equal weight, tails of four and of three."""
    same = {
        client: Device(device.loss, _WEIGHT, device.update)
        for client, device in make_devices(WHOLE_ROUND).items()
    }
    fewest = 2 if defended else 0
    policy, config = replace(POLICY, min_honest_tail=fewest), replace(WHOLE_ROUND, min_tail=fewest)
    devices = RoundDevices(config, same, policy=policy, model=_MODELS, thetas=_NEARBY)
    sums = _sums_of_updates(devices)
    presuppose(len(sums) == len(_NEARBY), "both levels have a sum of updates")
    device, layout = same[sorted(same)[1]], WHOLE_ROUND.update_layout
    ring = np.uint64(2**layout.ring_bits - 1)
    return Loot(
        (sums[0] - sums[1]) & ring,
        device.measured(WHOLE_ROUND).contribution(device.update),
        layout.ring_bits,
        read=as_update(device),
    )
