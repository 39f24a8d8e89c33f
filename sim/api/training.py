"""Train a module of your own, or one of the papers', on a federation, by any method."""

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import auto, notebook, tqdm

from deltafl.fl.criterion import DeviceMetric, Samplewise
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import OWN, SGD
from deltafl.fl.strategies.base import Strategy
from deltafl.sim.api.federation import Federation
from deltafl.sim.api.methods import Method, Settings, method_of
from deltafl.sim.api.results import Comparison, Result
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.record.labels import write_comparison
from deltafl.sim.record.record import saved_rounds
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import of_few
from deltafl.sim.run.engine import Progress, Stop
from deltafl.sim.run.experiment import Subject, run_experiment
from deltafl.sim.run.own_code import Model, checked_criterion, factory
from deltafl.sim.run.progress import ClippingNote, ProgressBars, Several
from deltafl.sim.settings.config import REMOTE, FederationConfig, RunConfig
from deltafl.sim.settings.config_io import Table, build_config

_SETTINGS: Final = {
    "rounds": ("federation", "rounds"),
    "cohort_size": ("federation", "cohort_size"),
    "learning_rate": ("training", "learning_rate"),
    "batch_size": ("training", "batch_size"),
    "epochs": ("training", "epochs"),
    "seeds": ("experiment", "num_seeds"),
}
"""The settings that arguments of `train` give."""

_ROUNDS: Final = _SETTINGS["rounds"]

