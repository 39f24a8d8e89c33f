"""How large the project is, against what it may be (`sizes.toml`).

    python -m tests.structure.sizes          prints it, beside other projects
    python -m tests.structure.sizes --write  lowers what may be to what is

Numbers may only fall. Whoever has a reason to let one rise writes the higher number by hand, where
a reader of the change sees it.

Counted of each room, a folder below a layer: lines of code, which have more than docstrings,
imports, comments and blanks; modules; and public names, those that another module of the
package imports or takes from an imported module. What only moved into another kind of file has not
gone, so settings, templates, tests and the code and words of the documentation are counted too.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("sizes.toml")
LAYERS = ("secagg", "protocol", "fl", "sim")
ANCHORS = {
    "h11": (1_121, 11, 50),
    "VDAF reference": (3_408, 14, 93),
    "ChillDKG": (1_221, 6, 87),
    "fedjax": (4_545, 53, 234),
    "opacus": (5_430, 78, 154),
    "bandit": (5_335, 67, 136),
    "pfl-research": (8_545, 115, 316),
    "breaching": (8_301, 56, 199),
    "Flower": (28_181, 364, 749),
}
"""Lines of code, modules and public definitions of other projects, counted in 2026."""

Table = dict[str, dict[str, int]]


class Size(NamedTuple):
    """Of a room."""

    code: int
    modules: int
    names: int


def table() -> Table:
    """What may be."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def measured(root: Path = ROOT) -> Table:
    """What is: each number of the table, counted."""
    rooms = rooms_of(root)
    functions = sorted(size for path in modules(root) for size in functions_of(path))
    found: Table = {
        "code": {room: size.code for room, size in rooms.items()},
        "modules": {room: size.modules for room, size in rooms.items()},
        "names": {room: size.names for room, size in rooms.items()},
        "functions": {
            "median": int(median(functions)),
            "ninth_decile": int(quantiles(functions, n=10, method="inclusive")[-1]),
            "longest": functions[-1],
        },
        "beside": {
            "longest_module": max(lines(path) for path in modules(root)),
            "settings": sum(map(lines, files(root, LAYERS, (".toml", ".sql", ".json", ".csv")))),
            "templates": sum(map(lines, files(root, LAYERS, (".j2", ".css", ".js", ".html")))),
            "tests": sum(map(code_of, files(root, ["tests"], (".py",)))),
            "tests_data": sum(map(lines, files(root, ["tests"], (".toml",)))),
            "docs_code": sum(map(code_of, files(root, ["docs"], (".py",)))),
            "docs_words": sum(map(words, documents(root))),
        },
    }
    tree_of.cache_clear()
    return found


def rooms_of(root: Path) -> dict[str, Size]:
    """The size of every room."""
    code: Counter[str] = Counter()
    count: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for path in modules(root):
        code[room(path.relative_to(root))] += code_of(path)
        count[room(path.relative_to(root))] += 1
    for module, _ in public_names(root):
        names[room(module)] += 1
    return {each: Size(code[each], count[each], names[each]) for each in sorted(count)}


def room(path: Path) -> str:
    """The room of a module: the folder below its layer, and in `sim/inspect` the one below that."""
    depth = 3 if path.parts[:2] == ("sim", "inspect") else 2
    return "/".join(path.parent.parts[:depth])


def modules(root: Path) -> list[Path]:
    """Every module of the package."""
    return files(root, LAYERS, (".py",))


def files(root: Path, folders: Iterable[str], suffixes: tuple[str, ...]) -> list[Path]:
    """Files below some folders whose names end so."""
    found = (path for folder in folders for path in sorted((root / folder).rglob("*")))
    return [path for path in found if path.suffix in suffixes and path != TABLE]


def documents(root: Path) -> list[Path]:
    """Every page of documentation."""
    return [*files(root, ["docs"], (".md", ".rst")), *sorted(root.glob("*.md"))]


def lines(path: Path) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def words(path: Path) -> int:
    """Words, as `wc` counts them."""
    return len(path.read_text(encoding="utf-8").split())


