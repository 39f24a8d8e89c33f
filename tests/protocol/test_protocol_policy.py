"""What devices accept of a round: up to each limit, and nothing beyond it."""

from dataclasses import fields, replace
from fractions import Fraction

import lenient
import numpy as np
import pytest
from flat_configs import changed_round
from round_parties import make_config, make_params

from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import Adversary, DevicePolicy, PeerError, Refusal, UsageError
from deltafl.secagg.policy import Range
from deltafl.secagg.threat import PROFILES

HALF = Fraction(1, 2)
DEFAULT = RoundPolicy()
OWN = {field.name for field in fields(RoundPolicy)} - {field.name for field in fields(DevicePolicy)}
"""The limits of rounds."""

PLAIN = make_config(
    method="bracketed",
    cohort_size=20,
    max_queries=30,
    grid=LossGrid(16, 32),
    max_weight=8192,
    min_tail=4,
)
"""An honest round over twenty devices, of which ten are certain and two may collude."""
EQUAL = changed_round(PLAIN, method="histogram", weighting=Weighting.EQUAL, max_queries=5)
NOISY = replace(changed_round(EQUAL, max_queries=1), method="noisy", noise=Noise(Fraction(1), 8))


def verdict(policy, announced, thetas=(), **session):
    """None if a policy accepts a round, else what it says."""
    levels = Levels.at(announced, thetas or (announced.theta,))
    params = make_params(
        levels.common,
        slots=levels.slots(),
        **{"threshold": 10, "min_cohort": 10, **session},
    )
    try:
        policy.check_round(levels, params)
    except PeerError as error:
        refused = error
    else:
        return None
    assert refused.reason is Refusal.POLICY
    return str(refused)


HIDDEN = changed_round(
    NOISY,
    max_weight=1,
    update_noise=UpdateNoise.at_least(Fraction(3, 2), 64.0, 8, Sizes.of(4, 20)),
)
"""An honest round whose updates have noise."""


def with_update_noise(**changes):
    return {"update_noise": replace(HIDDEN.update.noise, **changes)}


def grid(bits, bound):
    return {"grid": LossGrid(bits, bound)}


ONE, LEVELS = Fraction(1), tuple(Fraction(n, 10) for n in (9, 8, 7, 6, 5, 4, 3, 2, 1))
LIMITS = {
    "min_update_noise": (
        HIDDEN,
        {},
        with_update_noise(deviation=HIDDEN.update.noise.deviation - 1),
    ),
    "max_update_norm": (HIDDEN, {}, with_update_noise(norm=64.01)),
    "min_honest_tail": (PLAIN, {"theta": Fraction(4, 10)}, {"theta": Fraction(399, 1000)}),
    "max_levels": (changed_round(PLAIN, max_queries=3), LEVELS[:8], LEVELS),
    "max_pivots": (PLAIN, {"max_queries": 32}, {"max_queries": 33}),
    "max_pivots_if_equal": (EQUAL, {"max_queries": 5}, {"max_queries": 6}),
    "max_mm_pivots_per_device": (
        changed_round(PLAIN, method="mm"),
        {"max_queries": 3},
        {"max_queries": 4},
    ),
    "max_loss_resolution_bits": (PLAIN, grid(16, 8), grid(17, 8)),
    "max_loss_bound": (PLAIN, grid(8, 32), grid(8, 33)),
    "max_weight": (PLAIN, {"max_weight": 8192}, {"max_weight": 8193}),
    "min_update_resolution_bits": (
        PLAIN,
        {"update_resolution_bits": 8},
        {"update_resolution_bits": 7},
    ),
    "min_update_clip": (PLAIN, {"update_clip": 0.0625}, {"update_clip": 0.0624}),
    "max_update_clip": (PLAIN, {"update_clip": 4.0}, {"update_clip": 4.0001}),
    "min_noise": (
        NOISY,
        {"noise": Noise(Fraction(9, 4), 8)},
        {"noise": Noise(Fraction(9, 4) - Fraction(1, 2**60), 8)},
    ),
}
"""Of each limit: a round, and changes or levels that are just within it and just beyond it."""
BESIDE = {
    "max_participations",
    "max_rounds_per_day",
    "max_rounds_per_model",
}
"""What test_followed_search.py, test_round_refusals.py and test_participations.py hold."""


