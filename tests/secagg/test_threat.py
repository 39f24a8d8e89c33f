import csv
import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from vectors import FOLDER

from deltafl.secagg import (
    Adversary,
    DevicePolicy,
    GraphKind,
    PeerError,
    SessionParams,
    SlotSpec,
    UsageError,
)
from deltafl.secagg import threat as threat_module
from deltafl.secagg.threat import (
    SparseEvents,
    ThreatModel,
    _overlapping,
    _sparse_threshold,
    complete_threshold,
    sparse_parameters,
)

rates = st.floats(0, 0.45)
sizes = st.integers(2, 400)


@pytest.mark.parametrize(
    ("num_devices", "colluding_rate", "dropout_rate", "degree", "threshold"),
    [
        (100, 0.05, 0.05, 12, 6),
        (1000, 0.1, 0.1, 48, 28),
        (10_000, 0.1, 0.1, 58, 33),
        (1000, 0.2, 0.2, 118, 68),
        # Decided by the event that the graph falls apart, here for colluding devices alone.
        (100, 0.3, 0.0, 24, 23),
        (50, 0.0, 0.3, 16, 2),
    ],
)
def test_known_parameters(num_devices, colluding_rate, dropout_rate, degree, threshold):
    threat = ThreatModel(colluding_rate, dropout_rate)
    assert sparse_parameters(num_devices, threat) == (degree, threshold)


def as_published(num_devices, threat):
    """Degree and threshold as the paper has them: of a graph over all that were invited."""
    for degree in range(2, num_devices - 1, 2):
        threshold = _sparse_threshold(num_devices, num_devices, degree, threat)
        if threshold is not None:
            return degree, threshold
    return None


def published(adversary_class="CURIOUS_SERVER"):
    with (FOLDER / "graph_parameters.csv").open() as lines:
        rows = [r for r in csv.DictReader(lines) if r["adversary_class"] == adversary_class]
    assert rows
    return [
        (
            int(row["num_clients"]),
            float(row["adversary_rate"]),
            float(row["dropout_rate"]),
            int(row["degree"]),
            int(row["threshold"]),
        )
        for row in rows
    ]


@pytest.mark.slow
def test_published_parameters():
    rows = [row for row in published() if 0 < row[3] < 1000]
    assert len(rows) > 10
    for num_devices, colluding_rate, dropout_rate, degree, threshold in rows:
        ours = as_published(num_devices, ThreatModel(colluding_rate, dropout_rate))
        assert ours[0] == degree, (num_devices, colluding_rate, dropout_rate)
        assert 2 <= ours[1] <= threshold, (num_devices, colluding_rate, dropout_rate)


def test_published_parameters_of_high_degree():
    # The search from degree 2 upwards takes seconds, so only its last two steps are taken.
    rows = [row for row in published() if row[3] >= 1000]
    assert rows
    for num_devices, colluding_rate, dropout_rate, degree, threshold in rows:
        threat = ThreatModel(colluding_rate, dropout_rate)
        assert _sparse_threshold(num_devices, num_devices, degree - 2, threat) is None
        assert 2 <= (_sparse_threshold(num_devices, num_devices, degree, threat) or 0) <= threshold


def test_parameters_published_as_infeasible_are_refused():
    infeasible = [row for row in published() if row[3] == 0]
    assert len(infeasible) >= 2
    for num_devices, colluding_rate, dropout_rate, *_ in infeasible:
        with pytest.raises(UsageError):
            sparse_parameters(num_devices, ThreatModel(colluding_rate, dropout_rate))


