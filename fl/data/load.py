"""One entry to all data sets: read, deal anew if wanted, split, scale."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from deltafl.fl.data.dirichlet import deal_again, deal_by_label, deal_by_size, pooled_labels
from deltafl.fl.data.federated import FederatedDataset, Partition, federate
from deltafl.fl.data.registry import DEFAULTS, FORMATS, Format, Options, format_of, unused_options
from deltafl.fl.data.standardise import Standardise, standardise
from deltafl.fl.errors import DataError

AUTO: Final = "auto"
"""The format that follows from the kind of source."""


class Dealing(StrEnum):
    """Who gets which samples."""

    NATURAL = "natural"
    """Whoever made them."""

    DIRICHLET = "dirichlet"
    """New devices of equal size whose labels differ (`deltafl.fl.data.dirichlet.deal_by_label`)."""

    QUANTITY = "quantity"
    """New devices whose sizes differ (`deltafl.fl.data.dirichlet.deal_by_size`)."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Which data set, and how.

    Attributes:
        source: where it lies, or the name of one that needs no path, such as "digits".
        partition: the rule for small devices and the split.
        standardise: how features are scaled.
        format: a name of `deltafl.fl.data.registry.FORMATS`, or "auto".
        options: what the loader is told beside.
        dealing: who gets which samples; the partition's seed deals.
        concentration: α of the dealing, above 0.
    """

    source: str
    partition: Partition = Partition()  # noqa: RUF009 (a frozen value, safe to share)
    standardise: Standardise = Standardise.NONE
    format: str = AUTO
    options: Options = DEFAULTS
    dealing: Dealing = Dealing.NATURAL
    concentration: float = 1.0


def load_dataset(spec: DatasetSpec) -> FederatedDataset:
    """Read, check, split and scale a data set.

    Raises:
        ValueError: an unknown format, an option that the format does not use or that is out of
            range.
        DataError: the source is none of the known kinds, or cannot be used as it is.
    """
    if spec.format != AUTO and spec.format not in FORMATS:
        raise ValueError(f"format={spec.format!r} is unknown: choose one of {', '.join(FORMATS)}")
    kind = format_of(spec.source) if spec.format == AUTO else FORMATS[spec.format]
    options = spec.options
    if spec.dealing is not Dealing.NATURAL:
        if not kind.needs:
            raise ValueError(
                f"the format {kind.name!r} makes its own devices and cannot be dealt anew: use "
                f"{Dealing.NATURAL.value!r}"
            )
        options = replace(options, num_devices=None)  # which is for the dealing
    if unused := unused_options(kind, options):
        raise ValueError(f"the format {kind.name!r} does not use {unused[0]}: leave it out")
    if spec.dealing is Dealing.NATURAL:
        dataset = kind.load(spec.source, spec.partition, options)
    else:
        dataset = _dealt_anew(spec, kind, options)
    return standardise(dataset, spec.standardise)


def _dealt_anew(spec: DatasetSpec, kind: Format, options: Options) -> FederatedDataset:
    count = spec.options.num_devices
    if count is None:
        raise ValueError(f"dealing {spec.dealing.value!r} needs the number of devices")
    # everything is kept that its makers have: the rule is for the new devices
    everything = replace(spec.partition, more_than=0, split=kind.partition.split)
    whole = kind.load(spec.source, everything, options)
    generator = np.random.default_rng([spec.partition.seed, 7])
    y = pooled_labels(whole)
    try:
        rows = (
            deal_by_label(y, count, spec.concentration, generator)
            if spec.dealing is Dealing.DIRICHLET
            else deal_by_size(len(y), count, spec.concentration, generator)
        )
    except ValueError as error:
        raise DataError(f"{whole.name}: {error}") from error
    partition = replace(spec.partition, num_classes=whole.num_classes)
    name = f"{whole.name} ({spec.dealing.value}, α = {spec.concentration:g})"
    dealt = federate(name, deal_again(whole, rows), partition)
    return replace(dealt, embedding=whole.embedding)
