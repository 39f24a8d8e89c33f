"""Where losses can be by the sums of one round, compared with all losses that there might be."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import example_reports
import plain_solver
import pytest
from html_pages import parsed
from hypothesis import given
from hypothesis import strategies as st
from real_runs import leave

from deltafl.protocol.quantile.search import SearchConfig, SearchParams
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.audit import searches
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.given_away import _singles
from deltafl.sim.inspect.audit.facts import SingleFacts
from deltafl.sim.inspect.audit.given_away import possible
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.searches import Located, located_by_weights
from deltafl.sim.inspect.leakage.consequences import Below
from deltafl.sim.inspect.leakage.observations import simulate
from deltafl.sim.record.transcript import Sum, read_transcript

TOP = 4  # ticks 0 to 3


def below(pivot, losses, weights):
    held = [weight for loss, weight in zip(losses, weights, strict=True) if loss < pivot]
    return Below(pivot, sum(held), len(held), len(held))


def released(losses, weights, pivots, threshold=0, updated=()):
    """What the server is told of some losses; the threshold need not be a pivot."""
    rows = tuple(below(pivot, losses, weights) for pivot in sorted({0, TOP, *pivots}))
    passed = sum(losses[device] >= threshold for device in updated)
    return rows, range(len(losses)), frozenset(updated), threshold, passed


def hulls(places):
    return {device: (min(ticks), max(ticks) + 1) for device, ticks in enumerate(places)}


@st.composite
def rounds(draw):
    losses = draw(st.lists(st.integers(0, TOP - 1), min_size=1, max_size=4))
    size = len(losses)
    weights = draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
    updated = draw(st.frozensets(st.integers(0, size - 1)))
    pivots = draw(st.frozensets(st.integers(1, TOP - 1)))
    return losses, weights, pivots, draw(st.integers(0, TOP)), updated


def by_counts(known, losses, weights):
    """Whether other losses would give the same counts."""
    rows, _, updated, threshold, count = known
    told = [(row.pivot, row.fewest) for row in rows]

    def agrees(others):
        passed = sum(others[device] >= threshold for device in updated)
        counts = [(p, below(p, others, weights).fewest) for p, _ in told]
        return counts == told and passed == count

    return agrees


@pytest.mark.slow
@given(rounds())
def test_without_weights_a_loss_can_be_where_some_losses_of_all_have_it(drawn):
    losses, weights, *_ = drawn
    known = released(*drawn)
    expected = plain_solver.places(len(losses), TOP, by_counts(known, losses, weights))
    assert possible(*known) == hulls(expected)


def test_the_only_device_that_was_lost_is_known_to_have_passed():
    known = released([0, 1, 3, 3], [1, 1, 1, 1], [2], 2, {0, 1, 2})
    assert possible(*known) == {0: (0, 4), 1: (0, 4), 2: (0, 4), 3: (2, 4)}


def test_control_a_wrong_count_is_noticed():
    losses, weights = [0, 1, 3, 3], [1, 1, 1, 1]
    known = released(losses, weights, [2], 2, {0, 1, 2})
    right = hulls(plain_solver.places(4, TOP, by_counts(known, losses, weights)))
    assert possible(*known) == right
    assert possible(*known[:-1], known[-1] + 1) != right


def weighed(weights, weighting=Weighting.SAMPLES, named=range(4)):
    """Where four losses are by the weights, too, if the fourth device's is the largest."""
    ticks = [10, 20_000, 90_000, 200_000]
    search = SearchParams(max_queries=1, weighting=weighting)
    config = SearchConfig(Fraction(1, 2), search, 2**40, 4, warm_start=150_000)
    view = simulate(config, "bracketed", ticks, weights).view
    pivot, top = view.tail.pivot, config.search.grid.top_pivot
    known = Located(dict.fromkeys(named, (0, top)), pivot, 1.0)
    truth = {k: SimpleNamespace(weight=weight) for k, weight in enumerate(weights)}
    return located_by_weights(known, view.anonymous(), truth), pivot, top


def test_a_weight_that_only_one_device_has_says_where_it_is():
    found, pivot, top = weighed([1, 2, 4, 8])
    assert found.losses == {0: (0, pivot), 1: (0, pivot), 2: (0, pivot), 3: (pivot, top)}
    found, _, top = weighed([1, 1, 1, 1])
    assert found.losses == dict.fromkeys(range(4), (0, top))


