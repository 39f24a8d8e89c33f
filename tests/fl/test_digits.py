"""The embedded digits by the forms on which people wrote them."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets

from deltafl.fl.data.digits import load_digits, load_digits_by_writer
from deltafl.fl.data.federated import Split, SplitBy
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.errors import DataError

IN_EVERY_FORM = "9556509898417735"
FIRST = "0123456789" * 3 + "0"
"""Labels before these."""


def devices_of(data):
    return sorted((*data.train, *data.test), key=lambda device: device.id)


def test_every_digit_is_once_with_somebody():
    data = load_digits_by_writer(Split())
    known = sklearn.datasets.load_digits()
    devices = devices_of(data)
    assert np.array_equal(np.concatenate([one.x for one in devices]) * 16, known.images)
    assert np.array_equal(np.concatenate([one.y for one in devices]), known.target)
    assert len({one.id for one in devices}) == len(devices) == 56
    assert {one.num_samples for one in devices} <= set(range(30, 34))
    assert data.num_classes == 10


def test_forms_begin_where_the_labels_say_so():
    devices = devices_of(load_digits_by_writer(Split()))
    labels = "".join(str(label) for one in devices for label in one.y)
    begin = 0
    for form in range(14):
        own = [one for one in devices if one.id.startswith(f"form-{form:02}-")]
        end = begin + sum(one.num_samples for one in own)
        assert labels.count(IN_EVERY_FORM, begin, end) == 1
        at = labels.index(IN_EVERY_FORM, begin)
        assert is_within(labels[begin:at], FIRST)
        assert begin == 0 or not is_within(labels[begin - 1 : at], FIRST)
        begin = end
    assert begin == len(labels)


def is_within(labels, form):
    """Whether these are labels of the form, in its order; the source left some digits out."""
    rest = iter(form)
    return all(label in rest for label in labels)


@pytest.mark.parametrize("seed", range(6))
def test_a_form_trains_or_tests(seed):
    data = load_digits_by_writer(Split(seed=seed))

    def forms(devices):
        return {one.id[: len("form-00")] for one in devices}

    assert not forms(data.train) & forms(data.test)
    assert len(forms(data.train)) == len(forms(data.test)) == 7
    assert len(data.train) == len(data.test) == 28


def test_seeds_choose_who_trains():
    sides = {tuple(one.id for one in load_digits_by_writer(Split(seed=s)).train) for s in range(6)}
    assert len(sides) == 6


def test_samples_of_all_forms_may_be_divided():
    data = load_digits_by_writer(Split(by=SplitBy.SAMPLES, train_fraction=Fraction(1, 2)))
    assert [one.id for one in data.train] == [one.id for one in data.test]
    assert len(data.train) == 56


def test_they_are_a_source():
    assert load_dataset(DatasetSpec("digits-by-writer")).name == "digits-by-writer"


def test_they_are_the_quickstarts_images():
    assert load_digits_by_writer(Split()).input_shape == load_digits(Split()).input_shape


def test_other_images_are_refused(monkeypatch):
    fewer = SimpleNamespace(images=np.zeros((1796, 8, 8)), target=np.zeros(1796))
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: fewer)
    with pytest.raises(DataError, match="has 1796 digits in place of 1797"):
        load_digits_by_writer(Split())
