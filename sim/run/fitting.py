"""Do the settings, the data and the model fit together? Found out before anything is written."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Final

from torch import nn

from deltafl.fl.data.federated import AS_DIVIDED, DeviceData, FederatedDataset
from deltafl.fl.local import Learner
from deltafl.fl.parameters import to_vector
from deltafl.fl.registry import DELTA_FL
from deltafl.fl.strategies.base import Strategy
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.arms import KnownData, check_arms, check_data
from deltafl.sim.run.simulated import training_in
from deltafl.sim.run.trying import extremes, try_module
from deltafl.sim.settings.config import PRIVATE, RunConfig

_ASKED: Final = 32
"""Devices whose losses say on which scale a loss of the caller's own is."""

_FEWEST_TICKS: Final = 64
"""A search that tells losses apart by fewer ticks than this would take most devices for tied."""

_USUAL_BITS: Final = 21  # of a tick: losses up to 32, in steps of 2^-16


def check_fit(
    config: RunConfig, dataset: FederatedDataset, spec: ModelSpec, own: Strategy | None = None
) -> None:
    """Find errors that would stop a run later.

    Args:
        config: all settings.
        dataset: who trains, and on what.
        spec: the model.
        own: the strategy, if it is one of the caller's own.

    Raises:
        ConfigError: the message says which settings do not fit, or what of the model does not.
    """
    check_data(config, known_of(dataset))
    module = tried(config, spec, dataset)
    if not spec.criterion.is_usual:
        _check_scale(config, module, spec, dataset.train)
    check_arms(config, to_vector(module).size, len(dataset.train), own)


def known_of(dataset: FederatedDataset) -> KnownData:
    """What settings are held against, of data that have been read."""
    return KnownData(
        name=dataset.name,
        num_devices=len(dataset.train),
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        is_tokens=dataset.train[0].is_tokens,
        rule=dataset.rule,
        aside=_aside(dataset),
    )


def _aside(dataset: FederatedDataset) -> int:
    """How many devices only test, though each device has enough samples to train and test by."""
    train, test = dataset.train, dataset.test
    if dataset.rule == AS_DIVIDED or not (isinstance(train, tuple) and isinstance(test, tuple)):
        return 0  # the split came with the data, or devices are made when they are asked for
    is_divisible = all(one.num_samples > 1 for one in (*train, *test))
    return len({one.id for one in test} - {one.id for one in train}) if is_divisible else 0


def tried(config: RunConfig, spec: ModelSpec, dataset: FederatedDataset) -> nn.Module:
    """The model, if it accepts a device's inputs, tokens or numbers, and learns from them.

    Args:
        config: all settings.
        spec: the model.
        dataset: the data.

    Raises:
        ConfigError: it does not.
    """
    if spec.own is not None:
        return try_module(spec, dataset, training_in(config.training, 0))
    first = dataset.train[0]
    try:
        module = spec.build()
        few = DeviceData(first.id, first.x[:2], first.y[:2])
        Learner(module).evaluate(to_vector(module), [few, *extremes(dataset)])
    except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
        raise ConfigError(f"model.name = {config.model.name!r}: {error}") from error
    return module


def _check_scale(
    config: RunConfig, module: nn.Module, spec: ModelSpec, train: Sequence[DeviceData]
) -> None:
    """Check that a private search can tell apart the losses that a run begins with."""
    algorithms = (config.federation.algorithm, *config.experiment.baselines)
    if PRIVATE + DELTA_FL not in algorithms or min(config.federation.thetas) == 1:
        return
    asked = list(islice(train, _ASKED))
    learner, quantile = Learner(module, criterion=spec.criterion), config.quantile
    losses = learner.losses(to_vector(module), asked)
    largest = max((loss for loss in losses if math.isfinite(loss)), default=0.0)
    is_above = largest > quantile.loss_bound
    if not is_above and not 0 < largest * 2**quantile.resolution_bits < _FEWEST_TICKS:
        return
    named, what = (
        (f"loss_bound = {quantile.loss_bound}", "all losses above it")
        if is_above
        else (f"resolution_bits = {quantile.resolution_bits}", "losses that are nearer together")
    )
    _, digits = math.frexp(largest)  # it is below 2^digits
    bound, bits = 2 ** max(0, digits + 1), max(0, _USUAL_BITS - digits - 1)
    raise ConfigError(
        f"quantile.{named}: the search takes {what} for equal, and the first model's losses on the "
        f"first {len(asked)} devices go up to {largest:.4g}: scale the targets, or pass settings="
        f"{{'quantile': {{'loss_bound': {bound}, 'resolution_bits': {bits}}}}}"
    )
