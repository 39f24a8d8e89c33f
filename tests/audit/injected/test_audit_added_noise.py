"""The noise in a sum of updates, measured: enough where devices add theirs, and none where not."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from staged_runs import NoisySearchStage, NoisyStage, played

from deltafl.protocol.configuration import Exact
from deltafl.protocol.update_noise import rotate
from deltafl.sim.inspect.audit.checks.added_noise import AddedNoise, noise_in
from deltafl.sim.inspect.audit.findings import Evidence


def sums_of(stage):
    """The sums of a run's updates, each with its round."""
    run = played(stage)
    learnt = [entry for entry in run.entries if hasattr(entry, "total")]
    return [(run.stage.config(e.round, run.stage.num_devices), e.total.vector) for e in learnt]


def test_behind_the_update_there_is_the_noise_of_all_devices_and_nothing_else():
    measured = [noise_in(config, words) for config, words in sums_of(NoisyStage)]
    assert [one.size for one in measured] == [24] * NoisyStage.num_rounds
    config = NoisyStage().config(1, NoisyStage.num_devices)
    due = config.update.aggregation.deviation * NoisyStage.num_devices**0.5
    size = np.sqrt(np.mean(np.concatenate(measured) ** 2))
    assert size == pytest.approx(due, rel=0.35)


def test_a_sum_outside_its_layout_is_not_measured():
    config, words = sums_of(NoisyStage)[0]
    assert noise_in(config, words[:-1]).size == 0
    exact = dataclasses.replace(config.update, aggregation=Exact())
    assert noise_in(dataclasses.replace(config, update=exact), words).size == 0


class Told:
    """An audit's budget that keeps what it is told."""

    def __init__(self):
        self.values = {}

    def add(self, result, place):  # noqa: ARG002 - as of a budget
        self.values.setdefault(result.test, []).append(result.value)


def words_of(layout, numbers):
    """A sum as ring words."""
    return np.array(numbers, dtype=np.int64).astype(np.uint64) & np.uint64(
        (1 << layout.ring_bits) - 1
    )


def measured(config, sums, *, searches=False):
    """The tests of some sums, as an audit makes them."""
    budget = Told()
    check = AddedNoise(SimpleNamespace(budget=budget))
    measure = check._of_search if searches else check._of_update
    for number, words in enumerate(sums, start=1):
        measure(0, config(number), words, Evidence(round=number))
    check.on_end()
    return budget.values


def of_updates(noise_of, rounds=6):
    """Of sums of updates under the noise of a round."""
    stage = NoisyStage()

    def config(number):
        return stage.config(number, stage.num_devices)

    sums = []
    for number in range(1, rounds + 1):
        noisy = config(number).noisy_updates
        steps = rotate(np.full(stage.length, 20.0 * number), noisy.seed).round() + noise_of(number)
        sums.append(words_of(config(number).update_layout, [*steps, 1, 0, 0]))
    return measured(config, sums)


def drawn(number):
    """Noise of a round, of seven devices."""
    deviation = NoisyStage().config(1, 7).update.aggregation.deviation
    return np.random.default_rng(number).normal(0, deviation * 7**0.5, 64).round()


def test_new_noise_every_round_passes():
    found = of_updates(drawn)
    assert len(found["noise of one update"]) == 6
    assert min(min(values) for values in found.values()) > 1e-3


def test_the_same_noise_in_every_round_is_found():
    found = of_updates(lambda _: drawn(1))
    assert found["the same noise of updates"][0] < 1e-9
    assert found["noise of all updates"][0] > 1e-3


def test_no_noise_of_a_whole_number_is_too_small_to_be_one_by_chance():
    """The numbers lie 2/√D apart. One is 0 far more often than one that is continuous."""
    found = of_updates(lambda _: np.zeros(64))
    assert found["noise of all updates"][0] < 1e-9
    assert min(found["noise of one update"]) > 0


def of_searches(noise_of, rounds=6):
    """Of searches under the noise of a round, in steps."""
    config = NoisySearchStage().config(1, 7)
    steps, bins = 1 << config.quantile.noise.resolution_bits, config.quantile.num_bins
    sums = []
    for number in range(rounds):
        counts = np.bincount(np.arange(7) * (number + 2) % bins, minlength=bins)
        numbers = [7, *(counts * steps + noise_of(number, bins))]
        sums.append(words_of(config.search_layout, numbers))
    return measured(lambda _: config, sums, searches=True)


def in_bins(number, bins):
    return np.random.default_rng(number).normal(0, 19, bins).round()


def test_new_noise_in_every_bin_passes():
    found = of_searches(in_bins)
    assert set(found) == {"noise of searches", "noise of single bins", "the same noise of bins"}
    assert min(min(values) for values in found.values()) > 1e-3


def test_all_noise_in_one_bin_is_found():
    found = of_searches(lambda n, bins: in_bins(n, bins).sum() * (np.arange(bins) == 0))
    assert found["noise of single bins"][0] < 1e-9
    assert found["noise of searches"][0] > 1e-3


def test_the_same_noise_of_bins_is_found():
    found = of_searches(lambda _, bins: in_bins(1, bins))
    assert found["the same noise of bins"][0] < 1e-9
    assert found["noise of single bins"][0] > 1e-3
