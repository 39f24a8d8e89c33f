"""Every file of a run directory, and what of it nobody checks."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

FILES: Final = {
    "record.sqlite": "settings, versions and times are taken as given; nobody looks at who lies, "
    "what devices have measured together, the best model on validation devices, and free pages",
    "record.sqlite-*": "the journal of the record, while it is written",
    "truth.sqlite": "",
    "truth.sqlite-*": "the journal of the truth, while it is written",
    "bundle.npz": "the constants of the scaling",
    "measured/*": "what devices have measured together; audit each record by itself",
    "devices.txt": "which devices were on the list of the federation, and their keys",
    "plots/*": "the figures",
    "arms/*": "the further runs, which have reports of their own",
    ".lock": "",
}
"""What a run leaves behind, by path, with `*` for any part of a name: what is not checked of it.

A file that is not here fails the tests, and is named by an audit."""


def pattern_of(path: str) -> str | None:
    """The row of a file; None if no run writes such a file.

    Args:
        path: Its path in the directory, with slashes.
    """
    named = PurePosixPath(path)
    if named.parts[0] == "arms":
        return "arms/*"
    alike = (one for one in FILES if one.count("/") == path.count("/") and named.match(one))
    return next(alike, None)


def unchecked_files(directory: Path) -> Iterator[str]:
    """Say of every kind of file that is there what is not checked of it.

    Args:
        directory: The run directory.
    """
    files = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    names = sorted(path.relative_to(directory).as_posix() for path in files)
    for pattern in dict.fromkeys(map(pattern_of, names)):
        if pattern is not None and FILES[pattern]:
            yield f"{pattern}: {FILES[pattern]}"
    if strange := [ascii(name) for name in names if pattern_of(name) is None]:
        others = " and others" if len(strange) > 5 else ""
        yield f"{', '.join(strange[:5])}{others}: no run writes such a file"
