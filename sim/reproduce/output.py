"""Writes a report into a folder of its own, OUT/NAME.

report.md      tables, notes and figures
TABLE.csv      a table's records, one line each
TABLE.jsonl    the same, one JSON object a line
FIGURE.png     a figure, and FIGURE.svg
"""

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

from deltafl.sim.record.atomic import write_file
from deltafl.sim.reproduce.experiment import Experiment, Report, Table


def write_report(experiment: Experiment, report: Report, out: Path) -> Path:
    """Write everything into the folder of the experiment, and return that folder."""
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


def as_markdown(experiment: Experiment, report: Report) -> str:
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
    """The records as CSV; the printed rows where a table has no records."""
    buffer = io.StringIO()
    if table.records:
        columns = list(dict.fromkeys(key for record in table.records for key in record))
        writer = csv.DictWriter(buffer, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.records)
    else:
        plain = csv.writer(buffer, lineterminator="\n")
        plain.writerow(table.columns)
        plain.writerows(table.rows)
    return buffer.getvalue()


def as_json_lines(table: Table) -> str:
    """The records, one JSON object a line; the printed rows where a table has no records."""
    records = table.records or tuple(
        dict(zip(table.columns, row, strict=True)) for row in table.rows
    )
    return "".join(
        json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"
        for record in records
    )


def as_json(experiment: Experiment, report: Report, folder: Path) -> dict[str, object]:
    """A report for programs: its tables in full precision, its notes, and where its files are."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "folder": str(folder),
        "notes": list(report.notes),
        "tables": {
            table.name: [json.loads(line) for line in as_json_lines(table).splitlines()]
            for table in report.tables
        },
    }


def _finite(record: Mapping[str, object]) -> dict[str, object]:
    """JSON has no NaN and no infinity: they become null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
