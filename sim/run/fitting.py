"""Do the settings, the data and the model fit together? Found out before anything is written."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Final

import torch
from torch import nn

from deltafl.fl.data.federated import DeviceData, FederatedDataset
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.parameters import to_vector
from deltafl.fl.registry import DELTA_FL
from deltafl.fl.strategies.base import Strategy
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.arms import KnownData, check_arms, check_data
from deltafl.sim.settings.config import PRIVATE, RunConfig

_ASKED: Final = 32
"""Devices whose losses say on which scale a loss of the caller's own is."""

_FEWEST_TICKS: Final = 64
"""A search that tells losses apart by fewer ticks than this would take most devices for tied."""

_USUAL_BITS: Final = 21  # of a tick: losses up to 32, in steps of 2^-16

_RAISED: Final = (ValueError, RuntimeError, TypeError, IndexError, AttributeError)
"""What modules and losses of others raise."""


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
    module = _module(config, spec, dataset.train[0])
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
    )


def _module(config: RunConfig, spec: ModelSpec, first: DeviceData) -> nn.Module:
    """The model, if it accepts a device's inputs, tokens or numbers, and learns from them."""
    few = DeviceData(first.id, first.x[:2], first.y[:2])
    try:
        module = spec.build()
        learner = Learner(module, criterion=spec.criterion)
        if spec.own is not None:
            _check_outputs(module.eval(), spec, few)
        learner.evaluate(to_vector(module), [few])
        if spec.own is not None:
            training = LocalTraining(config.training.learning_rate, batch_size=2)
            list(learner.updates(to_vector(module), [few], training, [0]))
            return spec.build()  # with its own weights
    except _RAISED as error:
        what = f"model.name = {config.model.name!r}" if spec.own is None else "model"
        raise ConfigError(f"{what}: {error}") from error
    return module


def _check_outputs(module: nn.Module, spec: ModelSpec, few: DeviceData) -> None:
    """Check that a module of the caller's own gives a logit for every class."""
    if not spec.criterion.is_usual:
        return
    with torch.inference_mode():
        shape = tuple(module(torch.tensor(few.inputs())).shape)
    if len(shape) != 2 or shape[1] < spec.num_classes:
        raise ValueError(
            f"{type(module).__name__} gives outputs of shape {shape[1:]} for a sample: must be "
            f"({spec.num_classes},), a logit for each of the {spec.num_classes} classes"
        )


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
