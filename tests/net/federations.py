"""Federations in one process, whose connections are lists of frames."""

import asyncio
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from records import checkpoint_of

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import generate
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.randomness import system_randomness
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.dialling import take_part
from deltafl.sim.net.frames import Carry, Decline, Reason, decode, encode
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.own_work import OwnData, work_on
from deltafl.sim.net.post import Post
from deltafl.sim.net.remote import run_federation
from deltafl.sim.net.trips import Site, Waiting
from deltafl.sim.record.record import Record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import dropouts_of, policy_of
from deltafl.sim.run.engine import play
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.run.simulated import SimulatedPopulation, spec_of
from deltafl.sim.settings.config import REMOTE
from deltafl.sim.settings.config_io import build_config

PAPERS = OwnCode()
SILENT = SimpleNamespace(begin=lambda *_: None, played=lambda *_: None, evaluated=lambda *_: None)


def settings(algorithm="private-delta-fl", *more):
    """Three rounds of ten of thirty devices."""
    base = {
        "data": {"num_devices": 60},
        "federation": {
            "algorithm": algorithm,
            "rounds": 3,
            "cohort_size": 10,
            "evaluate_every": 3,
        },
        "training": {"batch_size": 64, "device": "cpu", "backend": "reference"},
        "privacy": {"min_cohort": 6, "transcript": "full", "expected_dropout": 0.2},
        "experiment": {"nonce": "abc"},
    }
    return build_config([base, *more])


@dataclass
class Federation:
    """A server's site, and devices that are not connected yet.

    Their numbers on the list begin with `first`; elsewhere they are counted from 0.
    """

    config: object
    dataset: object = None
    code: OwnCode = PAPERS
    waiting: Waiting = field(default_factory=lambda: Waiting(240.0, 120.0))
    declined: list = field(default_factory=list)
    said: list = field(default_factory=list)
    warned: list = field(default_factory=list)
    first: int = 0

    def __post_init__(self):
        self.dataset = self.dataset or build_dataset(self.config.data)
        number = len(self.dataset.train)
        self.identities = [
            OwnIdentity(ClientId(self.first + i), generate(system_randomness))
            for i in range(number)
        ]
        self.trusted = TrustedKeys({o.client: o.identity.public for o in self.identities})
        self.ledgers = [MemoryLedger() for _ in self.identities]
        self.policy = policy_of(self.config)
        self.sides = [self.started(i) for i in range(number)]
        self.begin_server()

    def begin_server(self):
        """A new process of the server, as it were."""
        self.step = None
        self.post = Post(time.monotonic, self.config.federation.rounds)
        self.site = Site(
            self.post,
            self.trusted,
            time.monotonic,
            self.waiting,
            patience=5.0,
            declined=lambda client, reason, _: self.declined.append((client, reason)),
            stage=self._note,
        )

    def _note(self, server, _asked):
        self.step, self.num_slots = server.step, len(server.levels.slots())

    def started(self, index):
        """A device that has just been started, with the identity and the ledger that it has."""
        own = self.dataset.train[index]
        test = next((one for one in self.dataset.test if one.id == own.id), None)
        data = OwnData(own, spec_of(self.config, self.dataset), test=test)
        notes = Notes(declined=lambda reason, detail: self.said.append((index, reason, detail)))
        return DeviceSide(
            self.identities[index],
            self.trusted,
            self.policy,
            self.ledgers[index],
            work_on(data, self.identities[index].client),
            notes,
        )

    def play(self, path):
        """Play the run to its end; the final state."""
        config = replace(
            self.config,
            federation=replace(self.config.federation, devices=REMOTE),
            faults=replace(self.config.faults, dropout=0.0),
        )
        own = self.code
        run_federation(
            config,
            path,
            self.site,
            spec_of(config, self.dataset, own.module, own.criterion, own.optimizer),
            resume=True,
            progress=SILENT,
            warn=self.warned.append,
            own=own.strategy,
        )
        return checkpoint_of(path).state