_INSTEAD: Final = {
    "data": "the data are those of the federation",
    "own": "pass it, as an argument",
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
    rounds: int | None = None,
    cohort_size: int | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    seeds: int | None = None,
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
        rounds: how many; by default 100.
        cohort_size: devices of a round; by default 20, or all that train if they are fewer.
        learning_rate: of the devices' optimiser; by default 0.1.
        batch_size: samples of a step; by default 10.
        epochs: passes over a device's samples in a round; by default 1.
        seeds: how many runs, each with other cohorts and batches; by default 1.
        settings: any others, by section and name, as in a settings file.
        out: the run directory; by default a new one that is kept with the others of the system's
            temporary files.
        resume: go on with the run in `out`; more `rounds` make it longer. A module, loss, optimiser
            or strategy of one's own must be that of the run's beginning: only sizes are compared.
        progress: show bars.
        callbacks: are told how it goes on; see `Callback`.

    Raises:
        ConfigError: a setting is out of its range, or contradicts another; also if two of the
            arguments, `settings` and those of the method give it different values.
        UserError: the model does not fit the data, or `out` has another run.
        RunError: the run cannot go on; finished rounds are kept in `out`.
        KeyboardInterrupt: finished rounds are kept; `resume=True` goes on, and `Result.open` reads
            them. So it is with what your own code raises.
    """
    method = method_of(strategy)
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
    said = settings_said(method, settings, given)
    own = factory(model)
    criterion = checked_criterion(model, loss, metric, of_numbers=federation.has_numbers)
    devices, default = len(federation.dataset.train), FederationConfig()
    present = RunDirectory(Path(out)) if resume and out is not None else None
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
            "cohort_size": min(devices, default.cohort_size),
            "evaluate_every": _evaluate_every(said.get(_ROUNDS, default.rounds), present),
        },
        "experiment": {"baselines": []},
        **of_few(devices),
    }
    sections: list[Table] = [{name: {}} for name in (*(settings or {}), *method.settings)]
    layers: list[Table] = [{section: {key: value}} for (section, key), value in said.items()]
    config = build_config([usual, *sections, *layers])
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
            What one has of its own counts for it in place of what `options` give to all.
        out: a folder with a run directory for each method; `Comparison.open` reads it, and
            `deltafl compare` and `deltafl report` take it.
        options: all others of `train`.

    Raises:
        ValueError: two methods have one label, or there are fewer than two.
        UserError: `out` has another comparison, or is a file; or as `train`.
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
    runs = [f"{number}-{one.algorithm}" for number, one in enumerate(methods)]
    write_comparison(folder, dict(zip(runs, labels, strict=True)))
    return Comparison(
        [
            train(model, federation, one, out=folder / run, **_shared(options, one, methods))
            for one, run in zip(methods, runs, strict=True)
        ]
    )


def _shared(
    options: Mapping[str, Any], method: Method, methods: Sequence[Method]
) -> Mapping[str, Any]:
    """What options of all give to one method; what all methods have of their own is given twice."""
    owned = [set(settings_said(each, None, {})) for each in methods]
    own = settings_said(method, None, {}).keys() - set.intersection(*owned)
    left: dict[str, dict[str, object]] = {}
    for (section, key), value in _pairs(options.get("settings")):
        if (section, key) not in own:
            left.setdefault(section, {})[key] = value
    kept = {name: value for name, value in options.items() if _SETTINGS.get(name) not in own}
    return kept | {"settings": left}


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
    if not isinstance(error, UserError) and bool(RunDirectory(folder).ask(saved_rounds)):
        error.add_note(
            f"Finished rounds are kept: pass out={str(folder)!r} and resume=True to go on, or look "
            f"at them with Result.open({str(folder)!r})."
        )


def settings_said(
    method: Method, settings: Settings | None, arguments: Mapping[str, object]
) -> dict[tuple[str, str], object]:
    """What is said, by section and name.

    Args:
        method: its own settings count too.
        settings: as of `train`.
        arguments: of `train`, by name; None is nothing said, and others than settings are ignored.

    Raises:
        ConfigError: one thing is said in two places, with different values, or is none that can
            be set here.
    """
    said: dict[tuple[str, str], object] = {}
    places: dict[tuple[str, str], str] = {}
    named = {pair: arguments.get(name) for name, pair in _SETTINGS.items()}
    in_arguments = [(pair, value) for pair, value in named.items() if value is not None]
    for place, found in (
        ("the arguments", in_arguments),
        ("settings", _pairs(settings)),
        (f"the method {method}", _pairs(method.settings)),
    ):
        for pair, value in found:
            if pair in said and np.any(said[pair] != value):
                raise ConfigError(
                    f"{'.'.join(pair)} is {said[pair]!r:.50} in {places[pair]} and {value!r:.50} "
                    f"in {place}: give it once"
                )
            said[pair], places[pair] = value, place
    return said


def _pairs(settings: Settings | None) -> Iterator[tuple[tuple[str, str], object]]:
    """Section and name, and the value, of each.

    Raises:
        ConfigError: one is what the arguments of `train` say, or a section is no table.
    """
    for section, values in (settings or {}).items():
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"settings[{section!r}] = {values!r:.100}: must be a table of settings, such "
                "as {'training': {'l2': 0.01}}"
            )
        for name, value in values.items():
            if instead := _INSTEAD.get(section) or _INSTEAD.get(f"{section}.{name}"):
                raise ConfigError(f"settings: {section}.{name} cannot be set: {instead}")
            yield (section, name), value


def _check_alone(config: RunConfig) -> None:
    """Check that a run is of one model and method, on simulated devices.

    Raises:
        ConfigError: it is not.
    """
    federation = config.federation
    if federation.devices == REMOTE:
        raise ConfigError(
            f"federation.devices = {REMOTE!r}: `train` simulates devices; those on machines of "
            "their own train by `deltafl serve` and `deltafl device`"
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


def _evaluate_every(rounds: object, present: RunDirectory | None) -> int:
    """Twenty evaluations; in a run that goes on, as often as until now, however long it gets."""
    if present is None or not present.is_run:
        return max(1, int(rounds) // 20) if isinstance(rounds, int | np.integer) else 1
    return present.config().federation.evaluate_every


def _bars_here(*, quiet: bool) -> ProgressBars:
    """Bars as a notebook draws them, or a terminal."""
    if issubclass(auto.tqdm, notebook.tqdm_notebook):
        return ProgressBars(quiet=quiet, new=_in_notebook)
    return ProgressBars(quiet=quiet)


def _in_notebook(*, quiet: bool, **arguments: Any) -> "tqdm[Any]":  # noqa: ANN401 (so are tqdm's)
    return auto.tqdm(disable=quiet, **arguments)
