"""Writes a report into a folder of its own, OUT/NAME.

report.md      tables, notes and figures
TABLE.csv      a table's records, one line each
TABLE.jsonl    the same, one JSON object a line
FIGURE.png     a figure, and FIGURE.svg

On a terminal, tables fit its width and notes are wrapped. A table that is too wide continues below,
with its first column again. Headings are broken between words, so a column is about as wide as its
numbers.
"""

import csv
import io
import json
import math
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltafl.sim.record.own_files import write_file
from deltafl.sim.reproduce.experiment import Report, Table
from deltafl.sim.visible import visible

if TYPE_CHECKING:
    from deltafl.sim.reproduce.grid import Experiment  # loads all that a run needs

_LEAST: Final = 40  # columns; on a narrower terminal, lines are cut off
_MARKED: Final = "**"  # around the best number, in Markdown
_STAR: Final = "* is the best of its column."
_LATEX: Final = {
    "<": "$<$",
    "–": "--",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "θ": r"$\theta$",
    "∞": r"$\infty$",
}
"""What pandas does not escape."""


def write_report(experiment: "Experiment", report: Report, out: Path) -> Path:
    """Write everything into the folder of the experiment, and return that folder."""
    import matplotlib as mpl  # loads the plotting library

    folder = out / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "report.md", as_markdown(experiment, report).encode())
    for table in report.tables:
        write_file(folder / f"{table.name}.csv", as_csv(table).encode())
        write_file(folder / f"{table.name}.jsonl", as_json_lines(table).encode())
    # the salt and the missing date make the same figure the same bytes
    with mpl.rc_context({"svg.hashsalt": "deltafl"}):
        for name, figure in report.figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return folder


def as_markdown(experiment: "Experiment", report: Report) -> str:
    """Lay a report out as Markdown: title, source, tables, notes, figures."""
    parts = [f"# {experiment.title}", f"Source: {experiment.source}."]
    for table in report.tables:
        parts += [f"## {table.title}", table_as_markdown(table)]
    parts += [f"![{name}]({name}.png)" for name in report.figures]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in report.notes)]
    return "\n\n".join(parts) + "\n"


def table_as_markdown(table: Table) -> str:
    """Lay a table out with columns of even width, so that it reads well unrendered, too."""
    lines = [table.columns, *table.rows]
    cells = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(table.columns))]

    def line(texts: list[str]) -> str:
        return f"| {' | '.join(t.ljust(w) for t, w in zip(texts, widths, strict=True))} |"

    rule = line(["-" * width for width in widths])
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def as_csv(table: Table) -> str:
    """The records as CSV."""
    buffer = io.StringIO()
    keys = dict.fromkeys(key for record in table.records for key in record)
    writer = csv.DictWriter(buffer, list(keys or table.columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.records)
    return buffer.getvalue()


def as_json_lines(table: Table) -> str:
    """The records, one JSON object a line."""
    return "".join(
        json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"
        for record in table.records
    )


def as_json(experiment: "Experiment", report: Report, folder: Path) -> dict[str, object]:
    """A report for programs: its tables in full precision, its notes, and where its files are."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "folder": str(folder),
        "notes": list(report.notes),
        "tables": {
            table.name: [_finite(record) for record in table.records] for table in report.tables
        },
    }


def _finite(record: Mapping[str, object]) -> dict[str, object]:
    """JSON has no NaN and no infinity: they become null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def as_latex(table: Table) -> str:
    r"""A `tabular` with the rules of booktabs, texts escaped; the package `booktabs` is needed.

    >>> print(as_latex(Table("t", "T", ("method", "p"), (("Δ-FL_2", "< 0.001"),))), end="")
    % T
    \begin{tabular}{lr}
    \toprule
    method & p \\
    \midrule
    $\Delta$-FL\_2 & $<$ 0.001 \\
    \bottomrule
    \end{tabular}
    """
    import pandas as pd  # loads all of it

    rows = [list(map(_on_a_line, row)) for row in table.rows]
    style = pd.DataFrame(rows, columns=list(map(_on_a_line, table.columns))).style
    style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
    places = f"l{'r' * (len(table.columns) - 1)}"
    text = style.to_latex(column_format=places, hrules=True).translate(str.maketrans(_LATEX))
    return f"% {_on_a_line(table.title)}\n{text}"


def _on_a_line(text: str) -> str:
    """A name without what would end its line."""
    return visible(text).replace("\n", " ")


def _width_of_terminal() -> int:
    """Columns of the terminal, 80 where there is none."""
    return max(shutil.get_terminal_size().columns, _LEAST)


def as_text(
    experiment: "Experiment", report: Report, folder: Path, width: int | None = None
) -> str:
    """Lay a report out for a terminal: title, source, tables, notes, where the files are.

    Args:
        experiment: What was run.
        report: Its results.
        folder: Where they were written.
        width: Columns, at least 40; those of the terminal by default.
    """
    width = width or _width_of_terminal()
    parts = [f"{_wrapped(experiment.title, width)}\n{_wrapped(f'{experiment.source}.', width)}"]
    for table in report.tables:
        parts += [] if table.title == experiment.title else [_wrapped(table.title, width)]
        parts.append(_laid_out(table, width))
    notes = (*([_STAR] if any(map(_has_best, report.tables)) else []), *report.notes)
    parts += ["\n".join(_wrapped(note, width, "- ") for note in notes)] if notes else []
    files = ["report.md", *(f"{table.name}.csv" for table in report.tables)]
    files += [f"{name}.png" for name in report.figures]
    parts.append(_wrapped(f"Results are in {folder}: {', '.join(files)}.", width))
    return "\n\n".join(parts) + "\n"


def laid_out(table: Table) -> str:
    """A table and its title, for this terminal."""
    width = _width_of_terminal()
    return f"{_wrapped(table.title, width)}\n{_laid_out(table, width)}"


def _laid_out(table: Table, width: int) -> str:
    """The table in one block of lines, or in several below each other."""
    import pandas as pd  # loads all of it

    columns = []
    high, lines = 0, [[_plain(cell) for cell in row] for row in (table.columns, *table.rows)]
    for heading, *cells in zip(*lines, strict=True):
        size = max(map(len, [*heading.split(), *cells]))
        words = textwrap.wrap(heading, size)
        high = max(high, len(words))
        columns.append((words, ["-" * size, *cells]))
    first, *others = [[*[""] * (high - len(words)), *words, *rest] for words, rest in columns]
    size = max(map(len, first))
    frame = pd.DataFrame(dict(enumerate(others)), index=[one.ljust(size) for one in first])
    text = frame.to_string(header=False, line_width=width) if others else "\n".join(first)
    return "\n".join(one.rstrip().removesuffix("\\").rstrip() for one in text.splitlines())


def _has_best(table: Table) -> bool:
    return any(map(_is_best, (cell for row in table.rows for cell in row)))


def _is_best(cell: str) -> bool:
    return len(cell) > 2 * len(_MARKED) and cell.startswith(_MARKED) and cell.endswith(_MARKED)


def _plain(cell: str) -> str:
    """The best number of a column has a star on a terminal."""
    return f"*{cell.strip('*')}" if _is_best(cell) else cell


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_on_hyphens=False,
        break_long_words=False,
    )