def judged(policy, base, changes):
    """The verdict on a round with changes, or on its levels."""
    if isinstance(changes, tuple):
        return verdict(replace(policy, max_pivots=99), base, changes)
    announced = changed_round(base, **changes)
    return verdict(policy, announced, min_cohort=announced.search.min_cohort or 10, threshold=9)


def test_every_limit_of_a_round_is_held():
    assert LIMITS.keys() | BESIDE == OWN
    assert not LIMITS.keys() & BESIDE
    assert lenient.ROUNDS.keys() | BESIDE == OWN


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_accepts_what_is_just_within_and_refuses_what_is_just_beyond(limit):
    base, within, beyond = LIMITS[limit]
    policy = DEFAULT
    if limit == "min_noise":
        policy = replace(DEFAULT, min_noise=Fraction(3, 2))
    if limit == "min_update_noise":
        policy = replace(DEFAULT, min_update_noise=Fraction(3, 2))
    if limit == "max_levels":
        policy = replace(DEFAULT, min_honest_tail=0)  # nine levels of ten devices
    assert judged(policy, base, within) is None
    told = judged(policy, base, beyond)
    assert told is not None
    assert limit in told
    relaxed = replace(policy, **{limit: lenient.ROUNDS[limit]})
    assert judged(relaxed, base, beyond) is None


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"update_clip": 5.0}, "max_update_clip"),
        ({"max_weight": 8193}, "max_weight"),
        ({"grid": LossGrid(17, 8)}, "max_loss_resolution_bits"),
    ],
)
def test_what_is_announced_without_being_asked_is_held_to_its_limits_too(changes, limit):
    everybody = changed_round(PLAIN, theta=ONE, **changes)
    assert limit in verdict(DEFAULT, everybody)


def test_without_a_search_the_limits_of_searches_do_not_matter():
    everybody = changed_round(PLAIN, theta=ONE, max_queries=99)
    strict = replace(DEFAULT, max_pivots=0, min_noise=ONE)
    assert verdict(strict, everybody) is None
    too_small = changed_round(PLAIN, min_search_cohort=21, theta=Fraction(1, 1000), max_queries=99)
    assert verdict(strict, too_small) is None
    for limit in ("max_pivots", "min_noise"):
        assert limit in verdict(replace(DEFAULT, **{limit: getattr(strict, limit)}), PLAIN)


def test_a_threshold_without_a_query_is_refused():
    """The server would choose it by the warm start, and no limit on searches would hold."""
    warm = {"max_queries": 0, "warm_start": 65536}
    for changes in ({}, {"theta": Fraction(1, 1000)}, {"method": "bracketed"}):
        silent = changed_round(PLAIN, **warm, **changes)
        assert "max_queries=0 with a theta below 1" in verdict(DEFAULT, silent)
    noise = verdict(replace(DEFAULT, min_noise=ONE), changed_round(silent, max_queries=1))
    assert "without noise" in noise
    assert "max_queries=0" in verdict(DEFAULT, changed_round(PLAIN, **warm), (ONE, HALF))
    assert verdict(DEFAULT, changed_round(PLAIN, **warm, theta=ONE)) is None
    assert verdict(DEFAULT, changed_round(PLAIN, **warm, min_search_cohort=21)) is None


