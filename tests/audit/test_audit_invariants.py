"""What the specification demands of sessions: the tables, and demands in small cases."""

import functools
import re
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from honest_runs import messages_of
from one_check import new

from deltafl.protocol.configuration import Exact, RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.radius import Clipped
from deltafl.protocol.selection import Threshold
from deltafl.secagg.identity import IdentityKey
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.messages import Credential, ShareKind, UnmaskShares
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit import invariants, over_sessions
from deltafl.sim.inspect.audit.check import RoundOver
from deltafl.sim.inspect.audit.checks.invariants import Invariants
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.invariants import Bracket
from deltafl.sim.inspect.audit.over_sessions import Past
from deltafl.sim.inspect.audit.public_keys import of_edwards
from deltafl.sim.inspect.audit.seen import Content, Seen
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, Resumed, Sum

COHORT = 6
TABLES = (*invariants.ARRIVING, *invariants.INVARIANTS, *over_sessions.INVARIANTS)


@functools.cache
def said():
    """The messages of an honest round."""
    return messages_of(length=5, federation={"cohort_size": COHORT, "theta": 1})


def heard(check, number=1):
    """A round whose messages the check has taken."""
    view = RoundView(number)
    for place, (sent, peer, data) in enumerate(said(), start=1):
        digest = sha256(data).digest()
        record = Message(place, number, sent, peer, len(data), digest, data)
        list(check.on_message(view.add(record), view))
    return view


def found_at_the_end(check, view):
    return list(check.on_round(RoundOver(view)))


def test_every_demand_is_from_a_section_and_every_rule_has_one():
    spec = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (\d+\.\d+)", spec, re.MULTILINE))
    assert {one for where, *_ in TABLES for one in where.split(", ")} <= sections
    assert {rule for _, rule, *_ in TABLES} == set(Invariants.rules)


# Shares of both kinds.


@pytest.fixture
def round_():
    check = new(Invariants)
    return check, heard(check)


@pytest.fixture
def session(round_):
    (found,) = round_[1].sessions.values()
    return found


def given(session, *, seeds, keys, owners=(2, 2)):
    """Let so many devices have given shares of a device's seed, and of one's key."""
    session.by[Kind.SHARES, 0], session._first[Kind.SHARES, 0] = [], {}
    for count, kind, owner in zip((seeds, keys), ShareKind, owners, strict=True):
        for holder in session.ids[:count]:
            session.take(shares_of(holder, owner, kind))


def shares_of(holder, owner, kind):
    """A device's message with one share."""
    positions, kinds = np.array([owner], np.uint32), np.array([kind], np.uint8)
    message = UnmaskShares(0, positions, kinds, np.zeros((1, 9), np.uint32))
    record = Message(999, 1, False, holder, 8, bytes(32), b"")
    return Seen(record, Content(Kind.SHARES, message=message, slot=0))


def test_an_honest_round_breaks_nothing(round_):
    assert found_at_the_end(*round_) == []


@pytest.mark.parametrize(("seeds", "keys"), [(0, 0), (COHORT, 0), (0, COHORT)])
def test_one_kind_is_what_was_asked_for(round_, session, seeds, keys):
    given(session, seeds=seeds, keys=keys)
    assert found_at_the_end(*round_) == []


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("second", ["seeds", "keys"])
def test_a_share_of_a_second_kind_is_high_and_a_threshold_of_both_critical(
    round_, session, second, more
):
    threshold = session.params.threshold
    counts = {"seeds": threshold, "keys": threshold} | {second: threshold if more else 1}
    given(session, **counts)
    (found,) = found_at_the_end(*round_)
    assert found.rule == "shares.both-kinds"
    assert found.severity is (Severity.CRITICAL if more else Severity.HIGH)
    assert f"device {session.ids[2]}," in found.detail


def test_a_share_that_is_given_again_counts_once(round_, session):
    given(session, seeds=COHORT, keys=1)
    session.by[Kind.SHARES, 0] += session.by[Kind.SHARES, 0][-1:] * session.params.threshold
    (found,) = found_at_the_end(*round_)
    assert found.severity is Severity.HIGH


def test_shares_of_different_devices_are_not_both_of_one(round_, session):
    given(session, seeds=COHORT, keys=COHORT, owners=(2, 3))
    assert found_at_the_end(*round_) == []


# Sums and thresholds.


@pytest.mark.parametrize(("fewest", "is_few"), [(COHORT, False), (COHORT + 1, True)])
def test_a_sum_over_fewer_devices_than_the_floor(round_, session, fewest, is_few):
    ids = np.array(session.ids, np.uint32)
    session.sums.append(Sum(999, 1, 0, 5, bytes(32), ids, np.zeros(0, np.uint64)))
    object.__setattr__(session.params, "min_cohort", fewest)
    found = [one.detail.partition(" (spec")[0] for one in found_at_the_end(*round_)]
    assert (f"the sum of slot 0 is over {COHORT} devices" in found) is bool(found) is is_few


