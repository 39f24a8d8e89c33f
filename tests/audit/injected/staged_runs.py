# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Whole runs of a few devices, played by the real machines and kept in memory, to be lied about.

A `Stage` says how a run is played: by honest parties, unless a subclass says otherwise. What is
played is a `StagedRun`. An `Edit` changes what its record will say: the chain over it is always
right, as that of a server that lies from the start, or writes its record anew.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import lenient
import numpy as np

from deltafl.protocol import wire as round_wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.round import Round, RoundOutcome
from deltafl.protocol.server import RoundServer
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    Adversary,
    Client,
    DecodeError,
    Enrolment,
    Server,
    SessionParams,
    SlotSum,
    ThreatModel,
)
from deltafl.secagg import wire as session_wire
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver, Trip
from deltafl.secagg.states import Step, Vanish
from deltafl.secagg.wire import Kind
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.record.truth import Told, TruthWriter, sources_of

RUN_ID = b"the staged run.."
SEED = 1
"""Of the public seeds that a run draws from its settings."""

SESSIONS = Sessions(RoundPolicy(**lenient.ROUNDS), min_cohort=5)
SIGNED = replace(SESSIONS, signed=True, threat=ThreatModel(adversary=Adversary.ACTIVE))
LENIENT = RoundPolicy(
    **lenient.ROUNDS,
    min_cohort=2,
    colluding_rate=0.0,
    dropout_rate=0.0,
)
"""Of devices that go along with nearly everything."""

LARGEST = 4.5  # more than any loss, in nats


@dataclass(frozen=True, eq=False)
class Said:
    """A message; equal to itself only, so that it is found again wherever it is moved."""

    round: int
    sent: bool
    peer: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class Learnt:
    """A sum."""

    round: int
    total: SlotSum


@dataclass(frozen=True, eq=False)
class Over:
    """The end of a round."""

    round: int
    aborted: str | None


@dataclass(frozen=True, eq=False)
class Shut:
    """The end of a trip."""

    round: int


Entry = Said | Learnt | Over | Shut


class Tape(NoObserver):
    """Keeps what passes a server in memory."""

    def __init__(self):
        self.entries: list[Entry] = []
        self._round = 0

    def begin_round(self, number):
        self._round = number

    def message(self, *, sent, peer, data):
        self.entries.append(Said(self._round, sent, peer, data))

    def closed(self):
        self.entries.append(Shut(self._round))

    def revealed(self, total):
        self.entries.append(Learnt(self._round, total))

    def end_round(self, aborted):
        self.entries.append(Over(self._round, aborted))


@dataclass(eq=False)
class Device:
    """A device that notes what it tells the protocol, as the truth file wants it.

    Its loss depends on the model a little, and its update on everything.
    """

    id: int
    weight: int
    base: float
    round: int
    noted_loss: float | None = None
    noted_update: np.ndarray | None = None

    def loss(self, model: bytes) -> float:
        wobble = np.frombuffer(sha256(model + bytes([self.id])).digest()[:4], "<u4")[0] / 2**32
        self.noted_loss = self.base + 0.15 * float(wobble)
        return self.noted_loss

    def update(self, model: bytes) -> np.ndarray:
        generator = np.random.default_rng([self.id, self.round])
        length = len(model) // 4
        self.noted_update = generator.uniform(-0.4, 0.4, length).astype(np.float32)
        return self.noted_update


