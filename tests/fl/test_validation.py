"""Validation devices are held out of those that train; the test stays as it was."""

from fractions import Fraction

import numpy as np
import pytest

from deltafl.fl.data.federated import DeviceData, Split, SplitBy, federate
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.data.validation import hold_out, name_validation
from deltafl.fl.errors import DataError

FIFTH = Fraction(1, 5)


def made(count=20, samples=10, **split):
    rng = np.random.default_rng(0)
    devices = [
        DeviceData(
            f"d{k:02}", rng.normal(size=(samples, 2)).astype("f"), rng.integers(0, 2, samples)
        )
        for k in range(count)
    ]
    chosen = Split(**split)
    return federate("t", devices, chosen), chosen


def ids(devices):
    return [device.id for device in devices]


def test_a_share_of_the_training_devices_is_held_out():
    before, split = made()
    after = hold_out(before, FIFTH, split)
    assert (len(after.train), len(after.validation), len(after.test)) == (8, 2, 10)
    assert ids(after.test) == ids(before.test)
    assert sorted(ids(after.train) + ids(after.validation)) == ids(before.train)
    assert ids(after.train) == sorted(ids(after.train))
    assert hold_out(before, Fraction(0), split) is before


def test_who_is_held_out_follows_from_seed_and_names():
    before, split = made()
    again = hold_out(before, FIFTH, split)
    assert ids(again.validation) == ids(hold_out(before, FIFTH, split).validation)
    other = hold_out(before, FIFTH, Split(seed=1))
    assert ids(other.validation) != ids(again.validation)


def test_of_divided_samples_the_training_samples_are_divided():
    before, split = made(by=SplitBy.SAMPLES, train_fraction=Fraction(4, 5))
    after = hold_out(before, Fraction(1, 4), split)
    assert ids(after.train) == ids(after.validation) == ids(after.test)
    sizes = [[side[0].num_samples for side in (s.train, s.validation, s.test)] for s in [after]]
    assert sizes == [[6, 2, 2]]
    rows = np.concatenate([after.train[3].x, after.validation[3].x])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, before.train[3].x))


@pytest.mark.parametrize("by", SplitBy)
def test_made_devices_are_held_out_without_making_them(by):
    spec = DatasetSpec(
        "synthetic", split=Split(by=by), options={"num_devices": 12}, validation=FIFTH
    )
    found, without = (
        load_dataset(spec),
        load_dataset(DatasetSpec(**{**_fields(spec), "validation": Fraction(0)})),
    )
    everybody = {device.id: device for device in without.train}
    assert len(found.validation) == (1 if by is SplitBy.DEVICES else len(without.train))
    for device in found.validation:
        rows = set(map(tuple, everybody[device.id].x))
        assert set(map(tuple, device.x)) <= rows
    np.testing.assert_array_equal(found.test[0].x, without.test[0].x)


def _fields(spec):
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def test_scaling_takes_nothing_from_validation():
    before, split = made()
    from deltafl.fl.data.load import scaling_constants, standardise

    held = hold_out(before, FIFTH, split)
    scaled = standardise(held)
    constants = scaling_constants(held.train)
    mean, std = constants.mean, constants.std
    np.testing.assert_allclose(
        scaled.validation[0].x, ((held.validation[0].x - mean) / std).astype("f")
    )
    assert np.array_equal(scaled.scale.mean, mean)


def test_devices_may_be_named():
    before, _ = made()
    wanted = ids(before.train)[2:4]
    after = name_validation(before, wanted)
    assert ids(after.validation) == wanted
    with pytest.raises(DataError, match="all devices are for validation"):
        name_validation(before, ids(before.train))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (lambda: made(count=2), "1 training device, and validation needs one more"),
        (lambda: (hold_out(*_with_share(made())), Split()), "its files say which devices"),
    ],
)
def test_what_cannot_be_held_out_is_refused(dataset, said):
    before, split = dataset()
    with pytest.raises(DataError, match=said):
        hold_out(before, FIFTH, split)


def _with_share(pair):
    dataset, split = pair
    return dataset, FIFTH, split


def test_windows_of_a_text_are_not_divided_at_random():
    text = np.arange(60, dtype=np.int8) % 50
    windows = np.lib.stride_tricks.sliding_window_view(text, 5)
    device = DeviceData("a", windows, np.zeros(len(windows), np.int64))
    dataset = federate("t", [device, DeviceData("b", windows, device.y)], Split())
    alike = dataset.with_sides({"train": dataset.train, "test": dataset.train})
    with pytest.raises(DataError, match="windows of a text overlap"):
        hold_out(alike, FIFTH, Split(by=SplitBy.SAMPLES))
