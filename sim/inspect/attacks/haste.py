"""Attacks on what a device does between the threshold and its vector.

A device that fails the filter has nothing to work out, and could answer at once. But then its state
and its memory would differ from those of a device that is still training, and a server can probe
both without waiting for a vector.
"""

from collections.abc import Mapping, Set
from typing import Final

import numpy as np

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import binding
from deltafl.protocol.device import Update
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Enrolment, PeerError, Refusal, Server
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import UnmaskRequest
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import MODEL, WHOLE_ROUND, RoundDevices
from deltafl.sim.inspect.attacks.own_session import new_enrolment

_ETA: Final = Threshold(2 * WHOLE_ROUND.search.grid.tick(2.0)[0], 0)
"""A threshold of the server's choice: a device passes if its loss is at least 2."""


class _Hasty(RoundClient):
    """A device that sends its zeros, and notes the model that it answers for, as soon as it can."""

    def receive(self, data: bytes) -> bytes | LocalWork | None:
        """Take an envelope, and wait for nothing."""
        reply = super().receive(data)
        return self.supply_zeros() if reply is LocalWork.WAIT else reply

    def _admit_model(self) -> None:
        """Leave it to the first vector."""

    def _contribute_update(self, update: Update | None) -> bytes:
        super()._admit_model()
        return super()._contribute_update(update)


def _devices(*, defended: bool, enrolment: Enrolment | None = None) -> RoundDevices:
    hasty = RoundClient if defended else _Hasty
    return RoundDevices(WHOLE_ROUND, client_type=hasty, enrolment=enrolment)


def _ask_for_updates(devices: RoundDevices) -> dict[ClientId, LocalWork | bytes | None]:
    """Announce a round and the threshold; what each device then has to do, or says at once."""
    server = Server(devices.params, devices.devices)
    outgoing = server.start()
    while outgoing:
        for client, data in outgoing.items():
            if (reply := devices.carry(client, data)) is not None:
                server.receive(client, reply)
        outgoing = server.close_round()
    bound = binding(devices.levels.context(MODEL), _ETA)
    opened = server.open_slot(WHOLE_ROUND.update_slot, bound)
    return {
        client: devices.clients[client].receive(wire.encode(Ask(_ETA, data)))
        for client, data in opened.items()
    }


def _loot(devices: RoundDevices, refused: Set[ClientId], *, passing: bool) -> Loot:
    """Who refused, taken for those that pass, or that do not; if all did, it says nothing."""
    passes = {
        client: one.measured(WHOLE_ROUND).passes(_ETA) for client, one in devices.devices.items()
    }
    presuppose(0 < sum(passes.values()) < len(passes), "some devices pass, and not all")
    return Loot(
        np.array([client in refused and refused < passes.keys() for client in passes]),
        np.array([passes[client] == passing for client in passes]),
        ring_bits=1,
        note="which devices ended the round",
    )


@attack(
    "envelope-behind-the-threshold",
    16,
    "sends one more envelope right behind the threshold, while devices that pass still train",
    power=Power.SERVER,
    gain="who passed the filter, by name",
    defence="a device that fails waits in the same state as one that trains, and refuses the same",
    spec="12.4",
    end=Left.NOTHING,
)
def envelope_behind_the_threshold(defended: bool) -> Loot:
    """Without the defence, a device that fails has answered, and may be asked for shares."""
    devices = _devices(defended=defended)
    _ask_for_updates(devices)
    everybody = np.ones(len(devices.devices), bool)
    asked = UnmaskRequest(WHOLE_ROUND.update_slot, everybody)
    behind = wire.encode(Relay(session_wire.encode(asked, devices.params)))
    refused = _who_refuses(devices, dict.fromkeys(devices.devices, behind), Refusal.OUT_OF_ORDER)
    return _loot(devices, refused, passing=True)


@attack(
    "model-again-after-the-threshold",
    16,
    "cuts a round off after the threshold, and announces its model in another round",
    power=Power.SERVER,
    gain="who passed the filter, by name",
    defence="a device notes the model with the first question, whether it passes or not",
    spec="12.13",
    end=Left.NOTHING,
)
def model_again_after_the_threshold(defended: bool) -> Loot:
    """Without the defence, a device that was still training has not noted the model yet."""
    enrolment = new_enrolment()
    devices = _devices(defended=defended, enrolment=enrolment)
    _ask_for_updates(devices)
    for machine in devices.clients.values():
        machine.close()
    again = _devices(defended=defended, enrolment=enrolment)
    opening = Server(again.params, again.devices).start()
    announced = {
        client: wire.encode(Announce(again.levels, MODEL, data)) for client, data in opening.items()
    }
    refused = _who_refuses(again, announced, Refusal.MODEL_REPEATED)
    return _loot(again, refused, passing=False)


def _who_refuses(
    devices: RoundDevices, sent: Mapping[ClientId, bytes], reason: Refusal
) -> Set[ClientId]:
    """The devices that refuse what they are sent."""
    refused = set[ClientId]()
    for client, data in sent.items():
        try:
            devices.clients[client].receive(data)
        except PeerError as error:
            presuppose(error.reason is reason, f"a device refuses by {reason.name}")
            refused.add(client)
    return refused
