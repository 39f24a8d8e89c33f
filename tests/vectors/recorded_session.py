"""Sessions that are played for the vectors: every secret from a stated seed, every message kept."""

from dataclasses import fields, replace
from hashlib import sha256

import numpy as np

from deltafl.secagg import (
    Adversary,
    Client,
    ClientId,
    Credentials,
    DevicePolicy,
    Server,
    SessionParams,
    SlotSpec,
    wire,
)
from deltafl.secagg.directory import TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.secagg.keys import PublicKey, generate
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.primitives import PLAIN
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import to_words
from deltafl.secagg.states import ClientState, Stage, Step, Vanish

POLICY = {
    "adversary": "curious",
    "colluding_rate": 0.0,
    "dropout_rate": 0.9,
    "min_cohort": 2,
    "max_cohort": 1 << 20,
    "max_degree": 1 << 12,
    "max_slots": 256,
    "max_length": 1 << 26,
}
"""What the devices of the vectors insist on; far below what a real device should."""


def _with_highest_bit(randomness):
    """A key pair whose public key is not the canonical encoding of its number."""
    pair = generate(randomness)
    return replace(pair, public=PublicKey(pair.public[:-1] + bytes([pair.public[-1] | 0x80])))


ODD = replace(PLAIN, generate=_with_highest_bit)


def policy_of(limits):
    """What a device insists on, from its fields in a vector."""
    return DevicePolicy(**limits | {"adversary": Adversary(limits["adversary"])})


def draw_elements(seed):
    """A source of integers: 8 keystream bytes each, little-endian."""
    draw = SeededRandomness(seed)
    return lambda: int.from_bytes(draw(8), "little")


def fixed(name):
    """32 bytes that stand for a name."""
    return sha256(f"deltafl test vectors: {name}".encode()).digest()


def make_params(
    num_invited, *, slots, threshold, signed, degree=None, min_cohort=None, min_roster=2
):
    """Parameters of a session; slots are (label, length, ring bits, whole, verified)."""
    return SessionParams(
        slots=tuple(SlotSpec(*slot) for slot in slots),
        num_invited=num_invited,
        degree=num_invited - 1 if degree is None else degree,
        threshold=threshold,
        min_cohort=threshold if min_cohort is None else min_cohort,
        graph_seed=fixed("graph seed"),
        context=fixed("context"),
        min_roster=min_roster,
        signed=signed,
    )


def slot_to_json(slot):
    names = [field.name for field in fields(slot) if field.init]
    names.remove("proof_size")  # always 0: the vectors' sessions have no proofs
    return {name: getattr(slot, name) for name in names}


def params_to_json(params):
    return {
        "slots": [slot_to_json(slot) for slot in params.slots],
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
    slots = tuple(SlotSpec(**slot) for slot in case["slots"])
    digests = {name: bytes.fromhex(case[name]) for name in ("graph_seed", "context")}
    return SessionParams(**case | digests | {"slots": slots})


def make_case(name, params, *, vanishing=(), spoiling=(), highest_bit=()):
    """A session to play.

    Args:
        name: From which its secrets follow.
        params: Its parameters.
        vanishing: (index of the device, stage, slot) of those that vanish.
        spoiling: (index of sender, of recipient) of boxes that do not open.
        highest_bit: Indices of devices that set the highest bit of all their keys.
    """
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
        if index in highest_bit:
            device["highest_bit"] = True
        devices.append(device)
    return {
        "params": params_to_json(params),
        "devices": devices,
        "bindings": [fixed(f"binding of slot {i}").hex() for i in range(len(params.slots))],
        "vanishing": [
            {"id": 3 + 7 * index, "stage": stage, "slot": slot} for index, stage, slot in vanishing
        ],
        "spoiling": [
            {"sender": 3 + 7 * sender, "recipient": 3 + 7 * recipient}
            for sender, recipient in spoiling
        ],
    }


def draw_inputs(params, seed):
    """Vectors, one for every slot: uniform, or small and of both signs where sums are proved."""
    draw = draw_elements(seed)

    def element(slot):
        number, whole = draw(), 2**slot.ring_bits
        return str((number % 2001 - 1000) % whole if slot.verified else number % whole)

    return [[element(slot) for _ in range(slot.length)] for slot in params.slots]


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

    def client(self, client, policy=None, *, enrolled=True, attended=()):
        """A device at its beginning.

        Args:
            client: Its id.
            policy: Where its limits are other than POLICY.
            enrolled: Whether it has its identity.
            attended: Contexts (hex) of signed sessions that it took part in before.
        """
        credentials, ledger = None, MemoryLedger()
        if self.directory is not None and enrolled:
            credentials = Credentials(self.identity(client), self.directory)
        ledger.admit([bytes.fromhex(context) for context in attended])
        return Client(
            client,
            policy_of(POLICY | (policy or {})),
            self.draws(client),
            credentials,
            self.primitives(client),
            ledger,
        )

    def primitives(self, client):
        """What a device computes with: keys whose highest bit is set, if it is to send such."""
        return ODD if self.devices[client].get("highest_bit") else PLAIN

    def with_spoiled_boxes(self, client, data):
        """A device's ShareKeys, with one bit turned in the boxes that are to be spoiled."""
        message = wire.decode(data, self.params)
        boxes = dict(message.boxes)
        for one in self.case["spoiling"]:
            if one["sender"] == client:
                position = sorted(self.devices).index(one["recipient"])
                boxes[position] = boxes[position][:-1] + bytes([boxes[position][-1] ^ 1])
        return wire.encode(replace(message, boxes=boxes), self.params)

    def draws(self, client):
        """A device's randomness, from its beginning."""
        return SeededRandomness(bytes.fromhex(self.devices[client]["randomness"]))

    def session_id(self):
        """The session's id when all come."""
        return self.params.session_id(np.array(sorted(self.devices), dtype="<u4").tobytes())

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
        The sums of verified slots are shown to the devices in a round of their own, `opening`,
        which nobody answers.
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
            if stage is Stage.SHARE:
                answers[client] = parties.with_spoiled_boxes(client, answers[client])
            server.receive(client, answers[client])
        name = stage.name.lower()
        rounds.append({"stage": name, "slot": slot, "to": dict(asked), "from": answers})
        return server.close_round()

    pending = exchange(server.start(), Stage.ADVERTISE)
    exchange(exchange(pending, Stage.SHARE), Stage.RECEIPT)
    for slot in case.get("asked", range(len(parties.bindings))):
        binding = parties.bindings[slot]
        if not server.can_sum(slot):
            continue  # a device of this whole slot is gone
        pending = server.open_slot(slot, binding)
        while pending:
            pending = exchange(pending, server.step.stage, slot)
        if not server.has_sum:
            continue  # a device is missing from a whole slot
        revealed = server.take_sum()
        sums.append(sum_to_json(revealed))
        if revealed.opening is not None:
            shown = dict.fromkeys(server.remaining, revealed.opening)
            rounds.append({"stage": "opening", "slot": slot, "to": shown, "from": {}})
            for client, data in shown.items():
                machines[client].receive(data)
                assert machines[client].proved.vector.tolist() == revealed.vector.tolist()
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
