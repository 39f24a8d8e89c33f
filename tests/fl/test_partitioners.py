import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.data.federated import DeviceData, Split, SplitBy, federate
from deltafl.fl.data.lazy import LazyDevices, federate_lazily
from deltafl.fl.data.load import (
    DatasetSpec,
    Partitioner,
    Standardise,
    assign_again,
    assign_by_label,
    load_dataset,
    pooled_labels,
    standardise,
)
from deltafl.fl.errors import DataError


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.slow
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    share=st.floats(0, 1),
    concentration=st.sampled_from([1e-3, 0.1, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_every_sample_is_assigned_once_and_nobody_goes_without(labels, share, concentration, seed):
    y = np.array(labels)
    num_devices = max(1, round(share * len(y)))
    assigned = assign_by_label(y, num_devices, concentration, generator(seed))
    assert len(assigned) == num_devices
    assert min(map(len, assigned)) >= 1
    assert sorted(np.concatenate(assigned)) == list(range(len(y)))
    again = assign_by_label(y, num_devices, concentration, generator(seed))
    assert all(np.array_equal(a, b) for a, b in zip(assigned, again, strict=True))


def test_partitioner_follows_the_seed():
    y = np.arange(100) % 5
    one, other = (np.concatenate(assign_by_label(y, 10, 1.0, generator(seed))) for seed in (1, 2))
    assert not np.array_equal(one, other)


def own_share(y, assigned):
    """The share of a device's most frequent label, in the mean over devices."""
    return np.mean([np.bincount(y[rows]).max() / len(rows) for rows in assigned])


def test_a_small_concentration_gives_devices_labels_of_their_own_and_equal_sizes():
    y = np.repeat(np.arange(10), 100)
    apart = assign_by_label(y, 20, 0.01, generator())
    alike = assign_by_label(y, 20, 1e4, generator())
    assert own_share(y, apart) > 0.8
    assert own_share(y, alike) < 0.3
    assert {len(rows) for rows in apart} == {50}


def test_a_large_concentration_gives_everybody_the_proportions_of_all():
    y = np.repeat([0, 1], [900, 100])
    assigned = assign_by_label(y, 10, 1e6, generator())
    assert all(abs(y[rows].mean() - 0.1) < 0.12 for rows in assigned)
    # the negative control: with little concentration they are far from it
    apart = assign_by_label(y, 10, 0.1, generator())
    assert any(abs(y[rows].mean() - 0.1) > 0.12 for rows in apart)


def test_classes_that_nobody_has_are_no_obstacle():
    y = np.array([0, 7, 7, 0, 7])
    assert sum(map(len, assign_by_label(y, 5, 1.0, generator()))) == 5


@pytest.mark.parametrize(
    ("num_devices", "concentration", "message"),
    [(0, 1, "num_devices=0"), (4, 1, "num_devices=4"), (2, 0, "conc"), (2, np.inf, "conc")],
)
def test_dealings_that_are_impossible_are_refused(num_devices, concentration, message):
    with pytest.raises(ValueError, match=message):
        assign_by_label(np.array([0, 1, 1]), num_devices, concentration, generator())


def natural():
    rng = generator()
    return federate(
        "natural",
        [
            DeviceData(f"u{k}", rng.random((20, 3), np.float32), np.full(20, k % 3))
            for k in range(6)
        ],
        Split(),
    )


def test_assigned_samples_keep_their_labels():
    data = natural()
    rows = assign_by_label(pooled_labels(data), 12, 1.0, generator())
    devices = assign_again(data, rows)
    assert [device.id for device in devices[:2]] == ["device-00", "device-01"]
    pairs = {
        (x.tobytes(), int(y))
        for d in (*data.train, *data.test)
        for x, y in zip(d.x, d.y, strict=True)
    }
    assert {(x.tobytes(), int(y)) for d in devices for x, y in zip(d.x, d.y, strict=True)} == pairs


def npz(folder):
    data = natural()
    everybody = [*data.train, *data.test]
    path = folder / "natural.npz"
    np.savez(
        path,
        x=np.concatenate([d.x for d in everybody]),
        y=np.concatenate([d.y for d in everybody]),
        user=np.repeat(np.arange(6), 20),
    )
    return str(path)


def test_a_data_set_is_assigned_anew_and_then_the_rule_holds(tmp_path):
    source = npz(tmp_path)
    spec = DatasetSpec(
        source,
        Split(more_than=10),
        options={"num_devices": 11},
        partitioner=Partitioner.DIRICHLET,
        concentration=0.5,
    )
    data = load_dataset(spec)
    assert data.name == "natural (dirichlet, α = 0.5)"
    assert data.num_classes == 3
    assert (len(data.train), len(data.test), data.dropped) == (5, 5, 1)  # ten of 11, one of 10
    by_samples = DatasetSpec(
        source,
        Split(by=SplitBy.SAMPLES),
        options={"num_devices": 11},
        partitioner=Partitioner.DIRICHLET,
        concentration=1e3,
    )
    assert len(load_dataset(by_samples).train) == 11


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {}}, "needs the number of devices"),
        ({"options": {"num_devices": 121}}, r"num_devices=121 is not in \[1, 120\]"),
        ({"source": "digits"}, "makes its own devices"),
        ({"options": {"num_devices": 5, "heterogeneity": 0.1}}, "does not use heterogeneity"),
        ({"format": "tables"}, "format='tables' is unknown: choose one of digits, digits-by-"),
    ],
)
def test_a_partitioner_that_does_not_fit_is_refused(tmp_path, changes, message):
    arguments = {
        "source": npz(tmp_path),
        "options": {"num_devices": 5},
        "partitioner": Partitioner.DIRICHLET,
    }
    with pytest.raises(ValueError, match=message):
        load_dataset(DatasetSpec(**(arguments | changes)))


