"""What a run left behind besides its transcript, against what the transcript leads to."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, cast

from deltafl.fl.bundle import read_stored
from deltafl.fl.errors import DataError
from deltafl.fl.read.exact import shortened
from deltafl.fl.registry import ERROR
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.levels import split_models
from deltafl.fl.vectors import Vector
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.events import same
from deltafl.sim.inspect.audit.retrace import ServerState, same_bits
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.checkpoint import Checkpoint, read_checkpoint, saved_rounds
from deltafl.sim.record.evaluations import Evaluation, read_evaluations, read_last_evaluation
from deltafl.sim.record.record import SUMMARY, VERSIONS, Record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.versions import NAMES_OF_VERSIONS
from deltafl.sim.run.summary import DataSize, Summary, summarise_experiment, summarise_run
from deltafl.sim.settings.config import REMOTE, WITH_LEVELS, RunConfig

OF_THE_MACHINE: Final = frozenset({"peak_memory_mb"})
"""Keys of a summary that follow from no file."""

_MOST_MB: Final = 1e9
_LONGEST_VERSION: Final = 128  # characters of a version, or of a device's name


@dataclass(slots=True, eq=False)
class Followed:
    """What the transcript leads to.

    Attributes:
        states: The server's state after rounds, as far as they are known; 0 is before the first.
        models: The models after rounds, joined, where the sums alone lead to them.
        rounds: Rounds in the transcript.
    """

    states: dict[int, ServerState] = field(default_factory=dict)
    models: dict[int, Vector] = field(default_factory=dict)
    rounds: int = 0

    def model_after(self, number: int) -> Vector | None:
        """The models after a round, joined; None where they are not known."""
        known = self.states.get(number)
        if known is not None and known.has_model:
            return known.state.model
        return self.models.get(number)


def read_checkpoints(directory: RunDirectory) -> tuple[dict[int, Checkpoint], list[str]]:
    """The checkpoints of a run by their rounds, and what is wrong with the others."""
    found: dict[int, Checkpoint] = {}
    problems = []
    with directory.read() as record:
        for number in saved_rounds(record):
            try:
                found[number] = read_checkpoint(record, number)
            except (MemoryError, ValueError) as error:
                problems.append(f"the checkpoint of round {number}: {error}")
    return found, problems


def checkpoint_differs(
    number: int, checkpoint: Checkpoint, followed: Followed, directory: RunDirectory
) -> Iterator[str]:
    """Say what of a checkpoint does not follow from the transcript.

    Args:
        number: The round after which it was written.
        checkpoint: What it holds.
        followed: What the transcript leads to.
        directory: The run.
    """
    name = f"the checkpoint of round {number}"
    known = followed.states.get(number)
    if known is not None and (differing := _state_differs(checkpoint.state, known)):
        yield f"{name} does not follow from the sums: {differing}"
    wanted = followed.model_after(number)
    is_compared = known is not None and known.has_model
    if wanted is not None and not is_compared and not same_bits(checkpoint.state.model, wanted):
        yield f"{name} does not follow from the sums: its model differs"
    with directory.read() as record:
        if record.chain.mark_at(checkpoint.mark.num_frames) != checkpoint.mark:
            yield f"{name} is about another record: its first rows differ"


def _state_differs(kept: TrainingState, known: ServerState) -> str:
    """How a state differs from the one that it should be, in a few words; "" if it does not."""
    wanted = known.state
    if kept.model.shape != wanted.model.shape or kept.model.dtype != wanted.model.dtype:
        return f"its model has {kept.model.shape} numbers, not {wanted.model.shape}"
    if known.has_model and not same_bits(kept.model, wanted.model):
        places = int((kept.model.view("u4") != wanted.model.view("u4")).sum())
        return f"{places} of {kept.model.size} numbers of its model differ"
    if kept.eta != wanted.eta:
        return f"its threshold is {kept.eta}, not {wanted.eta}"
    if kept.memory.keys() != wanted.memory.keys():
        return f"it remembers {sorted(kept.memory)}, not {sorted(wanted.memory)}"
    for name, array in wanted.memory.items():
        if (known.has_moments or "optimizer" not in name) and not same_bits(
            kept.memory[name], array
        ):
            return f"what it remembers as {name} differs"
    return ""


def _are_levels_of(models: Sequence[Vector], joined: Vector) -> bool:
    if len(joined) != sum(map(len, models)):
        return False
    return all(map(same_bits, models, split_models(joined, len(models))))


def files_differ(source: Source) -> Iterator[str]:
    """Say what of a run's files does not follow from its other files; no messages are read."""
    directory, config = source.directory, source.config
    if directory is None or config is None:
        return
    checkpoints, problems = read_checkpoints(directory)
    yield from problems
    yield from unknown_of_versions(directory)
    last, is_finished = max(checkpoints, default=None), source.summary is not None
    if last is None:
        return
    yield from versions_differ(directory)
    events = set(source.events or {})
    if missing := sorted(set(range(1, last + 1)) ^ events):
        yield f"the events are not those of {last} rounds: see round {missing[0]}"
    followed = Followed(rounds=last)
    if is_finished or directory.bundle.exists():
        yield from bundle_differs(config, directory, followed, checkpoints[last])
    yield from evaluations_differ(config, directory, last, is_finished=is_finished)
    yield from summary_differs(source, last)


