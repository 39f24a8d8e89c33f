"""The noise in a sum of updates, measured: enough where devices add theirs, and none where not."""

import dataclasses

import numpy as np
import pytest
from staged_runs import NoisySearchStage, NoisyStage, played

from deltafl.protocol.update_noise import unrotate
from deltafl.sim.inspect.audit.checks.added_noise import noise_in, noise_of_search


def sums_of(stage):
    """The sums of a run's updates, each with its round."""
    run = played(stage)
    learnt = [entry for entry in run.entries if hasattr(entry, "total")]
    return [(run.stage.config(e.round, run.stage.num_devices), e.total.vector) for e in learnt]


def test_behind_the_update_there_is_the_noise_of_all_devices_and_nothing_else():
    measured = [noise_in(config, words) for config, words in sums_of(NoisyStage)]
    assert [one.size for one in measured] == [24] * NoisyStage.num_rounds
    config = NoisyStage().config(1, NoisyStage.num_devices)
    due = config.update.noise.deviation * NoisyStage.num_devices**0.5
    size = np.sqrt(np.mean(np.concatenate(measured) ** 2))
    assert size == pytest.approx(due, rel=0.35)


@pytest.mark.slow
def test_of_a_search_the_noise_of_all_bins_is_measured_together():
    found = [
        noise_of_search(config, words)
        for config, words in sums_of(NoisySearchStage)
        if len(words) == config.search_layout.length
    ]
    assert len(found) == NoisySearchStage.num_rounds
    # seven devices add noise, where it is due from five
    assert np.mean(found) == pytest.approx(7 / 5, rel=1)
    assert min(found) > 0
    config, words = sums_of(NoisyStage)[0]
    assert noise_of_search(config, words) is None


def test_a_sum_outside_its_layout_is_not_measured():
    config, words = sums_of(NoisyStage)[0]
    assert noise_in(config, words[:-1]) is None
    exact = dataclasses.replace(config.update, noise=None)
    assert noise_in(dataclasses.replace(config, update=exact), words) is None


def test_no_number_of_noise_is_too_small_to_be_one_by_chance():
    """The numbers lie 2/√D apart. One is 0 far more often than one that is continuous."""
    config, words = sums_of(NoisyStage)[0]
    length = config.noisy_updates.sizes.length
    sums = config.update_layout.decode(words.astype(np.uint64))
    exact = unrotate(sums["update"].astype(float), config.noisy_updates.seed, length)
    assert noise_in(config, words) == pytest.approx(
        np.abs(exact[NoisyStage.length :]) + length**-0.5
    )