def test_an_option_without_use_is_refused_without_a_partitioner_too(tmp_path):
    with pytest.raises(ValueError, match="'npz' does not use num_devices"):
        load_dataset(DatasetSpec(npz(tmp_path), options={"num_devices": 5}))


def shifted(centres, seed=0):
    rng = generator(seed)
    return [
        DeviceData(f"u{k}", rng.normal(c, 2, (50, 1)).astype(np.float32), np.zeros(50, int))
        for k, c in enumerate(centres)
    ]


def test_the_published_scaling_divides_by_the_mean_of_each_side():
    devices = shifted([-4, -6, 10])
    data = federate("t", devices, Split(), test_ids={"u2"})
    scaled = standardise(data, Standardise.LEGACY)
    mean = np.concatenate([devices[0].x, devices[1].x]).mean()
    np.testing.assert_allclose(scaled.train[0].x, (devices[0].x - mean) / mean, rtol=1e-4)
    assert np.argmin(scaled.train[0].x) == np.argmax(devices[0].x)  # a negative mean turns the sign
    own = devices[2].x.mean()
    np.testing.assert_allclose(scaled.test[0].x, (devices[2].x - own) / own, rtol=1e-3, atol=1e-6)
    right = standardise(data)
    assert abs(right.test[0].x.mean()) > 1  # where the train devices' constants are used


def test_a_mean_of_zero_does_not_divide_by_zero():
    devices = [DeviceData(n, np.zeros((2, 1), np.float32), np.array([0, 1])) for n in "ab"]
    scaled = standardise(federate("t", devices, Split()), Standardise.LEGACY)
    assert np.isfinite(scaled.train[0].x).all()


def test_each_device_can_be_scaled_by_its_own_train_samples():
    data = federate("t", shifted([0, 100]), Split(by=SplitBy.SAMPLES))
    scaled = standardise(data, Standardise.DEVICE)
    for before, after, test in zip(data.train, scaled.train, scaled.test, strict=True):
        np.testing.assert_allclose(
            after.x, (before.x - before.x.mean()) / before.x.std(), atol=1e-4
        )
        assert 1e-3 < abs(test.x.mean()) < 2  # near zero, not at it: other samples, same constants
    assert np.abs(standardise(data).train[0].x).mean() < 1 < np.abs(data.train[1].x).mean()


