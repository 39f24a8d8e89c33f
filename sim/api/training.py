"""Train a module of your own, or one of the papers', on a federation, by any method."""

import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import auto, notebook, tqdm

from deltafl.fl.criterion import Criterion, DeviceMetric, Samplewise, criterion_of
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import CROSS_ENTROPY, OWN, SGD
from deltafl.fl.strategies.base import Strategy
from deltafl.sim.api.federation import Federation
from deltafl.sim.api.methods import Method, Settings, method_of
from deltafl.sim.api.modules import Model, factory
from deltafl.sim.api.results import Comparison, Result
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.record.labels import write_comparison
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.engine import Progress, Stop
from deltafl.sim.run.experiment import Subject, run_experiment
from deltafl.sim.run.progress import ClippingNote, ProgressBars, Several
from deltafl.sim.settings.config import REMOTE, FederationConfig, RunConfig
from deltafl.sim.settings.config_io import Table, build_config, read_config_file

_SETTINGS: Final = {
    "rounds": ("federation", "rounds"),
    "cohort_size": ("federation", "cohort_size"),
    "learning_rate": ("training", "learning_rate"),
    "batch_size": ("training", "batch_size"),
    "epochs": ("training", "epochs"),
    "seeds": ("experiment", "num_seeds"),
}
"""The settings that arguments of `train` give."""

_INSTEAD: Final = {
    "data": "the data are those of the federation",
    "model": "pass `model`",
    "training.loss": "pass `loss`",
    "training.metric": "pass `metric`",
    "training.optimizer": "pass `optimizer`",
    "federation.algorithm": "pass `strategy`",
}
"""Settings that are arguments, by section or name, and what to do."""


