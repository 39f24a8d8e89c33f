"""Whoever writes the record of an analysis lies; each lie is found, by one check of the catalogue.

The records are honest ones that were changed under a right chain, or those of a service whose
devices or server do something else.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from analysed import (
    ANSWER,
    ASKED,
    BEGIN,
    CLOSING,
    END,
    MESSAGE,
    NOISY,
    OPENING,
    SUM,
    TABLES,
    answer_of,
    entries,
    mended,
    of_kind,
    question,
    recorded,
    rewritten,
    rules_of,
    with_answer,
    with_sum,
)
from frames import chained, frames_of
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg.stages import Stage, Step, Vanish
from deltafl.sim.analyse import analysis, plan
from deltafl.sim.analyse.session import AnalysisSession
from deltafl.sim.errors import ChainError, UserError
from deltafl.sim.inspect.audit import auditor
from deltafl.sim.inspect.audit.analyses.catalogue import ANALYSIS_CHECKS, OWN_CHECKS
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.record.transcript import ANALYSIS, read_with_digests

pytestmark = pytest.mark.slow

BINS = {"statistic": "histogram", "cap": 1, "noise": Fraction(1), "bins": 128}


# --- an honest record that is changed -------------------------------------------------------------


@dataclass(frozen=True)
class Lie:
    """A change of an honest record.

    Attributes:
        name: what.
        rules: that must be found broken, among others.
        tell: changes the records.
        asked: the honest question.
        gone: devices that vanish.
    """

    name: str
    rules: tuple[str, ...]
    tell: Callable[[list], object]
    asked: dict = None
    gone: dict = None

    def record(self, folder: Path) -> Path:
        asked = question(**(self.asked or {}))
        honest = recorded(folder / "honest", asked, vanishing=self.gone or {})
        changed = entries(honest)
        self.tell(changed)
        return rewritten(honest, changed, folder / "changed")


def change_question(old: bytes, new: bytes):
    def tell(records):
        assert old in records[0][4]
        records[0][4] = records[0][4].replace(old, new)

    return tell


def add_to_sum(slot):
    def tell(records):
        one = next(one for one in of_kind(records, SUM) if one[3] == slot)
        with_sum(one, np.frombuffer(one[7], "<u8") + 1)

    return tell


def tell_twice(records):
    _, second = of_kind(records, ASKED)
    records.insert(records.index(second) + 1, [*second[:4], b"count"])


def sum_again_without_one(records):
    one = of_kind(records, SUM)[1]
    again = [*one]
    again[6] = one[6][4:]
    records.insert(records.index(one) + 1, again)


def one_sum_more(records):
    one = of_kind(records, SUM)[1]
    records.insert(records.index(one) + 1, [*one[:3], 40, *one[4:]])


def ask_for_more(records):
    one = of_kind(records, ASKED)[1]
    records.insert(records.index(of_kind(records, END)[0]), [*one[:3], 2, b"count"])


def tell_late(records):
    one = of_kind(records, ASKED)[1]
    records.remove(one)
    records.insert(records.index(of_kind(records, SUM)[1]), one)


def withhold(reason):
    def tell(records):
        records.remove(of_kind(records, ANSWER)[0])
        of_kind(records, END)[0][3] = reason

    return tell


def forget_a_device(records):
    records[1][3] = records[1][3][4:]


def answer_otherwise(records):
    (one,) = of_kind(records, ANSWER)
    one[3] = one[3].replace(b",", b", ", 1)


def give_up(records):
    of_kind(records, END)[0][3] = "the server was tired"


def count_as_float(records):
    with_answer(records, count=float(answer_of(records)["count"]))


def answer_twice(records):
    (one,) = of_kind(records, ANSWER)
    records.insert(records.index(one), [*one])


LIES = [
    Lie("another value", ("analysis.answer",), lambda r: with_answer(r, value=3.5)),
    Lie("another count", ("analysis.answer",), lambda r: with_answer(r, count=99)),
    Lie("a whole number as a float", ("analysis.answer",), count_as_float),
    Lie("more than an answer has", ("analysis.answer",), lambda r: with_answer(r, secret=1)),
    Lie("another spelling", ("analysis.answer",), answer_otherwise),
    Lie("two answers", ("analysis.answer",), answer_twice),
    Lie("no answer", ("analysis.answer",), withhold("")),
    Lie("an answer that is kept back", ("analysis.given-up",), withhold("tired")),
    Lie("an answer and a reason for none", ("analysis.answer",), give_up),
    Lie("another error", ("analysis.answer",), lambda r: with_answer(r, plus_minus=1e-3), NOISY),
    Lie("a smaller epsilon", ("analysis.epsilon",), lambda r: with_answer(r, epsilon=0.5), NOISY),
    Lie("an epsilon that is a little smaller", ("analysis.epsilon",),
        lambda r: with_answer(r, epsilon=answer_of(r)["epsilon"] * (1 - 1e-6)), NOISY),
    Lie("a smaller delta", ("analysis.epsilon",), lambda r: with_answer(r, delta=1e-9), NOISY),
    Lie("another sum", ("sums.differ",), add_to_sum(0)),
    Lie("another sum in the search", ("sums.differ",), add_to_sum(4), {"statistic": "quantile"}),
    Lie("the question with another range", ("analysis.question",),
        change_question(b'"high":8.0', b'"high":9.0')),
    Lie("the question with less noise", ("analysis.question",),
        change_question(b'"noise":"1/2"', b'"noise":"1/9"'), NOISY),
    Lie("the question with another cap", ("analysis.question",),
        change_question(b'"cap":3', b'"cap":4')),
    Lie("the question of others", ("analysis.question",),
        change_question(b'"column":"age"', b'"column":"agf"')),
    Lie("the question with a smaller cohort", ("analysis.question",),
        change_question(b'"min_cohort":5', b'"min_cohort":4')),
    Lie("the question with a larger cohort than was asked", ("analysis.too-few-devices",),
        change_question(b'"min_cohort":5', b'"min_cohort":9')),
    Lie("a question that was asked twice", ("analysis.asked",), tell_twice),
    Lie("a question that nobody needs", ("analysis.asked",), ask_for_more,
        {"statistic": "quantile", "noise": Fraction(0)}),
    Lie("a question that came late", ("analysis.asked",), tell_late),
    Lie("a question that is missing", ("analysis.asked",),
        lambda r: r.remove(of_kind(r, ASKED)[1])),
    Lie("a second sum, without one device", ("analysis.unasked-sum", "analysis.same-sum"),
        sum_again_without_one),
    Lie("a sum that nobody needs", ("analysis.unasked-sum",), one_sum_more),
    Lie("a device that is not on the list", ("analysis.strange-devices",), forget_a_device),
    Lie("sums over a device less", ("analysis.fewer-devices",), len,
        gone={3: Vanish(Step(Stage.MASK, 1))}),
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_a_lie_is_found(lie, tmp_path):
    assert rules_of(lie.record(tmp_path)) >= set(lie.rules)


def test_another_session_in_the_same_record_is_found(tmp_path):
    """Two questions to the same devices, of which the record names one."""
    one, other = (entries(recorded(tmp_path / name, question(name))) for name in ("mean", "count"))
    at = one.index(of_kind(one, ANSWER)[0])
    second = [entry for entry in other if entry[0] in (MESSAGE, ASKED, SUM)]
    changed = mended([*one[:at], *second, *one[at:]])
    found = rules_of(rewritten(tmp_path, changed, tmp_path / "both"))
    assert found >= {"analysis.question", "analysis.unasked-sum", "session.twice"}


def test_a_device_that_is_taken_out_of_the_record_is_found(tmp_path):
    records = entries(recorded(tmp_path / "a"))
    records = [one for one in records if one[0] != MESSAGE or one[4] != 3]
    records[1][3] = np.array([i for i in TABLES if i != 3], "<u4").tobytes()
    found = rules_of(rewritten(tmp_path, mended(records), tmp_path / "b"))
    assert found >= {"analysis.question", "cohort.uninvited", "sums.unreplayable"}


# --- a service that does something else -----------------------------------------------------------


def without_noise(monkeypatch):
    monkeypatch.setattr(analysis._Devices, "_told", lambda _, one, part: one.of(part) * 1.0)


def with_little_noise(monkeypatch):
    told = analysis._Devices._told

    def little(self, one, part):
        exact = one.of(part)
        return exact + (told(self, one, part) - exact) / 8

    monkeypatch.setattr(analysis._Devices, "_told", little)


def without_floor(monkeypatch):
    """The session takes any cohort, whatever the question says."""
    params, policy = plan.Plan._params, plan.Plan.policy.fget

    def lower(self, *given):
        return replace(params(self, *given), threshold=3, min_cohort=3)

    monkeypatch.setattr(plan.Plan, "_params", lower)
    monkeypatch.setattr(
        plan.Plan,
        "policy",
        property(
            lambda self: replace(policy(self), min_cohort=3, colluding_rate=0.0, dropout_rate=0.5)
        ),
    )


def ends_the_search(monkeypatch):
    taken = AnalysisSession.sum

    def ending(self, slot, *given):
        return None if slot > 5 else taken(self, slot, *given)

    monkeypatch.setattr(AnalysisSession, "sum", ending)


def records_another_level(monkeypatch):
    asking = analysis.Asking

    def other(asked, *given):
        return asking(replace(asked, level=Fraction(9, 10)), *given)

    monkeypatch.setattr(analysis, "Asking", other)


def draws_zeros(monkeypatch):
    monkeypatch.setattr(analysis, "system_randomness", bytes)


def asks_for_more(monkeypatch):
    """Devices are told of other numbers, and the record says so."""
    monkeypatch.setattr(analysis, "told", lambda what: plan.told(what) + b",age")


def gives_up(monkeypatch):
    numbers = analysis._Devices._numbers

    def tired(self, slot, sums):
        if slot:
            raise UserError("the server was tired")
        return numbers(self, slot, sums)

    monkeypatch.setattr(analysis._Devices, "_numbers", tired)


SERVICES = [
    (without_noise, BINS, {}, "analysis.too-little-noise"),
    (with_little_noise, BINS, {}, "analysis.too-little-noise"),
    (without_floor, {}, {i: Vanish(Step(Stage.MASK, 1)) for i in range(4)}, "cohort.below-floor"),
    (without_floor, {}, {}, "analysis.question"),
    (ends_the_search, {"statistic": "quantile"}, {}, "analysis.asked"),
    (records_another_level, {"statistic": "quantile"}, {}, "analysis.asked"),
    (draws_zeros, {}, {}, "analysis.seed"),
    (asks_for_more, {}, {}, "analysis.asked"),
]


@pytest.mark.parametrize(("lies", "asked", "gone", "rule"), SERVICES)
def test_a_service_that_lies_is_found(lies, asked, gone, rule, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        lies(patch)
        path = recorded(tmp_path / "a", question(**asked), vanishing=gone)
    assert rule in rules_of(path)


def severity_of(path, rule):
    return next(one.severity for one in audit(path).findings if one.rule == rule)


def test_who_gives_up_with_all_sums_at_hand_has_no_reason(tmp_path, monkeypatch):
    """Without them, the last answers may have come too late, which nobody can tell."""
    lie = next(one for one in LIES if one.name == "an answer that is kept back")
    assert severity_of(lie.record(tmp_path), "analysis.given-up") == 2
    gives_up(monkeypatch)
    assert severity_of(recorded(tmp_path / "a"), "analysis.given-up") == 1


def test_a_value_beyond_the_cap_is_found(tmp_path, monkeypatch):
    """The ring is a little larger than the range, so a large sum may lie outside of it."""
    with monkeypatch.context() as patch:
        patch.setattr(
            analysis._Devices, "_numbers",
            lambda self, slot, sums: lambda part: np.full(
                self._plan.layouts[slot].length, (1 << self._plan.slots[slot].ring_bits) - 1,
                self._plan.layouts[slot].encode({one.name: one.of(part) for one in sums})[0].dtype,
            ),
        )  # fmt: skip
        path = recorded(tmp_path / "a", question("count"))
    assert "analysis.out-of-range" in rules_of(path)


# --- no rule and no check without a lie -----------------------------------------------------------


def provoked() -> set[str]:
    return {rule for lie in LIES for rule in lie.rules} | {rule for *_, rule in SERVICES}


def test_every_rule_of_analyses_is_provoked():
    own = {rule for check in OWN_CHECKS for rule in check.rules}
    assert own - provoked() == {"analysis.out-of-range"}  # by a test of its own


@pytest.mark.parametrize("check", OWN_CHECKS, ids=lambda check: check.__name__)
def test_a_check_finds_what_nobody_else_does(check, tmp_path, monkeypatch):
    lie = next((one for one in LIES if set(one.rules) <= set(check.rules)), None)
    path = lie.record(tmp_path) if lie else None
    if path is None:
        lies, asked, gone, rule = SERVICES[0]
        assert rule in check.rules
        with monkeypatch.context() as patch:
            lies(patch)
            path = recorded(tmp_path / "a", question(**asked), vanishing=gone)
    assert rules_of(path) & set(check.rules)
    others = tuple(other for other in ANALYSIS_CHECKS if other is not check)
    monkeypatch.setattr(auditor, "ANALYSIS_CHECKS", others)
    assert not rules_of(path) & set(check.rules)


# --- changed bytes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("honest") / "a")


@given(data=st.data())
def test_a_changed_byte_breaks_the_chain(honest, data):
    whole = (honest / "analysis.bin").read_bytes()
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    path = honest.parent / "changed.bin"
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    with pytest.raises(ChainError):
        list(read_with_digests(path, ANALYSIS))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.6, 0.97, 0.9999])
def test_a_changed_byte_is_refused_or_found(share, honest, tmp_path):
    whole = bytearray((honest / "analysis.bin").read_bytes())
    whole[int(len(whole) * share)] ^= 4
    (tmp_path / "analysis.bin").write_bytes(whole)
    try:
        found = {one.rule for one in audit(tmp_path).findings if one.severity >= 2}
    except UserError:
        return
    assert found & {"record.edited", "record.cut", "record.malformed"}


def test_the_end_cannot_be_cut_off(honest, tmp_path):
    frames = frames_of(honest / "analysis.bin", ANALYSIS)
    for count in (1, 2, len(frames) // 2, len(frames) - 1):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "analysis.bin").write_bytes(chained(frames[:count], ANALYSIS))
        assert "record.unfinished" in rules_of(folder)


def fields_of(records):
    """One field of each kind of record, as the place of the record and the field's."""
    seen = set()
    for place, one in enumerate(records):
        for at in range(2, len(one)):
            named = (one[0], at, len(one[at]) if one[0] == MESSAGE and at == 7 and
                     isinstance(one[at], bytes) else 0)  # fmt: skip
            if named not in seen:
                seen.add(named)
                yield place, at


