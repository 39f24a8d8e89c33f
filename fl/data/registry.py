"""Every data set that can be loaded, by name: how, from where, under which licence.

`Format.partition` is what the data set's paper did, so a person need not look it up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeAlias

from deltafl.fl.data.adult import load_adult
from deltafl.fl.data.berka import load_berka
from deltafl.fl.data.digits import MINORITY_SHARE, NUM_DEVICES, load_digits
from deltafl.fl.data.federated import FederatedDataset, Partition, Split
from deltafl.fl.data.femnist import load_femnist
from deltafl.fl.data.heart import load_heart
from deltafl.fl.data.hub import load_hub
from deltafl.fl.data.leaf import load_leaf
from deltafl.fl.data.mqp import load_mqp
from deltafl.fl.data.npz import load_npz
from deltafl.fl.data.sent140 import load_sent140
from deltafl.fl.data.shakespeare import load_shakespeare
from deltafl.fl.data.subset import WHOLE, Subset
from deltafl.fl.data.synthetic import (
    EMNIST_DEVICES,
    SENT140_DEVICES,
    SYNTHETIC_DEVICES,
    load_synthetic,
    load_synthetic_emnist,
    load_synthetic_sent140,
)
from deltafl.fl.errors import DataError


@dataclass(frozen=True, slots=True)
class Options:
    """What loaders can be told beside the source and the partition; each uses some.

    Attributes:
        vectors: sent140, mqp: the file of the word vectors.
        features: sent140, synthetic-sent140: "mean" or "tokens".
        lower_case: sent140: whether words are looked up in lower case.
        alphabet: shakespeare: "letters" or "leaf-80".
        legacy_duplicates: femnist: whether LEAF's duplicates are made too.
        subset: npz, shakespeare, sent140, femnist: which part to load.
        num_devices: digits, synthetic*: how many devices to make; None is the format's own number.
        minority_share: digits: the share of the devices that write sideways.
        heterogeneity: synthetic-*: how far devices differ, in [0, 1].
        alpha: synthetic: α of Synthetic(α, β).
        beta: synthetic: its β.
        user_column: hub: the column of the user; "" is the known one.
        input_column: hub: the column of the inputs, likewise.
        label_column: hub: the column of the labels, likewise.
    """

    vectors: Path | None = None
    features: str = "mean"
    lower_case: bool = False
    alphabet: str = "letters"
    legacy_duplicates: bool = False
    subset: Subset = WHOLE
    num_devices: int | None = None
    minority_share: Fraction = MINORITY_SHARE
    heterogeneity: float = 0.5
    alpha: float = 1.0
    beta: float = 1.0
    user_column: str = ""
    input_column: str = ""
    label_column: str = ""


DEFAULTS: Final = Options()

Loader: TypeAlias = Callable[[str, Partition, Options], FederatedDataset]


@dataclass(frozen=True, slots=True)
class Published:
    """What a paper says about the data: a row of its table.

    Attributes:
        source: which table.
        num_classes: labels.
        train_devices: devices that train.
        test_devices: devices that test; None where all devices do both.
        median: of the samples per train device; None where the paper does not say.
        smallest: likewise.
        largest: likewise.
        num_samples: of all devices; None where the paper does not say.
    """

    source: str
    num_classes: int
    train_devices: int
    test_devices: int | None = None
    median: float | None = None
    smallest: int | None = None
    largest: int | None = None
    num_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A file of the source, at the address that the source gives.

    Attributes:
        url: the address.
        max_bytes: more than this is not the file.
        members: for a zip archive, the names (without folders) of the files to take out of it;
            empty keeps the file as it is.
        md5: of the file, where it is published (MD5 finds damage, not malice); "" if it is not.
    """

    url: str
    max_bytes: int
    members: tuple[str, ...] = ()
    md5: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A data set, or a kind of files.

    Attributes:
        name: of the format in settings and on the command line.
        title: what it is, in a line.
        load: reads it.
        partition: the rule and the split that its source uses.
        needs: what the source is: "" for none, else in words.
        options: the fields of `Options` that it uses.
        origin: who made it and where it is.
        licence: of the data.
        published: what the paper says of it.
        stands_for: what it replaces, for a stand-in; else "".
        downloads: the files to fetch.
        note: what a person must know before using it; else "".
    """

    name: str
    title: str
    load: Loader
    partition: Partition = field(default_factory=Partition)
    needs: str = ""
    options: frozenset[str] = frozenset()
    origin: str = "of your own"
    licence: str = "of your own"
    published: Published | None = None
    stands_for: str = ""
    downloads: tuple[Download, ...] = ()
    note: str = ""


_TABLE_1: Final = "arXiv 2002.11223, Table 1"
_TABLE_A2: Final = "arXiv 2405.20821, Table A2"
_BY_SAMPLES: Final = Partition(train_fraction=Fraction(4, 5), split=Split.SAMPLES, num_classes=2)
_UCI: Final = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_MADE_UP: Final = "made up by this package from a seed"
_EMNIST_ROW: Final = Published(_TABLE_1, 62, 865, 865, 179, 101, 447)
_SENT140_ROW: Final = Published(_TABLE_1, 2, 438, 439, 69, 51, 549)


def _vectors(options: Options, name: str) -> Path:
    if options.vectors is None:
        raise DataError(
            f"{name}: no word vectors: give the file glove.6B.50d.txt, or an .npz archive with "
            "words and vectors (data.vectors)"
        )
    return options.vectors


def _load_sent140(source: str, partition: Partition, options: Options) -> FederatedDataset:
    return load_sent140(
        Path(source),
        partition,
        vectors=_vectors(options, "sent140"),
        features=options.features,
        lower_case=options.lower_case,
        subset=options.subset,
    )


def _load_hub(source: str, partition: Partition, options: Options) -> FederatedDataset:
    return load_hub(
        source,
        partition,
        user_column=options.user_column,
        input_column=options.input_column,
        label_column=options.label_column,
    )


_ALL: Final = (
    Format(
        "digits",
        "1,797 handwritten digits of 8×8, a fifth of the devices holds them sideways",
        lambda _, partition, options: load_digits(
            partition,
            num_devices=options.num_devices or NUM_DEVICES,
            minority_share=options.minority_share,
        ),
        options=frozenset({"num_devices", "minority_share"}),
        origin="Alpaydin, Kaynak 1998, UCI Optical Recognition of Handwritten Digits; comes with "
        "scikit-learn",
        licence="CC BY 4.0",
    ),
    Format(
        "npz",
        "an .npz archive with the arrays x, y and user",
        lambda source, partition, options: load_npz(Path(source), partition, subset=options.subset),
        needs="an .npz file",
        options=frozenset({"subset"}),
    ),
    Format(
        "leaf",
        "a folder of LEAF JSON files whose inputs are numbers",
        lambda source, partition, _: load_leaf(Path(source), partition),
        needs="a folder with train/ and test/, or all_data/, or .json(.gz) files",
    ),
    Format(
        "femnist",
        "62 characters by 3,597 writers, 28×28",
        lambda source, partition, options: load_femnist(
            Path(source),
            partition,
            legacy_duplicates=options.legacy_duplicates,
            subset=options.subset,
        ),
        Partition(more_than=100, num_classes=62),
        needs="a folder with NIST's by_class/ and by_write/, or LEAF's JSON",
        options=frozenset({"legacy_duplicates", "subset"}),
        origin="Grother 1995, NIST Special Database 19; devices as in Caldas et al. 2018 (LEAF)",
        licence="public domain (a work of the US government)",
        published=_EMNIST_ROW,
        downloads=(
            Download("https://s3.amazonaws.com/nist-srd/SD19/by_class.zip", 1 << 31),
            Download("https://s3.amazonaws.com/nist-srd/SD19/by_write.zip", 1 << 31),
        ),
        note="The paper drew half of the train and of the test devices by a seed; this does not.",
    ),
    Format(
        "sent140",
        "tweets by account, happy or sad",
        _load_sent140,
        Partition(more_than=50, num_classes=2),
        needs="the folder of training.1600000...csv and testdata.manual...csv, or LEAF's JSON",
        options=frozenset({"vectors", "features", "lower_case", "subset"}),
        origin="Go, Bhayani, Huang 2009, Stanford",
        licence="none stated; for research. Tweets are their authors'",
        published=_SENT140_ROW,
        downloads=(
            Download(
                "http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                1 << 28,
                (
                    "training.1600000.processed.noemoticon.csv",
                    "testdata.manual.2009.06.14.csv",
                ),
            ),
        ),
        note="Needs word vectors (data.vectors): `deltafl data fetch glove`.",
    ),
    Format(
        "shakespeare",
        "the next character of a role's lines",
        lambda source, partition, options: load_shakespeare(
            Path(source), partition, alphabet=options.alphabet, subset=options.subset
        ),
        Partition(more_than=100),
        needs="a folder or file: the 1994 Gutenberg text, the roles' texts, or LEAF's windows",
        options=frozenset({"alphabet", "subset"}),
        origin="The Complete Works, Project Gutenberg 1994 (#100); devices as in LEAF",
        licence="of the 1994 edition: World Library, Inc., copies for personal use only; the plays "
        "are in the public domain",
        published=Published(_TABLE_1, 53, 544, 545, 1288, 101, 66_963),
        downloads=(
            Download(
                "https://www.gutenberg.org/files/100/old/1994-01-100.zip", 1 << 24, ("100.txt",)
            ),
        ),
        note="The paper's median is that of all its 1,089 devices.",
    ),
    Format(
        "heart",
        "heart disease in four hospitals",
        lambda source, partition, _: load_heart(Path(source), partition),
        _BY_SAMPLES,
        needs="the folder of processed.{cleveland,hungarian,switzerland,va}.data",
        origin="Janosi, Steinbrunn, Pfisterer, Detrano 1988, UCI Heart Disease",
        licence="CC BY 4.0",
        published=Published("arXiv 2210.04620 (Fed-Heart-Disease)", 2, 4, num_samples=740),
        downloads=tuple(
            Download(f"{_UCI}/heart-disease/processed.{hospital}.data", 1 << 20)
            for hospital in ("cleveland", "hungarian", "switzerland", "va")
        ),
        note="Raw features: standardise them (data.standardise = train or device).",
    ),
    Format(
        "adult",
        "income of people with and without a doctorate",
        lambda source, partition, _: load_adult(Path(source), partition),
        _BY_SAMPLES,
        needs="the folder of adult.data and adult.test",
        origin="Becker, Kohavi 1996, UCI Adult; domains as in Mohri, Sivek, Suresh 2019",
        licence="CC BY 4.0",
        published=Published("the files: 32,561 + 16,281 rows", 2, 2, num_samples=48_842),
        downloads=tuple(
            Download(f"{_UCI}/adult/adult.{side}", 1 << 24) for side in ("data", "test")
        ),
        note="Raw features: standardise them (data.standardise = train). Split as the files are.",
    ),
    Format(
        "berka",
        "defaulted loans in seven regions",
        lambda source, partition, _: load_berka(Path(source), partition),
        _BY_SAMPLES,
        needs="the folder of loan, account, district, order and trans (.asc or .csv)",
        origin="Berka 1999, PKDD'99 Discovery Challenge; devices as in AAggFF",
        licence="none stated; anonymised by the bank, for research",
        published=Published(_TABLE_A2, 2, 7, num_samples=621),
        downloads=(
            Download(
                "http://sorry.vse.cz/~berka/challenge/pkdd1999/data_berka.zip",
                1 << 27,
                ("loan.asc", "account.asc", "district.asc", "order.asc", "trans.asc"),
                "88d001738478c5e348a0896878f2433c",
            ),
        ),
        note="Raw features: standardise them (data.standardise = train or device).",
    ),
    Format(
        "mqp",
        "whether two medical questions mean the same, by doctor",
        lambda source, partition, options: load_mqp(
            Path(source), partition, vectors=_vectors(options, "mqp")
        ),
        _BY_SAMPLES,
        needs="mqp.csv or its folder",
        options=frozenset({"vectors"}),
        origin="McCreery et al. 2020, Curai; devices as in AAggFF",
        licence="see the repository curai/medical-question-pair-dataset",
        published=Published(_TABLE_A2, 2, 11, num_samples=3_048),
        downloads=(
            Download(
                "https://raw.githubusercontent.com/curai/medical-question-pair-dataset/master/"
                "mqp.csv",
                1 << 24,
                md5="06c0121fe60cefa3cdf4d49a637dcaa6",
            ),
        ),
        note="Mean word vectors stand in for DistilBERT. They are needed (data.vectors): "
        "`deltafl data fetch glove`.",
    ),
    Format(
        "hub",
        "tables of the Hugging Face hub, by default flwrlabs/femnist",
        _load_hub,
        needs="a .parquet file or their folder, a saved data set, or a repository 'owner/name'",
        options=frozenset({"user_column", "input_column", "label_column"}),
        origin="huggingface.co/datasets",
        licence="see the data set's card",
        note="Parquet files are read as they are; for the others, pip install '.[hub]'.",
    ),
    Format(
        "synthetic-emnist",
        "made-up characters of 62 classes, 28×28",
        lambda _, partition, options: load_synthetic_emnist(
            partition,
            num_devices=options.num_devices or EMNIST_DEVICES,
            heterogeneity=options.heterogeneity,
        ),
        Partition(num_classes=62),
        options=frozenset({"num_devices", "heterogeneity"}),
        origin=_MADE_UP,
        licence="none needed",
        published=_EMNIST_ROW,
        stands_for="EMNIST",
    ),
    Format(
        "synthetic-sent140",
        "made-up short texts of two classes",
        lambda _, partition, options: load_synthetic_sent140(
            partition,
            num_devices=options.num_devices or SENT140_DEVICES,
            heterogeneity=options.heterogeneity,
            features=options.features,
        ),
        Partition(num_classes=2),
        options=frozenset({"num_devices", "heterogeneity", "features"}),
        origin=_MADE_UP,
        licence="none needed",
        published=_SENT140_ROW,
        stands_for="Sent140",
    ),
    Format(
        "synthetic",
        "Synthetic(α, β): 60 features, 10 classes, up to 100,000 devices",
        lambda _, partition, options: load_synthetic(
            partition,
            num_devices=options.num_devices or SYNTHETIC_DEVICES,
            alpha=options.alpha,
            beta=options.beta,
        ),
        Partition(train_fraction=Fraction(4, 5), split=Split.SAMPLES, num_classes=10),
        options=frozenset({"num_devices", "alpha", "beta"}),
        origin=f"Li et al. 2020, arXiv 1812.06127, Section 5.1; {_MADE_UP}",
        licence="none needed",
    ),
)

FORMATS: Final[Mapping[str, Format]] = {format.name: format for format in _ALL}
"""All formats by name."""

GLOVE: Final = Download(
    "https://nlp.stanford.edu/data/glove.6B.zip", 1 << 30, ("glove.6B.50d.txt",)
)
"""The word vectors of the papers (Pennington et al. 2014), Public Domain Dedication and License."""


def format_of(source: str) -> Format:
    """Find the format by the kind of source: a name without a path, an .npz file, or a folder.

    Raises:
        DataError: it is none of these.
    """
    known = FORMATS.get(source)
    if known is not None and not known.needs:
        return known
    path = Path(source)
    if path.suffix == ".npz":
        return FORMATS["npz"]
    if path.is_dir():
        return FORMATS["leaf"]
    if known is not None and known.downloads:
        raise DataError(
            f"{source}: no such folder: fetch the data with `deltafl data fetch {source}`, and "
            "name the folder with --data"
        )
    raise DataError(
        f"{source}: neither 'digits' nor a folder of LEAF files nor an .npz file: check the path, "
        "or say what it is (data.format)"
    )


def unused_options(format: Format, options: Options) -> list[str]:
    """The options that differ from their defaults although the format does not use them."""
    return [
        option.name
        for option in fields(Options)
        if option.name not in format.options
        and getattr(options, option.name) != getattr(DEFAULTS, option.name)
    ]
