"""An attack on the generator: masks with so few seeds that all of them can be tried."""

from typing import Final

import numpy as np

from deltafl.secagg import prg
from deltafl.secagg.masks import PairSecret, SlotContext
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import LENGTH, Devices, make_params
from deltafl.sim.inspect.attacks.replaced import replaced

_SEEDS: Final = 1 << 12
_KNOWN: Final = 4
"""Words of the vector that the attacker knows, such as padding."""

_self_mask_key, _pair_key = SlotContext.self_mask_key, PairSecret.key


def _seed(number: int) -> bytes:
    return number.to_bytes(32, "little")


def _shortened(key: bytes) -> bytes:
    """One of few seeds."""
    return _seed(int.from_bytes(key, "little") % _SEEDS)


def _short_self_mask_key(own: SlotContext, seed: bytes) -> bytes:
    return _shortened(_self_mask_key(own, seed))


def _short_pair_key(pair: PairSecret) -> bytes:
    return _shortened(_pair_key(pair))


@attack(
    "short-seeds",
    7,
    "tries all seeds of the two masks of a device that its own devices do not know",
    power=Power.SERVER,
    gain="the device's vector, if it knows four of the words",
    defence="256-bit keys for every mask",
    spec="2.2",
    end=Left.NOISE,
)
def short_seeds(defended: bool) -> Loot:
    """Without the defence, seeds have 12 bits. 28 bits, as in some software, would take hours.

    Three of five devices collude, one fewer than are needed to rebuild a secret.
    """
    with (
        replaced(SlotContext, "self_mask_key", _short_self_mask_key, unless=defended),
        replaced(PairSecret, "key", _short_pair_key, unless=defended),
    ):
        devices = Devices(make_params(5, 4))
        wanted = devices.vector(0)
        wanted[:_KNOWN] = 0
        colluders = [Colluder(client) for client in devices.roster[2:]]
        evil = EvilServer(devices.params, devices.roster, devices.answer, colluders)
        evil.set_up()
        evil.open_slot(0)
        evil.pool(0)
        taken = evil.sum_over(0, {0})
        # Put back the self mask that was taken off on a guess.
        prg.add_mask(taken, evil.context(0, 0).self_mask_key(bytes(prg.SEED_SIZE)))
    for seed in _two_masks(taken[:_KNOWN]):
        prg.add_mask(taken, seed, negative=True)
    return Loot(taken, wanted)


def _two_masks(total: Vector) -> list[bytes]:
    """The seeds of two masks whose first words have this sum, by meet in the middle."""
    whole = np.zeros((_SEEDS, LENGTH), dtype=total.dtype)
    for number, mask in enumerate(whole):
        prg.add_mask(mask, _seed(number))
    masks = whole[:, : len(total)]
    number_of = {mask.tobytes(): number for number, mask in enumerate(masks)}
    for number, mask in enumerate(total - masks):
        if (other := number_of.get(mask.tobytes())) is not None:
            return [_seed(number), _seed(other)]
    return []
