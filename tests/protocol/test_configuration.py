"""What a round is about: described injectively, and laid out so that no sum can overflow."""

import dataclasses
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from changed_configs import CHANGES, CONFIG, neighbours
from flat_configs import NAMES, changed_round
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from round_parties import MODEL, make_config

from deltafl.protocol.configuration import RoundConfig, binding
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.registry import NOISY, QUANTILE_METHODS
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import SlotSpec
from deltafl.secagg.errors import EncodingError

FAST = settings(deadline=None)


def test_every_field_is_changed_in_these_tests():
    assert set(CHANGES) == NAMES


@pytest.mark.parametrize("describe", [RoundConfig.canonical, lambda c: Levels((c,)).context(MODEL)])
def test_configurations_that_differ_in_one_field_are_described_differently(describe):
    configs = [CONFIG, *(other for name in CHANGES for other in neighbours(name))]
    for one, other in combinations(configs, 2):
        assert one != other
        assert describe(one) != describe(other)
    assert describe(make_config()) == describe(CONFIG)


@pytest.mark.slow
@FAST
@given(
    *[st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in CHANGES.items()})] * 2
)
def test_descriptions_are_equal_if_and_only_if_configurations_are(one, other):
    try:
        first, second = make_config(**one), make_config(**other)
    except ConfigurationError:
        assume(False)
    assert (first.canonical() == second.canonical()) == (first == second)


@pytest.mark.parametrize(
    ("max_weight", "name", "values"),
    [
        (256, "weighting", (Weighting.SAMPLES, Weighting.POWERS_OF_TWO)),
        (1, "weighting", tuple(Weighting)),
        (1, "epsilon_ticks", (2047, 2048)),
        (1, "min_search_cohort", (1, 2)),
    ],
)
def test_what_the_layouts_do_not_show_is_described_all_the_same(max_weight, name, values):
    configs = [make_config(max_weight=max_weight, **{name: value}) for value in values]
    layouts = {(c.search_layout.canonical(), c.update_layout.canonical()) for c in configs}
    assert len(layouts) == 1
    assert len({config.canonical() for config in configs}) == len(values)


def test_a_verified_search_is_described_although_its_fields_are_not_other_ones():
    configs = [make_config(method="bracketed", verified=verified) for verified in (False, True)]
    assert len({config.search_layout.canonical() for config in configs}) == 1
    assert len({config.canonical() for config in configs}) == 2


def test_a_clip_that_is_a_whole_number_is_described_as_the_float():
    assert make_config(update_clip=4).canonical() == make_config(update_clip=4.0).canonical()


def test_the_context_is_of_32_bytes_and_depends_on_every_byte_of_the_model():
    models = [b"", b"\0", b"\0\0", MODEL, MODEL + b"\0", MODEL[:-1], MODEL.upper()]
    levels = Levels((CONFIG,))
    contexts = [levels.context(model) for model in models]
    assert {len(context) for context in contexts} == {32}
    assert len(set(contexts)) == len(models)
    assert levels.context(MODEL) == Levels((make_config(),)).context(MODEL)


pivots = st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple)
word = st.integers(0, 2**63 - 1) | st.integers(0, 3)
questions = st.builds(Query, st.text(st.characters(max_codepoint=127), max_size=3), pivots) | (
    st.builds(Threshold, word, word)
)
contexts = st.sampled_from([bytes(32), b"\1" * 32])


@pytest.mark.slow
@settings(FAST, max_examples=200)
@given(contexts, contexts, questions, questions)
def test_bindings_are_equal_if_and_only_if_context_and_question_are(one, other, first, second):
    same = one == other and first == second
    assert (binding(one, first) == binding(other, second)) == same


def test_a_question_is_bound_to_its_context():
    query = Query("", ())
    assert binding(bytes(32), query) != binding(b"\1" * 32, query)


def test_questions_of_different_kinds_and_the_same_bytes_are_bound_differently():
    threshold = Threshold(0, 0)
    query = Query("", ())
    assert query.canonical() == threshold.canonical()
    assert binding(bytes(32), query) != binding(bytes(32), threshold)


# --- slots --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", QUANTILE_METHODS)
@pytest.mark.parametrize("max_queries", [0, 1, 2, 7])
def test_there_is_a_slot_for_each_query_and_the_last_is_the_updates(method, max_queries):
    config = make_config(method=method, max_queries=max_queries)
    *queries, update = config.slots()
    search, layout = config.search_layout, config.update_layout
    assert [(s.label, s.length, s.ring_bits) for s in queries] == [
        ("quantile", search.length, search.ring_bits)
    ] * max_queries
    assert update == SlotSpec("update", config.update_length + 4, layout.ring_bits)
    assert config.update_slot == config.num_query_slots == max_queries