@pytest.mark.parametrize(("threshold", "holds"), [(4, True), (3, False)])
def test_two_lists_never_have_enough_signatures(session, threshold, holds):
    object.__setattr__(session.params, "threshold", threshold)
    assert (list(Past(0.1).withstands(session)) == []) is holds
    assert list(Past(None).withstands(session)) == []


# Searches.

CONFIG = RoundConfig(
    round_index=0,
    cohort_size=8,
    theta=Fraction(1, 2),
    method="bracketed",
    search=SearchParams(4, grid=LossGrid(4, 8)),
    update=UpdateParams(max_weight=1),
    update_length=5,
    min_tail=2,
)


def answered(bracket, pivot, below, count=8, devices=8):
    ids = np.arange(devices, dtype=np.uint32)
    words = np.array([count, count, below, below], np.uint64)
    bracket.take([pivot], Sum(1, 1, 0, 4, bytes(32), ids, words))


def asks(bracket, pivot):
    return bracket.denies(Query("bracketed", (pivot,)), is_query=True)


@pytest.fixture
def bracket():
    """Losses of 8 devices: 3 are below tick 20, 5 below tick 60; the quantile is between."""
    found = Bracket(CONFIG, CONFIG.search.grid.top_pivot)
    answered(found, 20, 3)
    answered(found, 60, 5)
    return found


def test_a_bracket_narrows(bracket):
    assert (bracket.low, bracket.high) == (20, 60)
    assert [bool(asks(bracket, pivot)) for pivot in (20, 21, 59, 60)] == [True, False, False, True]
    assert not asks(Bracket(CONFIG, 99), 0)


def test_a_question_is_one_of_its_slot_and_method(bracket):
    assert bracket.denies(Query("bracketed", (30,)), is_query=False)
    assert bracket.denies(Threshold(40, 0), is_query=True)
    for method, pivots in (("mm", (30,)), ("bracketed", (40, 30)), ("bracketed", (1 << 9,))):
        assert bracket.denies(Query(method, pivots), is_query=True)


def test_sums_that_no_honest_cohort_gives_are_passed_over(bracket):
    answered(bracket, 30, 4, count=7)
    answered(bracket, 30, 4, devices=7)
    answered(bracket, 30, 9)
    assert (bracket.low, bracket.high) == (20, 60)


@pytest.mark.parametrize(
    ("eta", "delta", "why"),
    [
        (40, 0, ""),
        (120, 0, ""),
        (0, 0, ""),
        (79, 39, ""),
        (79, 37, "no pivot"),
        (50, 0, "no pivot"),
        (41, 0, "no pivot"),
        (100, 60, "is at 20"),
    ],
)
def test_a_threshold_follows_from_sums(bracket, eta, delta, why):
    assert why in (said := bracket.denies(Threshold(eta, delta), is_query=False))
    assert bool(said) is bool(why)


def test_a_threshold_of_too_small_a_tail(bracket):
    answered(bracket, 59, 7)
    assert "keeps 1 devices, and 2 must" in bracket.denies(Threshold(118, 0), is_query=False)


# Over rounds.


@pytest.mark.parametrize(
    ("before", "now", "may"),
    [
        (Clipped(0.5), Clipped(0.25), True),
        (Exact(), Clipped(0.25), False),
        (Clipped(0.5), Exact(), False),
    ],
)
def test_a_radius_may_change_but_not_go(session, before, now, may):
    past = Past()
    for aggregation in (before, now):
        session.levels = Levels((replace(CONFIG, update=UpdateParams(aggregation=aggregation)),))
        found = list(past.settings_stay(session))
    assert (found == []) is may


def identified(session, draw):
    """The session of a round whose devices have identities of a draw."""
    for device in session.ids:
        own = Credential(IdentityKey(bytes([device]) + bytes([draw]) * 31), bytes(64))
        advertise(session, device, replace(session.said(device, Kind.ADVERTISE), credential=own))
    return session


def advertise(session, device, message):
    """Let a device have sent these keys first."""
    first = session._first[Kind.ADVERTISE, None]
    first[device] = replace(first[device], content=replace(first[device].content, message=message))


def test_an_identity_may_change_once_after_an_interruption(session):
    """Devices of a simulation draw new ones then; later, nobody is excused."""
    past, severities = Past(), []
    for draw in range(4):
        if draw == 1:
            past.resume()
        changed = list(past.identities_stay(identified(session, draw)))
        severities.append({(breach.severity, len(changed)) for breach in changed})
    assert severities == [set(), {(Severity.LOW, COHORT)}, *[{(None, COHORT)}] * 2]


