import csv
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from vectors import vector_file

from secagg import GraphKind, SessionParams, SlotSpec, UsageError
from secagg.threat import (
    ThreatModel,
    _sparse_threshold,
    complete_threshold,
    sparse_min_roster,
    sparse_parameters,
)

rates = st.floats(0, 0.45)
sizes = st.integers(2, 400)


@pytest.mark.parametrize(
    ("num_devices", "colluding_rate", "dropout_rate", "degree", "threshold"),
    [
        (100, 0.05, 0.05, 12, 6),
        (1000, 0.1, 0.1, 48, 27),
        (10_000, 0.1, 0.1, 54, 31),
        (1000, 0.2, 0.2, 98, 54),
    ],
)
def test_known_parameters(num_devices, colluding_rate, dropout_rate, degree, threshold):
    threat = ThreatModel(colluding_rate, dropout_rate)
    assert sparse_parameters(num_devices, threat) == (degree, threshold)


def published():
    with vector_file("secagg_graph_parameters.csv").open() as lines:
        rows = [r for r in csv.DictReader(lines) if r["adversary_class"] == "CURIOUS_SERVER"]
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


def test_published_parameters():
    rows = [row for row in published() if 0 < row[3] < 1000]
    assert len(rows) > 10
    for num_devices, colluding_rate, dropout_rate, degree, threshold in rows:
        ours = sparse_parameters(num_devices, ThreatModel(colluding_rate, dropout_rate))
        assert ours[0] == degree, (num_devices, colluding_rate, dropout_rate)
        assert 2 <= ours[1] <= threshold, (num_devices, colluding_rate, dropout_rate)


def test_published_parameters_of_high_degree():
    # The search from degree 2 upwards takes seconds, so only its last two steps are taken.
    rows = [row for row in published() if row[3] >= 1000]
    assert rows
    for num_devices, colluding_rate, dropout_rate, degree, threshold in rows:
        threat = ThreatModel(colluding_rate, dropout_rate)
        assert _sparse_threshold(num_devices, degree - 2, threat) is None
        assert 2 <= (_sparse_threshold(num_devices, degree, threat) or 0) <= threshold


def test_parameters_published_as_infeasible_are_refused():
    infeasible = [row for row in published() if row[3] == 0]
    assert len(infeasible) >= 2
    for num_devices, colluding_rate, dropout_rate, *_ in infeasible:
        with pytest.raises(UsageError):
            sparse_parameters(num_devices, ThreatModel(colluding_rate, dropout_rate))


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
    assert 2 <= threshold <= degree + 1
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


def test_rates_times_devices_are_rounded_the_safe_way():
    # 0.29 · 100 is 28.999999999999996 in floating point.
    threat = ThreatModel(0.29, 0.29)
    assert threat.num_colluding(100) == 29
    assert threat.num_dropped(100) == 29
    assert threat.num_surviving(100) == 71


@pytest.mark.parametrize(
    ("colluding", "dropped", "message"),
    [
        (-0.1, 0.1, r"colluding_rate=-0.1 is not in \[0, 1\)"),
        (0.1, 1.0, r"dropout_rate=1.0 is not in \[0, 1\)"),
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


def test_a_roster_too_small_for_its_colluders_is_refused():
    """Those who stay away raise the share of colluding devices, who always come."""
    threat = ThreatModel(0.1, 0.1)
    degree, threshold = sparse_parameters(1000, threat)
    fewest = sparse_min_roster(1000, degree, threshold, threat)
    assert 900 < fewest < 1000
    # By the plain definition of the event: t or more of k neighbours among the colluding.
    colluding = threat.num_colluding(1000)

    def insecure(roster):
        tail = sum(
            math.comb(colluding, i) * math.comb(roster - colluding, degree - i)
            for i in range(threshold, degree + 1)
        )
        return roster * Fraction(tail, math.comb(roster, degree)) > Fraction(1, 2**41)

    assert not insecure(fewest)
    assert insecure(fewest - 1)


def test_where_the_colluders_are_fewer_than_the_threshold_any_roster_is_safe():
    threat = ThreatModel(0.1, 0.1)
    degree, threshold = sparse_parameters(100, threat)
    assert threat.num_colluding(100) < threshold
    assert sparse_min_roster(100, degree, threshold, threat) == threshold
