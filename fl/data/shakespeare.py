"""Shakespeare by role: given the last characters, which is the next?

A device is a role of a play, and all its lines are one text. The text is kept once, as codes of one
byte; the windows are views of it, so four million of them take as little memory as the text. The
paper reads 20 characters of an alphabet of 53 (arXiv 2002.11223, C.1.3): space and letters, and
everything else counts as space. LEAF reads 80 characters of 80 (Caldas et al. 2018).

Three kinds of source are read: the text of each role (JSON with users and user_data[user]["raw"]),
LEAF's windows (JSON, x strings and y the next character), and the 1994 Project Gutenberg text.
"""

import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, SplitBy
from deltafl.fl.data.leaf import LeafUser, read_leaf
from deltafl.fl.data.plays import read_plays
from deltafl.fl.data.registry import TABLE_1, Download, Format, Published
from deltafl.fl.data.subset import WHOLE, Subset, choose_users, federate_chosen
from deltafl.fl.data.windows import split_text, windowed_device
from deltafl.fl.errors import DataError

Codes: TypeAlias = npt.NDArray[np.int8]

_GUTENBERG_NAMES: Final = ("100.txt", "t8.shakespeare.txt")


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


def load_shakespeare(
    path: Path,
    split: Split,
    *,
    alphabet: str = "letters",
    window: int | None = None,
    subset: Subset = WHOLE,
) -> FederatedDataset:
    """Read the roles and give their windows: x int8 [n, window] (views), y int64 [n].

    A split by samples cuts each text in two (`deltafl.fl.data.windows.split_text`).

    Args:
        path: a .json or .json.gz file with the texts of the roles or with LEAF's windows, a .txt
            file (the 1994 Gutenberg text), or a folder with one of them.
        split: the rule for small roles (counted in windows), and who trains. The papers keep
            roles with more than 100 windows.
        alphabet: one of `ALPHABETS`.
        window: how many characters a model reads; None takes the alphabet's own number. LEAF's
            windows have a length of their own, which it must be.
        subset: which part of the roles and of their windows.

    Raises:
        ValueError: an unknown alphabet, or a window that is not positive.
        DataError: the source is none of these, or is damaged; too few roles remain.
    """
    if alphabet not in ALPHABETS:
        raise ValueError(f"alphabet={alphabet!r} is unknown: choose one of {', '.join(ALPHABETS)}")
    letters = ALPHABETS[alphabet]
    length = letters.window if window is None else window
    if length < 1:
        raise ValueError(f"window={window} is not at least 1")
    source = _gutenberg(path) or path
    test_ids: Collection[str] | None = None
    if source.suffix == ".txt":
        roles = [
            windowed_device(role, letters.encode(text), length)
            for role, text in read_plays(source).items()
        ]
    else:
        roles, test_ids = read_leaf(source, lambda user: _role(user, letters, length))
    counts = {role.id: role.num_samples for role in roles}
    chosen = frozenset(choose_users(str(path), counts, split, subset))
    dataset = federate_chosen(
        "shakespeare",
        [role for role in roles if role.id in chosen],
        replace(
            split,
            num_classes=split.num_classes or len(letters.characters),
            by=SplitBy.DEVICES,
        ),
        counts=counts,
        subset=subset,
        is_text=True,
        test_ids=test_ids,
    )
    if split.by is SplitBy.DEVICES:
        return dataset
    both = sorted([*dataset.train, *dataset.test], key=lambda role: role.id)
    sides = [split_text(role, split) for role in both]
    return replace(
        dataset, train=tuple(train for train, _ in sides), test=tuple(test for _, test in sides)
    )


def _gutenberg(path: Path) -> Path | None:
    """Give the text in the folder that is the 1994 edition by its name."""
    found = (path / name for name in _GUTENBERG_NAMES)
    return next((file for file in found if file.is_file()), None)


def _role(user: LeafUser, letters: Alphabet, length: int) -> DeviceData:
    if "raw" in user.samples:
        text = user.samples["raw"]
        if not isinstance(text, str):
            raise DataError(
                f"{user.source}: user {user.id!r}: raw is a {type(text).__name__}: give the text"
            )
        return windowed_device(user.id, letters.encode(text), length)
    x, y = user.columns()
    for row, (before, after) in enumerate(zip(x, y, strict=True)):
        if not (isinstance(before, str) and len(before) == length):
            raise DataError(
                f"{user.source}: user {user.id!r}: x of sample {row} is not a text of {length} "
                f"characters ({before!r:.40}): choose the alphabet and window of the file"
            )
        if not (isinstance(after, str) and len(after) == 1):
            raise DataError(
                f"{user.source}: user {user.id!r}: y of sample {row} is not one character "
                f"({after!r:.40}): write LEAF's file anew"
            )
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


FORMAT: Final = Format(
    "shakespeare",
    "the next character of a role's lines",
    lambda source, split, options: load_shakespeare(
        Path(source), split, alphabet=options.alphabet, subset=options.subset
    ),
    Split(more_than=100),
    needs="a folder or file: the 1994 Gutenberg text, the roles' texts, or LEAF's windows",
    options=frozenset({"alphabet", "subset"}),
    origin="The Complete Works, Project Gutenberg 1994 (#100); devices as in LEAF",
    licence="of the 1994 edition: World Library, Inc., copies for personal use only; the plays "
    "are in the public domain",
    published=Published(TABLE_1, 53, 544, 545, 1288, 101, 66_963),
    downloads=(
        Download("https://www.gutenberg.org/files/100/old/1994-01-100.zip", 1 << 24, ("100.txt",)),
    ),
    note="The paper's median is that of all its 1,089 devices.",
)