def bundle_differs(
    config: RunConfig, directory: RunDirectory, followed: Followed, last: Checkpoint | None
) -> Iterator[str]:
    """Say what of the bundle does not follow from the transcript, or the last checkpoint."""
    if not directory.bundle.exists():
        if directory.is_finished and config.federation.algorithm in WITH_LEVELS:
            yield "there is no bundle.npz, and the run is finished"
        return
    try:
        stored = read_stored(directory.bundle)
    except DataError as error:
        yield f"bundle.npz cannot be read: {error}"
        return
    thetas, models = config.federation.thetas, list(stored.models.values())
    if tuple(stored.models) != thetas:
        levels = ", ".join(map(str, stored.models))
        yield f"bundle.npz has the levels {levels}, and the run's settings say others"
        return
    for said, vector in (
        ("the sums", followed.model_after(followed.rounds)),
        ("the last checkpoint", None if last is None else last.state.model),
    ):
        if vector is not None and not _are_levels_of(models, vector):
            yield f"the models of bundle.npz are not those of {said}"
    with directory.read() as record:
        summary, versions = record.json(SUMMARY) or {}, record.json(VERSIONS) or {}
    origin = {
        "algorithm": config.federation.algorithm,
        "seed": str(config.experiment.seed),
        "round": str(followed.rounds),
        "data": summary.get("data"),
        "data_sha256": versions.get("data_sha256"),
        "standardise": config.data.standardise,
    }
    for name, value in origin.items():
        if value is not None and stored.provenance.get(name) != value:
            told = stored.provenance.get(name)
            yield f"bundle.npz says that its {name} is {told!r}, and the run says {value!r}"
    if stored.architecture.name != config.model.name:
        yield f"bundle.npz is of the model {stored.architecture.name}, not {config.model.name}"


def versions_differ(directory: RunDirectory) -> Iterator[str]:
    """Say whether a run that has begun does not say where it was made."""
    with directory.read() as record:
        if record.json(VERSIONS) is None:
            yield "there are no versions, which a run writes before its first round"


def unknown_of_versions(directory: RunDirectory) -> Iterator[str]:
    """Say which keys of versions.json no run writes, and which values are no short text."""
    with directory.read() as record:
        said = record.json(VERSIONS) or {}
    if strange := sorted(said.keys() - NAMES_OF_VERSIONS):
        yield f"versions.json has {shortened(strange[0])}, which no run writes"
    for name, value in said.items():
        is_text = isinstance(value, str) and len(value) <= _LONGEST_VERSION and value.isprintable()
        if not is_text and type(value) is not int:
            yield f"versions.json says that {shortened(name)} is {shortened(value)}"


def evaluations_differ(
    config: RunConfig, directory: RunDirectory, rounds: int, *, is_finished: bool
) -> Iterator[str]:
    """Say what of the evaluations cannot be: rounds, devices and sizes; their losses may be.

    Args:
        config: The run's settings.
        directory: The run.
        rounds: Rounds that were played; of a run that is not finished, up to its last checkpoint.
        is_finished: Whether the run says that it is.
    """
    every = config.federation.evaluate_every
    due = {number for number in range(rounds + 1) if number % every == 0}
    if is_finished:
        due.add(rounds)
    if config.federation.devices == REMOTE:
        due = set()  # nobody sees such numbers
    devices: set[tuple[tuple[str, int], ...]] = set()
    for theta in config.federation.thetas:
        there = set()
        try:
            with directory.read() as record:
                for evaluation in read_evaluations(record, theta):
                    there.add(evaluation.round)
                    devices.add(_devices(evaluation))
                    is_share = config.training.metric == ERROR
                    for what in _impossible(evaluation, is_share):
                        yield f"evaluation after round {evaluation.round}: {what}"
        except UserError as error:
            yield f"an evaluation cannot be read: {error}"
        # of a run that is not finished, there may be one that its next checkpoint will vouch for,
        # and that of the last checkpoint may still be missing: it is made after it, but for the
        # first one
        late = {rounds} - {0}
        if odd := there ^ due if is_finished else due - late - there:
            shown = ", ".join(map(str, sorted(odd)[:5]))
            yield f"the evaluations at θ = {theta} are not those that are due: see rounds {shown}"
    if len(devices) > 1:
        yield "the evaluations are not all over the same devices, with the same numbers of samples"