def test_an_interruption_is_handed_on():
    check = new(Invariants)
    check._past._identities[7] = bytes(32), Evidence()
    assert list(check.on_record(Resumed(0, 0), b"")) == []
    assert check._past.unseen == {7}


@pytest.mark.parametrize(
    ("role", "field", "same"),
    [
        ("identity", "credential", lambda own: own),
        ("X25519 key", "key", lambda own: bytes(1184) + of_edwards(own.identity)),
    ],
)
def test_devices_with_one_secret_are_named(session, role, field, same):
    identified(session, 1)
    assert list(Past().used_once(session)) == []
    first, second, *_ = session.ids
    own = same(session.said(first, Kind.ADVERTISE).credential)
    advertise(session, second, replace(session.said(second, Kind.ADVERTISE), **{field: own}))
    (found,) = Past().used_once(session)
    assert f"{role} of device {second} was the identity of device {first}" in found.detail


NO_IDENTITY = Credential(IdentityKey(bytes(32)), bytes(64))


def flipped(key):
    """With another of the bit that nobody reads."""
    return PublicKey(key[:-1] + bytes([key[-1] ^ 128]))


def with_keys(session, change):
    """The session of a round in which the keys of the first device are others."""
    first = session.ids[0]
    advertise(session, first, change(session.said(first, Kind.ADVERTISE)))
    return session


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, key=m.key[:-32] + bytes(32)),
        lambda m: replace(m, key=flipped(m.key)),
        lambda m: replace(m, credential=NO_IDENTITY),
    ],
    ids=["low order", "a bit that is ignored", "no identity"],
)
def test_keys_are_multiples_of_the_base_point_in_their_only_encoding(session, change):
    assert list(Past().keys_are_multiples(session)) == []
    (found,) = Past().keys_are_multiples(with_keys(session, change))
    assert "device" in found.detail


def test_a_key_may_be_used_once(session):
    past = Past()
    assert list(past.used_once(session)) == []
    assert len(list(past.used_once(session))) == 2 * COHORT


@pytest.mark.parametrize(
    ("seed", "before", "breaches"),
    [
        (sha256(b"one").digest(), sha256(b"another").digest(), 0),
        (bytes(31) + b"1", sha256(b"another").digest(), 1),
        (sha256(b"one").digest(), sha256(b"one").digest()[:31] + b"1", 1),
    ],
    ids=["drawn", "a pattern", "near another"],
)
def test_seeds_are_drawn(session, seed, before, breaches):
    past = Past()
    for value in (before, seed):
        object.__setattr__(session.params, "graph_seed", value)
        found = list(past.seeds_are_drawn(session))
    assert len(found) == breaches


@pytest.mark.parametrize(("number", "breaches"), [(1, 0), (2, 1)])
def test_a_round_is_announced_under_its_own_number(session, number, breaches):
    session.number = number
    assert len(list(Past().announced_in_its_round(session))) == breaches


def hear(round_, kind, slot=None, message=None):
    """The findings of one more message, of the first device."""
    check, view = round_
    (session,) = view.sessions.values()
    record = Message(99, 1, False, session.ids[0], 8, bytes(32), bytes(8))
    seen = Seen(record, Content(kind, session.params.tag, message=message, slot=slot))
    session.take(seen)
    return list(check.on_message(seen, view))


def receipt_of(session, device, change):
    """Put another receipt in the place of a device's."""
    seen = session.first(Kind.RECEIPT)[device]
    links = change(dict(seen.content.message.links))
    content = replace(seen.content, message=replace(seen.content.message, links=links))
    session._first[Kind.RECEIPT, None][device] = replace(seen, content=content)


def test_a_missing_link_names_whose_box_was_not_read(session):
    first, second, *_ = session.ids
    assert list(invariants.missing_links(session)) == []
    receipt_of(session, first, lambda links: {p: links[p] for p in links if p != 1})
    (found,) = invariants.missing_links(session)
    assert found.detail.startswith(f"device {first} could not read the boxes of 1 devices")
    assert str(second) in found.detail


def test_ends_of_a_link_that_disagree_are_named_and_tags_may_differ(session):
    first, second, *_ = session.ids
    receipt_of(session, first, lambda links: links | {1: bytes(16) + links[1][16:]})
    assert list(invariants.missing_links(session)) == []
    receipt_of(session, first, lambda links: links | {1: links[1][:16] + bytes(8)})
    found = [one.detail for one in invariants.missing_links(session)]
    assert [
        f"device {one} has other keys" in said
        for one, said in zip((first, second), found, strict=True)
    ] == [True, True]