@cache
def tree_of(path: Path) -> ast.Module:
    """A module's syntax; all are forgotten once everything is measured."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a module or a statement, without their expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def code_of(path: Path) -> int:
    """Lines of code: without docstrings, imports, comments and blank lines."""
    left_out: set[int] = set()
    for node in statements(tree_of(path)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text:
            left_out |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    text = path.read_text(encoding="utf-8").splitlines()
    told = {
        number for number, line in enumerate(text, 1) if line.strip() and line.strip()[0] != "#"
    }
    return len(told - left_out)


def functions_of(path: Path) -> Iterator[int]:
    """How many lines each function has, without its docstring."""
    for node in statements(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            told = ast.get_docstring(node) is not None
            skipped = (first.end_lineno or 0) - first.lineno + 1 if told else 0
            yield (node.end_lineno or 0) - node.lineno + 1 - skipped


def public_names(root: Path) -> set[tuple[Path, str]]:
    """Names that a module takes from another one, with the module that they are defined in."""
    known = {dotted(path.relative_to(root)): path for path in modules(root)}
    taken = {module: {*uses(path, known)} for module, path in known.items()}
    passed_on = {
        (module, alias.asname or alias.name): (str(node.module), alias.name)
        for module, path in known.items()
        for node in ast.iter_child_nodes(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module in known
        for alias in node.names
    }
    found = set()
    for module, names in taken.items():
        for name in names:
            origin = name
            while origin in passed_on:
                origin = passed_on[origin]
            if (
                origin[0] in known
                and origin[0] != module
                and f"{origin[0]}.{origin[1]}" not in known
            ):
                found.add((known[origin[0]].relative_to(root), origin[1]))
    return found


def uses(path: Path, known: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """What a module imports from modules of the package, or takes from those that it imports."""
    whole = {}
    for node in statements(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in known:
                    whole[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                elif node.module in known:
                    yield str(node.module), alias.name
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield whole.get(node.value.id, ""), node.attr


def dotted(path: Path) -> str:
    """The name that a module is imported by."""
    parts = path.with_suffix("").parts
    return ".".join(("deltafl", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def grown(now: Table, allowed: Table) -> list[str]:
    """What is larger than it may be, a sentence each; what the table does not have may be 0."""
    return [
        f"{kind}.{name} is {number}, and may be {allowed.get(kind, {}).get(name, 0)}"
        for kind, each in now.items()
        for name, number in each.items()
        if number > allowed.get(kind, {}).get(name, 0)
    ]


def stale(now: Table, allowed: Table) -> list[str]:
    """What the table allows, and is no longer there."""
    return [
        f"{kind}.{name} may be {number}, and is {now.get(kind, {}).get(name, 0)}"
        for kind, each in allowed.items()
        for name, number in each.items()
        if number > now.get(kind, {}).get(name, 0)
    ]


def lowered(now: Table, allowed: Table) -> Table:
    """The table with what has become smaller; nothing in it rises, and what has gone leaves it."""
    return {
        kind: {
            name: min(number, allowed.get(kind, {}).get(name, number))
            for name, number in each.items()
        }
        for kind, each in now.items()
    }


def to_toml(numbers: Table) -> str:
    """The table as a file."""
    parts = []
    for kind, each in numbers.items():
        parts += [f"[{kind}]", *(f'"{name}" = {number}' for name, number in each.items()), ""]
    return "\n".join(parts)


def printed(now: Table, allowed: Table) -> str:
    """The numbers for people."""
    rows = [f"{'':24}{'code':>8}{'modules':>9}{'names':>7}"]
    kinds = ("code", "modules", "names")
    for name in now["code"]:
        rows.append("".join((f"{name:24}", *_cells([now[kind][name] for kind in kinds]))))
    totals = [sum(now[kind].values()) for kind in kinds]
    rows.append("".join((f"{'together':24}", *_cells(totals))))
    rows += ["".join((f"{name:24}", *_cells(each))) for name, each in ANCHORS.items()]
    for kind in ("functions", "beside"):
        rows += ["", *(f"{name.replace('_', ' '):24}{each:>8}" for name, each in now[kind].items())]
    return "\n".join([*rows, "", *(grown(now, allowed) or ["nothing is larger than it may be"])])


def _cells(numbers: Iterable[int]) -> list[str]:
    return [f"{number:>{width}}" for number, width in zip(numbers, (8, 9, 7), strict=True)]


def main() -> int:
    """Print or write; the exit code."""
    now = measured()
    if sys.argv[1:] == ["--write"]:
        allowed = table() if TABLE.exists() else {}
        TABLE.write_text(to_toml(lowered(now, allowed)), encoding="utf-8")
    print(printed(now, table()))
    return int(bool(grown(now, table())))


if __name__ == "__main__":
    sys.exit(main())
