"""What is refused before a run: `deltafl run` and `deltafl plan` refuse the same settings."""

import re
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from doubles import Silent
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.fl.data.federated import AS_DIVIDED, DeviceData, Split, SplitBy, federate
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.plan.plan import known_data, known_parameters, plan_of
from deltafl.sim.run.accounting import note_on_delta
from deltafl.sim.run.algorithms import of_few
from deltafl.sim.run.arms import KnownData, check_arms, check_data
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.fitting import check_fit, known_of
from deltafl.sim.run.simulated import spec_of
from deltafl.sim.settings.config import ALGORITHMS, DataConfig, DPConfig, RunConfig
from deltafl.sim.settings.config_io import build_config
from deltafl.sim.settings.constraints import Interval, OneOf

DIGITS = build_dataset(DataConfig())
DEVICES = len(DIGITS.train)
SECTIONS = ("attackers", "dp", "quantile", "strategy", "privacy")
HINTS = {
    name: get_type_hints(section, include_extras=True)
    for name, section in get_type_hints(RunConfig).items()
}
NUMBERS = (0, 1e-9, 1e-3, 0.1, 0.5, 0.9, 0.999, 1, 2, 3, 4, 8, 10, 16, 20, 64, 100, 1000)


def run_refuses(config):
    """What a run says, or "" if it begins."""
    try:
        check_fit(config, DIGITS, spec_of(config, DIGITS))
    except ConfigError as error:
        return str(error).replace(f" ({DIGITS.rule})", "")  # only who reads them knows it
    return ""


def plan_refuses(config, num_devices=DEVICES):
    """What a plan says, or "" if there is one."""
    try:
        plan_of(config, known_parameters(config), known_data(config, num_devices))
    except ConfigError as error:
        return str(error)
    return ""


def merged(*layers):
    return build_config([{"federation": {"rounds": 30}}, *layers])


# --- drawn at random ------------------------------------------------------------------------------


def values_of(hint):
    """Values of a setting that its own constraint accepts, most of them at an end of its range."""
    constraints = ()
    if get_origin(hint) is Annotated:
        hint, *constraints = get_args(hint)
    for one in constraints:
        if isinstance(one, OneOf):
            return one.words
        if isinstance(one, Interval):
            ends = [end for end in one._ends() if abs(end) <= 1e6]
            fitting = [number for number in (*NUMBERS, *ends) if one.holds(number)]
            return [int(x) for x in fitting if x == int(x)] if hint is int else fitting
    return (False, True) if hint is bool else ("",)


SETTINGS = [
    (section, key, value)
    for section in SECTIONS
    for key, hint in HINTS[section].items()
    for value in values_of(hint)
]
WHOLE = (
    {},
    {},
    {"federation": {"levels": ["0.8", "0.5"]}},
    {"federation": {"theta": 1}},
    {"faults": {"dropout": 0.5}},
    {"policy": {"max_participations": 7}},
    {"attackers": {"share": "0.3", "kind": "backdoor"}},
    {"attackers": {"share": "0.3", "kind": "flipped-labels"}},
    {"strategy": {"aggregation": "clipped"}},
    {"quantile": {"method": "noisy", "noise": 4, "weights": "equal"}},
    {
        "quantile": {"method": "noisy", "noise": 4, "weights": "equal"},
        "privacy": {"max_weight": 1, "colluding": 0.0},
        "dp": {"noise": 1},
    },
    {"privacy": {"adversary": "active"}},
    {"policy": {"max_weight": 2**30, "max_update_clip": 1e6, "min_update_clip": 1e-9}},
)
PRIVATE = [name for name in ALGORITHMS if name.startswith("private-")]


@st.composite
def configs(draw):
    """Settings of private runs that are in order one by one."""
    layers = [
        draw(st.sampled_from(WHOLE)),
        {"federation": {"algorithm": draw(st.sampled_from(("private-delta-fl", *PRIVATE)))}},
        {"experiment": {"baselines": draw(st.lists(st.sampled_from(ALGORITHMS), max_size=1))}},
        {"federation": {"cohort_size": draw(st.sampled_from((20, DEVICES, DEVICES + 1)))}},
    ]
    for section, key, value in draw(st.lists(st.sampled_from(SETTINGS), max_size=3)):
        layers.append({section: {key: value}})
    try:
        return merged(*layers)
    except ConfigError:  # neither command gets as far
        return merged(layers[0])


@pytest.mark.slow
@settings(max_examples=60)
@given(configs())
def test_a_plan_refuses_what_a_run_refuses_and_nothing_else(config):
    with pytest.MonkeyPatch.context() as patch:  # looking for what would work takes long
        patch.setattr("deltafl.sim.plan.plan.fewest_devices", lambda *_: None)
        patch.setattr("deltafl.sim.plan.plan.largest_dropout", lambda *_: None)
        assert plan_refuses(config) == run_refuses(config)


