import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from deltafl.fl.data.federated import Split, SplitBy
from deltafl.fl.data.synthetic import (
    load_synthetic,
    load_synthetic_emnist,
    load_synthetic_sent140,
    spread,
)

LOADERS = {
    "emnist": load_synthetic_emnist,
    "sent140": load_synthetic_sent140,
    "tokens": lambda split, **rest: load_synthetic_sent140(split, features="tokens", **rest),
    "synthetic": load_synthetic,
}


@pytest.mark.parametrize(
    ("load", "counts", "sizes"),
    [
        (load_synthetic_emnist, (865, 865, 62, (28, 28)), (179, 101, 447)),
        (load_synthetic_sent140, (438, 439, 2, (50,)), (69, 51, 549)),
    ],
)
def test_stand_ins_have_the_counts_of_table_1_and_say_what_they_are(load, counts, sizes):
    for seed in (0, 5):
        data = load(Split(seed=seed))
        found = (len(data.train), len(data.test), data.num_classes, data.input_shape)
        assert found == counts
        for side in (data.train, data.test):
            assert (np.median(side.sizes), side.sizes.min(), side.sizes.max()) == sizes
        assert "stand-in" in data.name


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 500), st.integers(3, 200))
def test_sizes_have_exactly_the_statistics_asked_for(smallest, more, most, num_devices):
    sizes = smallest, smallest + more, smallest + more + most
    found = spread(sizes, num_devices)
    assert (found[0], np.median(found), found[-1]) == sizes
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_data_follow_the_seed_and_every_device_has_its_size_and_id(load):
    first, again, other = (load(Split(seed=seed), num_devices=8) for seed in (1, 1, 2))
    ids = [device.id for device in first.train] + [device.id for device in first.test]
    assert ids == sorted(ids)
    assert ids == [*first.train.ids, *first.test.ids]
    for side in (first.train, first.test):
        for device, size in zip(side, side.sizes, strict=True):
            assert len(device.x) == len(device.y) == size
            assert 0 <= device.y.min() <= device.y.max() < first.num_classes
    np.testing.assert_array_equal(first.train[2].x, again.train[2].x)
    assert first.train.identity == again.train.identity != other.train.identity
    assert not np.array_equal(first.train[2].x[:20], other.train[2].x[:20])
    assert not np.array_equal(first.train[2].x[:20], first.train[3].x[:20])


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_hundred_thousand_devices_cost_one(load):
    data = load(Split(), num_devices=100_000)
    assert len(data.train) + len(data.test) == 100_000
    assert len(data.train._kept) == 0
    assert data.test[-1].num_samples == data.test.sizes[-1]


def test_tokens_and_means_are_two_views_of_the_same_texts():
    means, tokens = (
        load_synthetic_sent140(Split(), num_devices=10, features=view)
        for view in ("mean", "tokens")
    )
    assert tokens.embedding.shape == (2001, 50)
    assert not tokens.embedding[-1].any()
    assert means.embedding is None
    text = tokens.train[1]
    assert text.is_tokens
    lengths = (text.x < 2000).sum(axis=1)
    assert lengths.min() >= 5
    padded = np.arange(20) >= lengths[:, None]
    assert (text.x[padded] == 2000).all()
    expected = tokens.embedding[text.x].sum(axis=1) / lengths[:, None]
    np.testing.assert_allclose(means.train[1].x, expected, rtol=1e-5)
    np.testing.assert_array_equal(means.train[1].y, text.y)


def errors(data):
    """Mean error on the minority and on the others, of one model that fits everybody."""
    pooled = [*data.train[:24]]
    model = LogisticRegression(max_iter=200).fit(
        np.concatenate([device.x for device in pooled]), np.concatenate([d.y for d in pooled])
    )
    found = {"minority": [], "majority": []}
    for device in data.test[:40]:
        found[device.id[7:]].append(1 - model.score(device.x, device.y))
    return np.mean(found["minority"]), np.mean(found["majority"])


@pytest.mark.slow
def test_the_minority_is_neglected_as_far_as_devices_differ():
    alike = errors(load_synthetic_sent140(Split(), heterogeneity=0.0))
    apart = errors(load_synthetic_sent140(Split(), heterogeneity=1.0))
    assert abs(alike[0] - alike[1]) < 0.06
    assert apart[0] > apart[1] + 0.1


def class_means(devices):
    """The mean image of every class, [62, 28, 28]."""
    x = np.concatenate([device.inputs() for device in devices])
    y = np.concatenate([device.y for device in devices])
    return np.stack([x[y == label].mean(axis=0) for label in range(62)])


def likeness(one, other):
    return np.mean(
        [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(one, other, strict=True)]
    )


@pytest.mark.parametrize(("heterogeneity", "mirrored"), [(0.0, False), (1.0, True)])
def test_the_minority_mirrors_its_figures_as_far_as_devices_differ(heterogeneity, mirrored):
    data = load_synthetic_emnist(Split(), num_devices=60, heterogeneity=heterogeneity)
    minority = class_means([data.train[k] for k in range(4, 30, 5)])
    majority = class_means([data.train[k] for k in range(0, 30, 5)])
    as_it_is = likeness(majority, minority)
    turned = likeness(majority.transpose(0, 2, 1), minority)
    assert (turned > as_it_is + 0.2) == mirrored
    assert (as_it_is > turned + 0.2) == (not mirrored)


def test_labels_differ_with_heterogeneity():
    def skew(heterogeneity):
        data = load_synthetic_emnist(Split(), num_devices=12, heterogeneity=heterogeneity)
        return np.mean([np.bincount(d.y).max() / d.num_samples for d in data.train])

    assert skew(1.0) > 2 * skew(0.0)


def test_synthetic_devices_differ_in_their_inputs_with_beta():
    def spread(beta):
        data = load_synthetic(Split(), num_devices=40, beta=beta)
        return np.std([device.x.mean() for device in data.train])

    assert spread(10.0) > 3 * spread(0.0)


def test_alpha_of_the_published_definition_changes_no_label():
    # the mean of a device's weights adds the same to every class
    one, other = (load_synthetic(Split(), num_devices=6, alpha=alpha) for alpha in (0.0, 5.0))
    for a, b in zip(one.train, other.train, strict=True):
        np.testing.assert_array_equal(a.y, b.y)


def test_synthetic_devices_have_more_than_fifty_samples():
    data = load_synthetic(Split(), num_devices=500)
    assert min(data.train.sizes.min(), data.test.sizes.min()) >= 50
    assert data.train.sizes.max() > 1000


def test_they_can_be_split_by_samples():
    data = load_synthetic(Split(by=SplitBy.SAMPLES), num_devices=6)
    assert data.train.ids == data.test.ids
    assert data.train[0].num_samples == data.train.sizes[0]


@pytest.mark.parametrize(
    ("load", "arguments", "message"),
    [
        (load_synthetic_emnist, {"num_devices": 5}, r"num_devices=5 is not in \[6, 100,000\]"),
        (load_synthetic_emnist, {"heterogeneity": 1.5}, "heterogeneity=1.5"),
        (load_synthetic_sent140, {"num_devices": 100_001}, "num_devices=100001"),
        (load_synthetic_sent140, {"features": "words"}, "features='words'"),
        (load_synthetic, {"alpha": -1.0}, "alpha=-1.0"),
        (load_synthetic, {"beta": float("inf")}, "beta=inf"),
    ],
)
def test_arguments_out_of_range_are_refused(load, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(Split(), **arguments)
