"""Is a checkpoint of the run that it is to continue? Checked before anything is changed.

A run directory may be damaged, put together from several runs, or come from elsewhere. A state of
another model or another round would be gone on with, and the results would be nobody's. A round
would even be begun again, and devices asked twice in one context.
"""

import math
import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.fl.registry import OWN
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.geometric_median import SMOOTHING
from deltafl.fl.strategies.levels import ETAS
from deltafl.fl.strategies.masked import MEAN_WEIGHT
from deltafl.fl.strategies.norm_clipping import RADIUS
from deltafl.fl.strategies.server_optimizer import MOMENTS_PREFIX
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.checkpoint import Checkpoint, LostRound
from deltafl.sim.record.record import Record
from deltafl.sim.settings.config import RunConfig

_LENGTHS: Final = (SMOOTHING, RADIUS)  # in units of the model's parameters
_LEVEL: Final = re.compile(r"(\d+)/")  # before the names of what a level remembers
_LEARNT: Final = {MEAN_WEIGHT: (2,), SMOOTHING: (1,), RADIUS: (1,)}


def check_checkpoint(
    config: RunConfig,
    record: Record,
    checkpoint: Checkpoint,
    first: TrainingState,
    num_devices: int,
) -> None:
    """Check that a state can be one of this run, and that it is the one that the record leads to.

    Args:
        config: The run's settings.
        record: The run's.
        checkpoint: What it saved last.
        first: Its state before the first round.
        num_devices: Devices that cohorts are drawn from.

    Raises:
        RunDirectoryError: it cannot, or a module of one's own is another one; or the record is of
            other rounds.
        ChainError: the record is damaged.
    """
    trained, size = checkpoint.state.model.size, first.model.size
    if config.model.name == OWN and trained != size:
        raise RunDirectoryError(
            f"{record.path}: the module has {size} parameters, and the one that it began with "
            f"{trained}: pass that one"
        )
    for problem in _problems(config, checkpoint, first, num_devices):
        raise damaged(record.path, problem)
    _check_record(record, checkpoint)


def _check_record(record: Record, checkpoint: Checkpoint) -> None:
    """Read and verify the record; by its checkpoint, each of its rounds has an event."""
    rounds, played, is_marked = checkpoint.state.round, 0, False
    for link in record.chain.read():
        if link.table == "events" and not is_marked:
            played += 1
            if link.fields[0] != played:
                raise damaged(
                    record.path, f"an event is of round {link.fields[0]!r:.20}, not {played}"
                )
        is_marked = is_marked or link.mark == checkpoint.mark
    if not is_marked:
        raise damaged(record.path, "its last checkpoint is of another record")
    if played != rounds:
        raise damaged(
            record.path, f"the state is that after round {rounds}, and by then it has {played}"
        )


def _problems(
    config: RunConfig, checkpoint: Checkpoint, first: TrainingState, num_devices: int
) -> Iterator[str]:
    state, levels, size = checkpoint.state, len(config.federation.thetas), first.model.size
    if state.round > config.federation.rounds:
        yield f"round = {state.round}, and the run has {config.federation.rounds} rounds"
    if state.model.shape != first.model.shape:
        yield f"the model has {state.model.size} numbers, and that of the settings {size}"
    if state.eta is not None and not 0 <= state.eta < math.inf:
        yield f"eta = {state.eta} is no threshold of losses: they are finite, and not negative"
    if len(checkpoint.answered) > levels:
        yield f"answered has {len(checkpoint.answered)} levels, and the settings {levels}"
    largest = max(map(max, filter(None, checkpoint.answered)), default=0)
    if largest >= num_devices:
        yield f"device {largest} has answered, and there are {num_devices}"
    if checkpoint.lost is not None:
        yield from _problems_of_lost(checkpoint.lost, levels, num_devices)
    for name, known in first.memory.items():
        if name not in state.memory:
            yield f"memory.{name} is missing"
        elif state.memory[name].shape != known.shape:
            yield f"memory.{name} has the shape {state.memory[name].shape}, not {known.shape}"
    for name in state.memory.keys() - first.memory.keys():
        if state.memory[name].shape != _shape_learnt(name, levels, size // levels):
            yield f"memory.{name!a} is nothing that the strategy remembers"
    etas = state.memory.get(ETAS)
    if etas is not None and bool(np.any((etas < 0) | np.isinf(etas))):
        yield f"memory.{ETAS} = {etas.tolist()} are no thresholds of losses"
    for name in _LENGTHS:
        length = state.memory.get(name)
        if length is not None and not bool(np.all((length > 0) & np.isfinite(length))):
            yield f"memory.{name} = {length.tolist()} is no length: it is positive and finite"


def _problems_of_lost(lost: LostRound, levels: int, num_devices: int) -> Iterator[str]:
    if len(lost.searches) != levels:
        yield f"the lost round has {len(lost.searches)} levels, and the settings {levels}"
    devices = {*lost.cohort, *(one for each in lost.searches for one in each.devices)}
    if lost.cohort != tuple(sorted(one for one in devices if 0 <= one < num_devices)):
        yield "the lost round is of other devices than those of its search, or of the run"
    if any(search.sums and not search.devices for search in lost.searches):
        yield "the lost round has sums over nobody"


def _shape_learnt(name: str, levels: int, model_size: int) -> tuple[int, ...] | None:
    """The shape of what is remembered only after a round; None of what never is."""
    level = _LEVEL.match(name)
    if level is not None and levels > 1 and int(level[1]) < levels:
        name = name.removeprefix(level[0])
    if name in _LEARNT:
        return _LEARNT[name]
    return (model_size,) if name.startswith(MOMENTS_PREFIX) else None