class Stage:
    """An honest run: seven devices, of which four or five pass the filter, two queries a search."""

    num_devices = 7
    num_rounds = 2
    method = "bracketed"
    theta = Fraction(3, 4)
    max_queries = 2
    length = 60
    sessions = SESSIONS
    is_lenient = False
    is_credulous = False
    is_verified = False
    is_proved = False
    counts_tails = True
    min_search_cohort = 0

    @classmethod
    def honest(cls) -> type["Stage"]:
        """The nearest stage on which nobody misbehaves."""
        return next(stage for stage in cls.__mro__ if stage in HONEST)

    @property
    def start(self) -> np.ndarray:
        """The model before the first round."""
        return np.linspace(-1, 1, self.length).astype(np.float32)

    @property
    def ids(self) -> list[int]:
        return [3 + 7 * rank for rank in range(self.num_devices)]

    def weight(self, device: int) -> int:
        return 100 + 37 * device % 300

    def base(self, device: int) -> float:
        """About its loss, in nats; in no order of the ids."""
        rank = self.ids.index(device) * (5 if self.num_devices % 5 else 3) % self.num_devices
        return 0.5 + 3.5 * rank / self.num_devices

    def by_loss(self) -> list[int]:
        """The ids, the one with the smallest loss first."""
        return sorted(self.ids, key=self.base)

    def cohorts(self, number: int) -> Sequence[Sequence[int]]:
        """The cohort of a round; several where it is played in several sessions."""
        return [self.ids]

    def config(self, number: int, cohort_size: int, warm_start: int | None = None) -> RoundConfig:
        return RoundConfig(
            round_index=number - 1,
            cohort_size=cohort_size,
            theta=self.theta,
            method=self.method,
            search=SearchParams(
                max_queries=self.max_queries,
                grid=LossGrid(resolution_bits=10, bound=8),
                min_cohort=self.min_search_cohort,
                verified=self.is_verified,
                proved=self.is_proved,
            ),
            warm_start=warm_start,
            update=UpdateParams(clip=2.0, resolution_bits=10, max_weight=512),
            update_length=self.length,
            min_tail=RoundPolicy().min_tail(cohort_size) if self.counts_tails else 0,
        )

    def graph_seed(self, number: int, take: int) -> bytes:
        return sha256(b"graph" + bytes([number, take])).digest()

    def params(self, number: int, take: int, config: RoundConfig, model: bytes) -> SessionParams:
        return self.sessions.params(config, model, self.graph_seed(number, take))

    def seed(self, number: int, take: int, device: int) -> bytes:
        return bytes([number, take]) + device.to_bytes(30, "little")

    def randomness(self, number: int, take: int, device: int) -> Callable[[int], bytes]:
        return sources_of(self.seed(number, take, device))[0]

    def enrol(self, number: int, enrolment: Enrolment) -> None:
        """Called before every round of a signed run."""

    def model(self, number: int, model: np.ndarray) -> np.ndarray:
        """What is announced in place of the model that follows."""
        return model

    def question(self, number: int, question):
        """What is asked in place of the question that follows."""
        return question

    def warm_start(self, number: int, tick: int | None) -> int | None:
        """Where a search starts in place of the last threshold."""
        return tick

    def proof(self, number: int, opening: bytes) -> bytes:
        """What is sent in place of the proof of a sum."""
        return opening

    def vanishing(self, number: int, take: int, config: RoundConfig) -> Mapping[int, Vanish]:
        return {}

    def contribution(self, number: int, device: int, slot: int, words: np.ndarray) -> np.ndarray:
        """What a device masks in place of its part, ring words."""
        return words

    def upload(
        self, number: int, step: Step, device: int, data: bytes, params: SessionParams
    ) -> bytes:
        """What a device sends in place of a message."""
        return data

    def machinery(self) -> AbstractContextManager[object]:
        """Entered while the run is played."""
        return nullcontext()


class DrawnStage(Stage):
    """An honest run of a population that is one cohort, with the seeds of a run's settings."""

    @property
    def ids(self):
        return list(range(self.num_devices))

    def graph_seed(self, number, take):
        return Seeds(SEED).digest(Purpose.GRAPH, round_index=number - 1)


class SignedStage(Stage):
    """An honest run whose sessions are signed."""

    sessions = SIGNED


class VerifiedStage(SignedStage):
    """An honest run whose searches are verified, and whose first lists are signed."""

    method = "mm"
    is_verified = True
    min_search_cohort = 5