@pytest.mark.parametrize("method", ["mm", "bracketed", "histogram"])
@pytest.mark.parametrize("weighting", list(Weighting))
def test_the_methods_defaults_are_within_the_limits_but_for_histogram_with_weights(
    method, weighting
):
    """Over a hundred devices that are certain; of fewer, `mm` would tell the losses."""
    announced = changed_round(
        PLAIN,
        method=method,
        weighting=weighting,
        max_queries=default_max_queries(method),
        cohort_size=100,
        min_tail=12,
    )
    is_named = method == "histogram" and weighting is not Weighting.EQUAL
    assert (verdict(DEFAULT, announced, min_cohort=100, threshold=50) is None) is not is_named
    fewer = verdict(DEFAULT, announced, min_cohort=99, threshold=50)
    assert (fewer is None) is (method == "bracketed" or (method == "histogram" and not is_named))
    if method == "mm":
        assert "30 pivots over 99 devices is above max_mm_pivots_per_device=3/10" in fewer


@pytest.mark.parametrize(
    ("limit", "weighting", "method", "each"),
    [
        ("max_pivots", Weighting.SAMPLES, "bracketed", 8),  # 4 · 8 pivots are 32
        ("max_pivots", Weighting.POWERS_OF_TWO, "bracketed", 8),
        ("max_pivots_if_equal", Weighting.EQUAL, "histogram", 8),  # of ten pivots
        ("max_mm_pivots_per_device", Weighting.SAMPLES, "mm", 7),  # 28 are at most 30
        ("max_mm_pivots_per_device", Weighting.EQUAL, "mm", 7),
    ],
)
def test_the_pivots_of_all_levels_count_together(limit, weighting, method, each):
    """Nearly equal models have nearly equal losses: their searches are one search."""
    base = changed_round(PLAIN, weighting=weighting, method=method, cohort_size=100)
    policy = replace(DEFAULT, colluding_rate=0.0)  # levels are ten devices apart
    base = changed_round(base, num_pivots=10) if method == "histogram" else base
    within, beyond = (changed_round(base, max_queries=number) for number in (each, each + 1))
    certain = {"min_cohort": 100, "threshold": 50}
    assert verdict(policy, within, LEVELS[:4], **certain) is None
    assert limit in verdict(policy, beyond, LEVELS[:4], **certain)
    assert verdict(policy, beyond, LEVELS[:3], **certain) is None
    # A level that keeps everybody asks nothing, and does not count.
    assert verdict(policy, within, (ONE, *LEVELS[:4]), **certain) is None


def test_the_defaults_of_noisy_are_within_the_limits():
    assert verdict(DEFAULT, NOISY) is None


def test_a_device_that_insists_on_noise_takes_no_search_without():
    assert verdict(DEFAULT, PLAIN) is None
    assert "without noise" in verdict(replace(DEFAULT, min_noise=Fraction(1, 2**40)), PLAIN)


@pytest.mark.parametrize(
    ("rate", "min_cohort", "least", "honest"),
    [(0.0, 12, 0, 12), (0.1, 12, 0, 10), (0.1, 12, 18, 16), (0.3, 12, 18, 12), (0.1, 12, 5, 10)],
)
def test_devices_count_on_those_who_are_in_every_sum_and_honest(rate, min_cohort, least, honest):
    policy = replace(DEFAULT, colluding_rate=rate, min_honest_tail=0)
    for more, told in ((0, None), (1, f"only {honest} are certain")):
        announced = replace(
            changed_round(NOISY, min_search_cohort=least), noise=Noise(ONE, honest + more)
        )
        found = verdict(policy, announced, min_cohort=min_cohort)
        assert found is None if told is None else told in found


@pytest.mark.parametrize("announced", [PLAIN, NOISY])
def test_a_device_that_insists_on_noise_takes_no_update_without(announced):
    strict = replace(DEFAULT, min_update_noise=Fraction(1, 2**40))
    assert "the update is without noise" in verdict(strict, announced)
    assert verdict(strict, HIDDEN) is None


