import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.graph import Graph, without_isolated

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
        closed = graph.closed_neighbours(position).tolist()
        assert closed == sorted(neighbours | {position})
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


@given(graph=graphs(largest=12))
def test_column_of_agrees_with_a_search(graph):
    for holder in range(graph.num_devices):
        positions = graph.closed_neighbours(holder)
        columns = graph.column_of(holder, positions).tolist()
        assert columns == [
            graph.closed_neighbours(p).tolist().index(holder) for p in positions.tolist()
        ]
        assert graph.column_of(holder, positions[:0]).tolist() == []


@given(graph=graphs(largest=14), data=st.data())
def test_counting_members_agrees_with_a_search(graph, data):
    n = graph.num_devices
    members = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    assert graph.count_members(members).tolist() == [
        sum(members[p] for p in graph.closed_neighbours(position).tolist()) for position in range(n)
    ]


@given(graph=graphs(largest=16), data=st.data())
def test_without_isolated_is_the_largest_stable_subset(graph, data):
    n = graph.num_devices
    members = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    threshold = data.draw(st.integers(1, graph.degree + 1))
    before = members.copy()
    left = set(np.flatnonzero(without_isolated(graph, members, threshold)).tolist())
    assert np.array_equal(members, before)

    # One after the other, in an order of its own: the stable subset is the same.
    expected = set(np.flatnonzero(members).tolist())
    while lonely := [p for p in expected if len(expected & ({p} | edges(graph)[p])) < threshold]:
        expected.discard(lonely[-1])
    assert left == expected


def test_isolation_spreads():
    graph = Graph(20, 2, SEED)
    members = np.ones(20, dtype=np.bool_)
    members[7] = False
    assert without_isolated(graph, members, 2).sum() == 19
    assert without_isolated(graph, members, 3).sum() == 0


@settings(max_examples=5)
@given(seed=st.binary(min_size=32, max_size=32))
def test_neighbours_are_spread_evenly(seed):
    # 2,000 neighbours in 10 bins: chi-square with 9 degrees of freedom stays below 47 with
    # probability 1 − 4e-7 for independent draws.
    graph = Graph(1000, 2, seed)
    distance = np.concatenate([(graph.neighbours(p) - p) % 1000 for p in range(1000)])
    counts = np.bincount(distance * 10 // 1000, minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 47
