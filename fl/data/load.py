"""One entry to all data sets: what is read follows from the kind of path."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fl.data.digits import load_digits
from fl.data.federated import FederatedDataset, Partition
from fl.data.leaf import load_leaf
from fl.data.npz import load_npz
from fl.data.standardise import standardise
from fl.errors import DataError


class Standardise(StrEnum):
    """How features are scaled."""

    NONE = "none"
    """As they are; right for pixels in [0, 1]."""

    TRAIN = "train"
    """To mean 0 and standard deviation 1 over the train devices."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Which data set, and how.

    Attributes:
        source: "digits", a folder of LEAF files, or a path that ends in .npz.
        partition: the rule for small devices and the split.
        standardise: how features are scaled.
    """

    source: str
    partition: Partition = Partition()  # noqa: RUF009 (a frozen value, safe to share)
    standardise: Standardise = Standardise.NONE


def load_dataset(spec: DatasetSpec) -> FederatedDataset:
    """Read, check, split and scale a data set.

    Raises:
        DataError: the source is none of the known kinds, or cannot be used as it is.
    """
    dataset = _load(spec.source, spec.partition)
    return standardise(dataset) if spec.standardise is Standardise.TRAIN else dataset


def _load(source: str, partition: Partition) -> FederatedDataset:
    if source == "digits":
        return load_digits(partition)
    path = Path(source)
    if path.suffix == ".npz":
        return load_npz(path, partition)
    if path.is_dir():
        return load_leaf(path, partition)
    raise DataError(
        f"{source}: neither 'digits' nor a folder of LEAF files nor an .npz file: check the path"
    )