def train(
    model: Model,
    federation: Federation,
    strategy: Method | str | Strategy = "private-delta-fl",
    *,
    loss: str | Samplewise | None = None,
    metric: Samplewise | DeviceMetric | None = None,
    optimizer: str | MakeOptimizer = SGD,
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
        model: the name of a model of the papers; or a module of yours, which gives outputs for a
            batch of inputs; or a function that makes one. What is trained of it, and leaves a
            device, are its parameters that require a gradient; all else stays as it was made.
        federation: the devices.
        strategy: by what; see `methods`, and `deltafl run --help` for names. An object of a class
            of yours is an `OwnMethod` in clear.
        loss: "cross-entropy", the usual one for classes; "mse", the usual one for numbers, or
            "mae"; or a function of a batch's outputs and targets that gives a loss for each sample,
            a tensor of shape [n], at least 0.
        metric: what to measure beside the loss, a function like `loss`, of which smaller is better;
            or a `DeviceMetric` of all samples of a device, such as F1, which says what is better.
            By default the error (the share misclassified) or, for numbers, the absolute error.
        optimizer: by what devices train: "sgd", "adam", or a function of parameters and a learning
            rate that makes an optimiser of torch, such as torch.optim.AdamW.
        rounds: how many.
        cohort_size: devices of a round; by default 20, or all that train if they are fewer.
        learning_rate: of the devices' optimiser.
        batch_size: samples of a step.
        epochs: passes over a device's samples in a round.
        seeds: how many runs, each with other cohorts and batches.
        settings: any others, by section and name, as in a settings file.
        out: the run directory; by default a new one that is kept with the others of the system's
            temporary files.
        resume: go on with the run in `out`; more `rounds` make it longer. A module, loss, optimiser
            or strategy of one's own must be that of the run's beginning: only sizes are compared.
        progress: show bars.
        callbacks: are told how it goes on; see `Callback`.

    Raises:
        ConfigError: a setting is out of its range, or contradicts another.
        UserError: the model does not fit the data, or `out` has another run.
        RunError: the run cannot go on; finished rounds are kept in `out`.
        KeyboardInterrupt: finished rounds are kept; `resume=True` goes on, and `Result.open` reads
            them. So it is with what your own code raises.
    """
    method = method_of(strategy)
    _check_settings(settings, method.settings)
    if not isinstance(federation, Federation):
        raise ConfigError(
            f"federation of type {type(federation).__name__}: make one of your data, as in "
            "Federation.from_pandas(table, user='…', label='…')"
        )
    if not isinstance(callbacks, Sequence):
        raise ConfigError("callbacks: must be a list, such as [EarlyStopping()]")
    given = {
        "rounds": rounds,
        "cohort_size": cohort_size,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "epochs": epochs,
        "seeds": seeds,
    }
    _check_once(settings, given)
    own, criterion = factory(model), _criterion(federation, model, loss, metric)
    devices = len(federation.dataset.train)
    if cohort_size is None:
        given["cohort_size"] = min(devices, FederationConfig().cohort_size)
    present = RunDirectory(Path(out)).config if resume and out is not None else None
    usual: Table = {
        "data": {"source": federation.dataset.name, "format": OWN},
        "model": {"name": model if isinstance(model, str) else OWN},
        "training": {
            "loss": criterion.loss,
            "metric": criterion.metric,
            "optimizer": optimizer if isinstance(optimizer, str) else OWN,
        },
        "federation": {
            "algorithm": method.algorithm,
            "evaluate_every": _evaluate_every(rounds, present),
        },
        "experiment": {"baselines": []},
    }
    arguments = [{section: {key: given[name]}} for name, (section, key) in _SETTINGS.items()]
    config = build_config([usual, *arguments, _plain(settings), _plain(method.settings)])
    _check_alone(config)
    folder = Path(tempfile.mkdtemp(prefix="deltafl-")) / "run" if out is None else Path(out)
    made = None if isinstance(optimizer, str) else optimizer
    subject = Subject(federation.dataset, own, criterion, method.strategy, made)
    build = subject.spec(config).build
    clipping = ClippingNote(warnings.warn, lambda: num_parameters(build()))
    bars = _bars_here(quiet=not progress)
    try:
        run_experiment(
            config,
            folder,
            resume=resume,
            progress=Several((bars, clipping, *callbacks)),
            warn=warnings.warn,
            plots=False,
            subject=subject,
        )
    except Stop:
        pass  # as asked for by a callback
    except BaseException as error:
        _note_what_is_kept(error, folder)
        raise
    finally:
        bars.close()
    result = Result(str(method), folder, config, build)
    if resume and result.rounds:
        result.module()  # of a finished run, nothing has compared it yet
    return result


def compare(
    model: Model,
    federation: Federation,
    strategies: Sequence[Method | str | Strategy],
    *,
    out: str | Path | None = None,
    **options: Any,  # noqa: ANN401 those of `train`
) -> Comparison:
    """Train by several methods, with the same initial models and cohorts.

    Args:
        model: as of `train`.
        federation: likewise.
        strategies: the methods; the others are compared with the only FedAvg, else with the last.
        out: a folder with a run directory for each method; `Comparison.open` reads it, and
            `deltafl compare` and `deltafl report` take it.
        options: all others of `train`.

    Raises:
        ValueError: two methods have one label, or there are fewer than two.
    """
    if isinstance(strategies, str | Method):
        raise ConfigError(f"strategies = {strategies!r:.100}: must be a list of two or more")
    methods = _told_apart([method_of(one) for one in strategies])
    labels = [str(one) for one in methods]
    if len(set(labels)) < max(2, len(labels)):
        raise ValueError(
            f"strategies are {', '.join(labels)}: give two or more, each once, or with a label of "
            "its own, as in Method('fedavg', {…}, label='small steps')"
        )
    folder = Path(tempfile.mkdtemp(prefix="deltafl-")) if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    runs = [f"{number}-{one.algorithm}" for number, one in enumerate(methods)]
    write_comparison(folder, dict(zip(runs, labels, strict=True)))
    return Comparison(
        [
            train(model, federation, one, out=folder / run, **options)
            for one, run in zip(methods, runs, strict=True)
        ]
    )


def _told_apart(methods: Sequence[Method]) -> list[Method]:
    """The methods; where two are called alike, their settings belong to what they are called."""
    times = Counter(map(str, methods))

    def told(one: Method) -> Method:
        if type(one) is not Method or times[str(one)] < 2 or not one.settings:
            return one
        own = (
            f"{name}.{key}={x}" for name, rows in one.settings.items() for key, x in rows.items()
        )
        return replace(one, label=", ".join((str(one), *own)))

    return [*map(told, methods)]


def _note_what_is_kept(error: BaseException, folder: Path) -> None:
    """Say where finished rounds are, if a run has any and was not refused."""
    if not isinstance(error, UserError) and any(RunDirectory(folder).checkpoints.glob("*")):
        error.add_note(
            f"Finished rounds are kept: pass out={str(folder)!r} and resume=True to go on, or look "
            f"at them with Result.open({str(folder)!r})."
        )


def _check_settings(*given: Settings | None) -> None:
    """Check that settings leave alone what the arguments of `train` say.

    Raises:
        ConfigError: they do not.
    """
    for settings in given:
        for section, values in (settings or {}).items():
            if not isinstance(values, Mapping):
                raise ConfigError(
                    f"settings[{section!r}] = {values!r:.100}: must be a table of settings, such "
                    "as {'training': {'l2': 0.01}}"
                )
            for name in values:
                if instead := _INSTEAD.get(section) or _INSTEAD.get(f"{section}.{name}"):
                    raise ConfigError(f"settings: {section}.{name} cannot be set: {instead}")


def _check_once(settings: Settings | None, given: Mapping[str, object]) -> None:
    """Check that nothing is said twice, as an argument and as a setting, with different values.

    Raises:
        ConfigError: it is.
    """
    for name, (section, key) in _SETTINGS.items():
        usual, value = signature(train).parameters[name].default, given[name]
        other = (settings or {}).get(section, {}).get(key, value)
        if value != usual and other != value:
            raise ConfigError(
                f"{name}={value!r:.50} and settings with {section}.{key} = {other!r:.50} "
                "contradict each other: give one"
            )


def _check_alone(config: RunConfig) -> None:
    """Check that a run is of one model and method, on simulated devices.

    Raises:
        ConfigError: it is not.
    """
    federation = config.federation
    if federation.devices == REMOTE:
        raise ConfigError(
            f"federation.devices = {REMOTE!r}: `train` simulates devices; those on machines of "
            "their own train the papers' models, by `deltafl serve` and `deltafl device`"
        )
    if config.experiment.baselines:
        raise ConfigError(
            f"experiment.baselines = {list(config.experiment.baselines)}: must be []; give all "
            "methods to `compare`"
        )
    if federation.levels:
        raise ConfigError(
            f"federation.levels = {list(federation.levels)}: must be []; give a method for each "
            "level to `compare`, such as PrivateDeltaFL(0.8) and PrivateDeltaFL(0.5)"
        )


def _evaluate_every(rounds: int, present: Path | None) -> int:
    """Twenty evaluations; in a run that goes on, as often as until now, however long it gets."""
    if present is None or not present.exists():
        return max(1, rounds // 20) if isinstance(rounds, int | np.integer) else 1
    return build_config([read_config_file(present)]).federation.evaluate_every


def _criterion(
    federation: Federation,
    model: Model,
    loss: str | Samplewise | None,
    metric: Samplewise | DeviceMetric | None,
) -> Criterion:
    if loss is None:
        loss = "mse" if federation.has_numbers else CROSS_ENTROPY
    for name, given in (("loss", loss), ("metric", metric)):
        is_name = isinstance(given, str) and name == "loss"
        if isinstance(given, type) or not (given is None or is_name or callable(given)):
            raise ConfigError(
                f"{name} = {given!r:.100}: must be a function (outputs, targets) -> a number for "
                "each sample, such as torch.nn.HuberLoss(reduction='none')"
            )
    try:
        criterion = criterion_of(loss, metric, of_numbers=federation.has_numbers)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if isinstance(model, str) and not criterion.is_usual:
        raise ConfigError(
            f"model = {model!r}: the papers' models are trained by cross-entropy; with another "
            "loss, pass a module of your own"
        )
    return criterion


def _plain(settings: Settings | None) -> Table:
    return {section: dict(values) for section, values in (settings or {}).items()}


def _bars_here(*, quiet: bool) -> ProgressBars:
    """Bars as a notebook draws them, or a terminal."""
    if issubclass(auto.tqdm, notebook.tqdm_notebook):
        return ProgressBars(quiet=quiet, new=_in_notebook)
    return ProgressBars(quiet=quiet)


def _in_notebook(*, quiet: bool, **arguments: Any) -> "tqdm[Any]":  # noqa: ANN401 (so are tqdm's)
    return auto.tqdm(disable=quiet, **arguments)