class ProvedStage(VerifiedStage):
    """An honest run in which devices prove that their votes are valid."""

    method = "bracketed"
    is_proved = True


class SteepStage(Stage):
    """An honest run that searches by `mm`, whose sums are wider."""

    method = "mm"


class OneQuestionStage(Stage):
    """An honest run of FedAvg: everybody is kept, and nothing is searched."""

    theta = Fraction(1)


class TinyStage(OneQuestionStage):
    """An honest round of few devices with short updates."""

    num_devices = 5
    num_rounds = 1
    length = 6


class ManyStage(Stage):
    """An honest run of more devices and rounds, of which half pass, for statistics."""

    num_devices = 12
    num_rounds = 6
    theta = Fraction(1, 2)
    max_queries = 3
    length = 12


class NoisyStage(OneQuestionStage):
    """An honest run in which devices add noise to their updates."""

    length = 40
    multiplier = Fraction(1)
    norm = 1.0

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        sizes = Sizes.of(self.length, cohort_size)
        noise = UpdateNoise.at_least(self.multiplier, self.norm, 5, sizes)
        return replace(config, update=replace(config.update, max_weight=1, noise=noise))


class NoisySearchStage(Stage):
    """An honest run of searches with noise, in enough rounds to measure it."""

    max_queries = 1
    num_rounds = 8
    length = 6

    def config(self, number, cohort_size, warm_start=None):
        config = super().config(number, cohort_size, warm_start)
        search = replace(config.search, weighting=Weighting.EQUAL)
        return replace(config, method="noisy", noise=Noise(Fraction(1, 4), 5), search=search)


class BatchedStage(OneQuestionStage):
    """An honest run of three batches of devices, of which two take part in a round."""

    num_devices = 9
    num_rounds = 3
    length = 12

    def cohorts(self, number):
        batches = [self.ids[start : start + 3] for start in (0, 3, 6)]
        return [[i for k, batch in enumerate(batches) if k != number - 1 for i in batch]]


HONEST = (
    DrawnStage,
    ProvedStage,
    VerifiedStage,
    TinyStage,
    Stage,
    SignedStage,
    SteepStage,
    OneQuestionStage,
    ManyStage,
    NoisyStage,
    NoisySearchStage,
    BatchedStage,
)


class StagedClient(RoundClient):
    """A device that notes what it masks; a lenient one goes on where others refuse.

    A credulous one only answers any question.
    """

    def __init__(self, client_id, policy, randomness, credentials, noise, *, stage, number):
        super().__init__(client_id, policy, randomness, credentials, noise)
        self._stage, self._number, self._id = stage, number, client_id
        if stage.is_lenient:
            self._session = _LenientSession(client_id, policy, randomness, credentials)
        self.inputs: dict[int, np.ndarray] = {}

    def _mask(self, vector, prove=None):
        slot = self._session.slot
        vector = self._stage.contribution(self._number, self._id, slot, vector)
        self.inputs[slot] = vector.copy()
        return super()._mask(vector, prove)

    def _check_search(self, question, members):
        if not (self._stage.is_lenient or self._stage.is_credulous):
            super()._check_search(question, members)

    def share(self, slot: int, owner: int, kind: int) -> np.ndarray:
        """The share that it holds of a secret."""
        held = self._session._held
        column = self._session.params.columns[slot]
        return held.shares[held.positions.tolist().index(owner), column, kind]


class _LenientSession(Client):
    """Answers in a whole slot over whomever it is told."""

    def _agree(self, message):
        self._formed.shrink(message.members)
        self._agreed = message.members


class _LenientSessionServer(Server):
    """Opens whole slots over whoever is left."""

    def open_slot(self, slot, binding, check=None):
        self._agreed = None
        return super().open_slot(slot, binding, check)

    def can_sum(self, slot):
        return True