@pytest.mark.parametrize(("rate", "honest"), [(0.0, 12), (0.1, 10), (0.3, 6)])
def test_the_noise_of_updates_comes_from_devices_that_are_in_every_sum_of_them(rate, honest):
    """Not only in those of the search, which may be over more."""
    policy = replace(DEFAULT, colluding_rate=rate, min_honest_tail=0)
    for more, told in ((0, None), (1, f"of which only {honest} are certain")):
        announced = changed_round(
            HIDDEN, min_search_cohort=18, **with_update_noise(num_devices=honest + more)
        )
        announced = replace(announced, noise=Noise(ONE, 1))
        found = verdict(policy, announced, min_cohort=12)
        assert found is None if told is None else told in found


def test_to_an_active_server_a_device_answers_in_one_round_whatever_is_set():
    """It has only the server's word that a round was lost."""
    assert (DEFAULT.rounds_per_model, DEFAULT.max_rounds_per_model) == (8, 8)
    for most in (1, 2, 100):
        assert replace(DEFAULT, max_rounds_per_model=most).rounds_per_model == most
        active = RoundPolicy(adversary=Adversary.ACTIVE, max_rounds_per_model=most)
        assert active.rounds_per_model == 1


UNCHECKED = {"adversary"}
RANGED = [limit for limit in fields(RoundPolicy) if limit.name not in UNCHECKED]


@pytest.mark.parametrize("limit", RANGED, ids=lambda limit: limit.name)
def test_a_limit_is_a_number_within_its_range(limit):
    """A rate of -1 would switch off whatever it is for, and NaN every comparison."""
    name = limit.name
    bad = [None, "3", 1j, float("nan"), float("inf"), float("-inf")]
    allowed = RoundPolicy._ranges.get(name, Range(0))
    accepted, bad = [allowed.least], [*bad, allowed.least - 1]
    if allowed.most != float("inf"):
        (accepted if allowed.is_closed else bad).append(int(allowed.most))
        bad.append(int(allowed.most) + 1)
    if isinstance(limit.default, int):
        bad += [limit.default + 0.5, float(limit.default)]
        accepted.append(np.int64(limit.default))
    for value in (limit.default, *accepted):
        assert getattr(replace(DEFAULT, **{name: value}), name) == value
    for value in bad:
        with pytest.raises(UsageError, match=f"^{name}="):
            replace(DEFAULT, **{name: value})


def test_a_limit_out_of_range_is_told_with_the_range():
    for changed, told in (
        ({"colluding_rate": -1.0}, r"colluding_rate=-1.0 is not in \[0, 1\)"),
        ({"colluding_rate": 1}, r"colluding_rate=1 is not in \[0, 1\)"),
        ({"min_cohort": 0}, r"min_cohort=0 is not in \[2, inf\)"),
        ({"max_participations": 1 << 20}, r"max_participations=1048576 is not in \[0, 65536\]"),
        ({"max_rounds_per_model": 0}, r"max_rounds_per_model=0 is not in \[1, 65536\]"),
        ({"max_update_clip": float("nan")}, r"max_update_clip=nan is not in \[0, inf\)"),
        ({"max_slots": 2.0}, "max_slots=2.0 is not a whole number"),
    ):
        with pytest.raises(UsageError, match=told):
            RoundPolicy(**changed)
    with pytest.raises(UsageError, match="min_cohort=1 is not in"):
        DevicePolicy(min_cohort=1)


def test_without_a_range_a_limit_may_be_any_number_from_0_on(monkeypatch):
    """The control: it is the table that is looked at, of the class whose policy it is."""
    monkeypatch.setattr(RoundPolicy, "_ranges", {})
    assert RoundPolicy(colluding_rate=1.5).colluding_rate == 1.5
    for policy, rate in ((RoundPolicy, -1.0), (DevicePolicy, 1.5)):
        with pytest.raises(UsageError, match=f"colluding_rate={rate} is not in"):
            policy(colluding_rate=rate)


