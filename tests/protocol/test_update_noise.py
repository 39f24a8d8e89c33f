"""Sums of updates with noise: what a device sends, how far it can move a sum, what is read."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from round_parties import MODEL, make_config, play_single

from deltafl.protocol import update_noise, wire
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.update_noise import FIELDS, NoisyUpdates, Sizes, UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DecodeError, Enrolment, GraphKind, Stage, Step, ThreatModel, Vanish
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds

LENGTH, COHORT = 50, 8
NOISE = UpdateNoise(norm=1.5, deviation=40, num_devices=5)
UPDATES = NoisyUpdates(NOISE, LENGTH, COHORT, b"\3" * 32)
SIZES = UPDATES.sizes


def seeded(number):
    return SeededRandomness(number.to_bytes(32, "big"))


def without_noise(monkeypatch):
    """Devices whose shares are zero, so that a test sees what the noise is added to."""

    def zeros(deviation, size, randomness):
        del deviation, randomness
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr("deltafl.protocol.update_noise.discrete_gaussians", zeros)


# --- how far a device can move a sum -------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch):
    without_noise(monkeypatch)


def of(update, loss, seed, *, clipped=False):
    parts = UPDATES.contribution(update, loss, seeded(seed), clipped=clipped)
    assert tuple(parts) == FIELDS
    return np.concatenate([parts[name] for name in FIELDS])


updates = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 999), st.sampled_from([0.0, 1e-3, 1.0, 1.5, 50.0, 3e37])),
)


def drawn(which):
    if which is None:
        return None
    seed, scale = which
    values = np.random.default_rng(seed).normal(size=LENGTH)
    if seed % 3 == 0:
        values[1:] = 0
    return (scale * values / np.linalg.norm(values)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("silent")
@given(updates, updates, st.fractions(0, 1), st.fractions(0, 1), st.integers(0, 2**64))
def test_no_contribution_is_farther_from_another_than_the_sensitivity(
    one, other, here, there, seed
):
    before, after = of(drawn(one), here, seed), of(drawn(other), there, seed + 1)
    assert int((before - after) @ (before - after)) <= SIZES.square_sensitivity


@pytest.mark.usefixtures("silent")
def test_opposite_updates_come_close_to_it():
    update = np.random.default_rng(0).normal(size=LENGTH).astype(np.float32)
    apart = of(update, Fraction(1), 1, clipped=True) - of(-update, Fraction(0), 2)
    assert 0.9 * SIZES.square_sensitivity < int(apart @ apart) <= SIZES.square_sensitivity
    weighed = np.concatenate([2 * of(update, Fraction(1), 1), of(-update, Fraction(0), 2)])
    assert int(weighed @ weighed) > SIZES.square_sensitivity  # a device that weighs twice


@pytest.mark.parametrize("length", [1, 2, 50, 640, 48608, 115646])
def test_rounding_and_the_three_numbers_cost_the_update_little(length):
    sizes = Sizes.of(length, 1000)
    assert sizes.length >= length
    assert math.sqrt(sizes.square_sensitivity) / (2 * sizes.clip) < 1.031
    assert sizes.clip >= 64 * math.sqrt(sizes.length)
    assert sizes.square_bound > sizes.clip**2 + sizes.length / 4 + 7 * (
        sizes.clip + math.sqrt(sizes.length) / 2
    )


# --- what is sent, and read ----------------------------------------------------------------------


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("scale", "is_longer"), [(0.5, False), (1.49, False), (1.51, True), (9, True)]
)
def test_an_update_comes_back_scaled_to_the_norm(scale, is_longer):
    direction = np.random.default_rng(1).normal(size=LENGTH)
    update = (scale * direction / np.linalg.norm(direction)).astype(np.float32)
    loss = Fraction(1, 3)
    sums = {name: 0 for name in FIELDS}
    for seed in range(400):
        parts = UPDATES.contribution(update, loss, seeded(seed))
        sums = {name: sums[name] + parts[name] for name in FIELDS}
    read = UPDATES.read(sums, Fraction(1), 400)
    step = NOISE.norm / SIZES.clip
    expected = update * min(1, NOISE.norm / scale)
    np.testing.assert_allclose(read.update, expected, atol=5 * step * 0.5 / math.sqrt(400))
    assert (read.num_kept, read.num_clipped) == (400, 400 * is_longer)
    assert read.loss == pytest.approx(1 / 3, abs=5 * 0.5 / SIZES.scalar / math.sqrt(400))


@pytest.mark.slow
def test_noisy_sums_are_right_on_average_and_as_noisy_as_is_said():
    update = (np.arange(LENGTH) / 1000).astype(np.float32)
    found = []
    for seed in range(2000):
        sums = UPDATES.contribution(update, Fraction(1, 2), seeded(seed))
        found.append(np.concatenate([sums[name] for name in FIELDS]))
    spread = NOISE.deviation
    means = UPDATES.read(
        dict(zip(FIELDS, np.split(np.mean(found, axis=0), [64, 65, 66]), strict=True)),
        Fraction(1),
        1,
    )
    error = 5 * spread * NOISE.norm / SIZES.clip / math.sqrt(2000)
    np.testing.assert_allclose(means.update, update, atol=error)
    assert np.var(found, axis=0).mean() == pytest.approx(spread**2, rel=0.02)


def test_who_does_not_pass_sends_noise_alone_and_the_same_noise_as_others():
    zeros = of(None, Fraction(1, 2), 5)
    shares = np.abs(zeros)
    assert 0 < shares.max() <= NOISE.bound(SIZES, COHORT)
    assert 0.5 * NOISE.deviation < zeros.std() < 1.5 * NOISE.deviation


@given(st.integers(0, 8), st.integers(-3000, 3000), st.integers(-3000, 3000))
def test_what_is_read_is_always_possible(num_summed, count, loss):
    num_summed = max(num_summed, 1)
    sums = {name: np.array([count]) for name in FIELDS}
    sums |= {"update": np.zeros(SIZES.length, dtype=np.int64), "weighted_loss": np.array([loss])}
    read = UPDATES.read(sums, Fraction(1, 2), num_summed)
    assert 0 <= read.num_kept <= num_summed
    assert 0 <= read.num_clipped <= num_summed
    assert read.loss is None or 0 <= read.loss <= 1
    assert (read.loss is None) is (count < SIZES.scalar)


# --- the layout holds every sum ------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 50, 700])
def test_the_largest_sum_fits_the_ring(length):
    layout = NOISE.layout(length, COHORT)
    sizes, bound = Sizes.of(length, COHORT), NOISE.bound(Sizes.of(length, COHORT), COHORT)
    for sign in (1, -1):
        values = {"update": np.full(sizes.length, sign * (sizes.largest + bound))}
        values |= {name: sizes.scalar + bound if sign > 0 else -bound for name in FIELDS[1:]}
        words, num_clipped = layout.encode(values)
        assert num_clipped == 0
        total = (COHORT * words.astype(object)) % (1 << layout.ring_bits)
        sums = layout.decode(total.astype(words.dtype))
        assert sums["update"].tolist() == [COHORT * values["update"][0]] * sizes.length


@pytest.mark.usefixtures("silent")
def test_no_rounded_update_is_larger_than_the_layout_says():
    for seed in range(50):
        values = of(drawn((seed, 3e37)), Fraction(1), seed)
        assert np.abs(values[: SIZES.length]).max() <= SIZES.largest


# --- the configuration ---------------------------------------------------------------------------


@given(
    st.fractions(Fraction(1, 10), 50, max_denominator=100),
    st.integers(1, 500),
    st.sampled_from([1, 50, 4000]),
)
def test_the_noise_is_the_least_that_is_enough(multiplier, num_devices, length):
    sizes = Sizes.of(length, 1000)
    noise = UpdateNoise.at_least(multiplier, 1.0, num_devices, sizes)
    assert noise.square_multiplier(sizes) >= multiplier**2
    if noise.deviation > 2:
        less = replace(noise, deviation=noise.deviation - 1)
        assert less.square_multiplier(sizes) < multiplier**2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"norm": 0.0}, "norm"),
        ({"norm": math.inf}, "norm"),
        ({"norm": math.nan}, "norm"),
        ({"deviation": 1}, "from 2 to"),
        ({"deviation": (1 << 20) + 1}, "from 2 to"),
        ({"num_devices": 0}, "min_cohort"),
        ({"num_devices": 1 << 32}, "min_cohort"),
    ],
)
def test_noise_out_of_range_is_refused(changes, told):
    with pytest.raises(ConfigurationError, match=told):
        replace(NOISE, **changes)


def make_noisy(**changes):
    return replace(
        make_config(cohort_size=COHORT, update_length=LENGTH, max_weight=1, theta=Fraction(1)),
        update=UpdateParams(4.0, 12, 1, noise=NOISE),
        **changes,
    )


def test_weights_that_differ_and_too_few_devices_are_refused():
    with pytest.raises(ConfigurationError, match="max_weight=2 with noise"):
        UpdateParams(max_weight=2, noise=NOISE)
    with pytest.raises(ConfigurationError, match="more than cohort_size=4"):
        make_noisy(cohort_size=4)


@pytest.mark.parametrize("bits", [-1, 0, 53, 54])
def test_a_resolution_that_noise_makes_no_use_of_is_in_its_range_all_the_same(bits):
    if 0 <= bits <= 53:
        noisy = replace(make_noisy(), update=UpdateParams(4.0, bits, 1, noise=NOISE))
        assert noisy.update_layout == make_noisy().update_layout
    else:
        with pytest.raises(ConfigurationError, match=f"update_resolution_bits={bits} is not"):
            UpdateParams(4.0, bits, 1, noise=NOISE)


def test_the_noise_is_bound_to_the_session_and_so_is_the_rotation():
    config = make_noisy()
    others = [
        replace(config, update=replace(config.update, noise=replace(NOISE, **change)))
        for change in ({"norm": 1.6}, {"deviation": 41}, {"num_devices": 4})
    ]
    others += [
        replace(config, update=replace(config.update, noise=None)),
        make_noisy(round_index=4),
    ]
    assert len({one.canonical() for one in [config, *others]}) == 6
    seeds = {one.noisy_updates.seed for one in [config, *others] if one.noisy_updates}
    assert len(seeds) == 5
    assert others[3].noisy_updates is None


def test_an_announcement_says_it_and_nothing_else_is_an_announcement_with_noise():
    levels = Levels((make_noisy(),))
    data = wire.encode(Announce(levels, b"model", b"session"))
    assert wire.decode(data).levels == levels
    plain = Levels((replace(make_noisy(), update=UpdateParams(4.0, 12, 1)),))
    without = wire.encode(Announce(plain, b"model", b"session"))
    at = data.index(b"\x03\x27") + 1  # after the version
    assert without.index(b"\x03\x21") + 1 == at
    for kind, message in ((0x21, data), (0x27, without)):
        with pytest.raises(DecodeError):
            wire.decode(message[:at] + bytes([kind]) + message[at + 1 :])
    packed = data.index(np.float64(NOISE.norm).tobytes())
    assert wire.decode(data[:packed] + np.float64(2).tobytes() + data[packed + 8 :])
    for place, wrong in ((0, np.float64(np.nan)), (8, np.uint64(1)), (16, np.uint64(0))):
        start = packed + place
        with pytest.raises(DecodeError, match="impossible noise"):
            wire.decode(data[:start] + wrong.tobytes() + data[start + 8 :])


# --- a device ------------------------------------------------------------------------------------


def test_no_contribution_leaves_without_noise():
    own = DeviceRound.measured(make_noisy(), 1.0, 5)
    for update in (None, np.zeros(LENGTH, dtype=np.float32)):
        with pytest.raises(EncodingError, match="noise"):
            own.contribution(update)
    with pytest.raises(EncodingError, match="shape"):
        own.contribution(np.zeros(LENGTH + 1, dtype=np.float32), seeded(1))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("weight", "update", "count", "clipped"),
    [
        (5, np.full(LENGTH, 0.01), 1, 0),
        (5, np.full(LENGTH, np.nan), 1, 1),
        (5, np.full(LENGTH, 5.0), 1, 1),
        (0, np.full(LENGTH, 0.01), 0, 0),
        (5, None, 0, 0),
    ],
)
def test_a_device_counts_once_if_it_has_data_and_passed(weight, update, count, clipped):
    config = make_noisy()
    own = DeviceRound.measured(config, 2.0, weight)
    given = None if update is None else update.astype(np.float32)
    values = config.update_layout.decode(own.contribution(given, seeded(1)))
    sizes = config.noisy_updates.sizes
    assert values["count"].tolist() == [count * sizes.scalar]
    assert values["clipped"].tolist() == [clipped * sizes.scalar]
    assert values["weighted_loss"].tolist() == [count * sizes.scalar // 4]
    assert bool(values["update"].any()) is (count == 1 and not np.isnan(update[0]))


# --- rounds --------------------------------------------------------------------------------------

POLICY = RoundPolicy(
    min_cohort=5,
    colluding_rate=0.0,
    dropout_rate=0.0,
    min_honest_tail=0,  # nobody knows how many pass
    min_update_noise=Fraction(1, 20),
    max_participations=3,
)
SESSIONS = Sessions(POLICY, ThreatModel(0.0, 0.3), GraphKind.COMPLETE, min_cohort=5)


@dataclass(frozen=True)
class Device:
    id: int
    weight: int = 3

    def loss(self, model):
        del model
        return self.id / 4

    def update(self, model):
        del model
        return np.full(LENGTH, self.id / 50, dtype=np.float32)


def played(kind, config, vanishing, noise=lambda i: seeded(100 + i)):
    if kind is IdealRounds:
        rounds = IdealRounds(SESSIONS, noise)
    else:
        rounds = MaskedRounds(
            SESSIONS, SeededRandomness(b"s" * 32), enrolment=Enrolment(seeded(7)), noise=noise
        )
    devices = [Device(i) for i in range(COHORT)]
    return play_single(rounds, config, MODEL, devices, vanishing=vanishing).outcome


def searched():
    return make_noisy(
        theta=Fraction(1, 2),
        method="noisy",
        noise=Noise(Fraction(1), 3),
        search=SearchParams(1, LossGrid(8, 4), Weighting.EQUAL, min_cohort=5),
    )


@pytest.mark.parametrize("config", [make_noisy(), searched()], ids=["everybody", "a tail"])
@pytest.mark.parametrize("lost", [{}, {2: Stage.SHARE, 5: Stage.MASK}], ids=["all", "two lost"])
def test_masked_rounds_are_ideal_ones_bit_for_bit(config, lost):
    slot = config.update_slot
    gone = {
        i: Vanish(Step(stage, slot if stage is Stage.MASK else 0), False)
        for i, stage in lost.items()
    }
    ideal, masked = (played(kind, config, gone) for kind in (IdealRounds, MaskedRounds))
    assert ideal.update.tobytes() == masked.update.tobytes()
    assert (ideal.kept_devices, ideal.train_loss) == (masked.kept_devices, masked.train_loss)
    assert ideal.search == masked.search
    other = played(MaskedRounds, config, gone, lambda i: seeded(200 + i))
    assert other.update.tobytes() != masked.update.tobytes()


def test_the_mean_is_over_those_who_passed(monkeypatch):
    without_noise(monkeypatch)
    config = searched()
    whole = played(IdealRounds, config, {})
    kept = [i for i in range(COHORT) if 2 * i / 4 * 256 >= whole.search.eta_half_ticks]
    sums = sum(np.full(LENGTH, i / 50) for i in kept)
    longest = [i for i in kept if i / 50 * math.sqrt(LENGTH) > NOISE.norm]
    assert not longest
    np.testing.assert_allclose(whole.update, sums / max(4, len(kept)), atol=0.05)
    assert whole.kept_devices == len(kept)


# --- clips that are close to nothing -------------------------------------------------------------


@pytest.mark.parametrize("norm", [5e-324, 1e-306, 1e-30])
def test_a_tiny_clip_makes_no_update_longer(norm, silent):
    """S/C may be infinite, and zeros times it are no number."""
    tiny = NoisyUpdates(replace(NOISE, norm=norm), LENGTH, COHORT, b"\3" * 32)
    for update in (np.zeros(LENGTH, np.float32), np.full(LENGTH, 1e-45, np.float32)):
        values = tiny.contribution(update, Fraction(1, 2), seeded(1), clipped=False)
        steps = values["update"]
        assert int(steps @ steps) <= tiny.sizes.square_bound
        if not update.any():
            assert not steps.any()


def test_who_counts_as_zeros_draws_and_computes_as_much(silent, monkeypatch):
    """Nothing that a device does not pass with may be seen by how long it takes."""
    drawn, rotated = [], []
    rotate = update_noise.rotate
    monkeypatch.setattr(update_noise, "rotate", lambda *own: rotated.append(1) or rotate(*own))
    for update in (None, np.ones(LENGTH, np.float32)):
        inner, sizes = seeded(2), []

        def counted(size, inner=inner, sizes=sizes):
            sizes.append(size)
            return inner(size)

        UPDATES.contribution(update, Fraction(1, 2), counted, clipped=False)
        drawn.append(sizes)
    assert drawn[0] == drawn[1]
    assert len(rotated) == 2


@pytest.mark.parametrize(("surely", "divisor"), [(-3, 5), (0, 5), (4, 5), (5, 5), (7, 7), (99, 10)])
def test_the_divisor_is_the_count_within_what_it_can_be(surely, divisor):
    """At least the share that was to pass, and at most the devices in the sum."""
    sizes = UPDATES.sizes
    count = surely + 2 * math.sqrt(10) * NOISE.deviation / sizes.scalar
    sums = {name: np.array([0]) for name in FIELDS[1:]}
    sums["update"] = np.arange(sizes.length)
    one = UPDATES.read(sums, Fraction(1, 10), 10).update
    sums["count"] = np.array([round(count * sizes.scalar)])
    read = UPDATES.read(sums, Fraction(1, 2), 10).update
    np.testing.assert_allclose(read * divisor, one, rtol=1e-2, atol=1e-12)


def test_noise_in_the_count_makes_no_step_shorter():
    """On average; with the count itself it would be several hundredths."""
    sizes, num, rng = UPDATES.sizes, 100, np.random.default_rng(5)
    sums = {name: np.array([0]) for name in FIELDS[1:]} | {"update": np.ones(sizes.length)}
    exact = UPDATES.read(sums, Fraction(1, 2), num).update
    spread = math.sqrt(num) * NOISE.deviation
    counts = num // 2 * sizes.scalar + spread * rng.normal(size=2000)
    steps = [UPDATES.read(sums | {"count": [x]}, Fraction(1, 2), num).update for x in counts]
    assert np.mean(steps, axis=0) == pytest.approx(exact, rel=0.01, abs=1e-9)
    shorter = num / 2 / np.maximum(num / 2, counts / sizes.scalar)
    assert shorter.mean() < 0.99


def test_where_the_threshold_keeps_all_the_mean_is_over_all():
    """A search over too few devices, or one that found nothing, keeps everybody."""
    theta = Fraction(1, 2)
    base = make_config(cohort_size=COHORT, update_length=LENGTH, max_weight=1, theta=theta)
    few = replace(base.search, min_cohort=COHORT + 1)
    update = UpdateParams(4.0, 12, 1, noise=NOISE)
    keeping_all = Round(replace(base, update=update, search=few))
    assert keeping_all.question == Threshold(0, 0)
    assert keeping_all._kept_share == 1
    assert Round(replace(base, update=update))._kept_share == theta
