"""Shakespeare by role: given the last characters, which is the next?

A device is a role of a play, and all its lines are one text. The text is kept once, as codes of one
byte; the windows are views of it, so four million of them take as little memory as the text. The
paper reads 20 characters of an alphabet of 53 (arXiv 2002.11223, C.1.3): space and letters, and
everything else counts as space. LEAF reads 80 characters of 80 (Caldas et al. 2018).

Three kinds of source are read: the text of each role (JSON with users and user_data[user]["raw"]),
LEAF's windows (JSON, x strings and y the next character), and the 1994 Project Gutenberg text
(100.txt, t8.shakespeare.txt).

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
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Split,
    SplitBy,
    federate,
    text_under,
)
from deltafl.fl.data.files import bounded
from deltafl.fl.data.leaf import LeafUser, read_leaf
from deltafl.fl.data.registry import TABLE_1, Download, Format, Published
from deltafl.fl.errors import DataError

Codes: TypeAlias = npt.NDArray[np.int8]

_GUTENBERG_NAMES: Final = ("100.txt", "t8.shakespeare.txt")
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


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The characters that are told apart.

    Attributes:
        characters: the code of a character is its place here. At most 128, of Latin-1.
        window: how many characters a model reads, where nothing else is said.
    """

    characters: str
    window: int

    def encode(self, text: str) -> Codes:
        """Give the codes, int8, one per character; a character outside counts as space.

        >>> ALPHABETS["letters"].encode("To be, 2b").tolist()
        [20, 41, 0, 28, 31, 0, 0, 0, 28]
        """
        table = np.full(257, self.characters.index(" "), np.int8)
        table[[ord(character) for character in self.characters]] = range(len(self.characters))
        # JSON can hold half a surrogate pair, which no other encoding takes
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        codes: Codes = table[np.minimum(points, 256)]
        return codes


ALPHABETS: Final[Mapping[str, Alphabet]] = {
    "letters": Alphabet(" " + string.ascii_uppercase + string.ascii_lowercase, 20),
    "leaf-80": Alphabet(
        "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]"
        + string.ascii_lowercase + "}",
        80,
    ),
}  # fmt: skip
"""The 53 characters of arXiv 2002.11223, and the 80 of LEAF."""


def load_shakespeare(path: Path, split: Split, *, alphabet: str = "letters") -> FederatedDataset:
    """Read the roles and give their windows: x int8 [n, window] (views), y int64 [n].

    A split by samples cuts each text in two (`split_text`).

    Args:
        path: a .json or .json.gz file with the texts of the roles or with LEAF's windows, a .txt
            file (the 1994 Gutenberg text), or a folder with one of them.
        split: the rule for small roles (counted in windows), and who trains. The papers keep
            roles with more than 100 windows.
        alphabet: one of `ALPHABETS`.

    Raises:
        ValueError: an unknown alphabet.
        DataError: the source is none of these, or is damaged; too few roles remain.
    """
    if alphabet not in ALPHABETS:
        raise ValueError(f"alphabet={alphabet!r} is unknown: choose one of {', '.join(ALPHABETS)}")
    letters = ALPHABETS[alphabet]
    source = _gutenberg(path) or path
    test_ids: Collection[str] | None = None
    if source.suffix == ".txt":
        texts = read_plays(source).items()
        roles = [
            windowed_device(role, letters.encode(text), letters.window) for role, text in texts
        ]
    else:
        roles, test_ids = read_leaf(source, lambda user: _role(user, letters))
    whole = replace(
        split, num_classes=split.num_classes or len(letters.characters), by=SplitBy.DEVICES
    )
    counts, most = {role.id: role.num_samples for role in roles}, split.max_samples
    # the first, so that a text stays in one piece
    roles = [DeviceData(role.id, role.x[:most], role.y[:most]) for role in roles]
    dataset = federate("shakespeare", roles, whole, counts=counts, test_ids=test_ids)
    if split.by is SplitBy.DEVICES:
        return dataset
    both = sorted([*dataset.train, *dataset.test], key=lambda role: role.id)
    train, test = zip(*(split_text(role, split) for role in both), strict=True)
    return replace(dataset, train=train, test=test)


def windowed_device(device_id: str, text: npt.NDArray[np.int8], length: int) -> DeviceData:
    """Give every window of a text and the character that follows it.

    Args:
        device_id: who wrote it.
        text: the codes, shape [characters].
        length: L, positive.

    Returns:
        x [n, L] a view of the text, y int64 [n], with n = max(0, characters − L).
    """
    if len(text) <= length:
        return DeviceData(device_id, np.empty((0, length), text.dtype), np.empty(0, np.int64))
    return DeviceData(
        device_id, sliding_window_view(text[:-1], length), text[length:].astype(np.int64)
    )