@pytest.mark.parametrize("method", QUANTILE_METHODS)
@pytest.mark.parametrize("max_queries", [0, 1, 2, 7])
def test_the_slots_of_all_queries_but_the_first_are_whole(method, max_queries):
    slots = make_config(method=method, max_queries=max_queries).slots()
    whole = [index for index, slot in enumerate(slots) if slot.whole]
    assert whole == list(range(1, max_queries))


@pytest.mark.parametrize("method", QUANTILE_METHODS)
def test_where_a_search_needs_a_number_of_devices_all_its_slots_are_whole(method):
    for least in (1, 3):
        slots = make_config(method=method, max_queries=3, min_search_cohort=least).slots()
        assert [slot.whole for slot in slots] == [True, True, True, False]


def test_a_cohort_too_small_to_be_searched_over_keeps_no_slots_for_it():
    config = make_config(max_queries=7, min_search_cohort=4)
    assert config.is_too_small
    assert [slot.label for slot in config.slots()] == ["update"]
    assert config.update_slot == 0
    assert not make_config(max_queries=7, min_search_cohort=3).is_too_small


def test_the_layout_of_the_search_is_that_of_its_method():
    lengths = {
        "mm": make_config(),
        "bracketed": make_config(method="bracketed"),
        "histogram": make_config(method="histogram", num_pivots=5),
    }
    assert {m: c.search_layout.length for m, c in lengths.items()} == {
        "mm": 5,
        "bracketed": 4,
        "histogram": 12,
    }


@pytest.mark.parametrize(
    ("weighting", "largest"),
    [(Weighting.SAMPLES, 500), (Weighting.POWERS_OF_TWO, 256), (Weighting.EQUAL, 1)],
)
@pytest.mark.parametrize("method", QUANTILE_METHODS)
def test_the_layout_of_the_search_is_as_wide_as_its_weights(method, weighting, largest):
    config = make_config(method=method, weighting=weighting)
    high = {field.name: field.high for field in config.search_layout.fields}
    assert high["weight"] == largest
    if method == "mm":
        assert (high["beta"], high["signed_weight"]) == (2 * largest, largest)
    else:
        assert (high["weight_below"], high["count_below"]) == (largest, 1)
    assert config.update_layout == make_config(method=method).update_layout


@pytest.mark.parametrize("epsilon", [0, 1, 3, 256, 2048])
def test_the_bound_of_beta_falls_with_epsilon(epsilon):
    beta = make_config(epsilon_ticks=epsilon).search_layout.fields[0]
    assert (beta.name, beta.high) == ("beta", 1000 / max(1, 2 * epsilon))
    assert beta.resolution_bits == CONFIG.search_layout.fields[0].resolution_bits
    assert beta.ring_bits(3) <= CONFIG.search_layout.ring_bits


def test_theta_one_keeps_no_slots_for_a_search():
    config = make_config(theta=Fraction(1), max_queries=7)
    assert [slot.label for slot in config.slots()] == ["update"]
    assert config.update_slot == 0


def test_layouts_are_never_those_of_a_warm_start():
    for method in QUANTILE_METHODS:
        config = make_config(method=method)
        for warm_start in (None, 0, 77, config.search.grid.max_tick):
            warmed = replace(config, warm_start=warm_start)
            assert warmed.search_config.warm_start == warm_start
            assert warmed.search_layout == config.search_layout
            assert warmed.slots() == config.slots()


def test_a_search_starts_from_its_warm_start():
    for method in QUANTILE_METHODS:
        cold, warm = (make_config(method=method, warm_start=tick) for tick in (None, 77))
        assert cold.start_search().query != warm.start_search().query
        assert warm.start_search().config == warm.search_config


# --- verified searches --------------------------------------------------------------------------

NOISY_ROUND = {"method": NOISY, "weighting": Weighting.EQUAL, "noise": Noise(Fraction(4), 3)}
METHODS_VERIFIED = [*({"method": method} for method in QUANTILE_METHODS), NOISY_ROUND]


@pytest.mark.parametrize("changes", METHODS_VERIFIED, ids=lambda changes: changes["method"])
@pytest.mark.parametrize("cohort_size", [3, 4, 1000, 2**20])
def test_the_ring_of_a_verified_search_holds_signs(changes, cohort_size):
    plain = make_config(**changes, cohort_size=cohort_size, update_resolution_bits=2)
    verified = changed_round(plain, verified=True)
    sums = plain.quantile.layout(verified.search_config).ring_bits
    bits = verified.search_layout.ring_bits
    assert bits == sums + 1
    assert [slot.verified for slot in verified.slots()] == [True, False]
    assert not any(slot.verified for slot in plain.slots())
    assert verified.update_layout == plain.update_layout