class _LenientRound(Round):
    """Takes answers over whomever they are, and goes on where one is lost."""

    def _take_answer(self, total, revealed):
        super()._take_answer(total, replace(revealed, remaining=revealed.contributors))

    def _ask_again(self, mean, revealed):
        super()._ask_again(mean, replace(revealed, remaining=revealed.contributors))


class _StagedServer(RoundServer):
    """Asks what the stage says."""

    def __init__(self, stage, number, config, model, params, cohort, enrolment):
        super().__init__(Levels((config,)), model, params, cohort, enrolment)
        if stage.is_lenient:
            self._session = _LenientSessionServer(params, cohort, enrolment)
            self._rounds._rounds = [_LenientRound(config)]
        self._stage, self._number = stage, number

    def _ask(self, opening=b""):
        self._rounds.assemble(len(self._session.remaining))
        playing = self._rounds._playing
        playing.question = self._stage.question(self._number, playing.question)
        return super()._ask(self._stage.proof(self._number, opening))


@dataclass(frozen=True, eq=False)
class StagedRun:
    """A run that was played.

    Attributes:
        stage: How.
        entries: What passed the server; entry i is record i + 1.
        truths: What devices noted, by round.
        params: Sessions' parameters, by tag.
        clients: The devices' machines by round, session of the round and id.
        outcomes: What the server made of the rounds.
        told: By round, what devices drew.
    """

    stage: Stage
    entries: list[Entry]
    truths: list[tuple[int, Device]]
    params: dict[bytes, SessionParams]
    clients: dict[tuple[int, int, int], StagedClient]
    outcomes: dict[int, RoundOutcome]
    told: dict[int, Told] = field(default_factory=lambda: defaultdict(Told))

    def input(self, number: int, device: int, slot: int) -> np.ndarray:
        """What a device has masked, ring words."""
        return self.clients[number, 0, device].inputs[slot]

    def loss(self, number: int, device: int) -> float:
        (noted,) = [d.noted_loss for n, d in self.truths if (n, d.id) == (number, device)]
        return noted

    def passed(self, number: int) -> set[int]:
        """Who has trained in a round."""
        return {d.id for n, d in self.truths if n == number and d.noted_update is not None}


def play(stage: Stage) -> StagedRun:
    """Play a run to its end."""
    tape, run = Tape(), StagedRun(stage, [], [], {}, {}, {})
    enrolment = Enrolment(SeededRandomness(b"identities".ljust(32)))
    model = stage.start
    warm_start = None
    for number in range(1, stage.num_rounds + 1):
        tape.begin_round(number)
        stage.enrol(number, enrolment)
        model = stage.model(number, model)
        warm_start = stage.warm_start(number, warm_start)
        for take, cohort in enumerate(stage.cohorts(number)):
            config = stage.config(number, len(cohort), warm_start)
            outcome, devices = _play_session(
                run, tape, enrolment, number, take, cohort, config, model
            )
        run.outcomes[number] = outcome
        tape.end_round(outcome.aborted)
        run.truths.extend((number, device) for device in devices.values())
        if outcome.update is not None:
            model = (model + outcome.update).astype(np.float32)
        if outcome.search is not None and stage.theta < 1:
            warm_start = config.search.grid.tick(outcome.search.eta)[0]
    run.entries.extend(tape.entries)
    return run