# --- one by one -----------------------------------------------------------------------------------

LIE = {"share": "1/10", "kind": "flipped-labels"}
NOISY = {
    "quantile": {"method": "noisy", "noise": 4, "weights": "equal"},
    "privacy": {"max_weight": 1, "colluding": 0.0},
    "dp": {"noise": 1},
}

OF_ANOTHER = {
    "federation": {"algorithm": "fedavg"},
    "privacy": {"update_clip": 5},
    "policy": {"max_update_clip": 4},
}
REFUSED = {
    "no such class": ({"attackers": {**LIE, "to_class": 10}}, "to_class = 10: must be below 10"),
    "no class to begin with": ({"attackers": {**LIE, "from_class": 10}}, "from_class = 10: must"),
    "a backdoor to no class": ({"attackers": {**LIE, "kind": "backdoor", "to_class": 11}}, "10"),
    "a large trigger": ({"attackers": {**LIE, "kind": "backdoor", "trigger_size": 9}}, "at most 8"),
    "a baseline outside of its limit": (
        {"experiment": {"baselines": ["private-fedavg"]}, **OF_ANOTHER},
        "private-fedavg cannot run with these settings: below the device's policy: "
        "privacy.update_clip = 5 is above policy.max_update_clip = 4",
    ),
    "devices that leave": ({"policy": {"max_participations": 29}}, "in 30 rounds, a device"),
}

BY_DEVICES = {
    "a share of nobody": ({"attackers": {**LIE, "share": "0.01"}}, "0 of the 30 training devices"),
    "a share of all": ({"attackers": {**LIE, "share": "0.99"}}, "30 of the 30 training devices"),
    "a large cohort": ({"federation": {"cohort_size": 31}}, "31 is more than the 30 training"),
    "not all of them": ({"experiment": {"baselines": ["aaggff-s"]}}, "must be 30, the number of"),
    "rounds beyond the budget": (
        {**NOISY, "dp": {"noise": 1, "epsilon_budget": 20}},
        "30 rounds would spend",
    ),
    "devices that leave noisy rounds": (
        {**NOISY, "policy": {"max_participations": 29}},
        "invited up to 30 times",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_settings_alone_tell_is_refused_by_both_with_the_same_words(case):
    changes, complaint = REFUSED[case]
    config = merged(changes)
    assert complaint in run_refuses(config)
    assert plan_refuses(config, None) == run_refuses(config)


@pytest.mark.parametrize("case", BY_DEVICES)
def test_what_hangs_on_the_devices_is_refused_if_they_are_known(case):
    changes, complaint = BY_DEVICES[case]
    config = merged(changes)
    assert complaint in run_refuses(config)
    assert plan_refuses(config) == run_refuses(config)
    assert plan_refuses(config, None) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"attackers": {**LIE, "from_class": 9, "to_class": 0}},
        {"attackers": {**LIE, "kind": "backdoor", "to_class": 9, "trigger_size": 8}},
        {"attackers": {"share": 0, "kind": "backdoor", "to_class": 99}},
        {"policy": {"max_participations": 30}},
        {"experiment": {"baselines": ["aaggff-s"]}, "federation": {"cohort_size": 30}},
    ],
)
def test_what_is_just_right_is_refused_by_neither(changes):
    config = merged(changes)
    assert (run_refuses(config), plan_refuses(config), plan_refuses(config, None)) == ("", "", "")


def test_of_data_that_nobody_knows_nothing_is_said_but_what_the_settings_say():
    lying = {"attackers": {**LIE, "kind": "backdoor", "to_class": 50, "trigger_size": 900}}
    check_data(merged(lying), KnownData("own.csv"))
    given_classes = merged({**lying, "data": {"source": "own.csv", "num_classes": 50}})
    with pytest.raises(ConfigError, match="to_class = 50: must be below 50"):
        check_data(given_classes, known_data(given_classes))


# --- δ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0, 0.11, 0.5, 0.999999, 1])
def test_a_delta_that_promises_nothing_is_refused(delta):
    with pytest.raises(ConfigError, match=r"dp.delta = .*: must lie in \(0, 0.1\]"):
        merged({"dp": {"delta": delta}})
    assert merged({"dp": {"delta": 0.1}}).dp.delta == 0.1


