"""One entry to all data sets: read, assign anew if wanted, split, scale."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from deltafl.fl.data.dirichlet import assign_again, assign_by_label, assign_by_size, pooled_labels
from deltafl.fl.data.federated import FederatedDataset, Split, federate
from deltafl.fl.data.registry import DEFAULTS, FORMATS, Format, Options, format_of, unused_options
from deltafl.fl.data.standardise import Standardise, standardise
from deltafl.fl.errors import DataError

AUTO: Final = "auto"
"""The format that follows from the kind of source."""


class Partitioner(StrEnum):
    """Who gets which samples."""

    NATURAL = "natural"
    """Whoever made them."""

    DIRICHLET = "dirichlet"
    """New devices of equal size whose labels differ (`dirichlet.assign_by_label`)."""

    QUANTITY = "quantity"
    """New devices whose sizes differ (`dirichlet.assign_by_size`)."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Which data set, and how.

    Attributes:
        source: where it lies, or the name of one that needs no path, such as "digits".
        split: the rule for small devices, and who trains.
        standardise: how features are scaled.
        format: a name of `deltafl.fl.data.registry.FORMATS`, or "auto".
        options: what the loader is told beside.
        partitioner: who gets which samples; the split's seed decides.
        concentration: α of the partitioner, above 0.
    """

    source: str
    split: Split = Split()  # noqa: RUF009 (a frozen value, safe to share)
    standardise: Standardise = Standardise.NONE
    format: str = AUTO
    options: Options = DEFAULTS
    partitioner: Partitioner = Partitioner.NATURAL
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
    if spec.partitioner is not Partitioner.NATURAL:
        if not kind.needs:
            raise ValueError(
                f"the format {kind.name!r} makes its own devices and cannot be assigned anew: use "
                f"{Partitioner.NATURAL.value!r}"
            )
        options = replace(options, num_devices=None)  # which is for the partitioner
    if unused := unused_options(kind, options):
        raise ValueError(f"the format {kind.name!r} does not use {unused[0]}: leave it out")
    if spec.partitioner is Partitioner.NATURAL:
        dataset = kind.load(spec.source, spec.split, options)
    else:
        dataset = _assigned_anew(spec, kind, options)
    return standardise(dataset, spec.standardise)


def _assigned_anew(spec: DatasetSpec, kind: Format, options: Options) -> FederatedDataset:
    count = spec.options.num_devices
    if count is None:
        raise ValueError(f"partitioner {spec.partitioner.value!r} needs the number of devices")
    # everything is kept that its makers have: the rule is for the new devices
    everything = replace(spec.split, more_than=0, by=kind.split.by)
    whole = kind.load(spec.source, everything, options)
    generator = np.random.default_rng([spec.split.seed, 7])
    y = pooled_labels(whole)
    try:
        rows = (
            assign_by_label(y, count, spec.concentration, generator)
            if spec.partitioner is Partitioner.DIRICHLET
            else assign_by_size(len(y), count, spec.concentration, generator)
        )
    except ValueError as error:
        raise DataError(f"{whole.name}: {error}") from error
    split = replace(spec.split, num_classes=whole.num_classes)
    name = f"{whole.name} ({spec.partitioner.value}, α = {spec.concentration:g})"
    assigned = federate(name, assign_again(whole, rows), split)
    return replace(assigned, embedding=whole.embedding)
