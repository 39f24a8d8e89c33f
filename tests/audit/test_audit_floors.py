"""What the check of floors asks of a session."""

from types import SimpleNamespace

import numpy as np
import pytest

from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.sim.inspect.audit.checks import floors
from deltafl.sim.inspect.audit.session_log import Level
from deltafl.sim.record.transcript import Sum

NOISE = UpdateNoise(norm=1.5, deviation=40, num_devices=5)


def session(*, noise=None, radius=None, follows=True, words=(9, 9, 1, 0)):
    """A session whose only slot released one sum over five devices."""
    update = SimpleNamespace(noise=noise, radius=radius)
    names = ("update", "weight", "weighted_loss", "count", "clipped")
    fields = [SimpleNamespace(name=name, resolution_bits=0) for name in names[-len(words) :]]
    released = Sum(1, 1, 0, 4, bytes(32), np.arange(5, dtype=np.uint32), np.array(words))
    common = SimpleNamespace(
        update=update, update_slot=0, update_layout=SimpleNamespace(fields=fields)
    )
    return SimpleNamespace(
        question=lambda _: Threshold(0, 0),
        sum_of=lambda _: released,
        levels=SimpleNamespace(can_be_followed=follows, common=common, first_slot=lambda _: 0),
        place=None,
        params=SimpleNamespace(num_invited=5),
    )


def policy(*, active=True):
    return SimpleNamespace(
        expects_active=active,
        unverified_if_active=False,
        min_tail=lambda invited: invited // 2,
    )


@pytest.mark.parametrize(("noise", "rules"), [(None, ["sums.small-tail"]), (NOISE, [])])
def test_with_noise_no_word_counts_the_devices_that_passed(noise, rules):
    own = session(noise=noise)
    found = floors._small_tail(Level(own, 0, own.levels.common, b""), policy())
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
    found = list(floors._unverified(session(**told), policy(active=active)))
    assert [one.rule for one in found] == ["search.unverified"] * times
