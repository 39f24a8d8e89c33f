"""What a device insists on against an active server: each rule at its edge, and all of them."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from parties import STRICT as POLICY
from parties import make_params

from deltafl.secagg import (
    Adversary,
    Client,
    ClientId,
    DevicePolicy,
    Enrolment,
    PeerError,
    Refusal,
    SessionParams,
    SlotSpec,
    ThreatModel,
    UsageError,
    wire,
)
from deltafl.secagg.graph import Graph
from deltafl.secagg.messages import SessionOpen
from deltafl.secagg.params import GraphKind
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState
from deltafl.secagg.threat import PROFILES, complete_threshold

ACTIVE = replace(POLICY, adversary=Adversary.ACTIVE)


def refuses(policy, params, message):
    """Check that a policy refuses parameters, and why."""
    with pytest.raises(PeerError, match=message) as caught:
        policy.check(params)
    assert caught.value.reason is Refusal.POLICY


def test_unsigned_sessions_are_refused_however_large_their_threshold():
    refuses(ACTIVE, make_params(8, threshold=8), "the session is not signed")
    ACTIVE.check(make_params(8, threshold=8, signed=True))
    POLICY.check(make_params(8, threshold=8))


@pytest.mark.parametrize(
    ("num_devices", "colluding_rate", "threshold"),
    [
        (8, 0.0, 5),  # 2t > 8
        (7, 0.0, 4),  # 2t > 7
        (8, 0.25, 6),  # 2t > 10
        (8, 0.2421875, 5),  # 2t > 9.9375
        (8, 0.25390625, 6),  # 2t > 10.03125
        (10, 0.1, 6),  # 2t > 11
        (100, 0.1, 56),  # 2t > 110
        (100, 0.3, 66),  # 2t > 130
    ],
)
def test_threshold_of_a_complete_graph_at_its_edge(num_devices, colluding_rate, threshold):
    policy = replace(ACTIVE, colluding_rate=colluding_rate)
    least = make_params(num_devices, threshold=threshold, min_cohort=num_devices, signed=True)
    policy.check(least)
    less = replace(least, threshold=threshold - 1)
    refuses(policy, less, f"threshold={threshold - 1} is not above")
    # The same threshold is fine for who trusts the server to follow the protocol.
    replace(policy, adversary=Adversary.CURIOUS).check(less)


def for_threat(num_devices):
    """A session over a sparse graph that withstands a tenth of colluding and of lost devices."""
    return SessionParams.for_threat(
        num_devices,
        (SlotSpec("sum", 1, 8),),
        threat=ThreatModel(0.1, 0.1),
        graph=GraphKind.SPARSE,
        graph_seed=bytes(32),
        context=bytes(32),
    )


SPARSE = for_threat(400)


def test_a_sparse_graph_that_is_not_enough_for_the_devices_own_threat_is_refused():
    """Forty of four hundred devices collude; a degree of 10 and t = 3 would give them vectors."""
    policy = DevicePolicy()
    policy.check(SPARSE)
    weak = replace(SPARSE, degree=10, threshold=3)
    refuses(policy, weak, "degree=10 is too small: the honest survivors may fall apart")
    low = replace(SPARSE, threshold=SPARSE.threshold - 1)
    refuses(policy, low, f"threshold={low.threshold} is below {SPARSE.threshold}")
    refuses(replace(policy, colluding_rate=0.15), SPARSE, "threshold=24 is below 29, where 60 may")


def test_a_sparse_graph_is_held_to_the_share_that_may_be_missing():
    """Of 1,000 devices 52 were enough before, where the ring of the others falls apart."""
    policy = DevicePolicy()
    one_more = replace(SPARSE, min_cohort=SPARSE.min_cohort - 1)
    refuses(policy, one_more, "min_cohort of a sparse graph=359 is below the device's 360")
    refuses(replace(policy, dropout_rate=0.05), SPARSE, "=360 is below the device's 380")
    # A device that lets more be missing works out what that takes.
    patient = replace(policy, dropout_rate=0.9)
    patient.check(SPARSE)
    patient.check(one_more)
    more = replace(SPARSE, min_cohort=345, min_roster=345)
    refuses(patient, more, "threshold=24 is below 25, where 40 may collude and 55 be missing")
    few = replace(SPARSE, min_cohort=52, threshold=42)
    refuses(patient, few, "degree=42 is too small.*where 40 may collude and 348 be missing")
    # A larger smallest roster leaves fewer who may stay away, and as many who are lost later.
    patient.check(replace(more, min_roster=380))
    refuses(patient, replace(few, min_roster=400), "degree=42 is too small")
    # Of fewer devices that may be missing, fewer neighbours are enough.
    whole = replace(SPARSE, min_cohort=400, degree=22, threshold=18)
    replace(policy, dropout_rate=0.0).check(whole)
    refuses(policy, replace(whole, min_cohort=360), "degree=22 is too small")


def profile(monkeypatch, adversary, **changes):
    """Change what follows from an adversary."""
    row = PROFILES[adversary]._replace(**changes)
    monkeypatch.setitem(PROFILES, adversary, row)


def test_sparse_graphs_of_an_active_server_are_refused(monkeypatch):
    sparse = replace(make_params(8, degree=6, threshold=6, signed=True), min_cohort=8, min_roster=8)
    refuses(ACTIVE, sparse, "degree=6 is not that of the complete graph over 8 devices")
    ACTIVE.check(replace(sparse, degree=7))
    POLICY.check(sparse)
    profile(monkeypatch, Adversary.ACTIVE, takes_sparse=True)
    ACTIVE.check(sparse)
    refuses(ACTIVE, replace(sparse, threshold=3), "threshold=3 is not above")


def test_a_server_without_colluding_devices_has_none(monkeypatch):
    alone = replace(POLICY, adversary=Adversary.NONCOLLUDING, colluding_rate=0.5)
    params = make_params(8, threshold=2, min_cohort=2)
    alone.check(params)
    assert (alone.num_colluding(8), ThreatModel(0.5, 0.1, "noncolluding").num_colluding(8)) == (
        0,
        0,
    )
    refuses(replace(alone, adversary=Adversary.CURIOUS), params, "colluding devices=-2 is below")
    profile(monkeypatch, Adversary.NONCOLLUDING, counts_colluding=True)
    refuses(alone, params, "colluding devices=-2 is below")


@pytest.mark.parametrize("num_devices", [7, 9])
def test_a_sparse_graph_needs_a_roster_that_cannot_complete_it(num_devices):
    policy = POLICY
    least = num_devices - 3  # four would cut the ring, if they were next to each other
    sparse = make_params(num_devices, degree=4, threshold=3, min_cohort=least, signed=True)
    policy.check(replace(sparse, min_roster=6))
    if least < 6:
        refuses(policy, replace(sparse, min_roster=5), "graph=5 is below the device's 6")
    # On a complete graph smaller rosters have fewer holders.
    policy.check(make_params(num_devices, threshold=num_devices, signed=True))


@pytest.mark.parametrize("adversary", [Adversary.CURIOUS, Adversary.ACTIVE])
def test_two_honest_devices_are_left_in_the_smallest_cohort(adversary):
    """⌊γ · invited⌋ of them may be the server's."""
    policy = replace(POLICY, adversary=adversary, colluding_rate=0.25)
    params = make_params(8, threshold=6, min_cohort=6, signed=True)
    policy.check(params)
    for colluding_rate, least in ((0.25, 4), (0.37, 4), (0.375, 5), (0.5, 6), (0.75, 8)):
        policy = replace(POLICY, colluding_rate=colluding_rate)
        fewest = make_params(8, threshold=least, min_cohort=least)
        policy.check(fewest)
        refuses(
            policy,
            replace(fewest, threshold=least - 1, min_cohort=least - 1),
            "min_cohort without colluding devices=1 is below the device's 2",
        )


