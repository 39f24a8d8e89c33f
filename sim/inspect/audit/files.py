"""Every file of a run directory: what an audit compares it with, and what of it nobody checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final


@dataclass(frozen=True, slots=True)
class FileRow:
    """A kind of file in a run directory.

    Attributes:
        pattern: Its path in the directory, with `*` for any part of a name.
        compared: What an audit compares it with; "" if with nothing.
        unchecked: What of it an audit does not check; "" if it checks all.
    """

    pattern: str
    compared: str
    unchecked: str


FILES: Final = (
    FileRow(
        "record.sqlite",
        "itself, and everything else",
        "settings, versions and times are taken as given; nobody looks at who lies, what devices "
        "have measured together, the best model on validation devices, and free pages",
    ),
    FileRow("record.sqlite-*", "", "the journal of the record, while it is written"),
    FileRow("truth.sqlite", "the record, if it is given (`--truth`)", ""),
    FileRow("truth.sqlite-*", "", "the journal of the truth, while it is written"),
    FileRow("bundle.npz", "the models that the sums lead to", "the constants of the scaling"),
    FileRow("measured/*", "", "what devices have measured together; audit each record by itself"),
    FileRow("devices.txt", "", "which devices were on the list of the federation, and their keys"),
    FileRow("plots/*", "", "the figures"),
    FileRow(
        "arms/*", "the first run's summary", "the further runs, which have reports of their own"
    ),
    FileRow(".lock", "", "nothing is in it"),
)
"""What a run leaves behind. A file without a row fails the tests, and is named by an audit."""


def row_of(path: str) -> FileRow | None:
    """The row of a file; None if no run writes such a file.

    Args:
        path: Its path in the directory, with slashes.
    """
    parts = PurePosixPath(path)
    for row in FILES:
        pattern = PurePosixPath(row.pattern)
        is_below = row.pattern.startswith("arms/") and parts.parts[0] == "arms"
        if is_below or (len(parts.parts) == len(pattern.parts) and parts.match(row.pattern)):
            return row
    return None


def unchecked_files(directory: Path) -> Iterator[str]:
    """Say of every kind of file that is there what is not checked of it.

    Args:
        directory: The run directory.
    """
    names = sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() or path.is_symlink()
    )
    rows = dict.fromkeys(row_of(name) for name in names)
    for row in rows:
        if row is not None and row.unchecked and row.pattern != ".lock":
            yield f"{row.pattern}: {row.unchecked}"
    strange = [name for name in names if row_of(name) is None]
    if strange:
        shown = ", ".join(map(ascii, strange[:5])) + (" and others" if len(strange) > 5 else "")
        yield f"{shown}: no run writes such a file"
