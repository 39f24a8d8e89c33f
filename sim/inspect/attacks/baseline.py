"""Algorithm 2 for comparison: without secure sums, the server simply reads the losses."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.protocol.configuration import binding
from deltafl.protocol.device import DeviceRound
from deltafl.secagg import ClientId
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack
from deltafl.sim.inspect.attacks.evil_server import EvilServer
from deltafl.sim.inspect.attacks.own_round import Device, RoundDevices, context_of, make_devices
from deltafl.sim.inspect.attacks.searches import CONFIG, QUERY


@dataclass
class _Reporting:
    """A device of Algorithm 2.

    Attributes:
        id: Its id.
        device: What it answers with.
        reported: What it has told the server, in the order of its answers.
    """

    id: ClientId
    device: Device
    reported: list[float] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return self.device.weight

    def loss(self, model: npt.NDArray[np.float32]) -> float:
        del model
        self.reported.append(self.device.loss)
        return self.device.loss

    def update(
        self, model: npt.NDArray[np.float32], objective: LocalObjective = PLAIN
    ) -> npt.NDArray[np.float32]:
        del model, objective
        return self.device.update


@attack(
    "losses-in-clear",
    15,
    "reads the losses that devices report in the published Δ-FL (Algorithm 2)",
    power=Power.SERVER,
    gain="every device's loss and weight, by name",
    defence="Algorithm 3: devices mask their answers to queries, and the server gets sums only",
    spec="12.4",
    end=Left.NOISE,
)
def losses_in_clear(defended: bool) -> Loot:
    """The comparison is by the devices' answers to a query, which follow from their losses."""
    devices = make_devices(CONFIG)
    wanted = [device.measured(CONFIG).answer(QUERY) for device in devices.values()]
    taken, note = (_as_masked if defended else _as_reported)(devices)
    bits = CONFIG.search_layout.ring_bits
    return Loot(np.concatenate(taken), np.concatenate(wanted), bits, note=note)


def _as_reported(devices: dict[ClientId, Device]) -> tuple[list[npt.NDArray[np.uint64]], str]:
    """The answer of every device, as a server of Algorithm 2 can compute it."""
    from deltafl.fl.strategies.base import TrainingState  # with it comes torch, which takes seconds
    from deltafl.fl.strategies.delta_fl import DeltaFL
    from deltafl.sim.cohort.devices import device_objects
    from deltafl.sim.cohort.simulated import SimulatedCohort

    reporting = [_Reporting(client, device) for client, device in devices.items()]
    model = np.zeros(CONFIG.update_length, np.float32)
    cohort = SimulatedCohort(device_objects(reporting))
    DeltaFL(Fraction(1, 2)).apply(TrainingState(model), cohort)
    losses = [device.reported[0] for device in reporting]
    weights = [device.weight for device in reporting]
    answers = [
        DeviceRound.measured(CONFIG, loss, weight).answer(QUERY)
        for loss, weight in zip(losses, weights, strict=True)
    ]
    return answers, f"the server was told the losses {losses} and the weights {weights}"


def _as_masked(devices: dict[ClientId, Device]) -> tuple[list[npt.NDArray[np.uint64]], str]:
    """What a server of Algorithm 3 sees of every device's answer."""
    network = RoundDevices(CONFIG, devices, questions=dict.fromkeys(devices, QUERY))
    bound = binding(context_of(CONFIG), QUERY)
    evil = EvilServer(network.params, devices, network.carry, binding_of=lambda _: bound)
    evil.set_up()
    evil.open_slot(0)
    words = [evil.inputs[0][position].astype(np.uint64) for position in sorted(evil.inputs[0])]
    return words, "the server was told masked words, but no losses"
