"""Train a module of your own, or one of the papers', on a federation, by any method."""

import copy
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from deltafl.fl.models import MAX_PARAMETERS
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import OWN
from deltafl.sim.api.federation import Federation
from deltafl.sim.api.methods import Method, Settings, method_of
from deltafl.sim.api.results import Comparison, Result
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.engine import Progress
from deltafl.sim.run.experiment import Subject, run_experiment
from deltafl.sim.run.progress import ProgressBars, Several
from deltafl.sim.settings.config_io import Table, build_config

Model = str | nn.Module | Callable[[], nn.Module]
"""A name, a module, or what makes one: then each seed has initial weights of its own."""

_LEAST_COHORT: Final = 10  # of secure rounds, by default


def train(
    model: Model,
    federation: Federation,
    strategy: Method | str = "private-delta-fl",
    *,
    rounds: int = 100,
    cohort_size: int | None = None,
    learning_rate: float = 0.1,
    batch_size: int = 10,
    epochs: int = 1,
    seeds: int = 1,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    callbacks: Sequence[Progress] = (),
) -> Result:
    """Train a model on simulated devices.

    Args:
        model: the name of a model of the papers; or a module of yours, which gives logits for a
            batch of inputs and whose every number is a parameter; or a function that makes one.
        federation: the devices.
        strategy: by what; see `methods`, and `deltafl run --help` for names.
        rounds: how many.
        cohort_size: devices of a round; by default a third of those that train, and at least 10.
        learning_rate: of the devices' SGD.
        batch_size: samples of a step.
        epochs: passes over a device's samples in a round.
        seeds: how many runs, each with other cohorts and batches.
        settings: any others, by section and name, as in a settings file.
        out: the run directory; by default a new one that is kept with the others of the system's
            temporary files.
        resume: go on with the run in `out`.
        progress: show bars.
        callbacks: are told how it goes on.

    Raises:
        ConfigError: a setting is out of its range, or contradicts another.
        UserError: the model does not fit the data, or `out` has another run.
        RunError: the run cannot go on; finished rounds are kept in `out`.
        KeyboardInterrupt: finished rounds are kept; `resume=True` goes on.
    """
    method, own = method_of(strategy), _factory(model)
    devices = len(federation.dataset.train)
    if cohort_size is None:
        cohort_size = min(devices, max(_LEAST_COHORT, devices // 3))
    usual: Table = {
        "data": {"source": federation.dataset.name, "format": OWN},
        "model": {"name": model if isinstance(model, str) else OWN},
        "training": {
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "epochs": epochs,
        },
        "federation": {
            "algorithm": method.algorithm,
            "rounds": rounds,
            "cohort_size": cohort_size,
            "evaluate_every": max(1, rounds // 20),
        },
        "experiment": {"num_seeds": seeds, "baselines": []},
        "privacy": {"transcript": "every=10"},
    }
    config = build_config([usual, _plain(settings), _plain(method.settings)])
    folder = Path(tempfile.mkdtemp(prefix="deltafl-")) / "run" if out is None else Path(out)
    bars = ProgressBars(quiet=not progress)
    try:
        summary = run_experiment(
            config,
            folder,
            resume=resume,
            progress=Several((bars, *callbacks)),
            warn=warnings.warn,
            plots=False,
            subject=Subject(federation.dataset, own),
        )
    finally:
        bars.close()
    spec = Subject(federation.dataset, own).spec(config)
    return Result(str(method), folder, summary, config, spec.build)


def compare(
    strategies: Sequence[Method | str],
    model: Model,
    federation: Federation,
    *,
    out: str | Path | None = None,
    **options: Any,  # noqa: ANN401 those of `train`
) -> Comparison:
    """Train by several methods, with the same initial models and cohorts.

    Args:
        strategies: the methods; the last is what the others are compared with.
        model: as of `train`.
        federation: likewise.
        out: a folder with a run directory for each method.
        options: all others of `train`.

    Raises:
        ValueError: two methods have one label, or there are fewer than two.
    """
    methods = [method_of(one) for one in strategies]
    labels = [str(one) for one in methods]
    if len(set(labels)) < max(2, len(labels)):
        raise ValueError(f"strategies are {', '.join(labels)}: give two or more, each once")
    folder = Path(tempfile.mkdtemp(prefix="deltafl-")) if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return Comparison(
        [
            train(model, federation, one, out=folder / f"{number}-{one.algorithm}", **options)
            for number, one in enumerate(methods)
        ]
    )


def _plain(settings: Settings | None) -> Table:
    return {section: dict(values) for section, values in (settings or {}).items()}


def _factory(model: Model) -> Callable[[], nn.Module] | None:
    """What makes a module of the caller's own; None for one of the papers'.

    Raises:
        ConfigError: it is no module, or one that cannot be trained by sums of its parameters.
    """
    if isinstance(model, str):
        return None
    make = model if not isinstance(model, nn.Module) else lambda: copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        module = make()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model: {type(module).__name__} is no torch.nn.Module: pass a module, or a function "
            "that makes one"
        )
    size = num_parameters(module)
    if not 0 < size <= MAX_PARAMETERS:
        raise ConfigError(
            f"model: {type(module).__name__} has {size:,} parameters; must be from 1 to "
            f"{MAX_PARAMETERS:,}"
        )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise ConfigError(
                f"model: parameter {name!r} is {parameter.dtype}"
                f"{'' if parameter.requires_grad else ' and does not require a gradient'}: all "
                "must be float32 and be trained; keep what is fixed in buffers"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            raise ConfigError(
                f"model: {name or type(layer).__name__!r} is a {type(layer).__name__}, whose "
                "running statistics are no parameters and would stay on the devices: take "
                "GroupNorm, or track_running_stats=False"
            )
    return make