@pytest.mark.slow
@given(num_devices=st.integers(20, 200), colluding=st.floats(0, 0.3), dropped=st.floats(0, 0.3))
def test_sparse_parameters_make_a_session(num_devices, colluding, dropped):
    threat = ThreatModel(colluding, dropped)
    try:
        degree, threshold = sparse_parameters(num_devices, threat)
    except UsageError:
        assume(False)
    assert degree % 2 == 0
    assert degree < num_devices - 1
    # More shares than the colluding ones can be expected to hold, fewer than are expected to stay.
    assert 2 <= threshold <= degree
    assert threshold > colluding * degree
    assert threshold <= degree * (1 - dropped) + 1
    SessionParams.for_threat(
        num_devices,
        (SlotSpec("sum", 1, 8),),
        threat=threat,
        graph=GraphKind.SPARSE,
        graph_seed=bytes(32),
        context=bytes(32),
    )


@given(num_devices=sizes, colluding=rates, dropped=rates)
def test_complete_threshold_is_safe_and_reachable(num_devices, colluding, dropped):
    threat = ThreatModel(colluding, dropped)
    colluders, survivors = threat.num_colluding(num_devices), threat.num_surviving(num_devices)
    reachable = [t for t in range(max(2, colluders + 2), survivors + 1)]
    if not reachable:
        with pytest.raises(UsageError, match="no threshold is both safe and reachable"):
            complete_threshold(num_devices, threat)
        return
    threshold = complete_threshold(num_devices, threat)
    assert threshold in reachable
    majority = num_devices // 2 + 1
    assert threshold >= majority or threshold == survivors


@pytest.mark.parametrize(
    ("num_devices", "threat", "threshold"),
    [
        (10, ThreatModel(0.1, 0.1), 6),
        (10, ThreatModel(0.6, 0.1), 8),
        (10, ThreatModel(0.1, 0.6), 4),
        (2, ThreatModel(0.0, 0.0), 2),
    ],
)
def test_complete_threshold_typed_in(num_devices, threat, threshold):
    assert complete_threshold(num_devices, threat) == threshold


def test_a_threshold_that_is_safe_but_out_of_reach_is_refused():
    assert complete_threshold(10, ThreatModel(0.4, 0.4)) == 6
    with pytest.raises(UsageError, match="10 devices of which 5 collude and 4 vanish"):
        complete_threshold(10, ThreatModel(0.5, 0.4))


def test_rates_times_devices_are_rounded_the_safe_way():
    # 0.29 · 100 is 28.999999999999996 in floating point.
    threat = ThreatModel(0.29, 0.29)
    assert threat.num_colluding(100) == 29
    assert threat.num_dropped(100) == 29
    assert threat.num_surviving(100) == 71
    # (1 − 0.7) · 10 is 3.0000000000000004.
    assert ThreatModel(0.1, 0.7).num_surviving(10) == 3


@pytest.mark.parametrize(
    ("colluding", "dropped", "message"),
    [
        (-0.1, 0.1, r"colluding_rate=-0.1 is not in \[0, 1\)"),
        (0.1, 1.0, r"dropout_rate=1.0 is not in \[0, 1\)"),
        ("0.1", 0.1, "colluding_rate=.0.1. is not a number"),
        (float("nan"), 0.1, "colluding_rate=nan"),
        (0.5, 0.5, "add up to more than 0.9"),
    ],
)
def test_impossible_rates_are_refused(colluding, dropped, message):
    with pytest.raises(UsageError, match=message):
        ThreatModel(colluding, dropped)


@pytest.mark.parametrize("compute", [complete_threshold, sparse_parameters])
@pytest.mark.parametrize("num_devices", [-1, 0, 1, 1_000_001])
def test_impossible_sizes_are_refused(compute, num_devices):
    with pytest.raises(UsageError, match="is not in"):
        compute(num_devices, ThreatModel())


def test_small_sparse_graphs_are_refused():
    with pytest.raises(UsageError, match="no sparse graph over 10 devices"):
        sparse_parameters(10, ThreatModel(0.45, 0.45))


def active(colluding, dropped):
    return ThreatModel(colluding, dropped, Adversary.ACTIVE)


