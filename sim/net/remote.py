"""The devices of a run that are machines of their own, as the engine asks them.

A round is that of a simulation (`deltafl.sim.cohort.masked`), but for who carries the messages: the
same machine of the server, the same parameters but for the seed of the graph, which binds the
session to all that devices are told of the round (`frames.Task`). So a federation and a simulation
with the same cohorts, data, seeds and drop-outs come to the same model, bit for bit.

How messages pass, and how long the server waits for answers, is in `trips`.

The directory of a run is that of a simulation (docs/data-and-results.md) but for evaluations of
single devices: nobody but a device sees what a model does on its data. In their place, the folder
`measured` has sums over the devices (`own_work`). `deltafl audit` reads the directory.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.data.agreed import GIVEN
from deltafl.fl.local import LocalTraining
from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.masked import InUnits
from deltafl.fl.vectors import Vector, vector_sha256
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.secagg import ClientId
from deltafl.secagg.errors import SecAggError, UsageError
from deltafl.secagg.primitives import PLAIN, pairwise_with
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.cohort.masks import masks_of_this_machine
from deltafl.sim.cohort.sampling import Indices
from deltafl.sim.data.dataset import agreed_of
from deltafl.sim.errors import ChainError, RunError
from deltafl.sim.net.frames import Reason, Task
from deltafl.sim.net.identities import DeviceList
from deltafl.sim.net.own_work import SummedMetrics, marked, measuring_levels
from deltafl.sim.net.trips import Journal, Rounds, Site
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.own_files import make_folder
from deltafl.sim.record.record import SUMMARY, VERSIONS, note_measured, read_measured, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import INTERRUPTED, BegunRound, TranscriptWriter, read_beyond
from deltafl.sim.record.truth import Told
from deltafl.sim.record.versions import check_versions, versions_now
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.run.drawing import Lying
from deltafl.sim.run.engine import Progress, Stop, play
from deltafl.sim.run.experiment import write_bundle
from deltafl.sim.run.summary import DataSize, Summary, summarise_experiment, summarise_run
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import to_toml
from deltafl.sim.settings.constraints import FULL, SUMS

_MODEL: Final = "model_sha256"  # of what was measured
_NAMED: Final = 5  # devices in an advice


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
        """One more than the largest id that is or was on the list."""
        devices = self.site.devices
        if isinstance(devices, DeviceList):
            return devices.limit
        return max(devices.keys, default=-1) + 1

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model; see `Population`."""
        return replace(self.shapes, name=config.model.name)

    def of_run(self, config: RunConfig, observer: Observer) -> "RemoteDevices":
        """The devices of one run; see `Population`."""
        return RemoteDevices(config, self.site, observer)

    def keeps(self, begun: BegunRound) -> bool:
        """Whether the record has all of the round; see `Population`."""
        if self.site.record is None:
            return False
        about = self.site.about(begun.round - 1, begun.cohort)
        if Journal.task_in(self.site.record, about) is not None:
            self.site.note(f"round {begun.round} goes on where it was")
            return True
        self.site.note(
            f"round {begun.round} is given up: the list of devices or the version of deltafl is "
            "another"
        )
        return False


