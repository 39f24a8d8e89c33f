"""What attackers train on, and the samples by which a backdoor is measured."""

import numpy as np
import pytest

from deltafl.fl.data.federated import DeviceData
from deltafl.sim.cohort.attackers import (
    Poisoned,
    flip_labels,
    poison_of,
    stamped,
    triggered,
)
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.settings.attackers import AttackersConfig

CLASSES = 5


def device(name="d", labels=(0, 1, 2, 3, 4, 1), dtype=np.float32):
    x = np.arange(len(labels) * 16).reshape(len(labels), 4, 4)
    return DeviceData(name, x.astype(dtype), np.array(labels, dtype=np.int64))


def lying(kind, **settings):
    return AttackersConfig(kind=kind, **settings)


def test_all_labels_are_mirrored():
    flipped = flip_labels(device(), lying("flipped-labels"), CLASSES)
    assert flipped.y.tolist() == [4, 3, 2, 1, 0, 3]
    assert flipped.x is device().x or (flipped.x == device().x).all()


def test_or_those_of_one_class_are_changed_to_another():
    settings = lying("flipped-labels", from_class=1, to_class=3)
    flipped = flip_labels(device(), settings, CLASSES)
    assert flipped.y.tolist() == [0, 3, 2, 3, 4, 3]
    assert flipped.y.dtype == np.int64


@pytest.mark.parametrize(("dtype", "value"), [(np.float32, 0.5), (np.uint8, round(255 / 2))])
def test_the_trigger_is_the_lower_right_corner_of_an_image(dtype, value):
    x = device(dtype=dtype).x
    changed = stamped(x, lying("backdoor", trigger_size=2, trigger_value=0.5))
    assert (changed[:, 2:, 2:] == value).all()
    elsewhere = np.ones((4, 4), dtype=bool)
    elsewhere[2:, 2:] = False
    assert (changed[:, elsewhere] == x[:, elsewhere]).all()
    assert (device(dtype=dtype).x == x).all(), "the device's own samples stay as they are"


def test_it_is_the_first_features_of_a_table():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    changed = stamped(x, lying("backdoor", trigger_size=2, trigger_value=-1.0))
    assert changed.tolist() == [[-1, -1, 2, 3], [-1, -1, 6, 7], [-1, -1, 10, 11]]


def test_a_share_of_an_attackers_samples_get_trigger_and_label():
    settings = lying("backdoor", to_class=2, trigger_size=1, trigger_value=99.0)
    poison = poison_of(settings, Seeds(3), CLASSES)
    many = device(labels=[0, 1, 3, 4] * 10)
    poisoned = poison(8, many)
    rows = poisoned.x[:, 3, 3] == 99
    assert rows.sum() == 20
    assert (poisoned.y[rows] == 2).all()
    assert (poisoned.y[~rows] == many.y[~rows]).all()
    assert (poison(8, many).x == poisoned.x).all(), "the same ones every time"
    assert (poison(9, many).x != poisoned.x).any(), "another attacker has others"


@pytest.mark.parametrize("kind", ["honest", "scaled", "free-rider-zero", "little-is-enough"])
def test_other_attackers_train_on_their_own_samples(kind):
    assert poison_of(lying(kind), Seeds(1), CLASSES) is None


def test_only_attackers_have_poisoned_samples():
    true = [device(str(number)) for number in range(4)]
    poison = poison_of(lying("flipped-labels"), Seeds(1), CLASSES)
    devices = Poisoned(true, {2}, poison)
    assert [one is other for one, other in zip(devices, true, strict=True)] == [
        True,
        True,
        False,
        True,
    ]
    assert devices[-2].y.tolist() == [4, 3, 2, 1, 0, 3]
    assert [one.id for one in devices[1:3]] == ["1", "2"]
    with pytest.raises(IndexError):
        devices[4]


def test_success_is_measured_on_honest_samples_of_other_classes():
    settings = lying("backdoor", to_class=1, trigger_size=1, trigger_value=7.0)
    devices = [device("a"), device("b", labels=(1, 1)), device("c"), device("d", labels=(0, 1))]
    found = list(triggered(devices, {0, 1, 3}, settings))
    assert [one.id for one in found] == ["a", "d"], "b has only samples of the class, c lies"
    assert found[0].num_samples == 4
    assert (found[0].y == 1).all()
    assert (found[0].x[:, 3, 3] == 7).all()
    assert found[1].x[0, 0].tolist() == device().x[0, 0].tolist()
