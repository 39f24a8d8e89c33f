"""A model's arrays as one vector, and back."""

import numpy as np
import pytest

from deltafl.secagg import ClientId
from deltafl.sim.net.flower.messages import Handover, Layout

ARRAYS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "count": np.array(7, dtype=np.int64),
    "bias": np.array([0.5, -1.0], dtype=np.float64),
    "none": np.zeros((0, 4), dtype=np.float32),
}
LAYOUT = Layout.of(ARRAYS)


def test_arrays_come_back_as_they_were():
    vector = LAYOUT.to_vector(ARRAYS)
    assert vector.dtype == np.float32
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0.5, -1.0]
    back = LAYOUT.to_arrays(vector, ARRAYS)
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array)


def test_what_is_not_trained_is_zero_where_nobody_has_it():
    assert LAYOUT.to_arrays(np.zeros(8, np.float32), {})["count"] == 0


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {**ARRAYS, "more": np.zeros(1)},
        dict(reversed(ARRAYS.items())),
        {**ARRAYS, "bias": np.zeros(3)},
        {**ARRAYS, "weight": np.zeros((3, 2), np.float32)},
    ],
)
def test_other_arrays_are_refused(arrays):
    with pytest.raises(ValueError, match="in place of"):
        LAYOUT.to_vector(arrays)


@pytest.mark.parametrize("length", [0, 7, 9])
def test_vectors_of_another_length_are_refused(length):
    with pytest.raises(ValueError, match="in place of"):
        LAYOUT.to_arrays(np.zeros(length, np.float32), {})


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        ((["a"], [], ["float32"]), "names"),
        ((["a"], [(-1,)], ["float32"]), "negative"),
        ((["a"], [(1 << 20, 1 << 20)], ["float32"]), "more than"),
        ((["a"], [(1 << 20, 1 << 20)], ["int64"]), "more than"),
        ((["a", "a"], [(1,), (1,)], ["float32"] * 2), "one name"),
        ((["a"], [(1,)], ["S64"]), "type 'S64'"),
        ((["a"], [(1,)], ["object"]), "type 'object'"),
        ((["a"], [(1,) * 33], ["float32"]), "dimensions"),
        (
            (["1.running_var"], [(8,)], ["float32"]),
            "'1.running_var' is a running.*with_group_norm",
        ),
    ],
)
def test_layouts_that_no_model_has_are_refused(layout, complaint):
    with pytest.raises(ValueError, match=complaint):
        Layout(*layout)


STATISTICS = [
    "layer1.0.bn1.running_var",
    "running_mean",
    "resnet/batch_normalization/moving_variance",
    "batch_normalization_3/moving_mean:0",
    "bn._variance",
    "_mean",
    "batch_stats/BatchNorm_0/var",
    "batch_stats.BatchNorm_0.mean",
]
PARAMETERS = ["moving.weight", "variance", "head_mean", "my_batch_stats.w", "running_var.weight"]


@pytest.mark.parametrize("name", STATISTICS)
def test_running_statistics_are_refused_by_the_names_that_frameworks_give_them(name):
    with pytest.raises(ValueError, match="is a running statistic"):
        Layout((name,), ((8,),), ("float32",))


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_that_only_look_like_them_are_not(name):
    assert Layout((name,), ((8,),), ("float32",)).has_names


def test_arrays_of_a_list_have_no_names():
    assert not Layout(("0", "1"), ((), ()), ("float32", "float32")).has_names


HANDOVER = Handover("ws://127.0.0.1:1", "", ClientId(3), bytes(32), LAYOUT)


def test_a_handover_is_read_as_it_was_written():
    assert Handover.of_record(HANDOVER.to_record()) == HANDOVER


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"url": 3}, "lacks a text"),
        ({"url": ""}, "no address"),
        ({"authority": "x" * (1 << 23)}, "longer one"),
        ({"client": -1}, "no id"),
        ({"client": 2**32}, "no id"),
        ({"client": "3"}, "no id"),
        ({"token": bytes(31)}, "token that"),
        ({"token": "x" * 32}, "token that"),
        ({"url": "ws://127.0.0.1:1/x"}, "no address"),
        ({"url": "ws://user@127.0.0.1:1"}, "no address"),
        ({"url": "http://127.0.0.1:1"}, "no address"),
        ({"layout": "["}, "no layout"),
        ({"layout": '[["w"], [[1e999]], ["float32"]]'}, "no layout"),
        ({"layout": '[["w"], ["12"], ["float32"]]'}, "no layout"),
        ({"layout": '[["w"], [[1.5]], ["float32"]]'}, "no layout"),
        ({"layout": '[[3], [[1]], ["float32"]]'}, "no layout"),
        ({"layout": "[[], []]"}, "no layout"),
        ({"layout": '[["a"], [["x"]], ["float32"]]'}, "no layout"),
        ({"layout": "[" * 5000}, "no layout"),
    ],
)
def test_other_records_are_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        Handover.of_record({**HANDOVER.to_record(), **change})


def test_a_record_that_lacks_something_is_refused():
    record = HANDOVER.to_record()
    del record["token"]
    with pytest.raises(ValueError, match="has no 'token'"):
        Handover.of_record(record)
