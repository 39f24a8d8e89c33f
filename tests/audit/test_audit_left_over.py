"""Samples of masked vectors, and sums of what is left of them over groups of devices."""

import numpy as np
import pytest

from deltafl.secagg import prg
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.left_over import LeftOver, Sample

BITS = 24


@pytest.mark.parametrize("length", [3, 1000, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_of_a_sample_are_those_of_the_vector(length, dtype):
    seeds = [bytes([k]) * 32 for k in range(3)]
    vector = np.arange(length, dtype=dtype)
    sample = Sample.of(vector)
    sample.add_masks(seeds[:2], seeds[2:])
    prg.add_masks(vector, seeds[:2], seeds[2:])
    whole = np.concatenate([vector[: len(sample.head)], vector[sample.start :]])
    assert (sample.words == whole).all()
    assert sample.words[-1] == vector[-1]
    assert len(sample.words) == min(length, len(sample.words))


def vectors(groups, seed=0):
    """Small values under masks that cancel in each group of devices."""
    generator = np.random.default_rng(seed)
    made = {}
    for group in groups:
        masks = generator.integers(0, 1 << BITS, (len(group), 200))
        masks[-1] -= masks.sum(axis=0)
        for device, mask in zip(group, masks, strict=True):
            words = mask + generator.integers(-500, 500, 200)
            made[device] = Sample.of((words % (1 << BITS)).astype(np.uint32))
    return made


def alarms(samples, slots=1):
    budget = FalseAlarmBudget()
    left = LeftOver(budget)
    for slot in range(slots):
        left.add(b"tag", BITS, samples, f"slot {slot}", Evidence(1, 7))
    left.end_round()
    left.finish()
    assert left.num_vectors == slots * len(samples)
    return [alarm.test for alarm in budget.alarms()]


def test_masks_that_cancel_over_all_are_no_alarm():
    assert alarms(vectors([range(9)])) == []


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_masks_that_cancel_over_a_few_are(size, slots):
    found = alarms(vectors([range(size), range(size, 9)]), slots)
    assert f"left over: sums of {size} vectors" in found


def test_two_vectors_under_one_mask_are_found():
    samples = vectors([range(9)])
    twin = Sample.of((samples[3].words + np.uint32(5)) % np.uint32(1 << BITS))
    assert "left over: differences of 2 vectors" in alarms(samples | {4: twin})
