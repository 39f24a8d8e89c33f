"""A slot without a sum tells nothing, whatever comes after it."""

from itertools import combinations

from deltafl.secagg import ring
from deltafl.sim.inspect.attacks.attack import Loot
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import (
    LENGTH,
    RING_BITS,
    Devices,
    make_params,
)


def sums(evil, positions, right):
    """What the server can make of any devices' vectors of the first slot; all of them last."""
    return [
        Loot(evil.sum_over(0, some), sum(right[p] for p in some))
        for size in range(1, len(positions) + 1)
        for some in combinations(positions, size)
    ]


def test_a_void_slot_tells_nothing_even_if_the_next_one_tells_the_sum_of_the_same_vectors():
    slots = ((LENGTH, RING_BITS, True), (LENGTH, RING_BITS))
    devices = Devices(make_params(5, 3, slots=slots))
    for vectors in devices.inputs.values():
        vectors[1] = vectors[0].copy()
    colluder = Colluder(devices.roster[4], devices.enrolment.credentials(devices.roster[4]))
    evil = EvilServer(devices.params, devices.roster, devices.answer, [colluder])
    evil.set_up()
    # A device's vector is late in the first slot, so that it has no sum, and in the second as well.
    evil.open_slot(0)
    late, there = max(evil.honest), evil.honest[:-1]
    vector, told = evil.inputs[0].pop(late), evil.opened[0].pop(late)
    evil.open_slot(1)
    evil.unmask(1, evil.everyone - {late})
    assert not evil.refusals
    right = [devices.vector(p) for p in evil.honest]
    assert Loot(evil.sum_over(1, there), sum(right[p] for p in there)).is_complete
    # Nor does it help to try the secrets of the second slot on the first.
    guesses = {(0, kind, p): secret for (slot, kind, p), secret in evil.secrets.items() if slot}
    for secrets in (evil.secrets, guesses | evil.secrets):
        evil.secrets = secrets
        assert all(loot.is_noise for loot in sums(evil, there, right))
    # Once the late vector is there, all of them together have their sum, and no others.
    evil.inputs[0][late], evil.opened[0][late] = vector, told
    *parts, whole = sums(evil, evil.honest, right)
    assert all(loot.is_noise for loot in parts)
    assert whole.is_complete
    for p in there:
        between = evil.inputs[1][p] - evil.inputs[0][p]
        assert Loot(between, ring.zeros(LENGTH, RING_BITS)).is_noise
