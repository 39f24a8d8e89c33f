"""Every machine moves in one place, by its table."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINES = ["protocol/client.py", "secagg/client.py", "secagg/server.py"]
MODULES = sorted(
    str(path.relative_to(ROOT))
    for package in ("secagg", "protocol")
    for path in (ROOT / package).rglob("*.py")
)


def moves(source):
    """What is written to a machine's state, with the function that does it."""
    return {
        (function.name, ast.unparse(node.value))
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        if target.attr in ("state", "_state")
    }


@pytest.mark.parametrize("module", MODULES)
def test_a_state_changes_by_the_table_alone(module):
    found = moves((ROOT / module).read_text(encoding="utf-8"))
    assert {name for name, _ in found} == ({"__init__", "_move"} if module in MACHINES else set())
    for name, value in found:
        begin = r"follow\(" if name == "_move" else "(Client|Server|Round)State\\."
        assert re.match(begin, value)


@pytest.mark.parametrize(
    "line", ["self.state = DONE", "self._state = DONE", "self._sum, self._state = None, DONE"]
)
def test_a_move_past_the_table_is_found(line):
    assert {name for name, _ in moves(f"def end(self):\n    {line}\n")} == {"end"}
    assert moves(f"def end(self):\n    {line.replace('state', 'total')}\n") == set()
