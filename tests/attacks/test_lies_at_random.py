"""Servers that lie at random: whatever they say to whom, they learn one sum, of many devices.

Every honest device is told of other members and other survivors, gets other boxes that do not open,
and is shown no tags of some; the colluding device signs every list. Then every set of devices is
tried: is the sum of their vectors to be had? The negative control is the same with a threshold that
is smaller by one.
"""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest

from deltafl.secagg.messages import ShareDelivery
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import Devices, make_params

NUM_DEVICES, NUM_COLLUDING = 7, 1
LENGTH = 4
THRESHOLD = 5  # the smallest with 2t > n + c
NUM_SERVERS = 24


class Liar(EvilServer):
    """Draws what it says."""

    def __init__(self, devices, colluders, generator):
        super().__init__(devices.params, devices.roster, devices.answer, colluders)
        self._generator = generator
        # How often it spoils a box, tells a device of other members than all, and withholds a tag.
        self._spoiling, self._leaving_out = generator.choice([0.0, 0.2], 2)
        self._withholding = generator.choice([0.0, 0.05])

    def play(self):
        """Take one slot, with two lists: to get both secrets of a device, it needs no more."""
        self.set_up()
        for pair in combinations(self.honest, 2):
            for position, peer in permutations(pair) if self._chance(self._withholding) else ():
                self.receipts[position].pop(peer, None)
        one = self.everyone - (self._some(most=2) if self._chance(0.5) else frozenset())
        lists = one, one - self._some(most=1)
        told = {p: lists[self._generator.integers(2)] for p in self.honest}
        if self.params.slots[0].whole:
            # A whole slot is over the devices that it is opened with, all of them or none.
            told = told if self._chance(0.5) else dict.fromkeys(one, one)
            self.open_slot(0, {p: members for p, members in told.items() if p in members})
            return
        self.open_slot(0, {p: self._opening(told.get(p, self.everyone)) for p in self.everyone})
        self.unmask(0, {p: survivors for p, survivors in told.items() if p in survivors})

    def _tell(self, position, message):
        if isinstance(message, ShareDelivery) and position in self.honest:
            spoiled = self._some(most=1) if self._chance(self._spoiling) else frozenset()
            boxes = {p: bytes(len(b)) if p in spoiled else b for p, b in message.boxes.items()}
            message = replace(message, boxes=boxes)
        return super()._tell(position, message)

    def _opening(self, survivors):
        """Whom a device is told of."""
        return survivors if self._chance(self._leaving_out) else self.everyone

    def _some(self, most):
        """Honest devices, one or more."""
        num = self._generator.integers(1, most, endpoint=True)
        return frozenset(self._generator.choice(self.honest, num, replace=False).tolist())

    def _chance(self, rate):
        return self._generator.random() < rate


def learnt(threshold, seed, *, whole=False):
    """The sets of honest devices whose sums a lying server can compute."""
    slots = ((LENGTH, 32, whole), (LENGTH, 32))
    params = make_params(NUM_DEVICES, threshold, slots=slots)
    devices = Devices(params, seed=seed)
    colluders = [
        Colluder(client, devices.enrolment.credentials(client))
        for client in devices.roster[NUM_DEVICES - NUM_COLLUDING :]
    ]
    server = Liar(devices, colluders, np.random.default_rng(seed))
    server.play()
    vectors = {p: devices.vector(p) for p in server.inputs[0]}
    sets = [
        frozenset(some)
        for size in range(1, len(server.honest) + 1)
        for some in combinations(sorted(vectors.keys() & set(server.honest)), size)
    ]
    return {
        some
        for some in sets
        if np.array_equal(server.sum_over(0, some), sum(vectors[p] for p in some))
    }


def is_harmless(threshold, sets):
    """Whether there is one sum at most, over min_cohort devices with those that collude."""
    return len(sets) <= 1 and all(len(some) + NUM_COLLUDING >= threshold for some in sets)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_a_server_that_lies_at_random_learns_one_large_sum(whole):
    outcomes = [learnt(THRESHOLD, seed, whole=whole) for seed in range(NUM_SERVERS)]
    assert all(is_harmless(THRESHOLD, sets) for sets in outcomes)
    assert sum(len(sets) for sets in outcomes) >= 3  # some were honest enough to get theirs


@pytest.mark.slow
def test_with_a_smaller_threshold_one_of_them_learns_the_vector_of_one_device():
    outcomes = (learnt(THRESHOLD - 1, seed) for seed in range(4 * NUM_SERVERS))
    assert any(any(len(some) == 1 for some in sets) for sets in outcomes)
