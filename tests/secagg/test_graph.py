import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import make_params

from deltafl.secagg.graph import Graph, without_isolated

SEED, OTHER_SEED = bytes(32), bytes(31) + b"\1"


@st.composite
def graphs(draw, largest=30):
    num_devices = draw(st.integers(2, largest))
    sparse = list(range(2, num_devices - 1, 2))
    degree = draw(st.sampled_from([*sparse, num_devices - 1, num_devices + 3]))
    return Graph(num_devices, degree, draw(st.binary(min_size=32, max_size=32)))


def edges(graph):
    return [set(graph.neighbours(p).tolist()) for p in range(graph.num_devices)]


@given(graph=graphs())
def test_graph_is_regular_symmetric_and_connected(graph):
    near = edges(graph)
    for position, neighbours in enumerate(near):
        assert len(neighbours) == graph.degree
        assert position not in neighbours
        assert all(position in near[neighbour] for neighbour in neighbours)
        assert graph.neighbours(position).tolist() == sorted(neighbours)
    reached, boundary = {0}, {0}
    while boundary:
        boundary = set().union(*(near[p] for p in boundary)) - reached
        reached |= boundary
    assert len(reached) == graph.num_devices


@pytest.mark.parametrize("degree", [9, 10, 100])
def test_complete_graph(degree):
    graph = Graph(10, degree, SEED)
    assert graph.is_complete
    assert graph.degree == 9
    assert edges(graph) == [set(range(10)) - {p} for p in range(10)]


def test_sparse_graph_is_a_ring_with_its_nearest():
    graph = Graph(20, 2, SEED)
    near = edges(graph)
    walk, previous, current = [0], None, 0
    while len(walk) < 20:
        onward = min(near[current] - {previous})
        previous, current = current, onward
        walk.append(current)
    assert sorted(walk) == list(range(20))
    assert 0 in near[walk[-1]]


def test_seed_and_size_and_degree_change_the_sparse_graph():
    graph = edges(Graph(40, 4, SEED))
    assert graph == edges(Graph(40, 4, SEED))
    assert graph != edges(Graph(40, 4, OTHER_SEED))
    assert graph != edges(Graph(41, 4, SEED))[:40]
    # Not the same ring with more of it: the degree too decides the permutation.
    assert not all(few <= many for few, many in zip(graph, edges(Graph(40, 6, SEED)), strict=True))


@given(graph=graphs())
def test_holders_are_the_neighbours_and_on_a_complete_graph_the_device_itself(graph):
    for position, neighbours in enumerate(edges(graph)):
        holders = graph.holders_of(position).tolist()
        own = {position} if graph.is_complete else set()
        assert holders == sorted(neighbours | own)
        assert len(holders) == graph.num_holders


@given(graph=graphs())
def test_a_device_holds_the_shares_of_those_who_hold_its_own(graph):
    held_by = [set(graph.holders_of(p).tolist()) for p in range(graph.num_devices)]
    for position, holders in enumerate(held_by):
        assert {p for p, h in enumerate(held_by) if position in h} == holders


@given(num_invited=st.integers(3, 30), data=st.data())
def test_parameters_count_as_many_holders_as_the_graph_of_a_full_roster(num_invited, data):
    sparse = list(range(2, num_invited - 1, 2))
    degree = data.draw(st.sampled_from([*sparse, num_invited - 1, num_invited + 3]))
    params = make_params(num_invited, degree=degree, threshold=2)
    assert params.num_holders == Graph(num_invited, degree, SEED).num_holders
    # Where devices stay away, a sparse graph stays one as long as k + 2 come.
    came = data.draw(st.integers(2, num_invited))
    graph = Graph(came, degree, SEED)
    assert graph.num_holders == (degree if came >= degree + 2 else came)
    assert graph.num_holders <= params.num_holders or not params.is_complete


def test_over_one_device_less_a_sparse_graph_is_complete_with_one_holder_more():
    sparse, complete = Graph(6, 4, SEED), Graph(5, 4, SEED)
    assert (sparse.is_complete, sparse.num_holders) == (False, 4)
    assert (complete.is_complete, complete.num_holders) == (True, 5)