def test_every_method_counts_devices_whether_they_follow_or_not():
    for changes in METHODS_VERIFIED:
        plain, verified = (
            [field.name for field in make_config(**changes, verified=v).search_layout.fields]
            for v in (False, True)
        )
        assert "count" in plain
        assert plain == verified


def test_sums_of_a_verified_search_are_read_as_they_are_with_the_wider_ring():
    config = make_config(method="bracketed", verified=True)
    layout = config.search_layout
    most = DeviceRound.measured(config, 0.0, 500).answer(Query("bracketed", (2049,)))
    assert layout.decode(3 * most)["weight"] == 1500
    below = (3 * most) | np.uint64(2 ** (layout.ring_bits - 1))
    with pytest.raises(EncodingError):
        layout.decode(below)


# --- overflow -----------------------------------------------------------------------------------


@st.composite
def possible_configs(draw) -> RoundConfig:
    """Configurations up to the limits of what is possible."""
    changes = {
        "cohort_size": draw(st.integers(1, 40) | st.integers(1, 2**12)),
        "method": draw(st.sampled_from(["bracketed", "histogram"])),
        "grid": LossGrid(draw(st.integers(0, 40)), draw(st.integers(1, 2**12))),
        "max_weight": draw(st.integers(1, 2**22)),
        "update_length": draw(st.integers(1, 5)),
        "update_clip": draw(st.floats(2.0**-20, 2.0**12)),
        "update_resolution_bits": draw(st.integers(0, 45)),
    }
    try:
        return make_config(**changes)
    except ConfigurationError as error:
        if "'weighted_loss'" in str(error):
            raise  # the loss is to give way: it is not what makes a round impossible
        assume(False)
        raise


def extreme_sum(config: RoundConfig, sign: int, loss: float):
    """What `cohort_size` devices at all their bounds sum to, and what one of them put in."""
    device = DeviceRound.measured(config, loss, config.update.max_weight)
    update = np.full(config.update_length, np.float32(np.inf), dtype=np.float32)
    largest = np.finfo(np.float32).max
    words = device.contribution(np.minimum(update, largest) * np.float32(sign))
    total = np.zeros_like(words)
    for _ in range(config.cohort_size):
        total += words
    mask = np.uint64(2**config.update_layout.ring_bits - 1)
    return config.update_layout.decode(total & mask), config.update_layout.decode(words)


@pytest.mark.slow
@settings(FAST, max_examples=150)
@given(possible_configs(), st.sampled_from([1, -1]))
def test_the_update_of_a_cohort_at_all_its_bounds_does_not_overflow(config, sign):
    sums, one = extreme_sum(config, sign, float(config.search.grid.bound))
    count = config.cohort_size
    for name, total in sums.items():
        assert (total == count * one[name]).all(), name
    assert one["weight"] == config.update.max_weight
    assert one["count"] == 1
    assert one["clipped"] == config.update_length
    bound = Fraction(config.update.clip * config.update.max_weight)
    assert (one["update"] == sign * round(bound * 2**config.update.resolution_bits)).all()
    loss = config.update_layout.to_float("weighted_loss", sums["weighted_loss"])
    assert loss == float(count * config.update.max_weight * config.search.grid.bound)


@pytest.mark.slow
@settings(FAST, max_examples=150)
@given(possible_configs())
def test_the_weighted_loss_is_as_fine_as_ring_and_float64_allow(config):
    layout = config.update_layout
    update, loss = (
        next(field for field in layout.fields if field.name == name)
        for name in ("update", "weighted_loss")
    )
    ring_bits = update.ring_bits(config.cohort_size)
    assert 0 <= loss.resolution_bits <= config.search.grid.resolution_bits
    if loss.resolution_bits:  # it costs the update nothing
        assert loss.ring_bits(config.cohort_size) <= ring_bits
    if loss.resolution_bits < config.search.grid.resolution_bits:
        largest = config.update.max_weight * config.search.grid.bound << (loss.resolution_bits + 1)
        most = min(ring_bits, 63)
        assert largest.bit_length() > 53 or (config.cohort_size * largest).bit_length() > most


def test_the_loss_takes_no_64th_bit_which_sums_without_a_sign_do_not_have():
    config = make_config(
        cohort_size=2047,
        method="bracketed",
        grid=LossGrid(30, 2**12 - 1),
        max_weight=2**20,
        update_clip=1.0,
        update_resolution_bits=32,
    )
    assert config.update_layout.ring_bits == 64
    loss = config.update_layout.fields[2]
    assert loss.resolution_bits == 20
    assert loss.ring_bits(2047) == 63


def test_a_coarse_loss_is_coarse_because_the_ring_is_narrow():
    fields = {"max_weight": 1, "grid": LossGrid(8, 8)}
    wide = make_config(**fields, update_resolution_bits=20).update_layout
    narrow = make_config(**fields, update_resolution_bits=4).update_layout
    assert [field.resolution_bits for field in wide.fields] == [20, 0, 8, 0, 0]
    assert [field.resolution_bits for field in narrow.fields] == [4, 0, 4, 0, 0]
    assert narrow.ring_bits == 9  # 3 · 4 · 2^4 either way, and a sign


