"""Attacks on a round of Δ-FL: different questions or models, and messages besides the sums."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, binding
from deltafl.protocol.levels import Levels
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Refusal, Stage, Step, ring
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import present
from deltafl.secagg.layout import Field
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.openings import Prove
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Harm, Left, Loot, Power, Words, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import (
    DEAD_MODEL,
    MODEL,
    UPDATE_ROUND,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    context_of,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.replaced import replaced

_LENGTH: Final = UPDATE_ROUND.update_length
ALL_PASS: Final = Threshold(0, 0)
NONE_PASSES: Final = Threshold(2**63 - 1, 0)

_ring_bits = Field.ring_bits


def as_update(device: Device) -> Callable[[Words], npt.NDArray[np.float64]]:
    """Reads words as Δ_k of a device whose weight is known."""
    layout, factor = UPDATE_ROUND.update_layout, device.weight
    shift = 64 - layout.ring_bits

    def read(words: Words) -> npt.NDArray[np.float64]:
        signed = (words[:_LENGTH].astype(np.int64) << shift) >> shift
        return layout.to_float("update", signed) / factor

    return read


def against_last(devices: RoundDevices, binding_of: Callable[[int], bytes]) -> Loot:
    """The sum of updates as the server reads it, and what the last device put into it."""
    ids = sorted(devices.devices)
    evil = EvilServer(devices.params, ids, devices.carry, binding_of=binding_of)
    evil.set_up()
    slot = devices.config.update_slot
    evil.open_slot(slot)
    evil.unmask(slot, evil.everyone)
    return update_of(devices.devices[max(ids)], devices.config, evil, evil.everyone)


def update_of(device: Device, config: RoundConfig, evil: EvilServer, devices: Survivors) -> Loot:
    """The sum of some devices' updates as the server reads it, and what one device put into it."""
    taken: Vector = evil.sum_over(config.update_slot, devices).astype(np.uint64)
    return Loot(
        taken,
        device.measured(config).contribution(device.update),
        config.update_layout.ring_bits,
        tuple(evil.refusals.values()),
        read=as_update(device),
    )


class Unbound(RoundClient):
    """A device whose masks do not depend on what it was shown."""

    def _mask(self, vector: Vector, prove: Prove | None = None) -> bytes:
        return self._session.contribute(vector, b"", prove)


@attack(
    "threshold-inconsistency",
    8,
    "announces an infinite threshold to all devices but one",
    power=Power.SERVER,
    gain="that device's update",
    defence="a device's masks are bound to the threshold that it was shown",
    spec="12.6",
    end=Left.NOISE,
)
def threshold_inconsistency(defended: bool) -> Loot:
    """Devices that do not pass the filter send zeros, so the sum is the one device's update."""
    devices = make_devices(WHOLE_ROUND)
    ids = sorted(devices)
    shown = [NONE_PASSES] * (len(ids) - 1) + [ALL_PASS]
    network = RoundDevices(
        WHOLE_ROUND,
        devices,
        questions=dict(zip(ids, shown, strict=True)),
        client_type=RoundClient if defended else Unbound,
    )
    context = context_of(WHOLE_ROUND)
    return against_last(network, lambda p: binding(context, shown[p]) if defended else b"")


@attack(
    "model-inconsistency",
    8,
    "shows a model without a gradient to all devices but one (model inconsistency)",
    power=Power.SERVER,
    gain="that device's update",
    defence="the session is bound to the model that a device was shown",
    spec="12.8",
    end=Refusal.MALFORMED,
    saying="not bound to this model",
)
def model_inconsistency(defended: bool) -> Loot:
    """A whole round with a search; the model is dead for all but the device that fares worst.

    Pasquini, Francati, Ateniese (CCS 2022): the updates of all others are zero.
    """
    with replaced(Levels, "context", lambda *_: bytes(32), unless=defended):
        devices = make_devices(WHOLE_ROUND)
        last = max(devices)
        models = {i: MODEL if i == last else DEAD_MODEL for i in devices}
        network = RoundDevices(WHOLE_ROUND, devices, models=models)
        outcome = with_an_honest_server(network, _as_it_is)
        presuppose(outcome.update is not None, "the round has come to an update")
        # What the server learns is the sum, of which it keeps the mean.
        sums = present(outcome.update) * outcome.kept_weight
        layout = WHOLE_ROUND.update_layout
        scaled = np.rint(sums * 2**WHOLE_ROUND.update.resolution_bits).astype(np.int64)
        taken = scaled.view(np.uint64) & np.uint64(2**layout.ring_bits - 1)
        mine = devices[last].measured(WHOLE_ROUND).contribution(devices[last].update)
        num_queries = outcome.secure_sums - 1
        return Loot(
            taken,
            mine[:_LENGTH],
            layout.ring_bits,
            note=f"after {num_queries} queries {outcome.kept_devices} devices were in the tail; "
            "their weights are in the sum as well",
            read=as_update(devices[last]),
        )


