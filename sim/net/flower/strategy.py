"""The server's side inside Flower: a strategy for the Message API.

Each round of a run is played in a thread while Flower waits for the nodes.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from logging import INFO, WARNING
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from deltafl.fl.registry import SGD
from deltafl.fl.strategies.base import RoundReport, TrainingState
from deltafl.secagg import Adversary, ClientId, TrustedKeys
from deltafl.secagg.directory import Directory
from deltafl.secagg.identity import SEED_SIZE, IdentityKey, identity
from deltafl.secagg.randomness import system_randomness
from deltafl.secagg.session import NoObserver, Observer
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.admission import Door
from deltafl.sim.net.app import serving
from deltafl.sim.net.certificates import Tls
from deltafl.sim.net.flower.messages import RECORD, Handover, Layout, Told
from deltafl.sim.net.frames import Reason
from deltafl.sim.net.identities import read_directory
from deltafl.sim.net.post import Post
from deltafl.sim.net.remote import RemoteDevices
from deltafl.sim.net.supernodes import SuperNodes
from deltafl.sim.net.trips import Site, Waiting
from deltafl.sim.run.algorithms import strategy_of
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import Table, build_config

_TRIPS: Final = "%d trips to the nodes in %.1f s: the first took %.1f s, the median %.3f s"


class Rounds:
    """The rounds of a run.

    Args:
        config: its settings.
        devices: the federation's list; empty if nodes have an identity for each round.
        waiting: how deadlines are set.
        observer: sees all messages of secure rounds.

    Attributes:
        post: the exchange with the nodes.
        admitted: who may connect now.
    """

    def __init__(
        self, config: RunConfig, devices: TrustedKeys, waiting: Waiting, observer: Observer
    ) -> None:
        self.post = Post(time.monotonic, 0)
        self.admitted = Admitted()
        self._listed, self._strategy = devices, strategy_of(config)
        self._trips: list[float] = []
        self._next_id, self._told = 0, b""
        site = Site(
            *(self.post, devices, time.monotonic, waiting),
            declined=_note_declined,
            stage=lambda _server, _asked: self._trips.append(time.monotonic()),
            beside=lambda: self._told,
        )
        self._devices = RemoteDevices(config, site, observer)
        self._state: TrainingState | None = None
        self._others: Mapping[str, Any] = {}
        self._layout = Layout((), (), ())
        self._running: Future[tuple[TrainingState, RoundReport]] | None = None
        self._executor = ThreadPoolExecutor(1, "round")

    def prepare(self, layout: Layout, number: int) -> Sequence[Handover]:
        """What so many nodes are handed that have a new identity for the round, but the address."""
        # no id twice: a node that is still connected from an earlier round is nobody in this one
        ids = [ClientId(self._next_id + i) for i in range(number)]
        self._next_id += number
        tokens = [system_randomness(SEED_SIZE) for _ in ids]
        keys = [identity(token).public for token in tokens]
        self.admitted.keys = dict(zip(ids, keys, strict=True))
        handed = zip(ids, tokens, strict=True)
        return [Handover("", "", client, token, layout) for client, token in handed]

    def prepare_listed(self, layout: Layout, clients: Sequence[ClientId]) -> Sequence[Handover]:
        """What devices of the list are handed, but the address."""
        self.admitted.keys = {client: self._listed.keys[client] for client in clients}
        return [Handover("", "", client, b"", layout) for client in clients]

    def begin(
        self, index: int, arrays: Mapping[str, Any], handed: Sequence[Handover], told: bytes
    ) -> None:
        """Begin a round with those for whom it was prepared.

        Args:
            index: the round, counted from 0.
            arrays: the model's.
            handed: the nodes.
            told: the digest of what each of them is told by Flower's messages.
        """
        self._told = told
        layout = handed[0].layout
        model = layout.to_vector(arrays)
        self._others, self._layout = arrays, layout
        state = self._state or self._strategy.init(model, len(handed))
        ids = sorted(one.client for one in handed)
        self.post.keep_only(ids)
        state = replace(state, model=model, round=index)
        self._running = self._executor.submit(self._play, state, ids)

    def has_ended(self) -> bool:
        """Whether the round is over."""
        return self._running is None or self._running.done()

    def end(self) -> tuple[Mapping[str, Any], RoundReport]:
        """The new arrays, and what was learnt.

        Raises:
            ValueError: the round could not be played.
        """
        if self._running is None:
            raise RuntimeError("no round has begun")
        self._state, report = self._running.result()
        self.admitted.keys = {}
        return self._layout.to_arrays(self._state.model, self._others), report

    def close(self) -> None:
        """Begin no more rounds."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _play(
        self, state: TrainingState, ids: Sequence[ClientId]
    ) -> tuple[TrainingState, RoundReport]:
        self._trips = []
        played = self._strategy.apply(state, self._devices.of_round(ids, state.round))
        if taken := [b - a for a, b in pairwise([*self._trips, time.monotonic()])]:
            # the first waits for the nodes to start, and others may wait until they have trained
            log(INFO, _TRIPS, len(taken), sum(taken), taken[0], median(taken))
        return played


