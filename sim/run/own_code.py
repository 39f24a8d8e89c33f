"""Code of the caller's own: passed by a program, or imported because the settings name it."""

import copy
import importlib
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from deltafl.fl.batch_norm import is_frozen
from deltafl.fl.criterion import CLASSIFIES, Criterion, criterion_of
from deltafl.fl.models import MAX_PARAMETERS, seeded
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import CROSS_ENTROPY, MODELS, OWN
from deltafl.fl.strategies.base import Strategy
from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import PRIVATE, RunConfig

Model = str | nn.Module | Callable[[], nn.Module]
"""A name, a module, or what makes one: then each seed has initial weights of its own."""

_OF_A_STRATEGY: Final = ("name", "server_sees", "init", "apply")


class OwnCode(NamedTuple):
    """What of a run is of the caller's own making.

    Attributes:
        module: makes the module that is trained; None for one of the papers'.
        criterion: what it is trained for.
        strategy: by what; None for an algorithm of the settings.
        optimizer: makes a device's optimiser; None for one of torch's, by name.
    """

    module: Callable[[], nn.Module] | None = None
    criterion: Criterion = CLASSIFIES
    strategy: Strategy | None = None
    optimizer: MakeOptimizer | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "OwnCode":
        """Import what the section `own` names.

        Raises:
            ConfigError: it cannot be imported, or is not what it has to be; or the settings call
                something "own" that they do not name.
        """
        found = {name: _imported(f"own.{name}", path) for name, path in config.own.paths.items()}
        training, algorithm = config.training, config.federation.algorithm
        for name, setting, called in (
            ("module", "model.name", config.model.name),
            ("loss", "training.loss", training.loss),
            ("metric", "training.metric", training.metric),
            ("optimizer", "training.optimizer", training.optimizer),
            ("strategy", "federation.algorithm", algorithm.removeprefix(PRIVATE)),
        ):
            if called == OWN and name not in found:
                raise ConfigError(
                    f"{setting} = {OWN!r}: it is one that a program has passed to "
                    f"`deltafl.train`; name it (own.{name} = 'package.module:name')"
                )
        strategy = found.get("strategy")
        made = strategy() if isinstance(strategy, type) else strategy
        criterion = checked_criterion(
            config.model.name,
            found.get("loss", training.loss),
            found.get("metric"),
            of_numbers=bool(config.data.unit),
        )
        if training.metric != criterion.metric:
            raise ConfigError(
                f"training.metric = {training.metric!r}: must be {criterion.metric!r} for such "
                "labels, or a function of your own (own.metric)"
            )
        return cls(
            factory(found["module"]) if "module" in found else None,  # type: ignore[arg-type]
            criterion,
            None if made is None else checked_strategy(made),
            found.get("optimizer"),  # type: ignore[arg-type]
        )


def _imported(setting: str, path: str) -> object:
    """What an import path leads to.

    Raises:
        ConfigError: it leads to nothing.
    """
    place, _, name = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(place), name)
    except Exception as error:  # code of the caller's own may raise anything
        raise ConfigError(
            f"{setting} = {path!r} cannot be imported ({type(error).__name__}: {error!s:.200}): "
            "install it, or name its folder in PYTHONPATH"
        ) from error
    return found


def checked_strategy(strategy: object) -> Strategy:
    """A strategy of the caller's own.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(strategy, type):
        raise ConfigError(f"strategy: {strategy.__name__} is a class: pass an object of it")
    if missing := [name for name in _OF_A_STRATEGY if not hasattr(strategy, name)]:
        raise ConfigError(
            f"strategy: {type(strategy).__name__} has no {missing[0]!r}: pass the name of an "
            "algorithm, a Method, or an object of a class of yours that has name, server_sees, "
            "init and apply"
        )
    return strategy  # type: ignore[return-value]  # just checked


def checked_criterion(
    model: object, loss: object, metric: object, *, of_numbers: bool
) -> Criterion:
    """What a model is trained for.

    Args:
        model: its name, or a module of the caller's own.
        loss: a name or a function; None for the usual one.
        metric: a function; None for the usual one.
        of_numbers: whether numbers are to be predicted.

    Raises:
        ConfigError: they do not go together.
    """
    if loss is None:
        loss = "mse" if of_numbers else CROSS_ENTROPY
    for name, given in (("loss", loss), ("metric", metric)):
        is_name = isinstance(given, str) and name == "loss"
        if isinstance(given, type) or not (given is None or is_name or callable(given)):
            raise ConfigError(
                f"{name} = {given!r:.100}: must be a function (outputs, targets) -> a number for "
                "each sample, such as torch.nn.HuberLoss(reduction='none')"
            )
    try:
        criterion = criterion_of(loss, metric, of_numbers=of_numbers)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if isinstance(model, str) and model != OWN and not criterion.is_usual:
        raise ConfigError(
            f"model = {model!r}: the papers' models are trained by cross-entropy; with another "
            "loss, pass a module of your own"
        )
    return criterion


def factory(model: Model) -> Callable[[], nn.Module] | None:
    """What makes a module of the caller's own; None for one of the papers'.

    Raises:
        ConfigError: it is no module, or one that cannot be trained by sums of its parameters.
    """
    if isinstance(model, str):
        return None
    if not callable(model):
        raise ConfigError(
            f"model = {model!r:.100}: must be a module, a function that makes one, or a name of "
            f"the papers' models: {', '.join(MODELS)}"
        )
    make = model if not isinstance(model, nn.Module) else lambda: copy.deepcopy(model)
    module = model if isinstance(model, nn.Module) else seeded(model, 0)
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model: {type(module).__name__} is no torch.nn.Module: pass a module, or a function "
            "that makes one"
        )
    _check_parameters(module)
    _check_batch_norm(module)
    return make


def _check_parameters(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"model: parameter {name!r} has no shape yet: pass a batch of inputs through the "
                "module where it is made, such as module(torch.zeros(1, 4))"
            )
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(
                f"model: parameter {name!r} is {parameter.dtype}: what is trained must be float32 "
                "(module.float()); what is frozen (requires_grad = False) may be of any type"
            )
    size = num_parameters(module)
    if not 0 < size <= MAX_PARAMETERS:
        raise ConfigError(
            f"model: {type(module).__name__} has {size:,} parameters that are trained; must be "
            f"from 1 to {MAX_PARAMETERS:,}, as each device of a round gives so many numbers; "
            "freeze the others (requires_grad = False), as LoRA does"
        )


def _check_batch_norm(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and not is_frozen(layer):
            raise ConfigError(
                f"model: {name or type(layer).__name__!r} is a {type(layer).__name__}, whose "
                "statistics are no parameters, but of a batch, or stay on a device: pass "
                "deltafl.with_group_norm(module), which puts GroupNorm in its place, or freeze it "
                "with its statistics (requires_grad = False)"
            )
