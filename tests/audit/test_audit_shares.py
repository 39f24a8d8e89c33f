"""One share of a second kind is one too many; with enough of both, a vector is in clear."""

from hashlib import sha256

import numpy as np
import pytest
from honest_runs import messages_of
from one_check import found_in, new

from deltafl.secagg.messages import ShareKind
from deltafl.sim.inspect.audit.checks.shares import Shares
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.holders import Holders
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message

COHORT = 6


@pytest.fixture
def view():
    round_ = RoundView(1, True)
    messages = messages_of(length=5, federation={"cohort_size": COHORT, "theta": 1})
    for number, (sent, peer, data) in enumerate(messages, start=1):
        digest = sha256(data).digest()
        round_.add(Message(number, 0, 1, sent, peer, len(data), digest, data))
    return round_


def held(count, owner):
    """So many devices have given shares of one device."""
    holders = Holders(COHORT)
    for holder in range(count):
        holders.add(holder, np.array([owner]))
    return holders


def given(view, *, seeds, keys, owner=2):
    """Let so many devices have given shares of a device's seed and key."""
    (session,) = view.sessions.values()
    slot = session.slots[0]
    for kind, count in ((ShareKind.SEED, seeds), (ShareKind.KEY, keys)):
        slot.given[kind] = held(count, owner)
    return session, slot


def test_an_honest_round_gives_one_kind_of_each(view):
    assert found_in(view, new(Shares)) == []


@pytest.mark.parametrize(("seeds", "keys"), [(0, 0), (COHORT, 0), (0, COHORT)])
def test_one_kind_is_what_was_asked_for(view, seeds, keys):
    given(view, seeds=seeds, keys=keys)
    assert found_in(view, new(Shares)) == []


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("second", ["seeds", "keys"])
def test_a_share_of_a_second_kind_is_high_and_a_threshold_of_both_critical(view, second, more):
    (session,) = view.sessions.values()
    threshold = session.params.threshold
    counts = {"seeds": threshold, "keys": threshold} | {second: 1 if not more else threshold}
    _, slot = given(view, **counts)
    (found,) = found_in(view, new(Shares))
    assert found.rule == "shares.both-kinds"
    assert found.severity is (Severity.CRITICAL if more else Severity.HIGH)
    assert f"device {session.ids[2]}," in found.detail
    assert found.evidence[0] == slot.requests[0].place


def test_shares_of_different_devices_are_not_both_of_one(view):
    (session,) = view.sessions.values()
    slot = session.slots[0]
    given(view, seeds=COHORT, keys=0)
    slot.given[ShareKind.KEY] = held(COHORT, 3)
    assert found_in(view, new(Shares)) == []