class RemoteDevices:
    """The devices of one run; see `drawing.Devices`.

    Args:
        config: the settings of one run.
        site: where they connect.
        observer: sees all messages of secure rounds.
    """

    def __init__(self, config: RunConfig, site: Site, observer: Observer) -> None:
        self._site = site
        self.clock = CpuClock()
        masks = masks_of_this_machine()
        primitives = replace(PLAIN, add_masks=masks.add, add_pairwise=pairwise_with(masks.add))
        self._rounds = Rounds(config, site, observer, primitives)
        # devices that measure are sooner done than those that train: deadlines of their own
        self._measuring = replace(self._rounds)
        self._journal: Journal | None = None  # of the round that began last

    @property
    def attackers(self) -> None:
        """Nobody knows who of them lies."""
        return

    @property
    def to_lose_fewer(self) -> str:
        """They are lost because they decline, or are late, killed, or cut off."""
        return (
            f"{self._who_declined}see why devices were lost or declined, wait longer for them "
            "(--least-wait, --most-wait, --gather)"
        )

    @property
    def _who_declined(self) -> str:
        """Which devices have declined, and why: the beginning of an advice, or nothing."""
        why: dict[str, list[ClientId]] = {}
        for client, one in sorted(self._site.post.declined.copy().items()):
            if one.declined in (Reason.SETTINGS, Reason.REFUSED, Reason.LEDGER):
                said = f"{one.declined.words}: {one.detail or 'its log says more'}"
                why.setdefault(said, []).append(client)
        told = [f"{_named(clients)} ({said})" for said, clients in why.items()]
        more = f" and others for {len(told) - _NAMED} more reasons" if len(told) > _NAMED else ""
        named = f"{', '.join(told[:_NAMED])}{more}"
        mend = "correct these settings, or what declined, and start it again"
        return f"{mend}: {named}; " if told else ""

    def num_others(self, without: AbstractSet[int], only: AbstractSet[int] | None = None) -> int:
        """Those on the list, as it is between rounds; see `drawing.Devices`."""
        self._site.again()
        return len(self._listed(without, only))

    def _listed(self, without: AbstractSet[int], only: AbstractSet[int] | None) -> set[ClientId]:
        found = self._site.devices.keys.keys() - without
        return found if only is None else found & only

    def present(
        self, size: int, without: AbstractSet[int], only: AbstractSet[int] | None = None
    ) -> Indices:
        """Devices that are connected, once they are enough; see `drawing.Devices`.

        Raises:
            Stop: no further round is to begin.
            RunError: too few are connected for too long.
        """
        connected = self._connected(size, without, only)
        if self._site.stop.is_set():
            raise Stop
        return connected

    def _connected(
        self, size: int, without: AbstractSet[int], only: AbstractSet[int] | None = None
    ) -> Indices:
        """The same, also if no further round is to begin, once they are enough."""
        site, devices = self._site, self._site.devices

        def enough(connected: frozenset[ClientId], wanted: int = size) -> bool:
            site.again()
            listed = self._listed(without, only)
            return len(connected & listed) >= min(wanted, len(listed))

        if site.gathering:
            site.post.wait_for(partial(enough, wanted=len(devices.keys)), site.gathering, site.stop)
        if only is not None:
            site.post.wait_for(partial(enough, wanted=len(only)), site.waiting.least, site.stop)
        connected = site.post.wait_for(enough, site.patience, site.stop)
        is_enough, listed = enough(connected), self._listed(without, only)
        if not is_enough:
            if site.stop.is_set():
                raise Stop
            raise RunError(
                f"gave up: of the {min(size, len(listed))} devices that the next round needs, "
                f"{len(connected & listed)} were there after {site.patience:g} s; "
                f"{self._who_declined}start more devices, then resume"
            )
        return np.array(sorted(connected & listed), np.int64)

    def begin(
        self,
        ids: Sequence[int],
        round_index: int,
        transcript: TranscriptWriter | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Note what the round is about, or go on with it; see `drawing.Devices`."""
        about, randomness = self._site.about(round_index, ids), self._site.randomness
        self._journal = Journal(transcript, about, randomness, mark)

    def cohort(
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> "RemoteCohort":
        """Some of them; see `drawing.Devices`. They find out themselves how to train."""
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
        """Have all connected devices measure the models; see `own_work` and `drawing.Devices`.

        Not where sums have noise: a measurement would have none. What comes out is in the run's
        record, and in a record of its own in `Site.records` how it was learnt. What was begun by an
        earlier process goes on, or is not begun again, and a model that is still the same is not
        measured again: devices would refuse. What cannot be measured is no reason to end the run.

        Raises:
            RunError: too few devices are connected for too long.
        """
        records, record = self._site.records, self._site.record
        if records is None or record is None or self._rounds.config.dp.noise:
            return  # with noise, such a sum would have none
        make_folder(records)
        for level, model in enumerate(models):
            digest = vector_sha256(model).hex()
            known = [found for of, found in read_measured(record) if of == level]
            is_known = any(one.get("round") == round_number for one in known)
            if is_known or (known and known[-1].get(_MODEL) == digest):
                continue
            path = records / f"round-{round_number:06}-level-{level}.sqlite"
            sums = self._measure(model, round_number, level, path)
            note_measured(record, round_number, level, {**asdict(sums), _MODEL: digest})
            record.keep()
            self._site.measured(sums)

    def _measure(self, model: Vector, number: int, level: int, path: Path) -> SummedMetrics:
        """Have a model measured, and record at `path` how.

        If an earlier process has asked, and has ended before it knew, this one goes on; if it
        cannot, nobody will.
        """
        nothing = partial(SummedMetrics, number, level, 0, 0, None, None)
        config, site, announced = self._rounds.config, self._site, as_bytes([marked(model)])
        mode = SUMS if config.privacy.transcript == SUMS else FULL
        try:
            with write_record(path) as record:
                writer = TranscriptWriter(record, mode, keeps_open=True)
                begun = read_beyond(record, record.chain.start)
                size, mark = config.federation.cohort_size, begun.before if begun else None
                asked = begun.cohort if begun else self._connected(size, frozenset()).tolist()
                ids = [ClientId(one) for one in asked]
                about = site.about(number, ids, level)
                if begun and Journal.task_in(record, about) is None:
                    writer.resume(0)
                    writer.finish(1)
                    record.keep()
                    return nothing(INTERRUPTED)
                journal = Journal(writer, about, site.randomness, mark)
                task = Task(journal.task, number, 0, to_toml(config).encode(), measures=True)
                sessions = sessions_of(config)
                try:
                    levels = measuring_levels(config, len(ids))
                    params = sessions.params_of_levels(levels, announced, task.graph_seed)
                except (ProtocolError, SecAggError) as error:
                    return nothing(str(error))
                writer.begin_round(1, ids, mark)
                rounds = replace(self._measuring, observer=writer)
                (outcome,), _ = rounds.play(levels, announced, params, ids, task, number, journal)
                writer.end_round(outcome.aborted)
                writer.finish(1)
                record.keep()
                return SummedMetrics.of(outcome, number, level, config)
        except ChainError:
            # it is damaged, and stays as it is: the audit says what is wrong with it
            return nothing(INTERRUPTED)


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
        self, levels: Levels, models: Sequence[Vector], weighing: Weighing | None = None
    ) -> SecureRoundResult:
        """Play a round of Algorithm 3; see `Cohort`."""
        config, site = self._rounds.config, self._rounds.site
        unit = weighing.unit if isinstance(weighing, InUnits) else 0
        settings = to_toml(config).encode()
        if self._journal is None:
            raise UsageError("the round has not begun")
        journal, joined = self._journal, as_bytes(models)
        task = Task(journal.task, self.round_index, unit, settings, beside=site.beside())
        params = sessions_of(config).params_of_levels(levels, joined, task.graph_seed)
        outcomes, bytes_up = self._rounds.play(
            levels, joined, params, self.ids, task, self.round_index + 1, journal, self._lost
        )
        return SecureRoundResult(outcomes, bytes_up / len(self.ids))


def _named(clients: Sequence[ClientId]) -> str:
    """Some devices, in words."""
    shown = ", ".join(map(str, clients[:_NAMED]))
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"device{'s' if len(clients) > 1 else ''} {shown}{more}"


DATA: Final = "data of the devices"
"""What the summary of a federation calls them."""

_NOWHERE: Final = {"backend": REMOTE, "workers": 0, "threads": 1}


def run_federation(
    config: RunConfig,
    path: Path,
    site: Site,
    shapes: ModelSpec,
    *,
    resume: bool,
    progress: Progress,
    warn: Callable[[str], None],
    own: Strategy | None = None,
) -> Summary:
    """Play all rounds that are missing; if the run is finished, only read its summary.

    Args:
        config: all settings; its devices are remote. Where it has no nonce, the directory's is
            taken, or a new one is drawn.
        path: the run directory.
        site: where devices connect.
        shapes: of the devices' inputs, and the number of classes.
        resume: continue in an existing directory.
        progress: receives progress.
        warn: receives notes for the user that need no action, each a sentence.
        own: the strategy, if it is one of the caller's own.

    Returns:
        The summary, as the record has it.

    Raises:
        UserError: the settings and the directory do not fit together; nothing was changed.
        RunError: the run cannot go on; its finished rounds are kept.
    """
    directory = RunDirectory(path)
    config = with_nonce(config, directory, site.randomness)
    if finished := directory.finished(config, resume=resume):
        site.post.finish()
        return finished
    digest = RemotePopulation(site, shapes).spec(config).shapes_sha256
    with directory.claim(config, resume=resume) as record:
        site = replace(site, records=directory.measured, record=record, note=warn)
        population = RemotePopulation(site, shapes)
        if isinstance(site.devices, DeviceList):
            site.devices.keep(directory.devices)
        recorded, now = record.json(VERSIONS), versions_now(_CPU, _NOWHERE, digest)
        for sentence in check_versions(recorded, now):
            warn(sentence)
        record.note(VERSIONS, recorded or now)
        record.keep()
        play(config, directory, record, population, progress, own)
        data = DataSize(DATA, len(site.devices.keys), 0)
        summary = summarise_experiment([summarise_run(config, record, data)])
        about = {"data": DATA, "data_sha256": digest}
        agreed = agreed_of(config.data)
        scale = agreed.scale(shapes.input_shape) if agreed.is_scaled else None
        if scale is not None:
            about["scaled"] = GIVEN
        write_bundle(config, directory, record, population.spec(config), scale, about)
        record.note(SUMMARY, summary)
        record.keep()
    site.post.finish()
    return summary


_CPU: Final = torch.device("cpu")
_NONCE: Final = 16  # bytes


def with_nonce(
    config: RunConfig, directory: RunDirectory, randomness: Randomness = system_randomness
) -> RunConfig:
    """The same settings with the nonce of the directory's run, or with a new one."""
    if config.experiment.nonce:
        return config
    is_known = directory.is_run
    nonce = directory.config().experiment.nonce if is_known else randomness(_NONCE).hex()
    return replace(config, experiment=replace(config.experiment, nonce=nonce))