def test_the_session_is_held_to_the_policy_too(monkeypatch):
    assert "min_cohort=10 is below" in verdict(replace(DEFAULT, min_cohort=11), PLAIN)
    active = replace(DEFAULT, adversary=Adversary.ACTIVE)
    assert "not verified" in verdict(active, PLAIN)
    scaled = changed_round(PLAIN, theta=Fraction(1), radius=1.0)
    assert "radius=1.0: the server chooses it" in verdict(active, scaled)
    assert "radius" not in str(verdict(DEFAULT, scaled))
    trusting = PROFILES[Adversary.ACTIVE]._replace(takes_unverified=True, repeats_rounds=True)
    monkeypatch.setitem(PROFILES, Adversary.ACTIVE, trusting)
    assert "not signed" in verdict(active, PLAIN)
    assert "not signed" in verdict(active, scaled)
    assert active.rounds_per_model == 8


def test_a_server_without_colluding_devices_has_none_in_a_tail_or_its_noise():
    alone = replace(DEFAULT, adversary=Adversary.NONCOLLUDING, colluding_rate=0.3)
    few = changed_round(PLAIN, theta=Fraction(2, 10), min_tail=2)
    noisy = replace(NOISY, noise=Noise(ONE, 10))
    for announced in (few, noisy):
        assert verdict(alone, announced) is None
        assert "may collude" in verdict(replace(alone, adversary=Adversary.CURIOUS), few)
    told = verdict(replace(alone, adversary=Adversary.CURIOUS, min_honest_tail=0), noisy)
    assert "of which only 4 are certain" in told


@pytest.mark.parametrize(
    ("rate", "least", "theta", "certain", "told"),
    [
        (0.0, 2, HALF, 10, None),
        (0.1, 4, HALF, 10, None),
        (0.1, 3, HALF, 10, "min_tail=3 is below min_honest_tail=2 besides 2 devices that may"),
        (0.15, 5, HALF, 10, None),
        (0.2, 6, HALF, 11, "it holds if a share of 0.15 may collude"),
        (0.2, 6, HALF, 12, None),
        (0.0, 2, Fraction(1, 10), 19, "too few even if nobody colludes"),
        (0.0, 2, Fraction(1, 10), 20, None),
        (0.049, 2, Fraction(1, 10), 20, None),
        (0.05, 3, Fraction(1, 10), 20, "1 of 20 may collude"),
    ],
)
def test_devices_that_do_not_collude_are_left_in_every_tail(rate, least, theta, certain, told):
    """Of those invited, ⌊γ·20⌋ may claim the largest losses; they do not drop out."""
    policy = replace(DEFAULT, colluding_rate=rate)
    announced = changed_round(PLAIN, theta=theta, min_tail=least)
    found = verdict(policy, announced, min_cohort=certain)
    assert found is None if told is None else told in found
    assert verdict(replace(policy, min_honest_tail=0), announced, min_cohort=certain) is None


@pytest.mark.parametrize(
    ("thetas", "told"),
    [
        ((ONE, HALF), None),
        ((HALF, Fraction(1, 10)), None),
        ((HALF, Fraction(3, 10)), None),
        ((HALF, Fraction(31, 100)), "theta=1/2 and theta=31/100 are 3 of 20 devices apart"),
        ((ONE, Fraction(8, 10)), "theta=1 and theta=4/5 are 3 of 20 devices apart"),
    ],
)
def test_devices_that_do_not_collude_are_left_between_two_levels(thetas, told):
    policy = replace(DEFAULT, colluding_rate=0.1)
    if told is None:
        policy = replace(policy, colluding_rate=0.0 if thetas[-1] * 20 < 4 else 0.1)
    base = changed_round(PLAIN, max_queries=15)
    found = verdict(policy, base, thetas, min_cohort=20, threshold=11)
    assert found is None if told is None else told in found
