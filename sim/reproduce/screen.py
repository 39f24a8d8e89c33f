"""A report on a terminal: tables that fit its width, notes that are wrapped.

A table that is too wide continues below, with its first column again. Headings are broken between
words, so a column is about as wide as its numbers.
"""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from deltafl.sim.reproduce.experiment import Experiment, Report, Table

_GAP: Final = "  "
_LEAST: Final = 40  # columns; on a narrower terminal, lines are cut off
_MARKED: Final = "**"  # around the best number, in Markdown
_STAR: Final = "* is the best of its column."


def width_of_terminal() -> int:
    """Columns of the terminal, 80 where there is none."""
    return max(shutil.get_terminal_size().columns, _LEAST)


def as_text(experiment: Experiment, report: Report, folder: Path, width: int) -> str:
    """Lay a report out for a terminal: title, source, tables, notes, where the files are.

    Args:
        experiment: What was run.
        report: Its results.
        folder: Where they were written.
        width: Columns, at least 40.
    """
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


def laid_out(table: Table, width: int) -> str:
    """A table and its title."""
    return f"{_wrapped(table.title, width)}\n{_laid_out(table, width)}"


def _laid_out(table: Table, width: int) -> str:
    """The table in one block of lines, or in several below each other."""
    lines = [[_plain(cell) for cell in row] for row in (table.columns, *table.rows)]
    most = (width - len(_GAP)) // 2  # so that one column always fits beside the first
    sizes = [_size([line[i] for line in lines], most) for i in range(len(table.columns))]
    return "\n\n".join(_block(lines, sizes, columns) for columns in _blocks(sizes, width))


def _size(column: Sequence[str], most: int) -> int:
    """How wide a column is: as its longest cell, or the longest word of its heading."""
    heading, *cells = column
    return min(max([*map(len, heading.split()), *map(len, cells), 1]), most)


def _blocks(sizes: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns that are beside each other, in each block after the first one."""
    block, used = [0], sizes[0]
    for column in range(1, len(sizes)):
        taken = len(_GAP) + sizes[column]
        if used + taken > width and len(block) > 1:
            yield block
            block, used = [0], sizes[0]
        block.append(column)
        used += taken
    yield block


def _block(lines: Sequence[Sequence[str]], sizes: Sequence[int], columns: Sequence[int]) -> str:
    heading, *rows = [
        _line([textwrap.wrap(line[i], sizes[i]) for i in columns], [sizes[i] for i in columns])
        for line in lines
    ]
    rule = _GAP.join("-" * sizes[i] for i in columns)
    return "\n".join([heading, rule, *rows])


def _line(cells: Sequence[Sequence[str]], sizes: Sequence[int]) -> str:
    """One line of a table, of as many lines of text as its highest cell; numbers to the right."""
    high = max(map(len, cells), default=0)
    padded = [[*cell, *[""] * (high - len(cell))] for cell in cells]
    return "\n".join(
        _GAP.join(
            text.rjust(size) if number else text.ljust(size)
            for number, (text, size) in enumerate(zip(texts, sizes, strict=True))
        ).rstrip()
        for texts in zip(*padded, strict=True)
    )


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