@pytest.mark.parametrize("holders", range(2, 8))
def test_quorums_share_an_honest_device_from_the_overlapping_threshold_on(holders):
    """By trying all pairs of quorums; below it, some two share colluding devices only."""
    for colluding in range(holders):
        threshold = _overlapping(holders, colluding)

        def every_two_overlap(size, bad):
            quorums = [set(quorum) for quorum in combinations(range(holders), size)]
            return all(one & other - bad for one in quorums for other in quorums)

        bad = set(range(colluding))
        assert all(every_two_overlap(size, bad) for size in range(threshold, holders + 1))
        assert not every_two_overlap(threshold - 1, bad)


def sparse_or_none(num_devices, threat):
    try:
        return sparse_parameters(num_devices, threat)
    except UsageError:
        return None


def harmful_to_quorums(degree, threshold):
    """The fewest colluding of a device's k neighbours with whom two quorums may be disjoint."""
    return next(c for c in range(degree + 2) if not 2 * threshold > degree + c)


def insecure(roster, colluding, degree, harmful, counted=None):
    """Whether 2^-41 does not bound that some device has `harmful` or more colluding neighbours.

    By the union bound over as many devices as are counted, by default those of the roster.
    """
    tail = sum(
        math.comb(colluding, i) * math.comb(roster - colluding, degree - i)
        for i in range(max(harmful, 0), min(colluding, degree) + 1)
    )
    counted = roster if counted is None else counted
    return counted * Fraction(tail, math.comb(roster, degree)) > Fraction(1, 2**41)


@given(num_devices=st.integers(5, 300), colluding=st.floats(0, 0.4), dropped=st.floats(0, 0.25))
@example(num_devices=100, colluding=0.05, dropped=0.05)
@example(num_devices=100, colluding=0.33, dropped=0.05)
@example(num_devices=200, colluding=0.1, dropped=0.1)
def test_no_two_sparse_quorums_of_a_device_are_disjoint(num_devices, colluding, dropped):
    """Except with 2^-41, no device has so many colluding neighbours that two quorums could be.

    The holders are its k neighbours; it keeps no share of its own secrets.
    """
    assume(colluding + 2 * dropped <= 0.9)
    threat = active(colluding, dropped)
    parameters = sparse_or_none(num_devices, threat)
    assume(parameters is not None)
    degree, threshold = parameters
    colluders = threat.num_colluding(num_devices)
    smallest = num_devices - threat.num_dropped(num_devices)
    harmful = harmful_to_quorums(degree, threshold)
    assert harmful > 0
    assert not insecure(smallest, colluders, degree, harmful, num_devices)
    # A smaller threshold would not do: it is 2 already, or not all are covered.
    less = harmful_to_quorums(degree, threshold - 1)
    assert threshold == 2 or less == 0 or insecure(smallest, colluders, degree, less, num_devices)


@pytest.mark.parametrize(
    ("num_devices", "rate", "degree", "threshold"),
    [(100, 0.05, 16, 11), (1000, 0.1, 100, 70), (10_000, 0.1, 128, 90)],
)
def test_known_parameters_of_an_active_adversary(num_devices, rate, degree, threshold):
    assert sparse_parameters(num_devices, active(rate, rate)) == (degree, threshold)


@pytest.mark.slow
@given(num_devices=st.integers(5, 200), colluding=st.floats(0, 0.3), dropped=st.floats(0, 0.3))
def test_an_active_adversary_costs_at_least_what_a_curious_one_does(
    num_devices, colluding, dropped
):
    curious = sparse_or_none(num_devices, ThreatModel(colluding, dropped))
    against_active = sparse_or_none(num_devices, active(colluding, dropped))
    assume(against_active is not None)
    assert curious is not None
    assert curious[0] <= against_active[0]
    assert curious[1] <= against_active[1] <= against_active[0]
    assert 2 * against_active[1] > against_active[0]


