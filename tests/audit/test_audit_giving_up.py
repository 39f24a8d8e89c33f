"""The audit knows why a server may give a round up: the reasons in its source, and no others."""

import ast
import re
from pathlib import Path

import pytest

from deltafl.sim.inspect.audit.giving_up import SENTENCES, is_one_of

ROOT = Path(__file__).parents[2]
SOURCES = (
    "protocol/levels.py",
    "protocol/round.py",
    "protocol/server.py",
    "secagg/survival.py",
    "secagg/unmasking.py",
)
ENDS = "SessionAborted"


def said(node):
    """A text in the source with 7 in place of every value; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "7" for p in node.values)
        return "".join(parts)
    return None


def reasons_in(text):
    """What the calls of the error say, and what functions that return a text return."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == ENDS:
            found = said(node.args[0])
        elif isinstance(node, ast.Return) and node.value is not None:
            found = said(node.value)
        else:
            found = None
        if found is not None:
            yield found


def layouts_reason():
    """That of a sum outside its range, which a server hands on as it is."""
    tree = ast.parse((ROOT / "secagg/layout.py").read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args]
    texts = [said(n.args[0]) for n in calls if getattr(n.func, "id", "") == "EncodingError"]
    (reason,) = [text for text in texts if text and "did not encode by this layout" in text]
    return reason.replace("field 7", "field 'weight'")


def every_reason():
    for name in SOURCES:
        yield from reasons_in((ROOT / name).read_text(encoding="utf-8"))
    yield layouts_reason()


def test_all_modules_that_end_a_session_are_looked_at():
    modules = [path for layer in ("secagg", "protocol") for path in (ROOT / layer).rglob("*.py")]
    raising = {str(p.relative_to(ROOT)) for p in modules if f"{ENDS}(" in p.read_text("utf-8")}
    assert raising == {*SOURCES, "secagg/errors.py"}


@pytest.mark.parametrize("reason", sorted(every_reason()))
def test_the_audit_knows_every_reason_of_a_server(reason):
    assert is_one_of(reason)


@pytest.mark.parametrize("pattern", SENTENCES)
def test_every_sentence_that_the_audit_knows_is_one_of_a_server(pattern):
    assert any(re.fullmatch(pattern, reason) for reason in every_reason())


@pytest.mark.parametrize(
    "reason",
    ["", "the loss of device 7 was 1.2345", "7 devices are left", "7 devices are left\n"],
)
def test_nothing_else_is_a_reason(reason):
    assert not is_one_of(reason)


def test_a_reason_that_is_new_is_found():
    new = f"def f(n):\n    raise {ENDS}(f'{{n}} devices are asleep')\n"
    assert list(reasons_in(new)) == ["7 devices are asleep"]
    assert not is_one_of("7 devices are asleep")