class Wires:
    """Connects every device, and carries frames both ways, in a thread of its own.

    Args:
        federation: whose.
        change: called with the device's index and a frame that it is to receive; returns the
            frames that it receives. None carries all.
    """

    def __init__(self, federation, change=None):
        self.federation = federation
        self.change = change or (lambda _index, frame: [frame])
        self.due = threading.Semaphore(0)
        self.stopped = False
        self.lines = {}
        self.errors = []

    def connect(self, index):
        client = self.federation.identities[index].client
        self.lines[index] = self.federation.post.connect(client, self.due.release)
        self.due.release()

    def cut(self):
        """Nothing passes any more."""
        self.stopped = True
        self.thread.join()

    def run(self):
        try:
            while not self.stopped:
                self.due.acquire(timeout=0.05)
                for index in list(self.lines):
                    self.carry(index)
        except BaseException as error:
            self.errors.append(error)
            raise

    def carry(self, index):
        post = self.federation.post
        while (frame := post.take(line := self.lines[index])) is not None:
            for one in self.change(index, frame):
                reply = self.federation.sides[index].receive(one)
                if reply is not None and self.lines[index] is line:
                    post.received(line, reply)


@contextmanager
def wired(federation, change=None, only=None):
    """All devices connected, or only some."""
    wires = Wires(federation, change)
    for index in range(len(federation.sides)) if only is None else only:
        wires.connect(index)
    wires.thread = threading.Thread(target=wires.run)
    wires.thread.start()
    try:
        yield wires
    finally:
        wires.cut()
    assert not wires.errors


class Killed(BaseException):
    """The server's process is gone."""


def play_killed(federation, path, monkeypatch, dies, between=lambda: None):
    """Play a run whose server is killed and started again; the final state, and how often.

    Args:
        federation: whose.
        path: the run directory.
        monkeypatch: takes hold of what is written.
        dies: called with a record before a transaction on it ends; None to go on, or "before" or
            "after" it is kept.
        between: called before the server is started again.
    """
    kills = 0

    def dying(original):
        def keep(record, **options):
            moment = dies(record) if record.db.in_transaction else None
            if moment == "before":
                record.db.rollback()
            else:
                original(record, **options)
            if moment is not None:
                federation.wires.cut()  # nothing that this process does now is seen by anybody
                raise Killed

        return keep

    with monkeypatch.context() as patch:  # whatever follows writes records of its own
        for name in ("keep", "keep_durably"):
            patch.setattr(Record, name, dying(getattr(Record, name)))
        while True:
            with wired(federation) as federation.wires:
                try:
                    return federation.play(path), kills
                except Killed:
                    kills += 1
            federation.begin_server()
            between()


def vanishing(federation):
    """Devices drop out as a simulation's would, by the settings' faults."""
    plans, dropouts = {}, dropouts_of(federation.config)

    def change(index, data):
        frame = decode(data)
        if not isinstance(frame, Carry) or federation.post._task.measures:
            return [data]
        # the frame's round has begun: what is due says which device is in it
        number = federation.post._task.round_index
        if number not in plans:
            ids = sorted(federation.post._due)
            plans[number] = dropouts(number, ids, federation.num_slots)
        vanish = plans[number].get(index)
        if vanish is None or vanish.answers(federation.step):
            return [data]
        gone = encode(Decline(frame.task, Reason.UNKNOWN))
        federation.post.received(federation.wires.lines[index], gone)
        return []

    return change


def simulate(config, path, dataset, own=PAPERS):
    """The same by simulated devices; the final state."""
    spec = spec_of(config, dataset, own.module, own.criterion, own.optimizer)
    backend = open_backend(Choice("reference", 0, 1), spec)
    population, directory = SimulatedPopulation(dataset, backend, own.module), RunDirectory(path)
    with directory.claim(config, resume=True) as record:
        play(config, directory, record, population, SILENT, own.strategy)
    return checkpoint_of(path).state


def taking_part(*args, **options):
    """Stay connected until the run is over, as a device's process does."""
    asyncio.run(take_part(*args, **options))
