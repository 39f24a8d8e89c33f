"""The devices of a run that are machines of their own, as the engine asks them.

A round is that of a simulation (`deltafl.sim.cohort.masked`), but for who carries the messages: the
same machine of the server, the same parameters but for the seed of the graph, which binds the
session to all that devices are told of the round (`frames.Task`). So a federation and a simulation
with the same cohorts, data, seeds and drop-outs come to the same model, bit for bit.

How messages pass, and how long the server waits for answers, is in `trips`.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.local import LocalTraining
from deltafl.fl.strategies.masked import InUnits
from deltafl.fl.vectors import Vector, vector_sha256
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.secagg import ClientId
from deltafl.secagg.errors import SecAggError, UsageError
from deltafl.secagg.primitives import PLAIN, pairwise_with
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.cohort.masks.choice import masks_of_this_machine
from deltafl.sim.cohort.sampling import Indices
from deltafl.sim.errors import ChainError, RunError
from deltafl.sim.net.frames import Task
from deltafl.sim.net.journal import About, Journal, is_kept
from deltafl.sim.net.measuring import SummedMetrics, marked, measuring_levels, summed
from deltafl.sim.net.trips import Deadlines, Rounds, Site
from deltafl.sim.record.rundir import read_json, write_json
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    TRANSCRIPT,
    BegunRound,
    TranscriptWriter,
    read_beyond,
)
from deltafl.sim.record.truth import Told
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.run.engine import Stop
from deltafl.sim.run.population import Lying
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import to_toml

_MODEL: Final = "model_sha256"  # of what was measured


@dataclass(frozen=True, slots=True, eq=False)
class RemotePopulation:
    """All devices on a federation's list; a `Population`.

    Attributes:
        site: where they connect.
        shapes: the model of the settings, with the shapes of the devices' data.
    """

    site: Site
    shapes: ModelSpec

    @property
    def num_devices(self) -> int:
        """One more than the largest id on the list."""
        return max(self.site.devices.keys, default=-1) + 1

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model; see `Population`."""
        return replace(self.shapes, name=config.model.name)

    def of_run(self, config: RunConfig, observer: Observer) -> "RemoteDevices":
        """The devices of one run; see `Population`."""
        return RemoteDevices(config, self.site, observer)

    def keeps(self, begun: BegunRound) -> bool:
        """Whether the journal has all of the round; see `Population`."""
        journal = self.site.journal
        if journal is None:
            return False
        if is_kept(journal, self.site.about(begun.round - 1, begun.cohort)):
            self.site.note(f"round {begun.round} goes on where it was")
            return True
        self.site.note(
            f"round {begun.round} is given up: {journal} is missing or damaged, or the list of "
            "devices or the version of deltafl is another"
        )
        journal.unlink(missing_ok=True)
        return False