def _as_it_is(step: Step, client: ClientId, data: bytes) -> bytes:
    del step, client
    return data


@attack(
    "clipping-in-clear",
    16,
    "reads which devices clipped their updates",
    power=Power.SERVER,
    gain="one bit per round about the size of every device's update",
    defence="the number of clipped values is masked together with the update",
    spec="12.4",
    end=Left.NOTHING,
)
def clipping_in_clear(defended: bool) -> Loot:
    """Without the defence, devices send it in clear, as in adaptive clipping."""
    devices = make_devices(UPDATE_ROUND)
    large = sorted(devices)[1:3]
    for i in large:
        devices[i] = replace(devices[i], update=devices[i].update * np.float32(100))
    clips = {i: _num_clipped(device) for i, device in devices.items()}
    network = RoundDevices(UPDATE_ROUND, devices)
    masked = _masked_words(network)
    clear: dict[ClientId, bytes] = {}

    def listen(step: Step, client: ClientId, data: bytes) -> bytes:
        if step.stage is Stage.MASK:
            said = data if defended else data + bytes([clips[client] > 0])
            clear[client] = said[: masked.start] + said[masked.stop :]
        return data

    outcome = with_an_honest_server(network, listen)
    presuppose(
        outcome.clipped == sum(clips.values()) > 0, "some devices have clipped, and the sum says so"
    )
    usual = clear[min(clear)]
    return Loot(
        np.array([clear[i] != usual for i in sorted(clear)]),
        np.array([i in large for i in sorted(clear)]),
        ring_bits=1,
        note="whether each device has clipped; the server still learns how many numbers were",
    )


def _num_clipped(device: Device) -> int:
    return int(np.count_nonzero(np.abs(device.update) > UPDATE_ROUND.update.clip))


def _masked_words(network: RoundDevices) -> slice:
    """Where the masked words are in a message of the update; the same for all devices."""
    slot = UPDATE_ROUND.update_slot
    spec = network.params.slots[slot]
    size = ring.packed_size(spec.length, spec.ring_bits)
    empty, full = (
        session_wire.encode(MaskedInput(slot, fill * size), network.params)
        for fill in (b"\x00", b"\xff")
    )
    start = next(i for i, (one, other) in enumerate(zip(empty, full, strict=True)) if one != other)
    return slice(start, start + size)


@attack(
    "wrap-around",
    17,
    "sends the largest allowed numbers, so that the sum wraps around",
    power=Power.PEER,
    gain="a wrong sum that nobody notices",
    defence="the width of the ring is computed from the bounds and the cohort size",
    spec="12.3",
    end=Left.HARMLESS,
)
def wrap_around(defended: bool) -> Harm:
    """Without the defence, the ring is only as wide as one device needs."""

    def for_one(field: Field, _: int) -> int:
        return _ring_bits(field, 1)

    with replaced(Field, "ring_bits", for_one, unless=defended):
        config = replace(UPDATE_ROUND)  # its layout is computed when it is made
        largest = np.full(_LENGTH, config.update.clip, np.float32)
        devices = {
            i: Device(device.loss, config.update.max_weight, largest)
            for i, device in make_devices(config).items()
        }
        outcome = with_an_honest_server(RoundDevices(config, devices), _as_it_is)
    presuppose(outcome.aborted is None and outcome.clipped == 0, "nobody has noticed anything")
    update = np.zeros(0) if outcome.update is None else outcome.update
    return Harm(
        done=not np.array_equal(update, largest.astype(np.float64)),
        note=f"every device sent {largest[0]:g} everywhere; the mean came out as {update[0]:g}",
    )
