"""A slot without a sum tells nothing, whatever comes after it."""

from itertools import combinations

from deltafl.secagg import ring
from deltafl.sim.inspect.attacks.attack import Loot
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import LENGTH, RING_BITS, Devices, make_params
from deltafl.sim.inspect.attacks.reuse import difference


def test_a_void_slot_tells_nothing_even_if_the_next_one_tells_the_sum_of_the_same_vectors():
    whole = (LENGTH, RING_BITS, True)
    devices = Devices(make_params(5, 3, slots=(whole, whole), signed=True))
    for vectors in devices.inputs.values():
        vectors[1] = vectors[0].copy()
    colluder = Colluder(devices.roster[4], devices.enrolment.credentials(devices.roster[4]))
    evil = EvilServer(devices.params, devices.roster, devices.answer, [colluder])
    evil.set_up()
    # One of its own is silent in the first slot, or it says so.
    evil.open_slot(0)
    del evil.inputs[0][4], evil.opened[0][4]
    evil.open_slot(1)
    evil.unmask(1, evil.everyone)
    assert not evil.refusals
    right = [devices.vector(p) for p in evil.honest]
    assert Loot(evil.sum_over(1, evil.honest), sum(right)).is_complete
    # Nor does it help to try the secrets of the second slot on the first.
    guesses = {(0, kind, p): secret for (slot, kind, p), secret in evil.secrets.items() if slot}
    for secrets in (evil.secrets, guesses | evil.secrets):
        evil.secrets = secrets
        for size in range(1, 5):
            for some in combinations(evil.honest, size):
                wanted = sum(right[p] for p in some)
                assert Loot(evil.sum_over(0, some), wanted).is_noise
    for p in evil.honest:
        between = difference(evil.inputs[1][p], evil.inputs[0][p])
        assert Loot(between, ring.zeros(LENGTH, RING_BITS)).is_noise