def test_published_parameters_of_the_semi_malicious_server():
    """Degree and threshold of every row are ours: not one more, not one less."""
    rows = {row for row in published("SEMI_MALICIOUS_SERVER") if row[3] > 0}
    assert len(rows) > 15
    for num_devices, colluding_rate, dropout_rate, degree, threshold in rows:
        threat = active(colluding_rate, dropout_rate)
        if degree < 300:
            assert as_published(num_devices, threat) == (degree, threshold), threat
        else:
            # The search from degree 2 upwards takes seconds, so only its last two steps are taken.
            assert _sparse_threshold(num_devices, num_devices, degree - 2, threat) is None, threat
            assert _sparse_threshold(num_devices, num_devices, degree, threat) == threshold, threat


def test_the_rule_is_the_published_one_for_every_number_of_neighbours_and_colluding_ones():
    for degree in range(2, 60, 2):
        for colluding in range(degree + 1):
            published_rule = math.ceil((colluding + degree - 1.25) / 2) + 1
            assert _overlapping(degree, colluding) == published_rule


def test_a_share_that_the_device_kept_itself_would_cost_more_neighbours(monkeypatch):
    """Control of the published rows: they tell k holders from k + 1."""
    monkeypatch.setattr(threat_module, "_overlapping", lambda h, c: _overlapping(h + 1, c))
    rows = {row for row in published("SEMI_MALICIOUS_SERVER") if 0 < row[3] < 300}
    costlier = [row for row in rows if as_published(row[0], active(*row[1:3])) > (row[3], row[4])]
    assert 0 < len(costlier) < len(rows)


def test_rates_published_as_infeasible_for_the_semi_malicious_server_are_refused():
    infeasible = [row for row in published("SEMI_MALICIOUS_SERVER") if row[3] == 0]
    assert infeasible
    for _, colluding_rate, dropout_rate, *_ in infeasible:
        with pytest.raises(UsageError, match="no parameters are safe"):
            active(colluding_rate, dropout_rate)


@pytest.mark.parametrize(("colluding", "dropped"), [(0.3, 0.31), (0.0, 0.46), (0.91, 0.0)])
def test_an_active_adversary_counts_those_who_vanish_twice(colluding, dropped):
    with pytest.raises(UsageError, match=f"twice dropout_rate={dropped} add up to more than 0.9"):
        active(colluding, dropped)
    if colluding + dropped <= 0.9:
        ThreatModel(colluding, dropped)
    active(0.3, 0.3)
    active(0.1, 0.4)


@given(num_devices=sizes, colluding=rates, dropped=st.floats(0, 0.25))
def test_complete_threshold_of_an_active_adversary(num_devices, colluding, dropped):
    assume(colluding + 2 * dropped <= 0.9)
    threat = active(colluding, dropped)
    colluders, survivors = threat.num_colluding(num_devices), threat.num_surviving(num_devices)
    safe = [t for t in range(2, num_devices + 1) if 2 * t > num_devices + colluders]
    safe = [t for t in safe if t >= colluders + 2]  # bites where one device is honest
    if not safe or safe[0] > survivors:
        with pytest.raises(UsageError, match="no threshold is both safe and reachable"):
            complete_threshold(num_devices, threat)
        return
    threshold = complete_threshold(num_devices, threat)
    assert threshold == safe[0]
    # A smaller roster, with all colluding devices in it, has fewer holders.
    assert all(2 * threshold > roster + colluders for roster in range(threshold, num_devices + 1))


@pytest.mark.parametrize(
    ("num_devices", "threat", "threshold"),
    [
        (10, active(0.1, 0.1), 6),
        (10, active(0.2, 0.1), 7),
        (10, active(0.0, 0.4), 6),
        (100, active(0.1, 0.1), 56),
        (100, active(0.3, 0.3), 66),
        (3, active(0.0, 0.33), 2),
        (2, active(0.0, 0.0), 2),
    ],
)
def test_complete_threshold_of_an_active_adversary_typed_in(num_devices, threat, threshold):
    assert complete_threshold(num_devices, threat) == threshold


def test_one_honest_device_among_colluding_ones_is_refused():
    assert complete_threshold(10, active(0.8, 0.0)) == 10
    with pytest.raises(UsageError, match="10 devices of which 9 collude and 0 vanish"):
        complete_threshold(10, active(0.9, 0.0))


