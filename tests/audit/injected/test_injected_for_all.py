"""No check and no rule without a leak: each check finds one by itself, one provokes each rule.

A new check or rule without an injected leak fails here.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping

import pytest
from every_leak import LEAKS
from leaks import InjectedLeak

from deltafl.sim.inspect.audit import auditor, checks
from deltafl.sim.inspect.audit.catalogue import CHECKS, RULES
from deltafl.sim.inspect.audit.check import Check
from deltafl.sim.inspect.audit.coverage import Coverage
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.rules import Rule, Rules


@pytest.fixture(scope="session")
def found_in(tmp_path_factory):
    """The rules that are found broken in the run with a leak; every leak is audited once."""

    by_leak = {}

    def found(leak):
        if leak.name not in by_leak:
            report = leak.audit(tmp_path_factory.mktemp("leak"))
            by_leak[leak.name] = frozenset(finding.rule for finding in report.findings)
        return by_leak[leak.name]

    return found


def finding_leak(rules: Iterable[str], leaks: Iterable[InjectedLeak], found_in):
    """A leak that is said to break one of some rules, and is found to; None where there is none."""
    wanted = set(rules)
    for leak in leaks:
        if wanted & set(leak.rules) and wanted & set(leak.rules) & found_in(leak):
            return leak
    return None


def without_leak(rules_by_name: Mapping[str, Iterable[str]], leaks, found_in) -> list[str]:
    """The names to whose rules no leak belongs that is found."""
    return [
        name
        for name, rules in rules_by_name.items()
        if finding_leak(rules, leaks, found_in) is None
    ]


def checks_in_files() -> set[type[Check]]:
    """The checks that stand in the files of the package."""
    modules = [
        importlib.import_module(f"{checks.__name__}.{module.name}")
        for module in pkgutil.iter_modules(checks.__path__)
    ]
    return {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Check) and value is not Check
    }


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_finds_an_injected_leak_and_nobody_else_does(
    check, found_in, tmp_path, monkeypatch
):
    leak = finding_leak(check.rules, LEAKS, found_in)
    assert leak is not None, f"no leak of tests/audit/injected is found by {check.__name__}"
    if leak.rules[0] == "clear.by-design":  # the verdict on a run that is not played through checks
        leak = finding_leak({*check.rules} - {"clear.by-design"}, LEAKS, found_in)
    others = tuple(other for other in CHECKS if other is not check)
    monkeypatch.setattr(auditor, "CHECKS", others)
    report = leak.audit(tmp_path)
    assert not {finding.rule for finding in report.findings} & set(check.rules)
    assert [made.name for made in report.checks] == [
        other.name for other in others if leak.makes(other)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_provoked_by_an_injected_leak(rule, found_in):
    assert without_leak({rule: (rule,)}, LEAKS, found_in) == []


def test_leaks_break_rules_that_there_are():
    assert {rule for leak in LEAKS for rule in leak.rules} <= set(RULES)
    names = [leak.name for leak in LEAKS]
    assert len(set(names)) == len(names)


def test_every_check_is_in_the_table_and_no_rule_in_two():
    assert checks_in_files() == set(CHECKS)
    assert len(checks_in_files()) == len(CHECKS) == len({check.name for check in CHECKS})
    assert sum(len(check.rules) for check in CHECKS) == len(RULES)
    assert {rule for check in CHECKS for rule in check.tests.values()} <= set(RULES)


# --- that these tests can fail -------------------------------------------------------------------


class Blind(Check):
    """A check for which nobody has thought of a leak."""

    name = "what nobody looks at"
    rules = Rules({"blind.rule": Rule(Severity.HIGH, "nothing", "None.", "None.", "A24")})

    def coverage(self, tally):
        return Coverage(tally.rounds, "nothing")


@pytest.mark.slow
def test_a_check_in_the_table_is_made(monkeypatch, tmp_path):
    """It takes nothing more than a line: the auditor knows no check by name."""
    monkeypatch.setattr(auditor, "CHECKS", (*CHECKS, Blind))
    *others, last = LEAKS[0].audit(tmp_path).checks
    assert (last.name, last.outcome) == (Blind.name, Outcome.PASSED)
    assert len(others) == len([check for check in CHECKS if LEAKS[0].makes(check)])


def test_a_check_without_a_leak_is_named(found_in):
    known = CHECKS[1]
    rules = {check.__name__: check.rules for check in (known, Blind)}
    assert without_leak(rules, LEAKS, found_in) == ["Blind"]
    assert without_leak(rules, [], found_in) == [known.__name__, "Blind"]


def test_a_rule_without_a_leak_is_named(found_in):
    rules = {rule: (rule,) for rule in ("keys.reused", "blind.rule")}
    assert without_leak(rules, LEAKS, found_in) == ["blind.rule"]
    others = [leak for leak in LEAKS if "keys.reused" not in leak.rules]
    assert without_leak(rules, others, found_in) == ["keys.reused", "blind.rule"]


@pytest.mark.slow
def test_a_leak_that_is_not_there_provokes_nothing(found_in):
    honest = InjectedLeak("honest", ("keys.reused",), lambda _: None)
    assert finding_leak(("keys.reused",), [honest], found_in) is None


def test_a_check_that_is_not_in_the_table_is_noticed(monkeypatch):
    monkeypatch.setattr(checks.invariants, "Blind", Blind, raising=False)
    assert checks_in_files() - set(CHECKS) == {Blind}