def _play_session(run, tape, enrolment, number, take, cohort, config, model):
    stage, data = run.stage, model.astype("<f4").tobytes()
    params = stage.params(number, take, config, data)
    run.params[params.tag] = params
    policy = LENIENT if stage.is_lenient else stage.sessions.policy
    for i in cohort:
        identity = enrolment.seed(i) if params.signed else b""
        run.told[number].seeds[params.tag, i] = stage.seed(number, take, i), identity
    devices = {i: Device(i, stage.weight(i), stage.base(i), number) for i in cohort}
    clients = {
        i: StagedClient(
            i,
            policy,
            stage.randomness(number, take, i),
            enrolment.credentials_for(i, params),
            sources_of(stage.seed(number, take, i))[1],
            stage=stage,
            number=number,
        )
        for i in cohort
    }
    run.clients.update({(number, take, i): client for i, client in clients.items()})
    server = _StagedServer(stage, number, config, data, params, cohort, enrolment)

    def answer(client, received):
        reply = clients[client].receive(received)
        if reply is LocalWork.MEASURE_LOSS:
            reply = clients[client].supply_loss(devices[client].loss(data), devices[client].weight)
        elif reply is LocalWork.TRAIN:
            reply = clients[client].supply_update(devices[client].update(data))
        elif reply is LocalWork.WAIT:
            reply = clients[client].supply_zeros()
        return None if reply is None else stage.upload(number, server.step, client, reply, params)

    vanishing = stage.vanishing(number, take, config)
    outgoing = server.start()
    while outgoing:
        trip = Trip(server, vanishing, tape)
        for client, data_for in trip.deliver(outgoing):
            with trip.at_work(client):
                reply = answer(client, data_for)
            trip.take(client, reply)
        outgoing = trip.close()
        if server.revealed is not None:
            tape.revealed(server.revealed)
    return server.outcomes[0], devices


@functools.cache
def played(stage_type: type[Stage]) -> StagedRun:
    """The run of a stage, which is played once and shared."""
    stage = stage_type()
    with stage.machinery():
        return play(stage)


class Edit:
    """What a record will say in place of what happened.

    Args:
        run: What happened; it is not changed.

    Attributes:
        entries: What the record will say.
        touched: The entries that are not as they were.
    """

    def __init__(self, run: StagedRun):
        self.run = run
        self.entries = list(run.entries)
        self.touched: list[Entry] = []

    def find(self, number: int, kind: Kind, *, slot=None, peer=None) -> list[Said]:
        """The messages of a kind in a round, in their order."""
        return [
            entry
            for entry in self.entries
            if isinstance(entry, Said)
            and entry.round == number
            and (peer is None or entry.peer == peer)
            and _kind_and_slot(self.run, entry)[:1] == (kind,)
            and (slot is None or _kind_and_slot(self.run, entry)[1] == slot)
        ]

    def sums(self, number: int) -> list[Learnt]:
        return [e for e in self.entries if isinstance(e, Learnt) and e.round == number]

    def end(self, number: int) -> Over:
        return next(e for e in self.entries if isinstance(e, Over) and e.round == number)

    def message(self, entry: Said):
        """The session's message in it."""
        session = _session_bytes(entry)
        return session_wire.decode(session, self.run.params[session_wire.tag_of(session)])

    def envelope(self, entry: Said):
        return round_wire.decode(entry.data)

    def put(self, entry: Entry, new: Entry) -> Entry:
        """Put another entry in the place of one."""
        self.entries[self.place(entry)] = new
        self.touched.append(new)
        return new

    def put_data(self, entry: Said, data: bytes) -> Entry:
        return self.put(entry, replace(entry, data=data))

    def put_message(self, entry: Said, message) -> Entry:
        """Put another message of the session in the place of one, in its envelope."""
        params = self.run.params[session_wire.tag_of(_session_bytes(entry))]
        data = session_wire.encode(message, params)
        if entry.sent:
            data = round_wire.encode(replace(self.envelope(entry), session=data))
        return self.put_data(entry, data)

    def put_envelope(self, entry: Said, **changes) -> Entry:
        changed = replace(self.envelope(entry), **changes)
        return self.put_data(entry, round_wire.encode(changed))

    def insert_after(self, entry: Entry, *new: Entry) -> None:
        at = self.place(entry) + 1
        self.entries[at:at] = new
        self.touched.extend(new)

    def insert_like(self, after: Entry, like: Said, message) -> Entry:
        """Put a message of a session behind an entry, from or to whom another one was."""
        params = self.run.params[session_wire.tag_of(_session_bytes(like))]
        data = session_wire.encode(message, params)
        if like.sent:
            data = round_wire.encode(replace(self.envelope(like), session=data))
        new = replace(like, data=data)
        self.insert_after(after, new)
        return new

    def remove(self, *entries: Entry) -> None:
        for entry in entries:
            del self.entries[self.place(entry)]

    def place(self, entry: Entry) -> int:
        return next(i for i, other in enumerate(self.entries) if other is entry)

    def closing(self, entry: Entry) -> Shut:
        """The end of the trip of an entry."""
        rest = self.entries[self.place(entry) :]
        return next(other for other in rest if isinstance(other, Shut))

    def follows(self, entry: Entry) -> Said:
        """The first message that is sent once the trip of an entry is over."""
        rest = self.entries[self.place(self.closing(entry)) :]
        return next(other for other in rest if isinstance(other, Said) and other.sent)

    def record_number(self, entry: Entry) -> int:
        """The number that the entry's record will have, after the opening and rounds' begins."""
        place = self.place(entry)
        return place + 1 + len(list(_by_round(self.entries[: place + 1])))


