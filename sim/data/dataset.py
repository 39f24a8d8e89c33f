"""The data set that the settings describe, and a digest that identifies it."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from deltafl.fl.data.agreed import Agreed
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, SplitBy, with_numbers
from deltafl.fl.data.lazy import LazyDevices
from deltafl.fl.data.load import DatasetSpec, Partitioner, Standardise, load_dataset
from deltafl.fl.data.registry import OPTIONS, Format, format_of
from deltafl.fl.errors import DataError
from deltafl.fl.registry import OWN
from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import DataConfig


def build_dataset(
    config: DataConfig, *, keeps_whole: bool = False, alone: bool = False
) -> FederatedDataset:
    """Read, check and split the data, and number and scale them as is agreed.

    Args:
        config: which, and how they are split.
        keeps_whole: whether inputs that may be tokens stay whole numbers, for a model that reads
            tokens; others take numbers, float32.
        alone: whether the data may be those of one device; see `Split`.

    Raises:
        ConfigError: settings of [data] contradict each other or the format.
        DataError: the data cannot be used.
    """
    if config.format == OWN:
        raise ConfigError(
            f"data.format = {OWN!r}: {config.source} is data that a program has passed to "
            "`deltafl.train`; pass them again"
        )
    spec = dataset_spec(config)
    try:
        agreed = agreed_of(config)
        dataset = load_dataset(replace(spec, split=replace(spec.split, alone=alone)))
        dataset = agreed.of(dataset)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(f"[data]: {error}") from error
    return dataset if keeps_whole else with_numbers(dataset)


def agreed_of(config: DataConfig) -> Agreed:
    """What the settings say of the data of all devices.

    Raises:
        ConfigError: classes are called alike, or numbers are out of their range.
    """
    shape = config.input_shape or ((len(columns),) if (columns := config.feature_columns) else ())
    try:
        return Agreed(config.classes, shape, config.means, config.scales)
    except ValueError as error:
        raise ConfigError(f"[data]: {error}") from error


def dataset_spec(config: DataConfig) -> DatasetSpec:
    """Translate the settings into a `DatasetSpec` of `deltafl.fl.data`.

    Raises:
        ConfigError: settings contradict each other.
        DataError: the format of the source cannot be recognised.
    """
    usual = DataConfig()
    options = {
        name: Path(value) if name == "vectors" else value
        for name in OPTIONS
        if (value := getattr(config, name)) != getattr(usual, name)
    }
    # The quickstart preset, which any configuration may start from, sets num_devices and
    # rotated_fraction, so ignore them where they are unused. Other unused settings are errors.
    made = {"num_devices"} if config.partitioner != Partitioner.NATURAL else set[str]()
    for name in {"num_devices", "rotated_fraction"} - made - dataset_format(config).options:
        options.pop(name, None)
    try:
        split = _partition(config)
    except ValueError as error:
        raise ConfigError(f"[data]: {error}") from error
    return DatasetSpec(
        source=config.source,
        split=split,
        standardise=Standardise(config.standardise),
        format=config.format,
        options=options,
        partitioner=Partitioner(config.partitioner),
        concentration=config.concentration,
        validation=config.validation_fraction,
    )


def dataset_format(config: DataConfig) -> Format:
    """The format of the data.

    Raises:
        DataError: the format is "auto", and the source is of no known format.
    """
    return format_of(config.source, config.format)


def dataset_digest(dataset: FederatedDataset) -> str:
    """Hash everything that training and testing can see of a data set: SHA-256, in hex.

    For devices that are generated on demand, hash their parameters and the first and the last
    device, so that 100,000 devices need not be generated.
    """
    digest = hashlib.sha256()
    for split in dataset.sides.values():
        digest.update(len(split).to_bytes(8, "big"))
        devices = split
        if isinstance(split, LazyDevices):
            digest.update(split.identity.encode() + b"\0" + split.sizes.tobytes())
            devices = (split[0], split[-1])
        for device in devices:
            _update(digest.update, device)
    return digest.hexdigest()


def _update(update: Callable[[bytes], None], device: DeviceData) -> None:
    name = device.id.encode()
    update(len(name).to_bytes(8, "big") + name)
    update(str((device.x.dtype.str, device.x.shape)).encode())
    update(device.x.tobytes() + device.y.tobytes())


def _partition(config: DataConfig) -> Split:
    users, samples = config.num_users or None, config.max_samples or None
    if config.rule == "given":
        return Split(
            more_than=config.min_samples,
            train_fraction=Fraction(1) - config.test_fraction,
            seed=config.split_seed,
            num_classes=config.num_classes or None,
            by=SplitBy(config.split),
            num_users=users,
            max_samples=samples,
        )
    untouched = DataConfig()
    for name in ("min_samples", "test_fraction", "split", "num_classes"):
        if getattr(config, name) != getattr(untouched, name):
            raise ConfigError(
                f"data.{name} = {getattr(config, name)} and data.rule = 'published' contradict "
                "each other: leave out one of them"
            )
    published, seed = dataset_format(config).split, config.split_seed
    return replace(published, seed=seed, num_users=users, max_samples=samples)