@given(graph=graphs(largest=12))
def test_neighbour_column_of_agrees_with_a_search(graph):
    for neighbour in range(graph.num_devices):
        positions = graph.neighbours(neighbour)
        columns = graph.neighbour_column_of(neighbour, positions).tolist()
        assert columns == [
            graph.neighbours(p).tolist().index(neighbour) for p in positions.tolist()
        ]
        assert graph.neighbour_column_of(neighbour, positions[:0]).tolist() == []


@pytest.mark.slow
@given(graph=graphs(largest=12), data=st.data())
def test_columns_of_agree_with_a_search(graph, data):
    device = st.integers(0, graph.num_devices - 1)
    positions = data.draw(st.lists(device, max_size=6, unique=True).map(sorted))
    width = data.draw(st.integers(1, graph.num_holders))
    rows = [data.draw(st.permutations(graph.holders_of(p).tolist()))[:width] for p in positions]
    found = graph.columns_of(
        np.array(positions, dtype=np.int64), np.array(rows, dtype=np.int64).reshape(-1, width)
    )
    assert found.tolist() == [
        [graph.holders_of(holder).tolist().index(p) for holder in row]
        for p, row in zip(positions, rows, strict=True)
    ]


@pytest.mark.slow
@given(graph=graphs(largest=12), data=st.data())
def test_holders_at_columns_agree_with_a_search(graph, data):
    device = st.integers(0, graph.num_devices - 1)
    positions = data.draw(st.lists(device, max_size=6, unique=True).map(sorted))
    column = st.integers(0, graph.num_holders - 1)
    row = st.lists(column, min_size=3, max_size=3)
    columns = data.draw(st.lists(row, min_size=len(positions), max_size=len(positions)))
    found = graph.holders(
        np.array(positions, dtype=np.int64), np.array(columns, dtype=np.int64).reshape(-1, 3)
    )
    assert found.tolist() == [
        [graph.holders_of(p).tolist()[c] for c in row]
        for p, row in zip(positions, columns, strict=True)
    ]


@given(graph=graphs(largest=14), data=st.data())
def test_counting_holders_agrees_with_a_search(graph, data):
    n = graph.num_devices
    members = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    assert graph.count_holders(members).tolist() == [
        sum(members[p] for p in graph.holders_of(position).tolist()) for position in range(n)
    ]


@pytest.mark.slow
@given(graph=graphs(largest=16), data=st.data())
def test_without_isolated_is_the_largest_stable_subset(graph, data):
    n = graph.num_devices
    members = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    threshold = data.draw(st.integers(1, graph.num_holders))
    before = members.copy()
    left = set(np.flatnonzero(without_isolated(graph, members, threshold)).tolist())
    assert np.array_equal(members, before)

    # One after the other, in an order of its own: the stable subset is the same.
    expected = set(np.flatnonzero(members).tolist())
    holders = [set(graph.holders_of(p).tolist()) for p in range(n)]
    while lonely := [p for p in expected if len(expected & holders[p]) < threshold]:
        expected.discard(lonely[-1])
    assert left == expected


def test_isolation_spreads():
    graph = Graph(20, 2, SEED)
    members = np.ones(20, dtype=np.bool_)
    members[7] = False
    assert without_isolated(graph, members, 1).sum() == 19
    assert without_isolated(graph, members, 2).sum() == 0


@settings(max_examples=5)
@given(seed=st.binary(min_size=32, max_size=32))
def test_neighbours_are_spread_evenly(seed):
    # 2,000 neighbours in 10 bins: chi-square with 9 degrees of freedom stays below 47 with
    # probability 1 − 4e-7 for independent draws.
    graph = Graph(1000, 2, seed)
    distance = np.concatenate([(graph.neighbours(p) - p) % 1000 for p in range(1000)])
    counts = np.bincount(distance * 10 // 1000, minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 47