def _session_bytes(entry: Said) -> bytes:
    return round_wire.decode(entry.data).session if entry.sent else entry.data


@functools.lru_cache(maxsize=1 << 14)
def _kind_and_slot(run: StagedRun, entry: Said) -> tuple[Kind | None, int | None]:
    session = _session_bytes(entry)
    params = run.params.get(session_wire.tag_of(session) or b"")
    if params is None:
        return None, None
    try:
        message = session_wire.decode(session, params)
    except DecodeError:
        return None, None
    kind = next(k for k in Kind if k == session[2])
    return kind, getattr(message, "slot", None)


def write(entries: Sequence[Entry], path: Path, mode: str = "full", *, closed=None) -> Mark:
    """Write a record whose chain is right.

    Args:
        entries: What it says.
        path: The file; it may be there, without rows of its chain.
        mode: As of `TranscriptWriter`.
        closed: Rounds of the closing record; 0 for none; by default, as many as there are.
    """
    with write_record(path) as record:
        record.chain.append("rounds", 0, "opening", mode, RUN_ID)
        writer = TranscriptWriter(record, mode, is_durable=False)
        for number, part in _by_round(entries):
            first = itertools.takewhile(lambda entry: not isinstance(entry, Shut), part)
            writer.begin_round(number, {e.peer for e in first if isinstance(e, Said)})
            for entry in part:
                if isinstance(entry, Said):
                    writer.message(sent=entry.sent, peer=entry.peer, data=entry.data)
                elif isinstance(entry, Learnt):
                    writer.revealed(entry.total)
                elif isinstance(entry, Shut):
                    writer.closed()
                else:
                    writer.end_round(entry.aborted)
        rounds = len({e.round for e in entries}) if closed is None else closed
        if rounds:
            writer.finish(rounds)
        record.keep()
        return record.chain.mark


def _by_round(entries: Sequence[Entry]) -> Iterator[tuple[int, list[Entry]]]:
    part: list[Entry] = []
    for entry in entries:
        if part and entry.round != part[-1].round:
            yield part[-1].round, part
            part = []
        part.append(entry)
    if part:
        yield part[-1].round, part


def write_truth(run: StagedRun, path: Path, run_id: bytes = RUN_ID) -> None:
    """Write the run's truth file."""
    with closing(TruthWriter(path, run_id, 0, b"", keeps_updates=True)) as writer:
        for number, device in run.truths:
            told = Told()
            if device.noted_loss is not None:
                told.measured[device.id, 0] = device.noted_loss, device.weight
            if device.noted_update is not None:
                told.updates[device.id, 0] = device.noted_update
            seeds = run.told[number].seeds.items()
            told.seeds = {key: seed for key, seed in seeds if key[1] == device.id}
            writer.add(number, told)
        writer.flush()
