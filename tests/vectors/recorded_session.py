"""Sessions that are played for the vectors: every secret from a stated seed, every message kept."""

from hashlib import sha256

import numpy as np

from secagg import (
    Adversary,
    Client,
    ClientId,
    Credentials,
    DevicePolicy,
    Server,
    SessionParams,
    SlotSpec,
)
from secagg.directory import TrustedKeys
from secagg.identity import identity
from secagg.randomness import SeededRandomness
from secagg.ring import to_words
from secagg.stages import Stage, Step, Vanish
from secagg.states import ClientState

POLICY = {
    "adversary": "curious",
    "colluding_rate": 0.0,
    "min_cohort": 2,
    "min_threshold": 2,
    "min_threshold_share": 0.0,
    "max_cohort": 1 << 20,
    "max_degree": 1 << 12,
    "max_slots": 256,
    "max_length": 1 << 26,
    "max_ring_bits": 64,
    "sparse_if_active": False,
}
"""What the devices of the vectors insist on; far below what a real device should."""


def fixed(name):
    """32 bytes that stand for a name."""
    return sha256(f"deltafl test vectors: {name}".encode()).digest()


def make_params(num_invited, *, slots, threshold, signed, degree=None, min_cohort=None):
    """Parameters of a session; slots are (label, length, ring bits)."""
    return SessionParams(
        slots=tuple(SlotSpec(*slot) for slot in slots),
        num_invited=num_invited,
        degree=num_invited - 1 if degree is None else degree,
        threshold=threshold,
        min_cohort=threshold if min_cohort is None else min_cohort,
        graph_seed=fixed("graph seed"),
        context=fixed("context"),
        signed=signed,
    )


def params_to_json(params):
    return {
        "slots": [
            {"label": s.label, "length": s.length, "ring_bits": s.ring_bits} for s in params.slots
        ],
        "num_invited": params.num_invited,
        "degree": params.degree,
        "threshold": params.threshold,
        "min_cohort": params.min_cohort,
        "min_roster": params.min_roster,
        "signed": params.signed,
        "graph_seed": params.graph_seed.hex(),
        "context": params.context.hex(),
    }


def params_from_json(case):
    fields = dict(case)
    fields["slots"] = tuple(SlotSpec(**slot) for slot in case["slots"])
    for name in ("graph_seed", "context"):
        fields[name] = bytes.fromhex(case[name])
    return SessionParams(**fields)


def make_case(name, params, *, vanishing=()):
    """A session to play; `vanishing` holds (index of the device, stage, slot)."""
    devices = []
    for index in range(params.num_invited):
        client = 3 + 7 * index
        device = {
            "id": client,
            "randomness": fixed(f"{name}, randomness of device {client}").hex(),
            "inputs": draw_inputs(params, fixed(f"{name}, inputs of device {client}")),
        }
        if params.signed:
            device["identity"] = fixed(f"identity of device {client}").hex()
        devices.append(device)
    return {
        "params": params_to_json(params),
        "devices": devices,
        "bindings": [fixed(f"binding of slot {i}").hex() for i in range(len(params.slots))],
        "vanishing": [
            {"id": 3 + 7 * index, "stage": stage, "slot": slot} for index, stage, slot in vanishing
        ],
    }


def draw_inputs(params, seed):
    """Uniform vectors, one for every slot: 8 keystream bytes an element, little-endian."""
    draw = SeededRandomness(seed)
    return [
        [str(int.from_bytes(draw(8), "little") % 2**slot.ring_bits) for _ in range(slot.length)]
        for slot in params.slots
    ]


class Parties:
    """The machines of a case, and a vector for whoever is opened a slot."""

    def __init__(self, case):
        self.case = case
        self.params = params_from_json(case["params"])
        self.bindings = [bytes.fromhex(binding) for binding in case["bindings"]]
        self.devices = {ClientId(device["id"]): device for device in case["devices"]}
        self.directory = None
        if self.params.signed:
            self.directory = TrustedKeys({i: self.identity(i).public for i in self.devices})

    def identity(self, client):
        return identity(bytes.fromhex(self.devices[client]["identity"]))

    def server(self):
        return Server(self.params, self.devices, self.directory)

    def client(self, client, policy=None, *, enrolled=True):
        """A device at its beginning; `policy` says where its limits are other than POLICY."""
        credentials = None
        if self.directory is not None and enrolled:
            credentials = Credentials(self.identity(client), self.directory)
        randomness = SeededRandomness(bytes.fromhex(self.devices[client]["randomness"]))
        limits = POLICY | (policy or {})
        limits["adversary"] = Adversary(limits["adversary"])
        return Client(client, DevicePolicy(**limits), randomness, credentials)

    def answer(self, machine, data):
        """What a device says to a message; it contributes its vector at once."""
        reply = machine.receive(data)
        if machine.state is ClientState.OPENED:
            slot = machine.slot
            bits = self.params.slots[slot].ring_bits
            numbers = [int(x) for x in self.devices[machine.client_id]["inputs"][slot]]
            vector = to_words(np.array(numbers, dtype=np.uint64), bits)
            return machine.contribute(vector, self.bindings[slot])
        return reply


def play(case):
    """Play a case to its end.

    Returns:
        The rounds (stage, slot, messages to and from the devices by id), the sums and the drops.
    """
    parties = Parties(case)
    server = parties.server()
    machines = {client: parties.client(client) for client in parties.devices}
    vanishing = {
        v["id"]: Vanish(Step(Stage[v["stage"].upper()], v["slot"])) for v in case["vanishing"]
    }
    rounds, sums = [], []

    def exchange(asked, stage, slot=0):
        answers = {}
        for client, data in asked.items():
            vanish = vanishing.get(client)
            if vanish is not None and not vanish.answers(Step(stage, slot)):
                continue
            answers[client] = parties.answer(machines[client], data)
            server.receive(client, answers[client])
        name = stage.name.lower()
        rounds.append({"stage": name, "slot": slot, "to": dict(asked), "from": answers})
        return server.close_round()

    pending = exchange(server.start(), Stage.ADVERTISE)
    exchange(exchange(pending, Stage.SHARE), Stage.RECEIPT)
    for slot, binding in enumerate(parties.bindings):
        pending = exchange(server.open_slot(slot, binding), Stage.MASK, slot)
        if parties.params.signed:
            pending = exchange(pending, Stage.CONFIRM, slot)
        exchange(pending, Stage.UNMASK, slot)
        sums.append(sum_to_json(server.take_sum()))
    return rounds, sums, drops_to_json(server)


def sum_to_json(result):
    return {
        "slot": result.slot,
        "vector": [str(x) for x in result.vector.tolist()],
        "contributors": list(result.contributors),
    }


def drops_to_json(server):
    return {
        str(client): {
            "fault": drop.fault.value,
            "stage": drop.step.stage.name.lower(),
            "slot": drop.step.slot,
        }
        for client, drop in sorted(server.drops.items())
    }
