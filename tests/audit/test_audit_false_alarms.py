import numpy as np
import pytest
from ideal import ideal_words, too_often

from deltafl.secagg.errors import UsageError
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.randomness.strings import counted, rows_of_words, side_by_side
from deltafl.sim.inspect.audit.randomness.words import signed, small_sums
from deltafl.sim.inspect.audit.tails import PValue

RANDOM = np.random.default_rng(12)


def place(index):
    return f"number {index}", Evidence(record=index)


def budget_of(values, rate=1e-6):
    budget = FalseAlarmBudget(rate)
    budget.add_all("test", np.asarray(values, dtype=float), place)
    return budget


def alarm_rate(audits, rate):
    """1 and 0 as p-values at `rate`: whether each audit raised no alarm."""
    return [0.0 if budget_of(values, rate).alarms() else 1.0 for values in audits]


@pytest.mark.parametrize("num_tests", [1, 40])
def test_ideal_audits_raise_alarms_no_more_often_than_allowed(num_tests):
    audits = RANDOM.uniform(size=(3000, num_tests))
    assert not too_often(alarm_rate(audits, 0.1), 0.1)


def test_tests_may_depend_on_one_another():
    audits = np.repeat(RANDOM.uniform(size=(3000, 1)), 40, axis=1)
    assert not too_often(alarm_rate(audits, 0.1), 0.1)


@pytest.mark.slow
def test_audits_of_ideal_masks_raise_alarms_no_more_often_than_allowed():
    alarmed = []
    for vectors in ideal_words(1, (200, 5, 40), 30):
        budget = FalseAlarmBudget(rate=0.1)
        alone = [counted(rows_of_words(vector, 30)) for vector in vectors]
        for counts in (*alone, sum(alone)):
            for result in side_by_side(counts, 30):
                budget.add(result, Evidence(round=1))
        pairs = signed(np.array([[0, other] for other in range(1, len(vectors))]), len(vectors))
        budget.add_all("pairs", small_sums([(30, vectors)], pairs), place)
        alarmed.append(0.0 if budget.alarms() else 1.0)
    assert not too_often(alarmed, 0.1)


def test_a_generous_p_value_shows_in_the_rate():
    audits = RANDOM.uniform(size=(3000, 40)) / 2
    assert too_often(alarm_rate(audits, 0.1), 0.1)


def test_all_tests_count_whatever_their_kind_and_order():
    budget = FalseAlarmBudget(rate=0.1)
    budget.add(PValue("a", 0.04, "early"), Evidence(round=1))
    assert [alarm.test for alarm in budget.alarms()] == ["a"]
    budget.add(PValue("b", 0.9, "nothing"), Evidence(round=2))
    budget.add(PValue("b", 0.9, "nothing"), Evidence(round=3))
    assert budget.num_tests == 3
    assert budget.smallest == 0.04
    assert budget.alarms() == ()  # 0.04 of three tests is no longer news


def test_alarms_come_smallest_first_with_their_places():
    budget = FalseAlarmBudget()
    budget.add_all("weak", np.array([0.5, 1e-9]), place)
    budget.add_all("strong", np.array([[1e-20, 0.3], [1e-30, 1e-10]]), place)
    strong, weak = budget.alarms()
    assert (strong.test, strong.value, strong.detail) == ("strong", 1e-30, "number 2")
    assert strong.corrected == pytest.approx(6e-30)
    assert [evidence.record for evidence in strong.evidence] == [2, 0, 3]
    assert (weak.test, weak.evidence) == ("weak", (Evidence(record=1),))


def test_what_no_longer_counts_is_not_named():
    budget = FalseAlarmBudget(rate=0.1)
    budget.add_all("test", np.array([1e-5, 0.04]), place)
    budget.add_all("test", np.array([0.02, 1e-6]), place)
    budget.add_all("other", np.full(100, 0.5), place)
    (alarm,) = budget.alarms()
    assert [evidence.record for evidence in alarm.evidence] == [1, 0]


def test_the_first_of_equals_are_named_and_smaller_ones_take_their_place():
    budget = FalseAlarmBudget()
    for start in range(0, 100, 10):
        budget.add_all("test", np.full(10, 1e-20), lambda index, start=start: place(start + index))
    (alarm,) = budget.alarms()
    assert [evidence.record for evidence in alarm.evidence] == list(range(8))
    budget.add_all("test", np.array([1e-21, 0.5, 1e-22]), place)
    (alarm,) = budget.alarms()
    assert [evidence.record for evidence in alarm.evidence] == [2, 0, *range(6)]


def test_places_are_described_only_if_they_may_matter():
    def refuse(index):
        raise AssertionError(index)

    FalseAlarmBudget(rate=0.1).add_all("test", np.linspace(0.001, 1, 1000), refuse)


def test_nothing_tested_is_nothing_found():
    budget = FalseAlarmBudget()
    budget.add_all("test", np.zeros((0, 3)), place)
    assert budget.alarms() == ()
    assert (budget.num_tests, budget.smallest) == (0, None)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(value):
    with pytest.raises(UsageError, match="not in"):
        budget_of([0.5, value])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_budget_that_makes_no_sense_is_refused(rate):
    with pytest.raises(UsageError, match="rate"):
        FalseAlarmBudget(rate)