def _devices(evaluation: Evaluation) -> tuple[tuple[str, int], ...]:
    sides = evaluation.sides
    sizes = ",".join(str(len(rows)) for rows in sides.values())
    rows = chain.from_iterable(sides.values())
    return ((sizes, 0), *((row.id, row.num_samples) for row in rows))


def _impossible(evaluation: Evaluation, is_share: bool) -> Iterator[str]:
    """Errors that are no share of the device's samples, and losses that are no mean of any.

    Args:
        evaluation: One model on all devices.
        is_share: Whether the error is the share misclassified, and not another measure.
    """
    for row in chain.from_iterable(evaluation.sides.values()):
        if not is_share:
            if not (row.num_samples >= 1 and 0 <= row.loss < math.inf and math.isfinite(row.error)):
                yield f"device {row.id} cannot have a loss of {row.loss} and {row.error} beside it"
            continue
        wrong = row.error * row.num_samples
        if not (math.isfinite(wrong) and abs(wrong - round(wrong)) < 1e-6 * row.num_samples):
            yield f"device {row.id} cannot have an error of {row.error} of {row.num_samples}"
        elif not (0 <= row.error <= 1 and 0 <= row.loss < float("inf")):
            yield f"device {row.id} cannot have a loss of {row.loss} and an error of {row.error}"


def summary_differs(source: Source, rounds: int) -> Iterator[str]:
    """Say what of the summary is not what the files add up to, computed as the run does.

    Args:
        source: The run.
        rounds: Rounds in the transcript.
    """
    if source.summary is None or source.directory is None or source.config is None:
        return
    wanted_rounds = source.config.federation.rounds
    if rounds != wanted_rounds:
        yield f"the run says that it is finished after {rounds} rounds of {wanted_rounds}"
    try:
        wanted = _summary(source, source.directory)
    except (UserError, LookupError, TypeError, ValueError, AttributeError) as error:
        yield f"the summary follows from no files: {error}"
        return
    memory = source.summary.get("peak_memory_mb", 0)
    if type(memory) not in (int, float) or not 0 <= cast(float, memory) <= _MOST_MB:
        yield f"peak_memory_mb is {_short(memory)} in the summary"
    for path, said, value in _differing("", source.summary, wanted):
        yield f"{path} is {_short(said)} in the summary, but {_short(value)} by the run's files"


def _differing(
    path: str, said: Mapping[str, object], wanted: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """The places at which two tables differ, with both values."""
    for key, value in wanted.items():
        told, place = said.get(key), f"{path}{key}"
        if isinstance(told, dict) and isinstance(value, dict) and told.keys() == value.keys():
            yield from _differing(f"{place}.", told, value)
        elif not same(told, value):
            yield place, told, value


def unknown_of_summary(source: Source) -> list[str]:
    """The keys of the summary that no run writes."""
    if source.summary is None or source.directory is None:
        return []
    try:
        known = _summary(source, source.directory).keys()
    except (UserError, LookupError, TypeError, ValueError, AttributeError):
        return []
    return sorted(source.summary.keys() - known - OF_THE_MACHINE)


def _summary(source: Source, top: RunDirectory) -> Summary:
    """The summary of the experiment, by the files of all its runs."""
    said = source.summary or {}
    runs = []
    for number, arm in enumerate(source.arms):
        algorithm, seed = arm.federation.algorithm, arm.experiment.seed
        directory = top.arm(algorithm, seed) if number else top
        with directory.read() as record:
            runs.append(summarise_run(arm, record, _data_of(arm, record, said)))
    document = json.loads(json.dumps(summarise_experiment(runs)))
    return cast("Summary", document)


def _data_of(arm: RunConfig, record: Record, said: Mapping[str, object]) -> DataSize:
    """The size of the data, by an evaluation; only the summary has its name."""
    if arm.federation.devices == REMOTE:
        number = said.get("train_devices")
        return DataSize(str(said.get("data")), number if isinstance(number, int) else 0, 0)
    last = read_last_evaluation(record)
    if last is None:
        raise UserError(f"{record.path} has no evaluation")
    if arm.attackers.lie:  # evaluations are over honest devices
        there = read_attacked(record).population
        return DataSize(str(said.get("data")), there.devices, there.test_devices)
    return DataSize(str(said.get("data")), len(last.train), len(last.test))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