def harmful_to(adversary, degree, threshold):
    """Colluding holders of one device's shares that do harm."""
    return harmful_to_quorums(degree, threshold) if adversary is Adversary.ACTIVE else threshold


@pytest.mark.parametrize("adversary", [Adversary.CURIOUS, Adversary.ACTIVE])
def test_the_threshold_is_safe_over_the_smallest_roster_too(adversary):
    """Those who stay away raise the share of colluding devices; the published one is not."""
    threat = ThreatModel(0.1, 0.1, adversary)
    degree, threshold = sparse_parameters(1000, threat)
    colluding, smallest = threat.num_colluding(1000), 1000 - threat.num_dropped(1000)
    # By the plain definition of the event: so many of k neighbours among the colluding.
    for roster in (smallest, 950, 1000):
        assert not insecure(roster, colluding, degree, harmful_to(adversary, degree, threshold))
    of_all, lower = as_published(1000, threat)
    harmful = harmful_to(adversary, of_all, lower)
    assert not insecure(1000, colluding, of_all, harmful)
    assert insecure(smallest, colluding, of_all, harmful)


def test_a_sparse_graph_that_became_complete_could_have_disjoint_quorums():
    """Why the roster of a sparse session has k + 2 devices at least."""
    degree, threshold, threat = 20, 11, active(1 / 2000, 0.0)
    assert harmful_to_quorums(degree, threshold) == 2 > threat.num_colluding(2000)
    # k + 1 holders with the one that colludes among them.
    assert threshold < _overlapping(degree + 1, 1)
    assert threshold == _overlapping(degree, 1)


@pytest.mark.parametrize("adversary", Adversary)
def test_an_adversary_that_was_given_as_a_string_is_the_same(adversary):
    told, meant = ThreatModel(0.1, 0.1, str(adversary)), ThreatModel(0.1, 0.1, adversary)
    assert told == meant
    assert told.adversary is adversary
    assert complete_threshold(100, told) == complete_threshold(100, meant)
    assert sparse_parameters(200, told) == sparse_parameters(200, meant)
    for graph in GraphKind:
        session = session_or_none(200, told, graph)
        assert session == session_or_none(200, meant, graph)
        assert session.signed == (adversary is Adversary.ACTIVE)
    # As strings, too, twice the drop-outs count against an active one.
    with pytest.raises(UsageError, match="and twice dropout_rate"):
        ThreatModel(0.1, 0.5, "active")
    ThreatModel(0.1, 0.5, "curious")


def test_an_adversary_that_nobody_knows_is_misuse():
    for unknown in ("ACTIVE", "honest", "", None, 1):
        with pytest.raises(ValueError, match="is not a valid Adversary"):
            ThreatModel(adversary=unknown)


@pytest.mark.parametrize("graph", GraphKind)
def test_a_graph_that_was_given_as_a_string_is_the_same(graph):
    threat = ThreatModel(0.1, 0.1)
    session = session_or_none(200, threat, str(graph))
    assert session == session_or_none(200, threat, graph)
    assert session.is_complete == (graph is GraphKind.COMPLETE)
    assert session_or_none(200, threat, "full") is None


@pytest.mark.parametrize("graph", GraphKind)
def test_an_active_adversary_makes_a_session(graph):
    params = SessionParams.for_threat(
        200,
        (SlotSpec("sum", 1, 8),),
        threat=active(0.1, 0.1),
        graph=graph,
        graph_seed=bytes(32),
        context=bytes(32),
    )
    assert params.signed
    assert 2 * params.threshold > params.num_holders
    assert params.min_roster <= params.min_cohort <= 200
    assert params.is_complete or params.min_roster >= params.degree + 2
    assert params.is_complete == (params.min_cohort < 180)


def session_or_none(num_devices, threat, graph):
    try:
        return SessionParams.for_threat(
            num_devices,
            (SlotSpec("sum", 1, 8),),
            threat=threat,
            graph=graph,
            graph_seed=bytes(32),
            context=bytes(32),
        )
    except UsageError:
        return None