class RemoteDevices:
    """The devices of one run; see `population.Devices`.

    Args:
        config: the settings of one run.
        site: where they connect.
        observer: sees all messages of secure rounds.
    """

    def __init__(self, config: RunConfig, site: Site, observer: Observer) -> None:
        self._site = site
        self.clock = CpuClock()
        masks = masks_of_this_machine(config.training.device)
        primitives = replace(PLAIN, add_masks=masks.add, add_pairwise=pairwise_with(masks.add))
        self._rounds = Rounds(config, site, observer, primitives, Deadlines(site.waiting))
        # devices that measure are sooner done than those that train
        self._measuring = replace(self._rounds, deadlines=Deadlines(site.waiting))
        self._measured: dict[int, object] = {}  # by level: the model that was measured last
        self._journal: Journal | None = None  # of the round that began last

    @property
    def attackers(self) -> None:
        """Nobody knows who of them lies."""
        return

    @property
    def to_lose_fewer(self) -> str:
        """They are lost because they are late, killed, or cut off."""
        return (
            "see why devices were lost or declined, wait longer for them (--least-wait, "
            "--most-wait, --gather)"
        )

    def num_others(self, without: AbstractSet[int]) -> int:
        """Those on the list; see `population.Devices`."""
        return len(self._site.devices.keys.keys() - without)

    def present(self, size: int, without: AbstractSet[int], hoped: int = 0) -> Indices:
        """Devices that are connected, once they are enough; see `population.Devices`.

        Raises:
            Stop: no further round is to begin.
            RunError: too few are connected for too long.
        """
        connected = self._connected(size, without, hoped)
        if self._site.stop.is_set():
            raise Stop
        return connected

    def _connected(self, size: int, without: AbstractSet[int], hoped: int = 0) -> Indices:
        """The same, also if no further round is to begin, once they are enough."""
        site, listed = self._site, self._site.devices.keys
        wanted = min(size, len(listed.keys() - without))

        def enough(connected: frozenset[ClientId], wanted: int = wanted) -> bool:
            return len((connected & listed.keys()) - without) >= wanted

        if site.gathering:
            site.post.wait_for(listed.keys().__le__, site.gathering, site.stop)
        if hoped:
            site.post.wait_for(partial(enough, wanted=hoped), site.waiting.least, site.stop)
        connected = site.post.wait_for(enough, site.patience, site.stop)
        if not enough(connected):
            if site.stop.is_set():
                raise Stop
            raise RunError(
                f"gave up: of the {wanted} devices that the next round needs, "
                f"{len((connected & listed.keys()) - without)} were connected after "
                f"{site.patience:g} s; start more devices, then resume"
            )
        return np.array(sorted((connected & listed.keys()) - without), np.int64)

    def begin(self, ids: Sequence[int], round_index: int) -> None:
        """Bring the round to the journal, or go on with it from there; see `population.Devices`."""
        self._journal = self._opened(self._site.about(round_index, ids))

    def _opened(self, about: About) -> Journal:
        return Journal(self._site.journal, about, self._site.randomness)

    def cohort(
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> "RemoteCohort":
        """Some of them; see `population.Devices`. They find out themselves how to train."""
        del training, told, lying
        cohort = tuple(map(ClientId, ids))
        return RemoteCohort(cohort, round_index, self._rounds, self._journal, lost)

    def of_round(self, ids: Sequence[ClientId], round_index: int) -> "RemoteCohort":
        """Some of them, ascending, for a round that is counted from 0."""
        self.begin(ids, round_index)
        return RemoteCohort(ids, round_index, self._rounds, self._journal)

    def forget(self) -> None:
        """Nothing: a device drops by itself what is not needed."""

    def evaluate(self, models: Sequence[Vector], round_number: int) -> None:
        """Have all connected devices measure the models; see `measuring` and `population.Devices`.

        What comes out is kept at `Site.records`, each with the messages by which it was learnt.
        What was begun by an earlier process goes on by the journal, or is not begun again, and a
        model that is still the same is not measured again: devices would refuse. What cannot be
        measured is no reason to end the run.

        Raises:
            RunError: too few devices are connected for too long.
        """
        records = self._site.records
        if records is None:
            return
        records.mkdir(parents=True, exist_ok=True)
        for level, model in enumerate(models):
            path = records / f"round-{round_number:06}-level-{level}"
            digest = vector_sha256(model).hex()
            if level not in self._measured:
                self._measured[level] = _last_measured(records, level)
            if path.with_suffix(".json").exists() or self._measured[level] == digest:
                continue
            self._measured[level] = digest
            sums = self._measure(model, round_number, level, path.with_suffix(".bin"))
            write_json(path.with_suffix(".json"), {**sums.as_table(), _MODEL: digest})
            self._site.measured(sums)

    def _measure(self, model: Vector, number: int, level: int, path: Path) -> SummedMetrics:
        """Have a model measured, and record at `path` how.

        If there is a record, an earlier process has asked, and has ended before it knew. Without
        its journal, nobody will.
        """
        config, site = self._rounds.config, self._site

        def nothing(because: str) -> SummedMetrics:
            return SummedMetrics(number, level, 0, 0, None, None, because)

        begun = self._going_on(number, level, path)
        if begun is None and path.exists() and was_begun(path, config.privacy.transcript):
            return nothing(INTERRUPTED)
        asked: Iterable[int] = (
            self._connected(config.federation.cohort_size, frozenset())
            if begun is None
            else begun.cohort
        )
        ids = [ClientId(int(one)) for one in asked]
        announced = as_bytes([marked(model)])
        settings = to_toml(config).encode()
        with closing(self._opened(site.about(number, ids, level))) as journal:
            task = Task(journal.task, number, 0, settings, measures=True)
            try:
                levels = measuring_levels(config, len(ids))
                params = sessions_of(config).params_of_levels(levels, announced, task.graph_seed)
            except (ProtocolError, SecAggError) as error:
                return nothing(str(error))
            mark, kept = (begun.before, begun.sent) if begun else (TRANSCRIPT.start, None)
            with TranscriptWriter(path, config.privacy.transcript, mark, kept=kept) as record:
                record.begin_round(1, ids)
                rounds = replace(self._measuring, observer=record)
                (outcome,), _ = rounds.play(levels, announced, params, ids, task, number, journal)
                record.end_round(outcome.aborted)
                record.finish(1)
                record.flush()
        return summed(outcome, number, level)

    def _going_on(self, number: int, level: int, path: Path) -> BegunRound | None:
        """A measurement that an earlier process began, if the journal has it all."""
        journal, site = self._site.journal, self._site
        if journal is None or not path.exists():
            return None
        try:
            rounds = read_beyond(path, TRANSCRIPT.start).rounds
        except ChainError:
            return None
        kept = (one for one in rounds if is_kept(journal, site.about(number, one.cohort, level)))
        return next(kept, None)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCohort(Cohort):
    """Some devices, for one round; a `Cohort`.

    Attributes:
        ids: which, ascending.
        round_index: the round, counted from 0.
    """

    ids: Sequence[ClientId]
    round_index: int
    _rounds: Rounds
    _journal: Journal | None
    _lost: Sequence[LostSearch] = ()

    @property
    def weights(self) -> dict[int, int]:
        """1 for each device: its number of samples is its own business."""
        return dict.fromkeys(self.ids, 1)

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Play a round of Algorithm 3; see `Cohort`."""
        config, site = self._rounds.config, self._rounds.site
        unit = weighing.unit if isinstance(weighing, InUnits) else 0
        settings = to_toml(config).encode()
        if self._journal is None:
            raise UsageError("the round has not begun")
        with closing(self._journal) as journal:
            task = Task(journal.task, self.round_index, unit, settings, beside=site.beside())
            joined = as_bytes(models)
            params = sessions_of(config).params_of_levels(levels, joined, task.graph_seed)
            outcomes, bytes_up = self._rounds.play(
                levels, joined, params, self.ids, task, self.round_index + 1, journal, self._lost
            )
        return SecureRoundResult(outcomes, bytes_up / len(self.ids))


def _last_measured(records: Path, level: int) -> object:
    """The model of a level that was measured last, by an earlier process; None if there is none."""
    kept = sorted(records.glob(f"round-*-level-{level}.json"))
    return (read_json(kept[-1]) or {}).get(_MODEL) if kept else None


def was_begun(path: Path, mode: str) -> bool:
    """Whether an earlier process has asked devices, by its record, which is now ended.

    A record that is damaged in another way than by the end of its process stays as it is: the audit
    says what is wrong with it.
    """
    try:
        beyond = read_beyond(path, TRANSCRIPT.start)
    except ChainError:
        return True
    if not beyond.rounds:
        return False
    with TranscriptWriter(path, mode, beyond.mark) as record:
        record.resume(0, beyond.torn)
        record.finish(len(beyond.rounds))
        record.flush()
    return True
