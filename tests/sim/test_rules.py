"""Which settings exclude each other: one table, which files, runs and baselines are held to."""

from dataclasses import replace

import pytest

from deltafl.sim.errors import ConfigError
from deltafl.sim.run.arms import check_arms
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import assignment, build_config
from deltafl.sim.settings.rules import RULES, read_comparison

HIDING = ("quantile.method=noisy", "quantile.noise=4", "quantile.weights=equal")
NOISY = (*HIDING, "privacy.max_weight=1", "privacy.colluding=0", "dp.noise=1")
LEVELS = 'federation.levels=["0.8", "0.5"]'
NUMBERS = ("data.unit=m", "training.loss=mse", "training.metric=mae")
REMOTE = "federation.devices=remote"
VERIFIED = "quantile.search=verified"
BROKEN = {
    "federation.algorithm not in experiment.baselines": [
        'experiment.baselines=["private-delta-fl"]'
    ],
    "data.num_classes ≠ 1": ["data.num_classes=1"],
    "data.num_classes = 0": ['data.classes=["no", "yes"]', "data.num_classes=2"],
    'data.standardise = "none"': ["data.means=[1]", "data.standardise=train"],
    "data.classes = []": [*NUMBERS, 'data.classes=["no", "yes"]'],
    'training.loss ≠ "cross-entropy"': ["data.unit=m"],
    'training.metric ≠ "error"': ["data.unit=m", "training.loss=mse"],
    "training.epochs = 1": ["training.local_steps=3", "training.epochs=2"],
    "training.decay < 1": ["training.decay_shape=cosine"],
    "training.momentum = 0": ["training.optimizer=adam", "training.momentum=0.9"],
    "attackers.share = 0": [LEVELS, "attackers.share=0.1"],
    'strategy.server_optimizer = "sgd"': [LEVELS, "strategy.server_optimizer=adam"],
    "strategy.server_learning_rate = 1": [LEVELS, "strategy.server_learning_rate=2"],
    "federation.cohort_size ≥ privacy.min_cohort": ["federation.cohort_size=9"],
    'strategy.aggregation ≠ "rfa"': ["strategy.aggregation=rfa"],
    "experiment.baselines = []": [REMOTE, 'experiment.baselines=["fedavg"]'],
    "experiment.num_seeds = 1": [REMOTE, "experiment.num_seeds=2"],
    'federation.algorithm begins with "private-"': [REMOTE, "federation.algorithm=fedavg"],
    'privacy.sums = "masked"': [REMOTE, "privacy.sums=ideal"],
    "federation.levels = []": [LEVELS, "federation.algorithm=fedavg"],
    'strategy.aggregation = "mean"': ["strategy.aggregation=rfa", "federation.algorithm=afl"],
    'quantile.search = "trusted"': ["strategy.aggregation=clipped", "privacy.adversary=active"],
    "faults.dropout = 0": ["federation.algorithm=aaggff-s", "faults.dropout=0.1"],
    "attackers.from_class ≠ attackers.to_class": [
        *("attackers.share=0.1", "attackers.kind=flipped-labels", "attackers.from_class=0"),
    ],
    'privacy.graph ≠ "sparse"': [VERIFIED, "privacy.graph=sparse"],
    'quantile.search = "verified"': ["quantile.votes=proved", "federation.theta=1"],
    "quantile.noise > 0": ["quantile.method=noisy", "federation.theta=1"],
    "quantile.epsilon = 0": ["quantile.epsilon=0.1"],
    "quantile.epsilon ≤ quantile.loss_bound": ["quantile.method=mm", "quantile.epsilon=33"],
    "quantile.noise = 0": ["quantile.noise=1"],
    "dp.noise > 0": ["dp.epsilon_budget=1"],
    'quantile.weights = "equal"': ["quantile.method=noisy", "quantile.noise=4"],
    "dp.noise = 0": [*NOISY, "federation.algorithm=private-fedavg"],
    "dp.noise ≥ 0.01": [*NOISY, "dp.noise=0.001"],
    "privacy.truth = false": [REMOTE, "privacy.truth=true"],
    'quantile.method = "noisy"': [*NOISY, "quantile.method=bracketed", "quantile.noise=0"],
    "quantile.noise ≥ 0.01": [*NOISY, "quantile.noise=0.001"],
}


def settings(*texts):
    return build_config(map(assignment, texts))


def test_every_demand_of_the_table_is_tried_here():
    assert {" ".join(rule.must) for rule in RULES} == BROKEN.keys()


@pytest.mark.parametrize("must", BROKEN)
def test_settings_that_break_a_rule_are_refused_with_their_names_and_the_reason(must):
    with pytest.raises(ConfigError) as refused:
        settings(*BROKEN[must])
    told = str(refused.value)
    demands = [one for one in RULES if " ".join(one.must) == must and told.endswith(one.because)]
    assert any(all(f"{one.setting} = " in told for one in rule.when) for rule in demands)
    assert told.startswith(f"{must.partition(' ')[0]} = ")


@pytest.mark.parametrize(
    "texts",
    [
        (*NOISY, 'experiment.baselines=["fedavg"]'),
        ("strategy.aggregation=clipped", 'experiment.baselines=["afl"]'),
        ("faults.dropout=0.1", 'experiment.baselines=["aaggff-s"]'),
    ],
)
def test_baselines_are_held_to_the_rules_too(texts):
    with pytest.raises(ConfigError, match=f"'{texts[-1].split(chr(34))[1]}'"):
        settings(*texts)


def test_a_single_level_without_a_search_has_nothing_to_check():
    settings(VERIFIED, 'federation.levels=["1"]')


def test_a_run_is_held_to_them_wherever_its_settings_come_from():
    config = RunConfig()
    changed = replace(config, strategy=replace(config.strategy, eta_every=2))
    with pytest.raises(ConfigError, match=r"strategy\.eta_every = 2 does nothing here"):
        check_arms(changed, 10, None)


def test_decimals_are_compared_exactly():
    assert read_comparison("dp.noise ≥ 0.01").holds(settings(*NOISY, "dp.noise=0.01"))


def test_what_compares_nothing_is_no_rule():
    with pytest.raises(ValueError, match="'dp is small' is no comparison"):
        read_comparison("dp is small")