def test_a_delta_that_lets_one_device_of_a_run_be_shown_is_noted():
    noisy = DPConfig(noise=Fraction(1), delta=1 / 32)
    assert note_on_delta(noisy, 31) is None
    assert "dp.delta = 0.03125: should be far below 1/32 (0.03)" in note_on_delta(noisy, 32)
    assert note_on_delta(DPConfig(delta=0.1), 1000) is None, "without noise it is not used"


def test_a_run_says_so_once(tmp_path, no_figures):
    told = []
    changes = {
        **NOISY,
        "dp": {"noise": 1, "delta": 0.05},
        "federation": {"rounds": 1, "cohort_size": 20},
        "privacy": {**NOISY["privacy"], "sums": "ideal"},
        "training": {"backend": "reference", "device": "cpu", "batch_size": 64},
    }
    run_experiment(
        merged(changes), tmp_path / "run", resume=False, progress=Silent(), warn=told.append
    )
    assert [one for one in told if "dp.delta" in one] == [note_on_delta(merged(changes).dp, 30)]


@pytest.mark.parametrize("algorithm", ["private-fedavg", "private-q-ffl", "private-delta-fl"])
@pytest.mark.parametrize("devices", [2, 3, 4, 5, 9, 10, 11, 19])
def test_few_devices_that_are_all_in_every_round_work_by_default(algorithm, devices):
    """But for a tail that is one device's: half of three, rounded down."""
    whole = {"federation": {"algorithm": algorithm, "cohort_size": devices}}
    config = build_config([of_few(devices), whole])
    if algorithm == "private-delta-fl" and devices < 4:
        with pytest.raises(ConfigError, match=rf"theta = 1/2 keeps 1 of {devices} devices, and 0"):
            check_arms(config, 10, devices)
    else:
        check_arms(config, 10, devices)


# --- few devices of which half only test ----------------------------------------------------------


def split_of(*samples, by="devices"):
    """Devices with so many samples, and what is said of a round of twenty of them."""
    made = [DeviceData(str(i), np.ones((n, 2), np.float32), np.zeros(n, int)) for i, n in samples]
    return federate("sites", made, Split(by=SplitBy(by)))


@pytest.mark.parametrize(
    ("sizes", "algorithm", "mend"),
    [
        (
            [2] * 6,
            "private-fedavg",
            "the 3 others only test; have all 6 train, each on a part of its samples "
            "(--set data.split=samples --set federation.cohort_size=6 --set privacy.min_cohort=6)",
        ),
        (
            [2] * 12,
            "private-fedavg",
            "(--set data.split=samples --set federation.cohort_size=12)",
        ),
        (
            [1] * 12,
            "private-fedavg",
            ": lower it (--set federation.cohort_size=6 --set privacy.min_cohort=6)",
        ),  # none can be divided
        (
            [2] * 5 + [1],
            "private-fedavg",
            ": lower it (--set federation.cohort_size=3 --set privacy.min_cohort=3)",
        ),
        ([1] * 3, "private-fedavg", "one device is never summed: give data of more devices"),
        ([2] * 6, "fedavg", ": lower it (--set federation.cohort_size=3)"),  # nothing is summed
        ([2] * 22, "private-fedavg", ": lower it (--set federation.cohort_size=11)"),
    ],
)
def test_where_half_of_few_devices_only_test_dividing_samples_is_what_mends(sizes, algorithm, mend):
    dataset = split_of(*enumerate(sizes))
    config = build_config([{"federation": {"algorithm": algorithm}}])
    with pytest.raises(ConfigError, match=r"cohort_size = 20 is more than") as refused:
        check_data(config, known_of(dataset))
    assert str(refused.value).endswith(mend)
    stated = re.findall(r"--set ([a-z_]+)\.([a-z_]+)=(\w+)", mend)
    given = [{section: {key: value}} for section, key, value in stated]
    if stated:  # and what is said mends
        done = build_config([{"federation": {"algorithm": algorithm}}, *map(as_typed, given)])
        data = known_of(split_of(*enumerate(sizes), by=done.data.split))
        check_data(done, data)
        check_arms(done, 10, data.num_devices)


def as_typed(layer):
    return {
        section: {key: int(value) if value.isdigit() else value}
        for section, values in layer.items()
        for key, value in values.items()
    }


def test_data_that_came_divided_or_belong_to_a_program_are_divided_otherwise():
    dataset = split_of(*enumerate([2] * 6))
    assert known_of(replace(dataset, rule=AS_DIVIDED)).aside == 0
    assert known_of(split_of(*enumerate([2] * 6), by="samples")).aside == 0
    own = build_config([{"data": {"format": "own"}, "federation": {"algorithm": "private-fedavg"}}])
    with pytest.raises(ConfigError, match=r'samples \(split="samples" --set'):
        check_data(own, known_of(dataset))