def test_a_weight_in_the_update_tells_who_is_in_the_tail_though_all_count_alike_in_the_search():
    found, pivot, top = weighed([1, 2, 4, 8], Weighting.EQUAL)
    assert found.losses == {0: (0, pivot), 1: (0, pivot), 2: (0, pivot), 3: (pivot, top)}


def test_who_is_where_in_large_cohorts_is_not_worked_out_by_weights(monkeypatch):
    monkeypatch.setattr(searches, "WEIGHED", 3)
    assert weighed([1, 2, 4, 8])[0] is None


def test_a_device_that_is_named_twice_and_weights_too_large_to_work_with_tell_nothing():
    assert weighed([1] * 4, named=(1, 2, 3))[0] is None
    assert weighed([1, 2, 4, 2**40])[0] is None


def test_devices_of_which_something_single_follows_are_counted_once():
    one = {1: (0, 2), 2: (0, 4), 3: (2, 4)}
    other = {1: (1, 2), 4: (1, 2)}
    told = [Located(one, 2, 0.5), Located(one, 2, 0.5), Located(other, None, 0.5)]
    facts = _singles(told)
    assert (facts.passed, facts.located, facts.narrowest, facts.rounds) == (2, 2, 0.5, 3)


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    path = tmp_path_factory.mktemp("given") / "run"
    assert leave(path)
    return path


@pytest.mark.slow
def test_the_figures_of_a_run_are_those_of_its_record(left):
    report = audit(left, Options())
    given, sums = (
        report.given_away,
        [one for one in read_transcript(left / "record.sqlite") if isinstance(one, Sum)],
    )
    last = {one.round: one for one in sums}.values()  # of updates
    cohorts = [frozenset(one.contributors.tolist()) for one in last]
    devices = plain_solver.devices_of(cohorts)
    assert (given.sums, given.noisy, given.untold, given.epsilon) == (len(sums), 0, 0, None)
    assert (given.updates.sums, given.updates.devices) == (3, len(devices))
    assert given.updates.solvable == plain_solver.most_that_follow(cohorts, 0)
    assert given.weights == given.updates  # nobody was lost
    tails = [int(one.words[-2]) for one in last]
    assert given.smallest == min([8, *tails])
    assert given.single.rounds == len(report.searches)
    assert given.with_weights is None
    assert report.to_json()["given_away"]["updates"]["sums"] == given.updates.sums


@pytest.mark.slow
def test_of_sums_without_messages_it_is_known_whom_they_are_over_and_no_more(tmp_path):
    assert leave(tmp_path / "run", privacy={"min_cohort": 5, "transcript": "sums"})
    given = audit(tmp_path / "run", Options()).given_away
    assert given.untold == given.sums > 0
    assert given.smallest == 8
    assert (given.updates.sums, given.epsilon) == (0, None)


def section(**changes):
    """What the page says of what follows, with other figures."""
    report = example_reports.clean()
    page = render(replace(report, given_away=replace(report.given_away, **changes)))
    whole = " ".join(" ".join(parsed(page).itertext()).split())
    return whole[whole.index("What follows from the sums") :].partition("Not considered")[0]


def test_the_page_says_first_how_many_took_part_and_what_follows_of_whom():
    assert (
        "60 devices took part. The smallest group that a released sum is about has 15 devices, or "
        "12 if 3 of them collude with the server. Nothing that was looked for follows of any "
        "single device."
    ) in section()
    assert (
        "follows: of 2 devices whether they passed the filter in some round; of 1 device something "
        "about the loss."
    ) in section(single=SingleFacts(2, 1, 0.25, 59))
    assert "Fewest losses between two pivots of a search 1 The difference" in section()
    assert "No sums are recorded" in section(smallest=None)


def test_the_page_promises_privacy_for_sums_with_noise_only():
    assert "— 420 sums without noise: no bound." in section()
    assert "12.5 At δ = 10⁻⁵, for the device that was asked most. 60 sums without" in section(
        noisy=360, epsilon=12.5, delta=1e-5
    )
    some = section(untold=420)
    assert "420 sums of rounds without messages: not known." in some
    assert "without noise" not in some
