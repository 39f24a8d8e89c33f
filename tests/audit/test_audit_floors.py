"""What the check of floors asks of a session."""

import functools
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
from honest_runs import config_of, messages_of

from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.secagg import Adversary
from deltafl.sim.inspect.audit.checks import floors
from deltafl.sim.inspect.audit.session_log import Level
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Sum
from deltafl.sim.run.algorithms import policy_of

NOISE = UpdateNoise(norm=1.5, deviation=40, num_devices=5)


def session(*, noise=None, words=(9, 9, 1, 0)):
    """A session whose only slot released one sum over five devices."""
    update = SimpleNamespace(noise=noise)
    names = ("update", "weight", "weighted_loss", "count", "clipped")
    fields = [SimpleNamespace(name=name, resolution_bits=0) for name in names[-len(words) :]]
    released = Sum(1, 1, 0, 4, bytes(32), np.arange(5, dtype=np.uint32), np.array(words))
    common = SimpleNamespace(
        update=update, update_slot=0, update_layout=SimpleNamespace(fields=fields)
    )
    return SimpleNamespace(
        question=lambda _: Threshold(0, 0),
        sum_of=lambda _: released,
        levels=SimpleNamespace(common=common),
        params=SimpleNamespace(num_invited=5),
    )


POLICY = SimpleNamespace(min_tail=lambda invited: invited // 2)


@pytest.mark.parametrize(("noise", "rules"), [(None, ["sums.small-tail"]), (NOISE, [])])
def test_with_noise_no_word_counts_the_devices_that_passed(noise, rules):
    own = session(noise=noise)
    found = floors._small_tail(Level(own, 0, own.levels.common, b"", [0], 0), POLICY)
    assert [one.rule for one in found] == rules


@functools.cache
def played():
    """A session that is not signed, of which nobody can check the search."""
    view = RoundView(1)
    for number, (sent, peer, data) in enumerate(messages_of(length=5), start=1):
        digest = sha256(data).digest()
        view.add(Message(number, 1, sent, peer, len(data), digest, data))
    (own,) = view.sessions.values()
    return own


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"adversary": Adversary.CURIOUS}, []),
        ({}, ["parameters.below-policy", "round.below-policy"]),
    ],
    ids=["curious", "active"],
)
def test_what_devices_have_to_believe_of_a_lying_server_is_named(changes, rules):
    active = replace(policy_of(config_of()), adversary=Adversary.ACTIVE)
    found = list(floors._below_policy(played(), replace(active, **changes)))
    assert [one.rule for one in found] == rules
    assert all("not signed" in one.detail or "not verified" in one.detail for one in found)
