"""Every sum again from the messages alone, and everything that can be missing from them."""

import functools
from contextlib import closing
from dataclasses import replace

import pytest
from honest_runs import play_honestly

from deltafl.secagg.messages import (
    RosterMessage,
    ShareKeys,
    ShareKind,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.sim.inspect.audit.replay import SlotReplay, masked_vectors
from deltafl.sim.inspect.audit.seen import Decoder, Seen
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Reader, Sum, read_transcript, sum_sha256

COHORT = 7
SETTINGS = {
    "federation": {"cohort_size": COHORT, "theta": 1},
    "privacy": {"signed": True, "min_cohort": 5, "expected_dropout": 0.15},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return play_honestly(tmp_path_factory.mktemp("run"), rounds=1, **SETTINGS).transcript


@functools.cache
def decoded(path):
    """Every message with what it says."""
    decoder = Decoder()
    messages = [record for record in read_transcript(path) if isinstance(record, Message)]
    return [(record, decoder.decode(record).content.message) for record in messages]


@functools.cache
def released(path):
    """What the server said that the sum is."""
    (found,) = [record for record in read_transcript(path) if isinstance(record, Sum)]
    return found


def view_of(path, leave_out=None):
    """Session and slot, without some of the messages."""
    view = RoundView(1)
    for record, message in decoded(path):
        if leave_out is None or not leave_out(record, message):
            view.add(record)
    (session,) = view.sessions.values()
    return session, session.slots[0]


def replay(path, session, slot, *, vectors=slice(None), times=1):
    again = SlotReplay(session, slot)
    with closing(Reader(path)) as reader:
        for seen, vector in list(masked_vectors(reader, session, slot))[vectors] * times:
            again.add(seen, vector)
    return again.finish()


def is_from(device, kind):
    def leave_out(record, message):
        return not record.sent and record.peer == device and isinstance(message, kind)

    return leave_out


def test_the_sum_is_the_one_that_was_recorded(path):
    replayed = replay(path, *view_of(path))
    assert replayed.problem == ""
    assert sum_sha256(replayed.total) == released(path).sha256
    assert len(replayed.secrets) == COHORT
    assert {len(seed) for seed in replayed.secrets.values()} == {32}
    assert replayed.wrong == frozenset()
    # control: the digest tells sums apart by every word
    replayed.total[3] ^= 1
    assert sum_sha256(replayed.total) != released(path).sha256


def test_vectors_are_read_again_from_the_file_as_they_came(path):
    session, slot = view_of(path)
    with closing(Reader(path)) as reader:
        found = list(masked_vectors(reader, session, slot))
    assert [seen.record.peer for seen, _ in found] == session.ids.tolist()
    spec = session.params.slots[0]
    assert {vector.shape for _, vector in found} == {(spec.length,)}
    assert all(int(vector.max()) < 1 << spec.ring_bits for _, vector in found)
    assert len({vector.tobytes() for _, vector in found}) == COHORT


def test_a_vector_that_came_twice_is_added_once(path):
    assert sum_sha256(replay(path, *view_of(path), times=2).total) == released(path).sha256


def test_a_vector_of_nobody_in_the_sum_is_not_added(path):
    """The server called the device lost before it asked for shares, or said so."""
    session, slot = view_of(path)
    stranger = replace(slot.inputs[0].record, peer=5)
    again = SlotReplay(session, slot)
    with closing(Reader(path)) as reader:
        for seen, vector in masked_vectors(reader, session, slot):
            again.add(Seen(stranger, seen.content), vector)
            again.add(seen, vector)
    assert sum_sha256(again.finish().total) == released(path).sha256


@pytest.mark.parametrize("missing", [1, 3])
def test_without_a_contributor_s_vector_there_is_no_sum(path, missing):
    replayed = replay(path, *view_of(path), vectors=slice(missing, None))
    assert replayed.total is None
    assert f"from {missing} of" in replayed.problem


def test_without_shares_there_is_no_sum(path):
    replayed = replay(path, *view_of(path, lambda _, m: isinstance(m, UnmaskShares)))
    assert replayed.total is None
    assert "0 shares came" in replayed.problem


def test_some_shares_less_change_nothing(path):
    replayed = replay(path, *view_of(path, is_from(4, UnmaskShares)))
    assert sum_sha256(replayed.total) == released(path).sha256


def test_without_requests_nobody_was_asked(path):
    replayed = replay(path, *view_of(path, lambda _, m: isinstance(m, UnmaskRequest)))
    assert (replayed.total, replayed.problem) == (None, "no shares were asked for")


def test_without_its_commitments_a_device_s_secret_is_not_known(path):
    replayed = replay(path, *view_of(path, is_from(4, ShareKeys)))
    assert replayed.total is None
    assert replayed.problem


def test_another_roster_has_other_masks(path):
    without = view_of(path, lambda r, m: r.peer == 4 and isinstance(m, RosterMessage))
    replayed = replay(path, *without)
    assert replayed.total is None
    assert replayed.problem == "its lists are not those of the session's roster"


@pytest.mark.parametrize("wrong", ["share", "kind", "position"])
def test_a_wrong_answer_is_blamed_or_passed_over_and_the_sum_stays(path, wrong):
    """The other answers are enough; who returned a false share is known by the commitments."""
    session, slot = view_of(path)
    answer = slot.shares[0].content.message
    positions, kinds, shares = answer.positions.copy(), answer.kinds.copy(), answer.shares.copy()
    assert (kinds == ShareKind.SEED).all()
    if wrong == "share":
        shares[2] = (shares[2] + 1) % 1000
    elif wrong == "kind":
        kinds[2] = ShareKind.KEY
    else:
        positions[-1] = COHORT
    false = UnmaskShares(slot.index, positions, kinds, shares)
    slot.shares[0] = Seen(slot.shares[0].record, replace(slot.shares[0].content, message=false))
    replayed = replay(path, session, slot)
    assert sum_sha256(replayed.total) == released(path).sha256
    assert bool(replayed.wrong) == (wrong == "share")