def split_text(device: DeviceData, split: Split) -> tuple[DeviceData, DeviceData]:
    """Cut one text in two: the first part trains, the second tests.

    Windows overlap, and a split at random would show a test window's characters to training. After
    the cut no character is in a window, or a label, of both sides; that costs L windows.

    Raises:
        DataError: the windows are no text in one piece, or fewer than L + 2.
    """
    count, length = device.x.shape
    text = text_under(device.x)
    if text is None:
        told = "its windows are no text in one piece and can not be split without a leak"
        raise DataError(f"user {device.id!r}: {told}: split by devices, or give the text")
    if count < length + 2:
        told = f"has {count} windows and a split by samples needs {length + 2}"
        raise DataError(f"user {device.id!r} {told}: leave the user out (min_samples)")
    usable = count - length
    num_train = min(max(1, int(usable * split.train_fraction)), usable - 1)
    train = DeviceData(device.id, device.x[:num_train], device.y[:num_train])
    test = slice(num_train + length, None)
    return train, DeviceData(device.id, device.x[test], device.y[test])


def _gutenberg(path: Path) -> Path | None:
    """Give the text in the folder that is the 1994 edition by its name."""
    found = (path / name for name in _GUTENBERG_NAMES)
    return next((file for file in found if file.is_file()), None)


def _role(user: LeafUser, letters: Alphabet) -> DeviceData:
    length = letters.window
    if "raw" in user.samples:
        text = user.samples["raw"]
        if not isinstance(text, str):
            raise user.wrong(f"raw is a {type(text).__name__}: give the text")
        return windowed_device(user.id, letters.encode(text), length)
    x, y = user.columns()
    for row, (before, after) in enumerate(zip(x, y, strict=True)):
        if not (isinstance(before, str) and len(before) == length):
            raise user.wrong(f"x of sample {row} has not {length} characters ({before!r:.40})")
        if not (isinstance(after, str) and len(after) == 1):
            raise user.wrong(f"y of sample {row} is not one character ({after!r:.40})")
    windows = letters.encode("".join(map(str, x))).reshape(-1, length)
    labels = letters.encode("".join(map(str, y)))
    if len(windows) == 0:
        return windowed_device(user.id, labels, length)
    # windows that follow each other are one text, which takes a twentieth of the memory
    text_again = np.concatenate([windows[0], labels])
    device = windowed_device(user.id, text_again, length)
    if np.array_equal(device.x, windows):
        return device
    return DeviceData(user.id, windows, labels.astype(np.int64))


def read_plays(path: Path) -> dict[str, str]:
    """Give the whole text of each role of each play.

    Returns:
        By "<play>_<role>": all lines of the role in their order, each followed by a space, runs of
        spaces made one.

    Raises:
        DataError: the file is missing, too large, or not the 1994 edition.
    """
    with bounded(path, "text", MAX_TEXT_BYTES, "give the 1994 text alone") as file:
        data = file.read()
    # not splitlines, which also divides at form feeds and other characters of Latin-1
    lines = data.decode("latin-1").replace("\r\n", "\n").removesuffix("\n").split("\n")
    spoken: dict[str, list[str]] = {}
    for title, roles in _plays(path, lines):
        for role, words in roles.items():
            if len(words) >= MIN_LINES:
                spoken.setdefault(_id(title, role), []).extend(words)
    if len(spoken) < 2:
        raise DataError(
            f"{path}: {len(spoken)} roles found: give the 1994 Gutenberg text (100.txt of "
            "1994-01-100.zip, or t8.shakespeare.txt)"
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


FORMAT: Final = Format(
    "shakespeare",
    "the next character of a role's lines",
    load_shakespeare,
    Split(more_than=100),
    needs="a folder or file: the 1994 Gutenberg text, the roles' texts, or LEAF's windows",
    origin="The Complete Works, Project Gutenberg 1994 (#100); devices as in LEAF",
    licence="of the 1994 edition: World Library, Inc., copies for personal use only; the plays "
    "are in the public domain",
    published=Published(TABLE_1, 53, 544, 545, 1288, 101, 66_963),
    downloads=(
        Download("https://www.gutenberg.org/files/100/old/1994-01-100.zip", 1 << 24, ("100.txt",)),
    ),
    note="The paper's median is that of all its 1,089 devices.",
)