@pytest.mark.parametrize(("num_devices", "colluding_rate"), [(200, 0.13), (200, 0.15), (360, 0.15)])
def test_the_threshold_is_not_rounded_the_unsafe_way(num_devices, colluding_rate):
    # In floating point 1.13 · 200 is 225.99999999999997, and 226 above that.
    threat = ThreatModel(colluding_rate, 0.1, Adversary.ACTIVE)
    threshold = complete_threshold(num_devices, threat)
    params = make_params(num_devices, threshold=threshold, min_cohort=num_devices, signed=True)
    policy = replace(ACTIVE, colluding_rate=colluding_rate)
    policy.check(params)
    refuses(policy, replace(params, threshold=threshold - 1), f"threshold={threshold - 1} is not")


def test_the_colluding_devices_are_not_rounded_the_unsafe_way():
    # In floating point 0.29 · 100 is 28.999999999999996.
    policy = replace(POLICY, colluding_rate=0.29)
    params = make_params(100, threshold=31, min_cohort=31)
    policy.check(params)
    less = replace(params, threshold=30)
    refuses(policy, replace(less, min_cohort=30), "min_cohort without colluding devices=1")
    refuses(policy, less, "threshold without colluding devices=1")


@pytest.mark.parametrize(
    ("num_devices", "colluding_rate", "colluding"),
    [(20, 0.4, 8), (40, 0.3, 12), (8, 0.5, 4), (100, 0.29, 29), (3, 0.33, 0)],
)
def test_more_devices_rebuild_a_secret_than_may_collude(num_devices, colluding_rate, colluding):
    """On the complete graph; on a sparse one, few colluding devices are near any one device."""
    policy = replace(POLICY, colluding_rate=colluding_rate)
    least = make_params(num_devices, threshold=colluding + 2, min_cohort=num_devices)
    policy.check(least)
    if colluding:
        less = replace(least, threshold=colluding + 1)
        refuses(policy, less, "threshold without colluding devices=1 is below the device's 2")
        replace(policy, colluding_rate=(colluding - 0.5) / num_devices).check(less)