def other_than(value):
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case bytes():
            half = len(value) // 2
            return value[:half] + bytes([value[half] ^ 1]) + value[half + 1 :] if value else b"x"
    raise AssertionError(value)


KINDS = (OPENING, MESSAGE, SUM, END, CLOSING, BEGIN, ASKED, ANSWER)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_matters_under_a_right_chain(kind, honest, tmp_path):
    """All but the id of the record, which is random and names nothing."""
    records, missed = entries(honest), []
    assert {one[0] for one in records} == set(KINDS)
    for number, (place, at) in enumerate(fields_of(records)):
        if records[place][0] != kind:
            continue
        changed = [[*one] for one in records]
        changed[place][at] = other_than(changed[place][at])
        if changed[place][0] == MESSAGE and at == 7 and isinstance(changed[place][at], bytes):
            changed[place][6] = hashlib.sha256(changed[place][at]).digest()
        try:
            found = rules_of(rewritten(honest, changed, tmp_path / str(number)))
        except UserError:
            continue
        if not found:
            missed.append((records[place][0], at))
    assert missed == ([(OPENING, 2)] if kind == OPENING else [])


def test_the_helpers_change_nothing_by_themselves(honest, tmp_path):
    """Control: a record that is written anew as it was is clean, and the same."""
    again = rewritten(honest, mended(entries(honest)), tmp_path / "a")
    assert (again / "analysis.bin").read_bytes() == (honest / "analysis.bin").read_bytes()
    assert rules_of(again) == set()
