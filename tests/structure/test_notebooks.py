"""The notebooks: small files without outputs that use what is public. `make docs` runs them."""

import ast
import copy
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import deltafl
from deltafl import secagg

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "examples" / "notebooks").glob("*.ipynb"))
PUBLIC = {"deltafl": set(deltafl.__all__), "deltafl.secagg": set(secagg.__all__)}
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|Users|root|tmp|var|opt|mnt|work|content)\b|\b[A-Z]:\\")
MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)


def code(notebook):
    """What its cells run, as Python without what only a notebook understands."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return ast.parse(MAGIC.sub(r"\1pass", "\n".join(cells)))


def named(tree):
    """What is named of the package: pairs of a module and a name in it."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "deltafl":
                    aliases[one.asname or "deltafl"] = one.name if one.asname else "deltafl"
                    if one.name not in PUBLIC:
                        yield one.name, "*"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deltafl"):
            yield from ((node.module, one.name) for one in node.names)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in aliases:
                yield aliases[name], node.attr


def faults(notebook):
    """What is wrong with a notebook, in phrases."""
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError:
        yield "is no valid notebook"
        return
    first, *others = notebook.cells
    if first.cell_type != "markdown" or not re.match(r"# .+\n\n(.|\n)*minutes", first.source):
        yield "does not begin with what it teaches and how long it takes"
    if not any("find_spec" in cell.source and "%pip" in cell.source for cell in others):
        yield "does not install the package"
    for cell in notebook.cells:
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            yield "has outputs"
        if ABSOLUTE.search(cell.source):
            yield "has an absolute path"
        if "://" in cell.source:
            yield "has an address"
    for module, name in named(code(notebook)):
        if name not in PUBLIC.get(module, ()):
            yield f"names {module}.{name}, which is not public"


def read(path):
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_as_it_should_be(path):
    assert list(faults(read(path))) == []
    assert path.stat().st_size < 20_000


def test_there_are_notebooks_and_pages_lead_to_them():
    assert len(NOTEBOOKS) == 5
    for page in ("tutorials/notebooks.md", "reference/examples.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        linked = re.findall(r"\(\.\./examples/notebooks/([\w-]+\.ipynb)\)", text)
        assert sorted(linked) == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import deltafl as dfl\ndfl.hidden", "names deltafl.hidden, which is not public"),
        ("from deltafl.sim.cli import main", "names deltafl.sim.cli.main, which is not public"),
        ("from deltafl.secagg import prg", "names deltafl.secagg.prg, which is not public"),
        ("import deltafl.fl.models as m", "names deltafl.fl.models.*, which is not public"),
        ("import deltafl\ndeltafl.fl", "names deltafl.fl, which is not public"),
        ("open('/home/me/table.csv')", "has an absolute path"),
        (r"open('C:\\table.csv')", "has an absolute path"),
        ("url = 'https://example.org/table.csv'", "has an address"),
    ],
)
def test_a_cell_that_should_not_be_there_is_found(source, fault):
    notebook = copy.deepcopy(read(NOTEBOOKS[0]))
    notebook.cells.append(nbformat.v4.new_code_cell(source, id="one-more"))
    assert fault in list(faults(notebook))


def test_outputs_counts_and_missing_parts_are_found():
    given = read(NOTEBOOKS[0])
    at = next(i for i, cell in enumerate(given.cells) if cell.cell_type == "code")
    with_output, with_count, headless, bare, broken = (copy.deepcopy(given) for _ in range(5))
    with_output.cells[at].outputs = [nbformat.v4.new_output("stream", text="one")]
    with_count.cells[at].execution_count = 1
    del headless.cells[0]
    del bare.cells[at]
    broken.cells[at].cell_type = "other"
    assert list(faults(with_output)) == list(faults(with_count)) == ["has outputs"]
    assert list(faults(headless)) == ["does not begin with what it teaches and how long it takes"]
    assert list(faults(bare)) == ["does not install the package"]
    assert list(faults(broken)) == ["is no valid notebook"]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "is_built"), [("print(6 * 7)", True), ("1 / 0", False)])
def test_a_site_with_a_cell_that_fails_is_not_built(source, is_built, tmp_path):
    page = nbformat.v4.new_notebook(
        metadata=read(NOTEBOOKS[0]).metadata,
        cells=[nbformat.v4.new_markdown_cell("# Page"), nbformat.v4.new_code_cell(source)],
    )
    nbformat.write(page, tmp_path / "index.ipynb")
    command = ["sphinx", "--quiet", "--fail-on-warning", "--nitpicky", "-c", DOCS, tmp_path]
    done = subprocess.run(  # noqa: S603 our own interpreter
        [sys.executable, "-m", *command, tmp_path / "built"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_built, done.stderr
    assert ("ZeroDivisionError" in done.stderr) != is_built
    built = tmp_path / "built" / "index.html"
    assert not is_built or "42" in built.read_text(encoding="utf-8")
