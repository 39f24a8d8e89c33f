"""Who says what in the 1994 Project Gutenberg text of Shakespeare (100.txt, t8.shakespeare.txt).

The layout of that edition: a work starts at the line "by William Shakespeare", its title some
lines above. A speech starts with two spaces, the role and a full stop; its other lines have four
spaces. The Comedy of Errors lacks the first two spaces and indents its other lines anyhow: there a
speech goes on until the next one, or until a stage direction that starts with "<".

The rules are those by which LEAF makes its users, so that their number can be compared: everything
before the second by-line (contents and sonnets) is skipped, a work in which only one role speaks
is no play, a role with at most two lines in a play is left out, and a stage direction in the middle
of the page counts as said by whoever spoke last.
Source: Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings" (data set Shakespeare).
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import read_regular

MAX_TEXT_BYTES: Final = 64 << 20
"""The largest text that is read; the edition has 5.5 million bytes."""

MIN_LINES: Final = 3
"""A role with fewer lines in a play is left out."""

_BY_LINE: Final = "by William Shakespeare"
_TITLE_REACH: Final = range(2, 8)  # how many lines above the by-line a title may stand
_UNINDENTED: Final = "THE COMEDY OF ERRORS"
_ROLE: Final = r"(?P<role>[a-zA-Z][a-zA-Z ]*)\. (?P<words>.*)"
_SPEECH: Final = re.compile("  " + _ROLE)
_UNINDENTED_SPEECH: Final = re.compile(_ROLE)
_CONTINUED: Final = " " * 4


def read_plays(path: Path) -> dict[str, str]:
    """Give the whole text of each role of each play.

    Returns:
        By "<play>_<role>": all lines of the role in their order, each followed by a space, runs of
        spaces made one.

    Raises:
        DataError: the file is missing, too large, or not the 1994 edition.
    """
    try:
        data = read_regular(path, MAX_TEXT_BYTES)
    except OSError as error:
        raise DataError(
            f"{path}: not readable ({error.strerror or error}): give the 1994 text alone"
        ) from error
    # not splitlines, which also divides at form feeds and other characters of Latin-1
    lines = data.decode("latin-1").replace("\r\n", "\n").removesuffix("\n").split("\n")
    spoken: dict[str, list[str]] = {}
    for title, roles in _plays(path, lines):
        for role, words in roles.items():
            if len(words) >= MIN_LINES:
                spoken.setdefault(_id(title, role), []).extend(words)
    if len(spoken) < 2:
        raise DataError(
            f"{path}: {len(spoken)} roles found: only the 1994 Gutenberg text has the layout that "
            "is read here (100.txt of 1994-01-100.zip, or t8.shakespeare.txt)"
        )
    return {
        user: re.sub(" {2,}", " ", "".join(f"{line} " for line in words))
        for user, words in spoken.items()
    }


def _plays(path: Path, lines: Sequence[str]) -> list[tuple[str, dict[str, list[str]]]]:
    starts = [number for number, line in enumerate(lines) if _BY_LINE in line]
    plays = []
    for start, end in pairwise([*starts[1:], len(lines)]):
        title = _title(path, lines, start)
        roles = _speeches(lines[start + 1 : end], indented=title != _UNINDENTED)
        if len(roles) > 1:
            plays.append((title, roles))
    return plays


def _title(path: Path, lines: Sequence[str], by_line: int) -> str:
    for above in _TITLE_REACH:
        title = lines[by_line - above].strip() if above <= by_line else ""
        if title:
            return title
    raise DataError(
        f"{path}: line {by_line + 1}: '{_BY_LINE}' without a title in the "
        f"{_TITLE_REACH[-1]} lines above: fetch the 1994 text again"
    )


def _speeches(lines: Sequence[str], *, indented: bool) -> dict[str, list[str]]:
    roles: dict[str, list[str]] = {}
    speaker: str | None = None
    for line in lines:
        match = (_SPEECH if indented else _UNINDENTED_SPEECH).match(line)
        if match is not None:
            # the same role is written Sir Toby here and SIR TOBY there
            speaker = match["role"].upper()
            if not indented and speaker.startswith("ACT "):
                speaker = None  # a heading looks like a speech there
            else:
                roles.setdefault(speaker, []).append(match["words"])
        elif speaker is not None and indented and line.startswith(_CONTINUED):
            roles[speaker].append(line[len(_CONTINUED) :])
        elif speaker is not None and not indented:
            if line.startswith("<"):
                speaker = None
            else:
                roles[speaker].append(line)
    return roles


def _id(title: str, role: str) -> str:
    # in two steps, as LEAF does, which makes a comma and a space two underscores
    return re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))