def test_no_scaling_is_no_change():
    data = natural()
    assert standardise(data, Standardise.NONE) is data


def counted(num_devices, made, size=4):
    def make(number):
        made.append(number)
        x = np.full((size, 2), number, np.float32)
        return DeviceData(f"{number:03}", x, np.arange(size) % 2)

    ids = [f"{number:03}" for number in range(num_devices)]
    return LazyDevices(ids, np.full(num_devices, size), make, "counted")


def test_a_lazy_device_is_made_when_it_is_asked_for_and_once():
    made = []
    data = federate_lazily("lazy", counted(1000, made), Split(), num_classes=2)
    assert made == [0]  # for the shape
    assert (len(data.train), len(data.test), data.input_shape) == (500, 500, (2,))
    assert data.train[7].x[0, 0] == 7
    assert data.test[-1].id == "999"
    assert data.train[7] is data.train[7]
    assert [device.id for device in data.test[1:3]] == ["501", "502"]
    assert made == [0, 7, 999, 501, 502]
    with pytest.raises(IndexError):
        data.train[500]


def test_lazy_devices_equal_the_same_devices_made_at_once():
    made = []
    split = Split(by=SplitBy.SAMPLES, seed=3)
    lazy = federate_lazily("t", counted(5, made, size=7), split, num_classes=2)
    eager = federate("t", list(counted(5, made, size=7)), split)
    for one, other in ((lazy.train, eager.train), (lazy.test, eager.test)):
        assert one.sizes.tolist() == [device.num_samples for device in other]
        for a, b in zip(one, other, strict=True):
            assert a.id == b.id
            np.testing.assert_array_equal(a.x, b.x)
            np.testing.assert_array_equal(a.y, b.y)


def test_lazy_devices_are_scaled_when_they_are_made():
    made = []
    data = federate_lazily("lazy", counted(6, made), Split(), num_classes=2)
    scaled = standardise(data)
    assert isinstance(scaled.train, LazyDevices)
    assert scaled.train.identity != data.train.identity
    np.testing.assert_allclose(np.mean([d.x.mean() for d in scaled.train]), 0, atol=1e-6)
    assert scaled.test[0].x.mean() > 1


def test_lazy_devices_are_scaled_one_by_one_by_their_own_constants():
    made = []
    split = Split(by=SplitBy.SAMPLES, seed=3)
    data = federate_lazily("t", counted(6, made, size=7), split, num_classes=2)
    scaled = standardise(data, Standardise.DEVICE)
    assert set(made) == {0}  # for its type; 100,000 devices must not be made at once
    assert scaled.train.identity != data.train.identity
    eager = standardise(federate("t", list(counted(6, made, size=7)), split), Standardise.DEVICE)
    for one, other in ((scaled.train, eager.train), (scaled.test, eager.test)):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.x, b.x)


def test_a_device_that_only_tests_is_scaled_by_itself():
    data = federate("t", shifted([0, 100]), Split(), test_ids={"u1"})
    scaled = standardise(data, Standardise.DEVICE)
    for side in (scaled.train, scaled.test):
        np.testing.assert_allclose([side[0].x.mean(), side[0].x.std()], [0, 1], atol=1e-4)
    assert data.test[0].x.mean() > 50


def test_lazy_devices_that_are_too_few_are_refused():
    with pytest.raises(DataError, match=r"0 of 5 devices .*largest device: 4 samples"):
        federate_lazily("lazy", counted(5, []), Split(more_than=4), num_classes=2)
    with pytest.raises(ValueError, match="2 ids and 1 sizes"):
        LazyDevices(["a", "b"], np.array([1]), lambda _: None, "")
