"""Attacks on a round of Δ-FL: other questions, other models, and what is said beside the sums."""

from fractions import Fraction

import numpy as np
from attack import Harm, Left, Loot, Power, attack
from evil_server import EvilServer
from round_network import DEAD_MODEL, RoundNetwork
from round_parties import MODEL, Device, RoundParties, make_config, make_devices

from protocol import client as client_module
from protocol.client import Task
from protocol.configuration import RoundConfig, binding
from protocol.encoding import Field
from protocol.selection import Threshold
from secagg import Refusal, ring
from secagg import wire as session_wire
from secagg.messages import MaskedInput

CONFIG = make_config(cohort_size=5, theta=Fraction(1), update_length=64)  # one slot
ALL_PASS, NONE_PASS = Threshold(0, 0), Threshold(2**63 - 1, 0)


def against_last(network, binding_of):
    """What the server makes of the sum, and what the last device has put in."""
    evil = EvilServer(network.params, network.devices, network.carry, binding_of=binding_of)
    evil.set_up()
    evil.open_slot(CONFIG.update_slot)
    evil.unmask(CONFIG.update_slot, evil.everyone)
    device = network.devices[network.victim]
    wanted = device.measured(CONFIG).contribution(device.update)
    taken = evil.sum_over(CONFIG.update_slot, evil.everyone).astype(np.uint64)
    return taken, wanted


@attack(
    8,
    "announces an infinite threshold to all but one",
    power=Power.SERVER,
    gain="the one device's update",
    defence="masks are bound to the threshold that a device was shown",
    spec="12.6",
    end=Left.NOISE,
)
def test_a_threshold_for_each(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(client_module, "binding", lambda *_: b"")
    devices = make_devices(CONFIG)
    questions = {i: ALL_PASS if i == max(devices) else NONE_PASS for i in devices}
    network = RoundNetwork(CONFIG, questions, dict.fromkeys(devices, MODEL))
    ids = sorted(devices)
    bound = client_module.binding
    taken, wanted = against_last(network, lambda p: bound(CONFIG.context(MODEL), questions[ids[p]]))
    if not defended:
        # The words are the update itself, to the last digit that is sent.
        update = CONFIG.update_layout.decode(taken)
        mine = network.devices[network.victim]
        exact = update["update"] / update["weight"] / 2**CONFIG.update_resolution_bits
        assert np.abs(exact - mine.update).max() <= 2.0**-CONFIG.update_resolution_bits
    return Loot(taken, wanted, CONFIG.update_layout.ring_bits)


@attack(
    8,
    "shows a model without a gradient to all but one (model inconsistency)",
    power=Power.SERVER,
    gain="the one device's update",
    defence="the session is bound to the model that a device was shown",
    spec="12.8",
    end=Refusal.MALFORMED,
    saying="not bound to this model",
)
def test_a_model_for_each(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(RoundConfig, "context", lambda *_: bytes(32))
    devices = make_devices(CONFIG)
    models = {i: MODEL if i == max(devices) else DEAD_MODEL for i in devices}
    network = RoundNetwork(CONFIG, dict.fromkeys(devices, ALL_PASS), models)
    taken, wanted = against_last(network, lambda _: binding(CONFIG.context(b""), ALL_PASS))
    length = CONFIG.update_length  # the other devices' weights are in the sum as well
    return Loot(taken[:length], wanted[:length], CONFIG.update_layout.ring_bits)


class Telltale(RoundParties):
    """Devices that say in clear whether they have clipped, as adaptive clipping does."""

    def do(self, client, reply):
        data = super().do(client, reply)
        if reply is Task.TRAIN:
            clipped = np.abs(self.devices[client].update).max() > self.config.update_clip
            return data + bytes([int(clipped)])
        return data


@attack(
    16,
    "reads who has clipped its update",
    power=Power.SERVER,
    gain="one bit a round about the size of every device's update",
    defence="the number of clipped values is masked with the update",
    spec="12.4",
    end=Left.NOTHING,
)
def test_clipping_in_clear(defended):
    devices = make_devices(CONFIG)
    large = sorted(devices)[1:3]
    for i in large:
        devices[i] = Device(devices[i].loss, devices[i].weight, devices[i].update * 100)
    parties = (RoundParties if defended else Telltale)(CONFIG, devices=devices)
    outgoing = parties.server.start()
    for _ in range(3):
        outgoing = parties.exchange(outgoing)
    heard = {i: parties.answer(i, data) for i, data in outgoing.items()}
    # All but the masked words, which begin at one place in the messages of all.
    spec = parties.params.slots[CONFIG.update_slot]
    size = ring.packed_size(spec.length, spec.ring_bits)
    message = MaskedInput(CONFIG.update_slot, bytes(size))
    start = len(session_wire.encode(message, parties.params)) - size
    clear = {i: data[:start] + data[start + size :] for i, data in heard.items()}
    usual = clear[min(clear)]
    if defended:
        outcome = parties.play(parties.collect(heard))
        sizes = np.abs([device.update for device in devices.values()])
        assert outcome.clipped == np.count_nonzero(sizes > CONFIG.update_clip) > 0
    return Loot(
        np.array([clear[i] != usual for i in sorted(clear)]),
        np.array([i in large for i in sorted(clear)]),
        ring_bits=1,
    )


RING_BITS = Field.ring_bits


@attack(
    17,
    "sends the largest numbers that are allowed, so that the sum wraps around",
    power=Power.PEER,
    gain="a wrong sum, and nobody notices",
    defence="the ring's width is computed from bounds and cohort",
    spec="12.3",
    end=Left.HARMLESS,
)
def test_wrap_around(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(Field, "ring_bits", lambda field, _: RING_BITS(field, 1))
    config = make_config(cohort_size=5, theta=Fraction(1), update_length=64)
    largest = np.full(config.update_length, config.update_clip, np.float32)
    devices = {
        i: Device(d.loss, config.max_weight, largest) for i, d in make_devices(config).items()
    }
    outcome = RoundParties(config, devices=devices).play()
    assert outcome.aborted is None
    assert outcome.clipped == 0
    return Harm(done=not np.array_equal(outcome.update, largest.astype(float)))
