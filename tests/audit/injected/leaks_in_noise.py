# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Noise that is not there or is too little, and devices that take part too often."""

from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import count

import numpy as np
from leaks import USUAL, leak
from staged_runs import BatchedStage, NoisySearchStage, NoisyStage

from deltafl.protocol import update_noise
from deltafl.protocol.noise import Noise


def limited(*limits):
    """Options of an audit of devices with more limits than usual."""
    return {"limits": (*USUAL["limits"], *limits)}


class SilentNoiseStage(NoisyStage):
    """Devices say that they add noise, and add none."""

    added = 0.0  # of what they say

    @contextmanager
    def machinery(self):
        drawn = update_noise.discrete_gaussians
        update_noise.discrete_gaussians = lambda *asked: (self.added * drawn(*asked)).astype(int)
        try:
            yield
        finally:
            update_noise.discrete_gaussians = drawn


@leak("noise.too-little", stage=SilentNoiseStage, round=None)
def noise_that_nobody_adds(edit):
    assert edit.entries


class ScarceNoiseStage(SilentNoiseStage):
    """Devices add a fifth of it."""

    added = 0.2


@leak("noise.too-little", stage=ScarceNoiseStage, round=None)
def noise_of_which_a_fifth_is_added(edit):
    assert edit.entries


class SilentAndFewStage(SilentNoiseStage):
    """The same where an update is padded by one number: no sum shows it, and all of them do."""

    length = 63
    num_rounds = 12


@leak("noise.too-little", stage=SilentAndFewStage, round=None)
def noise_that_nobody_adds_to_the_only_number(edit):
    assert edit.entries


class SilentSearchStage(NoisySearchStage):
    """Devices say that they add noise to their answers to a search, and add none."""

    @contextmanager
    def machinery(self):
        drawn = Noise.share
        Noise.share = lambda _, size, *__: np.zeros(size, np.int64)
        try:
            yield
        finally:
            Noise.share = drawn


@leak("noise.too-little", stage=SilentSearchStage, round=None)
def noise_of_searches_that_nobody_adds(edit):
    assert edit.entries


class EightStage(NoisyStage):
    """As many rounds as of searches."""

    num_rounds = 8


class RepeatedNoiseStage(EightStage):
    """Every device adds the same noise in all rounds."""

    @contextmanager
    def machinery(self):
        drawn, kept, calls = update_noise.discrete_gaussians, {}, count()

        def again(*asked):
            return kept.setdefault(next(calls) % self.num_devices, drawn(*asked))

        update_noise.discrete_gaussians = again
        try:
            yield
        finally:
            update_noise.discrete_gaussians = drawn


@leak("noise.repeated", stage=RepeatedNoiseStage, twin=EightStage, round=None)
def the_same_noise_of_updates_in_all_rounds(edit):
    assert edit.entries


class ChangedShareStage(NoisySearchStage):
    """Devices make something else of the noise that they draw for a search."""

    @contextmanager
    def machinery(self):
        drawn, calls = Noise.share, count()
        Noise.share = lambda noise, *asked: self.made(drawn(noise, *asked), next(calls))
        try:
            yield
        finally:
            Noise.share = drawn

    def made(self, share, call):
        """All of it in one bin."""
        return np.concatenate([[share.sum()], np.zeros(len(share) - 1, np.int64)]).astype(np.int64)


class RepeatedShareStage(ChangedShareStage):
    """Every device adds the same noise in all rounds."""

    def __init__(self):
        self._kept = {}

    def made(self, share, call):
        return self._kept.setdefault(call % self.num_devices, share)


@leak("noise.too-little", stage=ChangedShareStage, round=None)
def all_noise_of_a_search_in_one_bin(edit):
    assert edit.entries


@leak("noise.repeated", stage=RepeatedShareStage, round=None)
def the_same_noise_of_searches_in_all_rounds(edit):
    assert edit.entries


class FadingStage(NoisyStage):
    """The server asks for less noise in the second round."""

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        noise = config.update.aggregation
        less = replace(noise, deviation=noise.deviation // (2 if number == 2 else 1))
        return replace(config, update=replace(config.update, aggregation=less))


@leak("parameters.changed", stage=FadingStage, round=2)
def less_noise_from_the_second_round_on(edit):
    assert edit.entries


class LoudStage(NoisyStage):
    multiplier = Fraction(3)


@leak(
    "round.below-policy",
    stage=NoisyStage,
    twin=LoudStage,
    options=limited("policy.min_update_noise=2"),
)
def less_noise_than_devices_insist_on(edit):
    assert edit.entries


class LongStage(NoisyStage):
    """Updates are scaled to a norm that is longer than devices accept."""

    norm = 2.0


@leak("round.below-policy", stage=LongStage, options=limited("policy.max_update_norm=1"))
def updates_that_are_longer_than_devices_accept(edit):
    assert edit.entries


class OftenStage(BatchedStage):
    """All devices are in all three rounds."""

    def cohorts(self, number):
        return [self.ids]


@leak(
    "participation.above-limit",
    stage=OftenStage,
    options=limited("policy.max_participations=2"),
    round=3,
)
def devices_that_answer_more_often_than_they_may(edit):
    assert edit.entries
