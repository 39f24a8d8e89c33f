"""Sent140: is this tweet happy or sad? A device is an account of Twitter.

Two views of a tweet, both over frozen GloVe vectors (arXiv 2002.11223, C.1.2 and its published
code): the mean of its words' vectors, for the linear model, and its first 20 words, for the LSTM.
Words are not lower-cased there although the vectors know lower case only, so "Good" is unknown.
An unknown word is a zero vector, which counts in the mean. A tweet without any word gives the zero
vector; the mean over nothing was NaN in the published code.

Sources: the files of Go, Bhayani and Huang 2009 (training.1600000.processed.noemoticon.csv and
testdata.manual.2009.06.14.csv), or LEAF's JSON of them, in which accented letters are damaged (its
script decodes them twice), so that a few tweets have other words.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from deltafl.fl.data.csv_file import check_values, read_frame
from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Split,
    choose_users,
    federate,
)
from deltafl.fl.data.files import bounded
from deltafl.fl.data.glove import WordVectors, load_glove
from deltafl.fl.data.leaf import LeafUser, read_leaf
from deltafl.fl.data.registry import SENT140_ROW, Download, Format
from deltafl.fl.errors import DataError

TOKENS: Final = 20
"""The words of a tweet that the LSTM reads."""

_MAX_LINE: Final = 1 << 16  # bytes
_COLUMNS: Final = {"polarity": str, "id": None, "date": None, "query": None} | dict.fromkeys(
    ("user", "text"), str
)
_LABELS: Final[Mapping[str, int]] = {"0": 0, "2": 0, "4": 1}  # sad, neutral (manual only), happy
_LEAF_TEXT: Final = 4  # id, date, query, user, text, split
_NUM_CLASSES: Final = 2


class Features(StrEnum):
    """What a model sees of a tweet."""

    MEAN = "mean"
    """float32 [dimension]: the mean of the vectors of all its words."""

    TOKENS = "tokens"
    """int32 [20]: the rows of its first words, padded on the right."""


@dataclass(frozen=True, slots=True)
class _View:
    vectors: WordVectors
    features: Features
    lower_case: bool

    def device(self, user: str, texts: Collection[str], labels: Collection[int]) -> DeviceData:
        y = np.array(list(labels), np.int64)
        if self.features is Features.TOKENS:
            tokens = np.array([self._first(text) for text in texts], np.int32)
            return DeviceData(user, tokens.reshape(-1, TOKENS), y)
        means = np.zeros((len(texts), self.vectors.table.shape[1]), np.float32)
        for mean, text in zip(means, texts, strict=True):
            rows = self._rows(text)
            if rows:
                mean[:] = self.vectors.table[rows].mean(axis=0)
        return DeviceData(user, means, y)

    def _first(self, text: str) -> list[int]:
        rows = self._rows(text)[:TOKENS]
        return rows + [self.vectors.unknown] * (TOKENS - len(rows))

    def _rows(self, text: str) -> list[int]:
        return self.vectors.indices(text.lower() if self.lower_case else text)


def load_sent140(
    path: Path,
    split: Split,
    *,
    vectors: Path | None = None,
    features: Features | str = Features.MEAN,
    lower_case: bool = False,
) -> FederatedDataset:
    """Read the tweets of every account that has more than so many.

    Args:
        path: one of the .csv files, a folder with both (which are put together), or LEAF's JSON (a
            file, or a folder).
        split: the rule for small accounts, and who trains. The papers keep accounts with more
            than 50 tweets.
        vectors: word vectors, as `deltafl.fl.data.glove.load_glove` takes them.
        features: the mean vector of a tweet, or its tokens; with tokens the data set carries the
            table (`FederatedDataset.embedding`).
        lower_case: look words up in lower case. The papers did not.

    Raises:
        ValueError: unknown features.
        DataError: a file is missing or damaged (its line is named); too few accounts remain.
    """
    view = _View(load_glove(vectors), Features(features), lower_case)
    split = replace(split, num_classes=split.num_classes or _NUM_CLASSES)
    files = _csv_files(path)
    if files:
        tweets = pd.concat([_tweets(file) for file in files])
        counts: Mapping[str, int] = tweets["user"].value_counts().to_dict()
        chosen = choose_users(str(path), counts, split)
        devices = [
            view.device(user, rows["text"], rows["polarity"].map(_LABELS))
            for user, rows in tweets[tweets["user"].isin(chosen)].groupby("user")
        ]
        dataset = federate("sent140", devices, split, counts=counts)
    else:
        everybody, test_ids = read_leaf(path, lambda user: _leaf_device(user, view))
        dataset = federate("sent140", everybody, split, test_ids=test_ids)
    if view.features is Features.TOKENS:
        return replace(dataset, embedding=view.vectors.table)
    return dataset


def _csv_files(path: Path) -> list[Path]:
    if path.is_dir():
        found = (file for file in path.iterdir() if file.suffix == ".csv")
        # LEAF puts the tweets of the training file first
        return sorted(found, key=lambda file: (not file.name.startswith("train"), file.name))
    return [path] if path.suffix == ".csv" else []


def _tweets(path: Path) -> pd.DataFrame:
    """User, polarity and text of each tweet."""
    with bounded(path, "table") as file:
        file.seek(max(0, path.stat().st_size - _MAX_LINE))
        end = file.read().rsplit(b"\n", 1)[-1]
        if end.startswith(b'"') and not end.endswith(b'"'):
            # the open quote would end where the file does
            raise DataError(f"{path}: cut short in the last line: fetch the file again")
    tweets = read_frame(path, _COLUMNS, 1 << 32, encoding="latin-1")
    check_values(path, tweets["polarity"], tweets["polarity"].isin(_LABELS), "0, 2 or 4")
    check_values(path, tweets["user"], tweets["user"] != "", "the name of an account")
    return tweets


def _leaf_device(user: LeafUser, view: _View) -> DeviceData:
    x, y = user.columns()
    texts, labels = [], []
    for row, (tweet, label) in enumerate(zip(x, y, strict=True)):
        text = tweet[_LEAF_TEXT] if isinstance(tweet, list) and len(tweet) > _LEAF_TEXT else None
        if not isinstance(text, str):
            raise user.wrong(f"sample {row} is no tweet (id, date, query, user, text, ...)")
        if isinstance(label, bool) or label not in (0, 1):
            raise user.wrong(f"sample {row} has the label {label!r:.20}, which is not 0 or 1")
        texts.append(text)
        labels.append(int(label))
    return view.device(user.id, texts, labels)


FORMAT: Final = Format(
    "sent140",
    "tweets by account, happy or sad",
    load_sent140,
    Split(more_than=50, num_classes=2),
    needs="the folder of training.1600000...csv and testdata.manual...csv, or LEAF's JSON",
    origin="Go, Bhayani, Huang 2009, Stanford",
    licence="none stated; for research. Tweets are their authors'",
    published=SENT140_ROW,
    downloads=(
        Download(
            "http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
            1 << 28,
            ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"),
        ),
    ),
    note="Needs word vectors (data.vectors): `deltafl data fetch glove`.",
)
