"""How long a run of an experiment takes on this machine, from a few of its rounds.

A probe is the run itself with `ROUNDS` rounds, and evaluations before the first and after the last.
Its events tell how long a round takes; when its files were written, how long an evaluation does,
and how long it takes before the first. Results are kept beside the runs, in OUT/seconds.json, by
the settings of the run and the machine: whoever goes on measures nothing again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from deltafl.sim.cohort.hardware import processor, usable_cores
from deltafl.sim.errors import UserError
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import RunDirectory, read_json, write_json
from deltafl.sim.reproduce.cells import directories_of, key_of, run_cells
from deltafl.sim.reproduce.experiment import Cell
from deltafl.sim.settings.config import RunConfig

ROUNDS: Final = 3
"""Of a probe; the first is not counted, for a model of zeros is filtered like no later one."""

_FILE: Final = "seconds.json"
_PROBES: Final = "probes"


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds by the wall clock, on one core.

    Attributes:
        round_s: of a round.
        evaluation_s: of an evaluation on all devices.
        start_s: before the first evaluation.
    """

    round_s: float
    evaluation_s: float
    start_s: float

    def seconds(self, config: RunConfig, done: int = 0) -> float:
        """How long a run with these settings takes from a round on."""
        federation = config.federation
        rounds = federation.rounds - done
        if rounds <= 0:
            return 0.0
        due = math.ceil(federation.rounds / federation.evaluate_every)
        evaluations = due - done // federation.evaluate_every + (done == 0)
        return self.start_s + rounds * self.round_s + evaluations * self.evaluation_s


def machine() -> str:
    """The machine, in words: its processor, and the GPU if runs may use one."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{processor()}, {usable_cores()} cores, {gpu}"


class Speeds:
    """What is known of the speed of an experiment's runs.

    Args:
        out: folder of the results.

    Raises:
        UserError: what was kept cannot be read.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._path = out / _FILE
        try:
            document = read_json(self._path) or {}
            self._known = {key: _speed(one) for key, one in document.items()}
        except ValueError as error:
            raise UserError(f"{self._path}: {error}: delete it, and it is measured again") from None
        self._seen: dict[str, bytes] = {}

    def of(self, cell: Cell) -> Speed | None:
        """What was measured for a cell of this kind; None if nothing was."""
        return self._known.get(self._key(cell))

    def measure(self, cell: Cell, until: float) -> Speed | None:
        """Measure a cell's speed by a probe, and keep it; None if it fails or takes too long.

        Args:
            cell: what to probe.
            until: when to give up, by `time.monotonic`.
        """
        probe, folder = _probe(cell), self._out / _PROBES
        outcome = run_cells([probe], folder, jobs=1, quiet=True, until=until)
        if not outcome.finished:
            return None
        (place,) = directories_of([probe], folder)
        found = speed_of(place, ROUNDS)
        self._known[self._key(cell)] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {key: asdict(one) for key, one in self._known.items()})
        return found

    def _key(self, cell: Cell) -> str:
        """What runs of one speed have in common: settings but for seed and rounds, and machine."""
        return f"{key_of(_probe(cell).config, self._seen)} {machine()}"


def speed_of(place: RunDirectory, rounds: int) -> Speed:
    """What the files of a finished probe say.

    Args:
        place: the probe.
        rounds: how many it has, at least 2.
    """
    walls = [_number(event, "wall_s") for event in read_events(place.events)]
    evaluated = _written(place.metrics / f"round-{rounds:06}.parquet")
    evaluation_s = max(0.0, evaluated - _written(place.checkpoints / f"round-{rounds:06}.npz"))
    first = _written(place.metrics / f"round-{0:06}.parquet") - _written(place.config)
    return Speed(
        round_s=sum(walls[1:]) / len(walls[1:]),
        evaluation_s=evaluation_s,
        start_s=max(0.0, first - evaluation_s),
    )


def _probe(cell: Cell) -> Cell:
    config = cell.config
    federation = replace(config.federation, rounds=ROUNDS, evaluate_every=ROUNDS)
    experiment = replace(config.experiment, seed=1)
    return replace(
        cell, seed=1, config=replace(config, federation=federation, experiment=experiment)
    )


def _written(path: Path) -> float:
    return path.stat().st_mtime_ns / 1e9


def _speed(document: object) -> Speed:
    fields = ("round_s", "evaluation_s", "start_s")
    return Speed(*(_number(document, field) for field in fields))


def _number(document: object, key: str) -> float:
    found = document.get(key) if isinstance(document, Mapping) else None
    if not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise ValueError(f"{key} = {found!r}: not a number of seconds")
    return float(found)
