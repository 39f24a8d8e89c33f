"""The data set that the settings ask for, and what tells it from any other."""

import hashlib
from fractions import Fraction

from fl.data.digits import load_digits
from fl.data.federated import FederatedDataset, Partition, Split
from fl.data.load import DatasetSpec, Standardise, load_dataset
from fl.data.standardise import standardise
from sim.config import DataConfig


def build_dataset(config: DataConfig) -> FederatedDataset:
    """Read, check and split the data.

    Raises:
        DataError: the data cannot be used as it is.
    """
    partition = Partition(
        more_than=config.min_samples,
        train_fraction=Fraction(1) - config.test_fraction,
        seed=config.split_seed,
        num_classes=config.num_classes or None,
        split=Split(config.split),
    )
    if config.source != "digits":
        return load_dataset(DatasetSpec(config.source, partition, Standardise(config.standardise)))
    dataset = load_digits(
        partition, num_devices=config.num_devices, minority_share=config.rotated_fraction
    )
    return standardise(dataset) if config.standardise == "train" else dataset


def dataset_digest(dataset: FederatedDataset) -> str:
    """Hash all that training and testing can see of a data set: SHA-256, in hex."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.test):
        digest.update(len(split).to_bytes(8, "big"))
        for device in split:
            name = device.id.encode()
            digest.update(len(name).to_bytes(8, "big") + name)
            digest.update(str((device.x.dtype.str, device.x.shape)).encode())
            digest.update(device.x.tobytes() + device.y.tobytes())
    return digest.hexdigest()