class Admitted(Directory):
    """Who is admitted in the current round.

    Attributes:
        keys: their identities.
    """

    def __init__(self) -> None:
        self.keys: Mapping[ClientId, IdentityKey] = {}

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether this is the device's key."""
        return self.keys.get(client) == key


def _note_declined(client: ClientId, reason: Reason, detail: str) -> None:
    why = f"{reason.words}: {detail}" if detail else reason.words
    log(WARNING, "device %s does not go on with the round: %s", client, why)


_MOST_PER_NUMBER: Final = 8  # bytes of a masked number
_MOST_BESIDE: Final = 1 << 22  # of a node's longest message: shares for its neighbours
_LOOK_S: Final = 0.1  # how often it is seen what nodes have answered
_UNUSUAL_S: Final = 60.0  # after which it is said that nodes have not connected
_NOT_CONNECTED: Final = (
    "%d of %d nodes have connected. All nodes of a round take part at the same time: a simulation "
    "has to run all of them at once, with --federation-config 'client-resources-num-cpus=1 "
    "init-args-num-cpus=N' for N nodes, at most four more than there are CPUs"
)
_NOT_LISTED: Final = (
    "node %s is left out: its SuperNode's key is on no line of the list of SuperNodes (the "
    "SuperLink must run with --enable-supernode-auth)"
)
_SAME_KEY: Final = "node %s is left out: another node has registered with the same SuperNode's key"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the round's trips go.

    Attributes:
        host: the address that the server app listens at.
        port: 0 for any that is free.
        name: what devices call the host, if they call it something else.
        tls: the server app's certificate; needed unless everything is on one machine.
        authority: file of certificates (PEM) that vouch for it, which devices are handed.
    """

    host: str = "127.0.0.1"
    port: int = 0
    name: str = ""
    tls: Tls | None = None
    authority: Path | None = None


@dataclass(frozen=True, slots=True)
class Enrolled:
    """Nodes with identities of their own, as they need them where the server may deviate.

    Attributes:
        devices: file of the federation's list of devices.
        supernodes: file of the signatures by which SuperNodes' keys vouch for them.
    """

    devices: Path
    supernodes: Path


class _Invitations:
    """One message of Flower's to each node of a round, which says where to connect.

    Args:
        post: where the connections meet the round.
        grid: Flower's.
        messages: to each device.
    """

    def __init__(self, post: Post, grid: Grid, messages: Mapping[ClientId, Message]) -> None:
        self._post, self._grid, self._number = post, grid, len(messages)
        sent = grid.push_messages(list(messages.values()))
        self._gone = list[ClientId]()
        self._waiting = dict[str, ClientId]()
        for client, name in zip_longest(messages, sent):
            if name:
                self._waiting[name] = client
            else:
                self._gone.append(client)  # it is not there any more
        self._warned_at = time.monotonic() + _UNUSUAL_S

    def gone(self) -> Collection[ClientId]:
        """Those who have answered; a node does once it takes no further part."""
        connected = len(self._post.connected)
        if connected < self._number and time.monotonic() > self._warned_at:
            log(WARNING, _NOT_CONNECTED, connected, self._number)
            self._warned_at = math.inf
        for reply in self._grid.pull_messages(list(self._waiting)):
            # what a node says it answers need not be what it was asked
            client = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if client is not None:
                self._gone.append(client)
            if reply.has_error():
                # the node's own words: they could be long, or look like other lines of the log
                node, reason = reply.metadata.src_node_id, reply.error.reason
                log(WARNING, "node %s is gone: %.200r", node, reason)
        return self._gone


class PrivateDeltaFL(Strategy):
    """Private Δ-FL under Flower, or another algorithm that needs only sums.

    Args:
        theta: the conformity level, in (0, 1]; 1 is FedAvg by secure sums.
        algorithm: one that begins with "private-"; see `deltafl run --help`.
        settings: others, by section and name, as in a settings file.
        nodes: chooses nodes, and evaluates; by default all nodes are chosen, and none evaluates,
            because Flower shows the server what each node measures.
        listening: where the round's trips go.
        enrolled: the nodes' identities; without them, each node makes another one in each round,
            for which only the server app vouches.
        run_config: the run's configuration, `context.run_config`; needed with `enrolled`, because
            sessions are then about it as well.
        waiting: how deadlines are set.
        observer: sees all messages of secure rounds.

    Raises:
        ConfigError: the settings are not in order, or nodes need identities.
        UserError: a file cannot be read.
    """

    def __init__(
        self,
        theta: str | float = "1/2",
        *,
        algorithm: str = "private-delta-fl",
        settings: Table | None = None,
        nodes: Strategy | None = None,
        listening: Listening | None = None,
        enrolled: Enrolled | None = None,
        run_config: Mapping[str, Any] | None = None,
        waiting: Waiting | None = None,
        observer: Observer | None = None,
    ) -> None:
        own: Table = {
            "federation": {"theta": theta, "algorithm": algorithm, "devices": REMOTE},
            "training": {"device": "cpu"},
        }
        self._config = build_config([own, settings or {}])
        is_active = self._config.privacy.adversary == Adversary.ACTIVE
        if is_active and (enrolled is None or run_config is None):
            raise ConfigError(
                "an active privacy.adversary: nodes need identities; give "
                "enrolled=Enrolled(…) and run_config=context.run_config: see docs/flower.md"
            )
        if enrolled is not None and not is_active:
            raise ConfigError(
                'enrolled: nodes with identities insist on privacy.adversary = "active"; give '
                'settings={"privacy": {"adversary": "active"}}'
            )
        listed, self._supernodes = _read(enrolled)
        self._nodes = nodes or FedAvg(fraction_evaluate=0.0)
        self._listening = listening or Listening()
        observer = observer or NoObserver()
        self._rounds = Rounds(self._config, listed, waiting or Waiting(), observer)
        self._run_config = dict(run_config or {}) if enrolled else {}
        self._url = self._authority = ""

    def summary(self) -> None:
        """Log what is configured."""
        federation = self._config.federation
        log(INFO, "\t├──> %s, θ = %s", federation.algorithm, federation.theta)
        log(INFO, "\t└──> Nodes are chosen by %s", type(self._nodes).__name__)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        *args: Any,  # noqa: ANN401 (Flower's own)
        **options: Any,  # noqa: ANN401
    ) -> Result:
        """Run all rounds; see Flower's `Strategy.start`.

        Raises:
            ValueError: an array is none of a model's parameters, or could be none (`Layout`).
        """
        layout = Layout.of(_numpy(initial_arrays))
        _check_names(layout, self._config)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(self._rounds))
            self._listen(stack, _MOST_BESIDE + _MOST_PER_NUMBER * layout.length)
            return super().start(grid, initial_arrays, *args, **options)

    def _listen(self, stack: contextlib.ExitStack, longest: int) -> None:
        """Listen for connections, with frames of so many bytes, until the stack is closed."""
        at, door = self._listening, Door(self._rounds.admitted, self._listening.tls)
        where = at.host, at.port
        served = serving(self._rounds.post, door, where, max_frame=longest, name=at.name)
        self._url = stack.enter_context(served)
        if at.authority is not None:
            self._authority = at.authority.read_text(encoding="ascii")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Play a round with the nodes that are chosen.

        The round ends here, and Flower is left nothing to send: a node of which Flower says that it
        is gone must not be waited for, and Flower's own loop says so only when all are done.

        Raises:
            ConfigError: none of the nodes that are chosen is on the list.
        """
        chosen = list(self._nodes.configure_train(server_round, arrays, config, grid))
        nodes = sorted(message.metadata.dst_node_id for message in chosen)
        numbers = _numpy(arrays)
        handed = self._prepared(nodes, Layout.of(numbers), grid)
        if not handed:
            raise ConfigError("none of the nodes is on the lists of devices and SuperNodes")
        kind, group = MessageType.TRAIN, ""
        told = Told(Layout.of(numbers), kind, group, dict(config), self._run_config).digest()
        self._rounds.begin(server_round - 1, numbers, list(handed.values()), told)
        messages = {one.client: self._invitation(node, one, config) for node, one in handed.items()}
        invitations = _Invitations(self._rounds.post, grid, messages)
        while not self._rounds.has_ended():
            self._rounds.post.give_up(invitations.gone())  # each time: it may not have begun before
            time.sleep(_LOOK_S)
        return []

    def _prepared(self, nodes: Sequence[int], layout: Layout, grid: Grid) -> Mapping[int, Handover]:
        """What each node is handed, but the address."""
        if self._supernodes is None:
            prepared = self._rounds.prepare(layout, len(nodes))
            return dict(zip(nodes, prepared, strict=True))
        devices = _devices_of(nodes, self._supernodes, grid)
        prepared = self._rounds.prepare_listed(layout, list(devices.values()))
        return dict(zip(devices, prepared, strict=True))

    def _invitation(self, node: int, handover: Handover, config: ConfigRecord) -> Message:
        whole = replace(handover, url=self._url, authority=self._authority)
        content = RecordDict({"config": config, RECORD: ConfigRecord(dict(whole.to_record()))})
        return Message(content, dst_node_id=node, message_type=MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model, and what was learnt."""
        del server_round, replies
        arrays, report = self._rounds.end()
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return record, MetricRecord(_metrics(report))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy that chooses nodes does. Nodes then show what they measure."""
        messages: Iterable[Message] = self._nodes.configure_evaluate(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy that chooses nodes does."""
        return self._nodes.aggregate_evaluate(server_round, replies)


def _check_names(layout: Layout, config: RunConfig) -> None:
    """Refuse arrays without names where a server's step could leave the range of devices' numbers.

    Raises:
        ConfigError: one of them could be a variance, which would become negative.
    """
    steps = config.strategy.server_optimizer, config.strategy.server_learning_rate
    averages = steps[0] == SGD and steps[1] <= 1 and not config.dp.noise
    if not (averages or layout.has_names):
        raise ConfigError(
            "the arrays have no names, so the server's optimiser could make a running variance "
            "negative: name them, as ArrayRecord(net.state_dict()) does, or leave "
            f"strategy.server_optimizer at {SGD!r} with a rate of at most 1, without noise"
        )


def _read(enrolled: Enrolled | None) -> tuple[TrustedKeys, SuperNodes | None]:
    if enrolled is None:
        return TrustedKeys({}), None
    listed = read_directory(enrolled.devices)
    return listed, SuperNodes.read(enrolled.supernodes, listed)


def _devices_of(nodes: Sequence[int], supernodes: SuperNodes, grid: Grid) -> Mapping[int, ClientId]:
    """Which devices nodes are, by the keys with which their SuperNodes registered."""
    keys = {info.node_id: info.public_key for info in grid.get_nodes()}
    devices = {node: supernodes.device_of(keys.get(node, b"")) for node in nodes}
    number = Counter(devices.values())
    found = dict[int, ClientId]()
    for node, client in devices.items():
        if client is None:
            log(WARNING, _NOT_LISTED, node)
        elif number[client] > 1:
            log(WARNING, _SAME_KEY, node)
        else:
            found[node] = client
    return found


def _numpy(arrays: ArrayRecord) -> dict[str, Any]:
    return {name: np.asarray(array.numpy()) for name, array in arrays.items()}


def _metrics(report: RoundReport) -> dict[str, float | int | list[int] | list[float]]:
    """What is a number of a report."""
    names = ("kept_devices", "kept_weight", "eta", "train_loss", "secure_sums", "clipped")
    found = {name: getattr(report, name, None) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}
