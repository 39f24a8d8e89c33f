"""docs/audit.md says what the auditor's code says."""

import re

from audit_tables import PAGE, current, table

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.findings import Severity

ATTACK = re.compile(r"^\| (A\d+) \|", re.MULTILINE)


def test_the_table_of_rules_is_that_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert "`record.edited`" in table()
    assert current(page) == page


def test_a_table_that_is_out_of_date_is_found():
    page = PAGE.read_text(encoding="utf-8").replace("a record was edited", "a record was changed")
    assert current(page) != page


def test_every_attack_of_a_rule_is_on_the_page():
    attacks = ATTACK.findall(PAGE.read_text(encoding="utf-8"))
    assert attacks == [f"A{number}" for number in range(1, 26)]
    assert {rule.attack for rule in RULES.values()} <= set(attacks)


def test_every_rule_has_its_texts_and_a_check():
    for name, rule in RULES.items():
        for text in (rule.consequence, rule.remedy):
            assert text[0].isupper(), name
            assert text.endswith("."), name
        assert not rule.title.endswith("."), name
        assert rule.severity in Severity
