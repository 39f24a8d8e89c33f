# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Servers that change the settings under way, or draw public seeds from nowhere."""

from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

from leaks import as_transcript, leak
from leaks_in_files import in_a_directory
from staged_runs import SESSIONS, DrawnStage, Kind, Stage, SteepStage

from deltafl.protocol.losses import LossGrid
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import ThreatModel


class LowerThetaStage(Stage):
    """The second round keeps a smaller tail."""

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        return config if number == 1 else replace(config, theta=Fraction(1, 2))


class FinerGridStage(Stage):
    """The second round measures losses more finely."""

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, None)
        finer = replace(config.search, grid=LossGrid(resolution_bits=12, bound=8))
        return config if number == 1 else replace(config, search=finer)


class OtherWeightsStage(Stage):
    """The second round searches by the devices' numbers, and not by their weight."""

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        equal = replace(config.search, weighting=Weighting.EQUAL)
        return config if number == 1 else replace(config, search=equal)


class WiderClipStage(Stage):
    """The second round allows larger updates."""

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        wider = replace(config.update, clip=4.0)
        return config if number == 1 else replace(config, update=wider)


class LowerThresholdStage(Stage):
    """In the second round fewer devices rebuild a secret."""

    def params(self, number, take, config, model):
        sessions = SESSIONS
        if number == 2:
            many = replace(SESSIONS.policy, dropout_rate=0.4)
            sessions = replace(
                SESSIONS, threat=ThreatModel(colluding_rate=0.1, dropout_rate=0.6), policy=many
            )
        return sessions.params(config, model, self.graph_seed(number, take))


class FirstRoundTwiceStage(Stage):
    """The second round is announced as the first."""

    def config(self, number, cohort_size, warm_start=None):
        return replace(super().config(number, cohort_size, warm_start), round_index=0)


class ColdStage(Stage):
    """The third round's search forgets where the second's began."""

    num_rounds = 3

    def config(self, number, cohort_size, warm_start=None):
        return super().config(number, cohort_size, None if number == 3 else warm_start)


class WarmStage(Stage):
    """Three rounds."""

    num_rounds = 3


class SameSeedStage(Stage):
    """Every graph has one seed."""

    def graph_seed(self, number, take):
        return sha256(b"one for all").digest()


class PlainSeedStage(Stage):
    """Seeds are the numbers of their rounds."""

    num_rounds = 1

    def graph_seed(self, number, take):
        return number.to_bytes(32, "big")


class CountedSeedStage(Stage):
    """Seeds are counted up from a random one."""

    def graph_seed(self, number, take):
        first = int.from_bytes(sha256(b"one for all").digest())
        return (first + number).to_bytes(32)


@leak("parameters.changed", stage=LowerThetaStage, round=2)
def a_smaller_tail_from_the_second_round_on(edit):
    assert edit.entries


@leak("parameters.changed", stage=FinerGridStage, round=2)
def a_finer_grid_from_the_second_round_on(edit):
    assert edit.entries


@leak("parameters.changed", stage=OtherWeightsStage, round=2)
def other_weights_from_the_second_round_on(edit):
    assert edit.entries


@leak("parameters.changed", stage=WiderClipStage, round=2)
def a_wider_clip_from_the_second_round_on(edit):
    assert edit.entries


@leak("parameters.changed", stage=LowerThresholdStage, round=2)
def a_lower_threshold_from_the_second_round_on(edit):
    assert edit.entries


@leak("parameters.changed", stage=ColdStage, twin=WarmStage, round=3)
def a_search_that_starts_afresh_although_the_one_before_did_not(edit):
    assert edit.entries


@leak("parameters.unfitting", stage=FirstRoundTwiceStage, round=2)
def a_round_that_is_announced_under_the_number_of_another(edit):
    assert edit.entries


@leak("session.seed-repeated", stage=SameSeedStage, round=2)
def one_seed_for_all_graphs(edit):
    assert edit.entries


@leak("session.seed-repeated", stage=PlainSeedStage, round=1)
def a_seed_that_is_the_number_of_its_round(edit):
    assert edit.entries


@leak("session.seed-repeated", stage=CountedSeedStage, round=2)
def seeds_that_are_counted_up(edit):
    assert edit.entries


class FiveStage(SteepStage):
    """A search by `mm` over five devices that count alike and have similar losses: it says all."""

    num_devices = 5
    num_rounds = 1
    max_queries = 14
    theta = Fraction(2, 5)

    def base(self, device):
        return 2 + super().base(device) / 20

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        finer = LossGrid(resolution_bits=16, bound=8)
        return replace(config, search=replace(config.search, weighting=Weighting.EQUAL, grid=finer))


class WeightyFiveStage(FiveStage):
    """The same, by weights."""

    def config(self, number, cohort_size, warm_start=None):
        return SteepStage.config(self, number, cohort_size, warm_start)


@leak("search.losses-found", stage=FiveStage)
def losses_of_five_devices_of_equal_weight(edit):
    assert edit.entries


@leak("search.losses-found", stage=WeightyFiveStage, with_truth=True)
def losses_of_five_devices_whose_weights_are_known(edit):
    assert edit.entries


class FinestGridStage(Stage):
    """A grid on which every loss is a number of its own."""

    is_lenient = True

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, None)
        return replace(config, search=replace(config.search, grid=LossGrid(20, 8)))


@leak("round.below-policy", stage=FinestGridStage)
def a_grid_on_which_every_loss_is_alone(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]


class NarrowClipStage(Stage):
    """Updates are clipped to less than what light devices can say."""

    is_lenient = True

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        return replace(config, update=replace(config.update, clip=0.001))


@leak("round.below-policy", stage=NarrowClipStage)
def updates_of_heavy_devices_alone(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]


@leak("policy.looser", stage=DrawnStage, laid=in_a_directory, twin_laid=as_transcript)
def a_search_over_five_devices_that_the_settings_allow(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]