@pytest.mark.slow
@given(
    num_devices=st.integers(5, 300),
    colluding=st.floats(0, 0.4),
    dropped=st.floats(0, 0.25),
    graph=st.sampled_from(GraphKind),
)
@example(num_devices=100, colluding=0.29, dropped=0.1, graph=GraphKind.COMPLETE)
def test_devices_accept_what_the_threat_model_computes(num_devices, colluding, dropped, graph):
    """A server that means well never fails a policy of the same threat model."""
    assume(colluding + 2 * dropped <= 0.9)
    params = session_or_none(num_devices, active(colluding, dropped), graph)
    assume(params is not None)
    policy = DevicePolicy(Adversary.ACTIVE, colluding, dropped, min_cohort=2)
    if graph is GraphKind.COMPLETE:
        policy.check(params)
    else:
        with pytest.raises(PeerError, match="not that of the complete graph"):
            policy.check(params)
    # What was computed against a curious server is not enough: for one, it is not signed.
    curious = session_or_none(num_devices, ThreatModel(colluding, dropped), graph)
    with pytest.raises(PeerError, match=r"not signed|not that of the complete graph"):
        policy.check(curious)
    replace(policy, adversary=Adversary.CURIOUS).check(curious)


def cut(roster, gone, degree):
    """The bound on the ring of a roster being cut in two places, exactly."""
    if gone < degree:
        return Fraction(0)
    pairs = Fraction(roster * (roster - degree - 1), 2)
    return pairs * Fraction(math.comb(roster - degree, gone - degree), math.comb(roster, gone))


@settings(max_examples=40)
@given(
    data=st.data(),
    num_devices=st.integers(60, 300),
    colluding=st.floats(0, 0.2),
    dropped=st.floats(0, 0.3),
    adversary=st.sampled_from(Adversary),
)
def test_whoever_is_missing_within_the_rate_what_is_bad_stays_unlikely(
    data, num_devices, colluding, dropped, adversary
):
    """Over every roster that devices accept, with as many lost later as are left to be missing."""
    threat = ThreatModel(colluding, dropped, adversary)
    try:
        degree, threshold = sparse_parameters(num_devices, threat)
    except UsageError:
        assume(False)
    missing, colluders = threat.num_dropped(num_devices), threat.num_colluding(num_devices)
    absent = data.draw(st.integers(0, missing))
    roster = num_devices - absent
    assert num_devices - missing >= max(degree, colluders, threshold) + 2
    assert not insecure(roster, colluders, degree, harmful_to(adversary, degree, threshold))
    assert cut(roster, colluders + missing - absent, degree) < Fraction(1, 2**41)


def test_the_bounds_of_a_sparse_graph_are_no_larger_than_they_need_be():
    """One neighbour fewer on either side, or one share less, and one of the two is missed."""
    threat = ThreatModel(0.1, 0.1)
    degree, threshold = sparse_parameters(400, threat)
    assert insecure(360, 40, degree, threshold - 1, counted=400)
    assert sparse_parameters(400, ThreatModel(0.1, 0.0))[0] < degree
    events = SparseEvents(400, 360, 40, 40, Adversary.CURIOUS)
    assert events.safe_threshold(degree) == threshold
    for smaller in (SparseEvents(400, 380, 40, 20, Adversary.CURIOUS), replace(events, missing=20)):
        assert smaller.safe_threshold(degree) <= threshold
    # More missing than the session is made for, as where min_cohort were only the threshold.
    assert replace(events, missing=400 - threshold).safe_threshold(degree) is None
    assert cut(400, 40 + 40, degree) < Fraction(1, 2**41) < cut(400, 40 + 200, degree)


def test_a_roster_of_which_all_may_collude_is_no_error():
    events = SparseEvents(500, 40, 60, 0, Adversary.CURIOUS)
    assert events.safe_threshold(30) == 31
    assert replace(events, missing=500).safe_threshold(30) is None