def test_a_loss_whose_bound_alone_needs_more_than_the_ring_widens_it():
    config = make_config(
        cohort_size=4, max_weight=4, update_clip=0.5, update_resolution_bits=0, grid=LossGrid(0, 64)
    )
    loss = config.update_layout.fields[2]
    assert loss.resolution_bits == 0
    assert config.update_layout.ring_bits == (4 * 4 * 64).bit_length()


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"round_index": -1}, "round_index=-1 is not in"),
        ({"round_index": 2**63}, f"round_index={2**63} is not in"),
        ({"cohort_size": 0}, "cohort_size=0"),
        ({"theta": Fraction(0)}, r"theta=0 is not in \(0, 1\]"),
        ({"theta": Fraction(-1, 2)}, r"theta=-1/2 is not in \(0, 1\]"),
        ({"theta": Fraction(3, 2)}, r"theta=3/2 is not in \(0, 1\]"),
        ({"theta": Fraction(0.8)}, r"theta=\d+/\d+ has parts of more than 32 bits"),
        ({"method": "median"}, "'median': choose one of mm, bracketed, histogram"),
        ({"num_pivots": 5}, "num_pivots=5 is no option of 'mm'"),
        ({"method": "histogram", "num_pivots": 0}, "num_pivots=0 is less than 1"),
        ({"method": "noisy"}, "the noise of 'noisy' is missing"),
        ({"noise": Noise(Fraction(1), 1)}, "noise is no option of 'mm'"),
        ({"method": "histogram", "num_pivots": 2**27}, "lower update_length or num_pivots"),
        ({"max_queries": -1}, "max_queries=-1 is negative"),
        ({"max_weight": 0}, "max_weight=0 is less than 1"),
        ({"max_weight": 2**50}, "'beta': bound"),
        ({"update_length": 0}, "update_length=0 is less than 1"),
        ({"update_length": 2**28 - 3}, f"{2**28 + 1} numbers"),
        ({"update_clip": 0.0}, "update_clip=0.0 is not a positive number"),
        ({"update_clip": -2.0}, "update_clip=-2.0 is not a positive number"),
        ({"update_clip": float("nan")}, "update_clip=nan is not a positive number"),
        ({"update_clip": float("inf")}, "update_clip=inf is not a positive number"),
        ({"update_clip": 1.7e308}, "'update': .*inf"),
        ({"epsilon_ticks": -1}, r"epsilon_ticks=-1 is not in \[0, 2048\]"),
        ({"epsilon_ticks": 2049}, "epsilon_ticks=2049 is not in"),
        ({"method": "bracketed", "epsilon_ticks": 1}, "epsilon_ticks=1 is an option of 'mm' only"),
        ({"method": "histogram", "epsilon_ticks": 9}, "epsilon_ticks=9 is an option of 'mm' only"),
        ({"min_search_cohort": -1}, "min_search_cohort=-1 is not in"),
        ({"min_search_cohort": 2**32}, f"min_search_cohort={2**32} is not in"),
        ({"update_resolution_bits": -1}, "update_resolution_bits=-1 is not in"),
        ({"update_resolution_bits": 54}, "update_resolution_bits=54 is not in"),
        ({"grid": LossGrid(44, 32), "epsilon_ticks": 2**48}, "'beta': resolution_bits=54"),
        ({"max_weight": 2**33, "method": "bracketed", "grid": LossGrid(0, 2**20)}, "more than 53"),
        ({"update_resolution_bits": 43}, "'update': bound .* at resolution_bits=43"),
        ({"update_resolution_bits": 40, "cohort_size": 2**20}, "'update': sums over 1048576"),
    ],
)
def test_impossible_configurations_are_refused_by_the_value(changes, named):
    with pytest.raises(ConfigurationError, match=named):
        make_config(**changes)


def test_the_refused_values_are_next_to_accepted_ones():
    for changes in (
        {"round_index": 2**63 - 1},
        {"update_length": 2**28 - 4},
        {"update_resolution_bits": 42},
        {"grid": LossGrid(43, 32), "epsilon_ticks": 2**47},
        {"max_weight": 2**32, "method": "bracketed", "grid": LossGrid(0, 2**20)},
        {"theta": Fraction(2**32 - 2, 2**32 - 1)},
        {"method": "histogram", "num_pivots": 2**27 - 1},
    ):
        make_config(**changes).slots()


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.theta = Fraction(1)
    assert replace(CONFIG, theta=Fraction(1)).update_layout == CONFIG.update_layout
