"""What the check of floors asks of a session."""

from types import SimpleNamespace

import numpy as np
import pytest

from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.sim.inspect.audit.checks import floors
from deltafl.sim.record.transcript import Sum

NOISE = UpdateNoise(norm=1.5, deviation=40, num_devices=5)


def session(*, noise=None, radius=None, follows=True, words=(9, 9, 1, 0)):
    """A session whose only slot released one sum over five devices."""
    update = SimpleNamespace(noise=noise, radius=radius)
    names = ("update", "weight", "weighted_loss", "count", "clipped")
    fields = [SimpleNamespace(name=name, resolution_bits=0) for name in names[-len(words) :]]
    released = Sum(1, 1, 0, 4, bytes(32), np.arange(5, dtype=np.uint32), np.array(words))
    return SimpleNamespace(
        config=SimpleNamespace(
            update=update, update_slot=0, update_layout=SimpleNamespace(fields=fields)
        ),
        slots={0: SimpleNamespace(sums=[released], question=Threshold(0, 0))},
        levels=SimpleNamespace(can_be_followed=follows, common=SimpleNamespace(update=update)),
        announcements=[SimpleNamespace(place=None)],
        params=SimpleNamespace(num_invited=5),
    )


def expected(*, active=True, accepts=False):
    policy = SimpleNamespace(
        expects_active=active,
        unverified_if_active=accepts,
        min_tail=lambda invited: invited // 2,
    )
    return SimpleNamespace(policy=policy)


@pytest.mark.parametrize(("noise", "rules"), [(None, ["sums.small-tail"]), (NOISE, [])])
def test_with_noise_no_word_counts_the_devices_that_passed(noise, rules):
    found = floors._small_tail(session(noise=noise), expected())
    assert [one.rule for one in found] == rules


@pytest.mark.parametrize(
    ("told", "active", "times"),
    [
        ({}, True, 0),
        ({"follows": False}, True, 1),
        ({"radius": 1.0}, True, 1),
        ({"follows": False, "radius": 1.0}, True, 2),
        ({"follows": False, "radius": 1.0}, False, 0),
    ],
)
def test_what_devices_have_to_believe_of_a_lying_server_is_named(told, active, times):
    found = list(floors._unverified(session(**told), expected(active=active)))
    assert [one.rule for one in found] == ["search.unverified"] * times
