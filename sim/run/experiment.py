"""An experiment: an algorithm and its baselines, over several seeds, in one directory.

The first run is at the top of the directory, the others are below `arms/`; each is a complete run.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from deltafl.fl.bundle import Architecture, Bundle, embedding_sha256
from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import FederatedDataset, Scale, with_numbers
from deltafl.fl.data.lazy import sizes_of
from deltafl.fl.models import READ_TOKENS
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.read.exact import shortened
from deltafl.fl.registry import OWN
from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.levels import split_models
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.backends.choice import Choice, choose, open_backend
from deltafl.sim.cohort.hardware import choose_device
from deltafl.sim.data.dataset import build_dataset, dataset_digest
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.memory import peak_memory_mb, peak_memory_of_workers_mb
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.record import SUMMARY, VERSIONS, Record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.record.versions import Versions, check_versions, versions_now
from deltafl.sim.run.accounting import note_on_delta
from deltafl.sim.run.engine import Progress, Stop, play
from deltafl.sim.run.fitting import check_fit
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.run.simulated import SimulatedPopulation, spec_of
from deltafl.sim.run.summary import DataSize, Summary, summarise_experiment, summarise_run
from deltafl.sim.run.trying import suited
from deltafl.sim.settings.config import (
    BACKENDS,
    CUDA,
    MAX_WORKERS,
    REFERENCE,
    REMOTE,
    RunConfig,
    TrainingConfig,
)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What a run trains, and on which data.

    Attributes:
        dataset: the data.
        own: makes the module that is trained, if it is one of the caller's own.
        criterion: what it is trained for.
        strategy: by what it is trained, if that is one of the caller's own.
        optimizer: makes a device's optimiser, likewise.
    """

    dataset: FederatedDataset
    own: Callable[[], nn.Module] | None = None
    criterion: Criterion = CLASSIFIES
    strategy: Strategy | None = None
    optimizer: MakeOptimizer | None = None

    def suited(self, config: RunConfig) -> "Subject":
        """The same, with whole numbers as the model takes them: as tokens, or as numbers."""
        if self.own is not None:
            return replace(self, dataset=suited(self.spec(config), self.dataset))
        reads_tokens = config.model.name in READ_TOKENS
        return self if reads_tokens else replace(self, dataset=with_numbers(self.dataset))

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model, with the shapes of the data."""
        return spec_of(config, self.dataset, self.own, self.criterion, self.optimizer)


def run_experiment(
    config: RunConfig,
    path: Path,
    *,
    resume: bool,
    progress: Progress,
    warn: Callable[[str], None],
    plots: bool = True,
    subject: Subject | None = None,
    notes: Sequence[str] = (),
) -> Summary:
    """Run everything that is missing; if the experiment is finished, only read its summary.

    Args:
        config: all settings.
        path: the run directory.
        resume: continue in an existing directory.
        progress: receives progress.
        warn: receives notes for the user that need no action, each a sentence.
        plots: whether to draw figures, which takes longer than a small run.
        subject: data, and perhaps a model, of the caller's own; by default, those of the settings.
        notes: what else to warn of, once nothing is wrong with the rest.

    Returns:
        The summary, as in the record.

    Raises:
        Stop: `progress` has ended a run; the others have gone on to their ends.
        UserError: the settings, the data and the directory do not fit together; nothing was
            changed.
        RunError: a run cannot continue; its finished rounds are kept.
    """
    if config.federation.devices == REMOTE:
        raise ConfigError(
            f"federation.devices = {REMOTE!r}: `deltafl run` simulates devices; run `deltafl serve`"
        )
    top = RunDirectory(path)
    if finished := top.finished(config, resume=resume):
        return finished
    before = top.check(config, resume=resume)
    device = choose_device(config.training.device)
    subject = (subject or subject_of(config)).suited(config)
    dataset, spec = subject.dataset, subject.spec(config)
    check_fit(config, dataset, spec, subject.strategy)
    if note := note_on_delta(config.dp, len(dataset.train)):
        warn(note)
    training = config.training if subject.own is None else _usually_here(config.training)
    choice = choose(training, config.model.name, samples_trained_on(config, dataset))
    data = DataSize(dataset.name, len(dataset.train), len(dataset.test))
    with top.claim(config, resume=resume) as record, contextlib.ExitStack() as stack:
        if before is not None:
            warn(f"{path}: from {before} to {config.federation.rounds} rounds")
        versions, choice = settle(record, choice, device, dataset_digest(dataset), warn)
        backend = open_backend(choice, spec, device=device)
        stack.enter_context(contextlib.closing(backend))
        for note in notes:
            warn(note)
        population = SimulatedPopulation(dataset, backend, subject.own)
        summaries, stopped = [], None
        for arm, directory in top.runs(config.arms()):
            is_first = directory is top
            # somebody may have resumed an arm by itself, and still be at it
            claimed = None if is_first else directory.claim(arm, resume=True)
            with claimed or contextlib.nullcontext(record) as own:
                own.note(VERSIONS, versions)
                own.keep()
                origin = origin_of(dataset, versions)
                keep = partial(write_bundle, arm, directory, own, spec, dataset.scale, origin)
                try:
                    play(arm, directory, own, population, progress, subject.strategy)
                except Stop as stop:
                    stopped = stop
                    keep()
                    continue
                summaries.append(summarise_run(arm, own, data))
                keep()
                if not is_first:
                    own.note(SUMMARY, summarise_experiment(summaries[-1:]))
                    own.keep()
        if stopped is not None:
            raise stopped
        if plots:
            _draw(top)
        summary = {
            **summarise_experiment(summaries),
            "peak_memory_mb": round(peak_memory_mb() + peak_memory_of_workers_mb(), 1),
        }
        record.note(SUMMARY, summary)
        record.keep()
    return summary


def _draw(top: RunDirectory) -> None:
    # loads the plotting library only when needed
    from deltafl.sim.charts.files import write_figures

    write_figures(top.plots, Reader(top.path).read().methods)


def subject_of(config: RunConfig) -> Subject:
    """What the settings alone describe."""
    code = OwnCode.of(config)
    keeps_whole = config.model.name in (*READ_TOKENS, OWN)
    return Subject(build_dataset(config.data, keeps_whole=keeps_whole), *code)


def _usually_here(training: TrainingConfig) -> TrainingConfig:
    """How a module of the caller's own is trained: unless asked, in this process.

    Nobody knows how long it takes, and so whether other processes are worth their start.
    """
    if training.backend != "auto":
        return training
    on_gpu = choose_device(training.device).type == "cuda"
    return replace(training, backend=CUDA if on_gpu else REFERENCE)


def origin_of(dataset: FederatedDataset, versions: Mapping[str, object]) -> dict[str, str]:
    """On which data the models of a simulated run were trained, for `write_bundle`."""
    has_pixels = dataset.had_pixels or dataset.train[0].x.dtype == np.uint8
    return {
        "data": dataset.name,
        "data_sha256": str(versions["data_sha256"]),
        "scaled": str(dataset.scaled),
        "bytes": "pixels" if has_pixels else "numbers",
    }


def write_bundle(
    config: RunConfig,
    directory: RunDirectory,
    record: Record,
    spec: ModelSpec,
    scale: Scale | None,
    about: Mapping[str, str],
) -> None:
    """Write the final models to one file, for `deltafl predict`: one for each conformity level.

    Of an algorithm without levels there is one model, under the θ of the settings.

    Args:
        config: the settings of a run that has ended.
        directory: the run's.
        record: likewise.
        spec: what the models are.
        scale: how inputs are to be scaled.
        about: where the models come from, beside the settings.
    """
    checkpoint = load_checkpoint(record)
    if checkpoint is None:
        return
    thetas = config.federation.thetas
    bundle = Bundle(
        architecture=Architecture(
            spec.name,
            spec.input_shape,
            spec.num_classes,
            None if spec.embedding is None else embedding_sha256(spec.embedding),
        ),
        models=dict(zip(thetas, split_models(checkpoint.state.model, len(thetas)), strict=True)),
        scale=scale,
        provenance={
            "algorithm": config.federation.algorithm,
            "seed": str(config.experiment.seed),
            "round": str(checkpoint.state.round),
            **about,
            "standardise": config.data.standardise,
        },
        embedding=spec.embedding,
    )
    write_file(directory.bundle, bundle.to_bytes())


def samples_trained_on(config: RunConfig, dataset: FederatedDataset) -> float:
    """Approximate number of samples that all runs together train on."""
    federation = config.federation
    samples = float(np.mean(sizes_of(dataset.train)))
    training = config.training
    each = training.local_steps * training.batch_size or samples * training.epochs
    per_round = each * federation.cohort_size
    return per_round * federation.rounds * len(federation.thetas) * len(config.arms())


def settle(
    record: Record,
    choice: Choice,
    device: torch.device,
    data_sha256: str,
    warn: Callable[[str], None],
) -> tuple[Versions, Choice]:
    """Choose the backend, on which results depend, and compare the versions.

    A run continues with the backend it started with.

    Args:
        record: the run's.
        choice: the backend of a run that begins.
        device: where tensors live.
        data_sha256: digest of the data set, hex.
        warn: told of what may change the last bits of results.

    Raises:
        UserError: the data is not the same, or what the run says of its backend is damaged.
    """
    recorded = record.json(VERSIONS)
    if recorded:
        begun = {field.name: recorded.get(field.name) for field in fields(Choice)}
        for name, value in begun.items():
            if not _can_be(name, value):
                raise UserError(
                    f"{record.path} is damaged: {name} = {shortened(value)} is not a possible value"
                )
        choice = Choice(**begun)  # type: ignore[arg-type] # just checked
    torch.set_num_threads(choice.threads)
    now = versions_now(device, asdict(choice), data_sha256)
    for sentence in check_versions(recorded, now):
        warn(sentence)
    return recorded or now, choice


def _can_be(name: str, value: object) -> bool:
    """Whether a field of a recorded `Choice` may have this value."""
    if name == "backend":
        return isinstance(value, str) and value in BACKENDS and value != "auto"
    least = 1 if name == "threads" else 0
    return type(value) is int and least <= value <= MAX_WORKERS