@pytest.mark.slow
@given(
    st.integers(2, 300),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(Adversary),
)
def test_what_is_chosen_for_a_threat_is_above_the_devices_that_may_collude(
    num_devices, colluding, dropped, adversary
):
    """By a device that expects the same threat."""
    times = 2 if adversary is Adversary.ACTIVE else 1
    assume(colluding + times * dropped <= 9)
    threat = ThreatModel(colluding / 10, dropped / 10, adversary)
    try:
        params = SessionParams.for_threat(
            num_devices,
            (SlotSpec("sum", 1, 8),),
            threat=threat,
            graph=GraphKind.COMPLETE,
            graph_seed=bytes(32),
            context=bytes(32),
        )
    except UsageError:
        return  # with so few devices, nothing withstands the threat
    assert params.threshold > threat.num_colluding(num_devices) + 1
    policy = replace(POLICY, adversary=adversary, colluding_rate=colluding / 10)
    policy.check(params)


def test_the_default_policy_is_that_of_a_curious_server():
    assert DevicePolicy().adversary is Adversary.CURIOUS


@pytest.mark.parametrize("adversary", Adversary)
def test_an_adversary_that_was_given_as_a_string_is_the_same(adversary):
    """As from a configuration file; a string that is no member would be nobody's policy."""
    policy = DevicePolicy(adversary=str(adversary))
    assert policy == DevicePolicy(adversary=adversary)
    assert policy.adversary is adversary
    assert replace(policy, adversary="active").adversary is Adversary.ACTIVE


def test_a_policy_from_a_string_insists_on_signatures_too():
    refuses(replace(POLICY, adversary="active"), make_params(8, threshold=8), "not signed")
    replace(POLICY, adversary="curious").check(make_params(8, threshold=8))


def test_a_limit_may_be_a_fraction():
    policy = DevicePolicy("curious", Fraction(1, 4))
    policy.check(make_params(16, threshold=6, min_cohort=6))
    refuses(policy, make_params(16, threshold=5, min_cohort=6), "threshold without .*=1 is below")


def test_an_adversary_that_nobody_knows_is_misuse():
    for unknown in ("ACTIVE", "honest", "", None, 1):
        with pytest.raises(ValueError, match="is not a valid Adversary"):
            DevicePolicy(adversary=unknown)


# Rates are multiples of 2^-6, so that every product below is exact.
rates = st.integers(0, 40).map(lambda sixty_fourths: sixty_fourths / 64)


@st.composite
def any_params(draw):
    num_invited = draw(st.integers(2, 40))
    sparse = list(range(2, num_invited - 1, 2))
    degree = draw(st.sampled_from([*sparse, num_invited - 1, num_invited + 7]))
    num_holders = num_invited if degree >= num_invited - 1 else degree
    threshold = draw(st.integers(2, num_holders))
    return replace(
        make_params(
            num_invited,
            degree=degree,
            threshold=threshold,
            min_cohort=draw(st.integers(threshold, num_invited)),
            signed=draw(st.booleans()),
        ),
        min_roster=draw(st.integers(2, num_invited)),
    )


def is_safe(params, rate):
    """By the definition: over every roster that a server may form, two quorums share an honest one.

    A quorum is t of the h who hold shares of one device; a share γ of the invited collude, and all
    of those come. Of the neighbours of a sparse graph, a share γ collude.
    """
    if not (params.signed and params.is_complete):
        return False
    if params.min_cohort - params.num_invited * rate // 1 < 2:
        return False
    for num_came in range(max(params.min_cohort, params.min_roster), params.num_invited + 1):
        graph = Graph(num_came, params.degree, bytes(32))
        if not 2 * params.threshold > graph.num_holders + rate * params.num_invited:
            return False
    return True


@pytest.mark.slow
@settings(max_examples=400)
@given(params=any_params(), rate=rates)
@example(make_params(8, threshold=6, min_cohort=6, signed=True), 0.25)
@example(make_params(8, threshold=5, min_cohort=6, signed=True), 0.25)
@example(
    replace(make_params(8, degree=4, threshold=3, min_cohort=6, signed=True), min_roster=6), 0.25
)
def test_a_device_is_never_talked_below_what_is_safe(params, rate):
    policy = replace(ACTIVE, colluding_rate=rate)
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    machine = Client(
        ClientId(0), policy, SeededRandomness(bytes(32)), enrolment.credentials(ClientId(0))
    )
    opening = wire.encode(SessionOpen(params), params)
    try:
        answer = machine.receive(opening)
    except PeerError:
        assert machine.state is ClientState.FAILED
    else:
        assert is_safe(params, rate)
        assert wire.decode(answer, params).credential is not None


@pytest.mark.slow
@settings(max_examples=200)
@given(params=any_params(), rate=rates)
def test_every_safe_complete_graph_is_accepted(params, rate):
    """The converse: a device does not refuse out of mere caution."""
    if is_safe(replace(params, min_roster=params.num_invited), rate):
        replace(ACTIVE, colluding_rate=rate).check(params)


@settings(max_examples=100)
@given(params=any_params(), rate=rates)
def test_each_profile_refuses_what_a_milder_one_does(params, rate):
    accepted = []
    for adversary in Adversary:
        try:
            DevicePolicy(adversary, rate).check(params)
        except PeerError:
            accepted.append(False)
        else:
            accepted.append(True)
    assert accepted == sorted(accepted, reverse=True)
