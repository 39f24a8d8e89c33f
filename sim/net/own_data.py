"""A device's own file, read as the session says: which columns, which classes, how scaled.

The server says so in the settings of a round, which are bound to its session. A device's own
settings may say it too; then the server's must be the same. What a device has adopted once, it
keeps to until it ends, so what it declines later does not depend on its data.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from deltafl.fl.data.federated import FederatedDataset
from deltafl.fl.errors import DataError
from deltafl.sim.data.dataset import build_dataset, dataset_format
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.own_work import OwnData
from deltafl.sim.run.experiment import Subject
from deltafl.sim.run.fitting import tried
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.settings.config import DataConfig, RunConfig
from deltafl.sim.settings.config_io import show

AGREED: Final = (
    *("feature_columns", "classes", "unit", "num_classes", "input_shape"),
    *("means", "scales", "standardise"),
)
"""The settings of [data] that are the same for all devices of a session."""

_OF_FILES: Final = ("feature_columns", "unit")
_BY_OTHERS: Final = ("train", "legacy")
"""Scaling by constants that are measured over all devices."""


def adopted(mine: DataConfig, said: DataConfig) -> DataConfig:
    """A device's settings of its data, with what the session says of everybody's.

    Args:
        mine: the device's own.
        said: the server's.

    Raises:
        ConfigError: the device's own settings say otherwise.
        DataError: files of such a format have none of what is said.
    """
    usual, kind = DataConfig(), dataset_format(mine)
    for name in AGREED:
        own, other = getattr(mine, name), getattr(said, name)
        if own not in (getattr(usual, name), other):
            told = f"{show(other)} in the session, and {show(own)} in this device's own settings"
            raise ConfigError(f"data.{name} is {told}: agree on one")
        if name in _OF_FILES and other and name not in kind.options:
            raise DataError(
                f"{mine.source}: the session says data.{name} = {show(other)}, and data of the "
                f"format {kind.name!r} have no such thing: write them as a .csv or .parquet file"
            )
    label = mine.label_column
    if "label_column" in kind.options:
        label = label or said.label_column
    return replace(mine, label_column=label, **{one: getattr(said, one) for one in AGREED})


class OwnFile:
    """Reads a device's data, once it is known as what.

    Args:
        config: the device's own settings.
        index: which training device of the data it is, as `deltafl run` divides them; None if all
            of the data are its own.
        max_steps: as of `OwnData`.

    Raises:
        UserError: there are several devices and no index, or an argument is out of its range.
        ConfigError: settings contradict each other.
        DataError: the data cannot be used; where the settings do not say yet how to read them,
            there are none.
    """

    def __init__(self, config: RunConfig, index: int | None, max_steps: int) -> None:
        if max_steps < 1:
            raise UserError(f"--max-steps {max_steps}: must be at least 1")
        self._config, self._index, self._max_steps = config, index, max_steps
        self._dataset: tuple[DataConfig, FederatedDataset] | None = None
        self._known: tuple[object, OwnData] | None = None
        data = config.data
        self._is_read = bool(dataset_format(data).needs)
        if self._is_read and not Path(data.source).exists():
            raise DataError(f"{data.source}: no such file: check the path")
        if not self._is_read or index is not None or data.classes or data.num_classes or data.unit:
            self._own(data)

    def __call__(self, said: RunConfig) -> OwnData:
        """The data, as the server's settings say.

        Raises:
            ConfigError: they are not what this device allows, or has adopted before.
            DataError: the data do not fit.
        """
        self._config.own.check_allowed(said.own)
        data, training = adopted(self._config.data, said.data), said.training
        key = data, said.own, said.model, training.loss, training.metric, training.optimizer
        if self._known is None:
            self._known = key, self._fitted(data, said)
        if self._known[0] != key:
            told = "the session says otherwise of data or model than the one before"
            raise ConfigError(f"{told}: start this device again")
        return self._known[1]

    def _fitted(self, data: DataConfig, said: RunConfig) -> OwnData:
        code = OwnCode.of(said)
        dataset = self._own(data)
        if self._is_read and dataset.classes and not data.classes:
            shown = ", ".join(f"{name:.40}" for name in dataset.classes[:5])
            raise DataError(
                f"{dataset.name}: labels are texts such as {shown}, and the session does not say "
                "which is which number: have the server name them (--set data.classes=[…])"
            )
        try:
            subject = Subject(dataset, *code).suited(said)
            tried(said, spec := subject.spec(said), subject.dataset)
        except ConfigError as error:
            raise DataError(f"{dataset.name} does not fit the model: {error}") from error
        (own,), test = subject.dataset.train, subject.dataset.test
        return OwnData(own, spec, self._max_steps, test[0] if test else None)

    def _own(self, data: DataConfig) -> FederatedDataset:
        """This device's part of the data, with nobody else's."""
        if self._dataset is not None and self._dataset[0] == data:
            return self._dataset[1]
        alone = self._is_read and self._index is None
        if alone and data.standardise in _BY_OTHERS:
            raise ConfigError(
                f"data.standardise = {data.standardise!r} takes constants of all devices, which "
                "none knows: have the server give them (data.means, data.scales)"
            )
        dataset = build_dataset(data, keeps_whole=True, alone=alone)
        number, index = len(dataset.train), self._index
        if index is None and number > 1:
            raise UserError(
                f"{dataset.name} has {number} training devices: say which of them this is, as in "
                "--index 0; if all samples are of this one, leave data.user_column out"
            )
        if not 0 <= (index or 0) < number:
            raise UserError(f"--index {index}: must be from 0 to {number - 1}")
        own = dataset.train[index or 0]
        test = tuple(one for one in dataset.test if one.id == own.id)
        made = replace(dataset, train=(own,), test=test, validation=())
        self._dataset = data, made
        return made
