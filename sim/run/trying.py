"""A module of the caller's own is tried on a few samples before anything is written."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import nn

from deltafl.fl.criterion import tensor_of
from deltafl.fl.data.federated import DeviceData, FederatedDataset, with_numbers
from deltafl.fl.data.lazy import LazyDevices
from deltafl.fl.evaluation import measure
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.parameters import fixed, load_vector, to_vector
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import ConfigError

_CPU: Final = torch.device("cpu")
_MOVED: Final = 0.05
"""How far a model is moved for a look at what its outputs depend on: one that begins with zeros
gives the same for any sample."""

_ROUNDING: Final = 1e-3


class _Unfit(ValueError):
    """A module cannot be trained in a federation, whatever the data."""


def try_module(spec: ModelSpec, dataset: FederatedDataset, training: LocalTraining) -> nn.Module:
    """Measure and train a module of the caller's own; a new one, with its own weights.

    Args:
        spec: what makes it, and its loss.
        dataset: whose inputs it is to take.
        training: how it will be trained.

    Raises:
        ConfigError: it does not take the inputs; gives something else than its loss takes; has a
            state that is no parameter and changes; or what it gives for a sample depends on others.
    """
    first, last = (_part(dataset.train[at], size) for at, size in ((0, 3), (-1, 1)))
    with _told(first):
        module, before = _made_twice(spec)
        vector = to_vector(module)
        _check_outputs(module.eval(), spec, last)
        with torch.inference_mode():
            for extreme in extremes(dataset):
                module(torch.tensor(extreme.inputs()))
        _check_alone(module, vector, spec, (first, last))
        learner = Learner(module, criterion=spec.criterion, optimizer=spec.optimizer)
        few_steps = replace(training, batch_size=2, epochs=1, steps=0)
        list(learner.updates(vector, [first], few_steps, [0]))
        if changed := _changed(before, fixed(module)):
            raise _Unfit(
                f"{changed!r} is no parameter that is trained, and changes in training: it would "
                "pass from device to device. Take layers without such a state, such as GroupNorm "
                "or LayerNorm"
            )
        load_vector(module, vector)
        return module


def suited(spec: ModelSpec, dataset: FederatedDataset) -> FederatedDataset:
    """The data as a module of the caller's own takes them: whole numbers as such, or as float32.

    Raises:
        ConfigError: it takes neither.
    """
    as_numbers, refusals = with_numbers(dataset), []
    if spec.own is None or as_numbers is dataset:
        return dataset
    for one in (dataset, as_numbers):
        few = _part(one.train[0], 2)
        try:
            with torch.inference_mode():
                spec.build().eval()(torch.tensor(few.inputs()))
            return one
        except Exception as error:  # noqa: BLE001 (code of the caller's own may raise anything)
            refusals.append(f"{_said(error)} (with inputs as {few.inputs().dtype})")
    low, high = (one.x for one in extremes(dataset))
    raise ConfigError(
        f"model: {'; '.join(refusals)}. Inputs are whole numbers from {low.min()} to {high.max()}, "
        f"of shape {dataset.input_shape} for a sample"
    )


def _part(data: DeviceData, size: int) -> DeviceData:
    return DeviceData(data.id, data.x[:size], data.y[:size])


@contextlib.contextmanager
def _told(data: DeviceData) -> Iterator[None]:
    """Tell what code of the caller's own raises, with the inputs that it was given."""
    try:
        yield
    except Exception as error:
        given = "" if isinstance(error, _Unfit) else _shaped(data)
        raise ConfigError(f"model: {_said(error)}{given}") from error


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _shaped(data: DeviceData) -> str:
    shape = data.x.shape[1:]
    pixels = ", made of uint8 as pixels by / 255" if data.x.dtype == np.uint8 else ""
    mend = "; nn.Flatten() makes one row of them" if len(shape) > 1 else ""
    return f" (inputs are {data.inputs().dtype} of shape {shape} for a sample{pixels}{mend})"


def _made_twice(spec: ModelSpec) -> tuple[nn.Module, Mapping[str, bytes]]:
    """The module, and what of it is not trained, which must be the same each time it is made."""
    module, other = spec.build(), spec.build()
    if module is other:
        raise _Unfit("the function gives one module each time: pass the module, which is copied")
    before = fixed(module)
    if differs := _changed(before, fixed(other)):
        raise _Unfit(
            f"{differs!r} is not trained, and is another each time the module is made: make it of "
            "torch's random numbers, which follow from the seed, or pass the module itself"
        )
    return module, before


def _changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str | None:
    """The name of something that is not as it was; None if there is nothing."""
    return next((name for name, old in before.items() if after.get(name, old) != old), None)


def _check_outputs(module: nn.Module, spec: ModelSpec, one: DeviceData) -> None:
    """Check what it gives for one sample, unless that is for a loss of the caller's own."""
    if spec.criterion.loss == OWN:
        return
    with torch.inference_mode():
        shape = tuple(tensor_of(module(torch.tensor(one.inputs()))).shape)
    name, classes = type(module).__name__, spec.num_classes
    if shape[:1] != (1,):
        raise _Unfit(
            f"{name} gives a tensor of shape {shape} for one sample: its first dimension must be "
            "the number of samples, also of one; squeeze(-1) keeps it where squeeze() does not"
        )
    if spec.criterion.is_usual and (len(shape) != 2 or shape[1] < classes):
        raise _Unfit(
            f"{name} gives outputs of shape {shape[1:]} for a sample: must be ({classes},), a "
            f"logit for each of the {classes} classes"
        )


def extremes(dataset: FederatedDataset) -> Iterator[DeviceData]:
    """A sample of the lowest tokens in every place, and one of the highest.

    The model's vocabulary must have them.
    """
    everybody = (dataset.train, dataset.test)
    if not dataset.train[0].is_tokens or any(isinstance(one, LazyDevices) for one in everybody):
        return
    first = _part(dataset.train[0], 1)
    for bound in (np.min, np.max):
        row = bound([bound(one.x, axis=0) for side in everybody for one in side], axis=0)
        yield DeviceData(first.id, row[np.newaxis], first.y)


def _check_alone(
    module: nn.Module, vector: Vector, spec: ModelSpec, devices: tuple[DeviceData, ...]
) -> None:
    """Check that what is measured of a device does not depend on who is measured beside it."""
    noise = np.random.default_rng(0).normal(0, _MOVED, vector.shape)
    load_vector(module, vector + noise.astype(np.float32))
    criterion = spec.criterion

    def measured(*devices: DeviceData) -> list[tuple[float, float]]:
        found = measure(module, devices, _CPU, criterion, with_metric=False)
        return [(one.loss, one.error if criterion.metric == OWN else 0.0) for one in found]

    alone = [figure for one in devices for figure in measured(one)]
    if not np.allclose(measured(*devices), alone, _ROUNDING, _ROUNDING, equal_nan=True):
        raise _Unfit(
            "what the module, the loss or the metric gives for a sample depends on the other "
            "samples of its batch, or on chance: a device's figure would depend on who is measured "
            "beside it. Let each sample have its own, such as by GroupNorm in place of BatchNorm"
        )
