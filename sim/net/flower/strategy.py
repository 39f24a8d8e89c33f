"""The server's side inside Flower: a strategy for the Message API."""

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
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

from deltafl.fl.strategies.base import RoundReport, TrainingState
from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import SEED_SIZE, IdentityKey, identity
from deltafl.secagg.randomness import system_randomness
from deltafl.secagg.session import NoObserver, Observer
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.app import Tls, application, served
from deltafl.sim.net.deadlines import Waiting
from deltafl.sim.net.flower.handover import RECORD, Handover
from deltafl.sim.net.flower.layout import Layout
from deltafl.sim.net.frames import Reason
from deltafl.sim.net.post import Post
from deltafl.sim.net.remote import RemoteDevices, Site
from deltafl.sim.run.engine import strategy_of
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import Table, build_config

_MOST_PER_NUMBER: Final = 8  # bytes of a masked number
_MOST_BESIDE: Final = 1 << 22  # of a node's longest message: shares for its neighbours
_LOOK_S: Final = 0.1  # how often it is seen which nodes have answered
_UNUSUAL_S: Final = 60.0  # after which it is said that nodes have not connected
_NOT_CONNECTED: Final = (
    "%d of %d nodes have connected to %s. All nodes of a round take part at the same time: a "
    "simulation has to run all of them at once, with --federation-config "
    "'client-resources-num-cpus=1 init-args-num-cpus=N' for N nodes, at most four more than there "
    "are CPUs"
)
_TRIPS: Final = "%d trips to the nodes in %.1f s: the first took %.1f s, the median %.3f s"


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


class PrivateDeltaFL(Strategy):
    """Private Δ-FL under Flower, or another algorithm that needs only sums.

    Args:
        theta: the conformity level, in (0, 1]; 1 is FedAvg by secure sums.
        algorithm: one that begins with "private-"; see `deltafl run --help`.
        settings: others, by section and name, as in a settings file.
        nodes: chooses nodes, and evaluates; by default all nodes are chosen, and none evaluates,
            because Flower shows the server what each node measures.
        listening: where the round's trips go.
        waiting: how deadlines are set.
        observer: sees all messages of secure rounds.
    """

    def __init__(
        self,
        theta: str | float = "1/2",
        *,
        algorithm: str = "private-delta-fl",
        settings: Table | None = None,
        nodes: Strategy | None = None,
        listening: Listening | None = None,
        waiting: Waiting | None = None,
        observer: Observer | None = None,
    ) -> None:
        own: Table = {
            "federation": {"theta": theta, "algorithm": algorithm, "devices": REMOTE},
            "training": {"device": "cpu"},
        }
        self._config = build_config([own, settings or {}])
        if self._config.privacy.sessions_are_signed:
            raise ConfigError(
                "privacy.signed or an active privacy.adversary: nodes of Flower have no identities "
                "that devices could compare; run `deltafl serve` for signed sessions"
            )
        self._nodes = nodes or FedAvg(fraction_evaluate=0.0)
        self._listening = listening or Listening()
        self._rounds = _Rounds(self._config, waiting or Waiting(), observer or NoObserver())
        self._url = ""

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
        """Run all rounds; see Flower's `Strategy.start`."""
        at = self._listening
        longest = _MOST_BESIDE + _MOST_PER_NUMBER * Layout.of(_numpy(initial_arrays)).length
        app = application(
            self._rounds.post, self._rounds.admitted, b"" if at.tls is None else at.tls.hash()
        )
        with (
            served(app, at.host, at.port, tls=at.tls, max_frame=longest) as (host, port),
            contextlib.closing(self._rounds),
        ):
            scheme = "ws" if at.tls is None else "wss"
            self._url = f"{scheme}://{at.name or host}:{port}"
            return super().start(grid, initial_arrays, *args, **options)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Play a round with the nodes that are chosen.

        The round ends here, and Flower is left nothing to send: a node of which Flower says that it
        is gone must not be waited for, and Flower's own loop says so only when all are done.
        """
        chosen = list(self._nodes.configure_train(server_round, arrays, config, grid))
        nodes = sorted(message.metadata.dst_node_id for message in chosen)
        layout = Layout.of(_numpy(arrays))
        handovers = self._rounds.begin(server_round - 1, _numpy(arrays), layout, len(nodes))
        authority = self._listening.authority
        vouching = "" if authority is None else authority.read_text(encoding="ascii")
        messages = []
        for node, token in zip(nodes, handovers, strict=True):
            record = replace(token, url=self._url, authority=vouching).to_record()
            content = RecordDict({"config": config, RECORD: ConfigRecord(dict(record))})
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        self._wait(grid, messages, [one.client for one in handovers])
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model, and what was learnt."""
        del server_round, replies
        arrays, report = self._rounds.end()
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return record, MetricRecord(_metrics(report))

    def _wait(self, grid: Grid, messages: Sequence[Message], clients: Sequence[ClientId]) -> None:
        """Send the messages, and wait for the round's end; who answers them goes no further."""
        waiting = dict(zip(grid.push_messages(messages), clients, strict=True))
        gone = list[ClientId]()
        warned_at = time.monotonic() + _UNUSUAL_S
        while not self._rounds.has_ended():
            connected = len(self._rounds.post.connected)
            if connected < len(messages) and time.monotonic() > warned_at:
                log(WARNING, _NOT_CONNECTED, connected, len(messages), self._url)
                warned_at = math.inf
            for reply in grid.pull_messages(list(waiting)):
                gone.append(waiting.pop(reply.metadata.reply_to_message_id))
                if reply.has_error():
                    node = reply.metadata.src_node_id
                    log(WARNING, "node %s is gone: %s", node, reply.error.reason)
            self._rounds.post.give_up(gone)  # each time: the round may not have begun before
            time.sleep(_LOOK_S)

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


class _Rounds:
    """The rounds of a run, each in a thread of its own while Flower waits for the nodes.

    Attributes:
        post: the exchange with the connections.
        admitted: whose tokens admit them now.
    """

    def __init__(self, config: RunConfig, waiting: Waiting, observer: Observer) -> None:
        self.post = Post(time.monotonic, 0)
        self.admitted = _Tokens()
        self._config = config
        self._strategy = strategy_of(config)
        self._trips: list[float] = []
        self._next_id = 0
        site = Site(
            self.post,
            TrustedKeys({}),
            time.monotonic,
            waiting,
            declined=_note_declined,
            stage=lambda _server, _asked: self._trips.append(time.monotonic()),
        )
        self._devices = RemoteDevices(config, site, observer)
        self._state: TrainingState | None = None
        self._others: Mapping[str, Any] = {}
        self._layout = Layout((), (), ())
        self._running: Future[tuple[TrainingState, RoundReport]] | None = None
        self._executor = ThreadPoolExecutor(1, "round")

    def begin(
        self, index: int, arrays: Mapping[str, Any], layout: Layout, number: int
    ) -> Sequence[Handover]:
        """Begin a round with so many devices; what each is handed, but for the address."""
        model = layout.to_vector(arrays)
        self._others, self._layout = arrays, layout
        state = self._state or self._strategy.init(model, number)
        state = replace(state, model=model, round=index)
        tokens = [system_randomness(SEED_SIZE) for _ in range(number)]
        keys = [identity(token).public for token in tokens]
        # no id twice: a node that is still connected from an earlier round is nobody in this one
        ids = [ClientId(self._next_id + i) for i in range(number)]
        self._next_id += number
        self.admitted.keys = dict(zip(ids, keys, strict=True))
        self.post.keep_only(ids)
        self._running = self._executor.submit(self._play, state, ids)
        return [
            Handover("", "", client, token, layout)
            for client, token in zip(ids, tokens, strict=True)
        ]

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


class _Tokens:
    """Who is admitted in the current round; a `Directory`."""

    def __init__(self) -> None:
        self.keys: Mapping[ClientId, IdentityKey] = {}

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether this key follows from the device's token."""
        return self.keys.get(client) == key


def _numpy(arrays: ArrayRecord) -> dict[str, Any]:
    return {name: np.asarray(array.numpy()) for name, array in arrays.items()}


def _metrics(report: RoundReport) -> dict[str, float]:
    """What is a number of a report."""
    names = ("kept_devices", "kept_weight", "eta", "train_loss", "secure_sums", "clipped")
    found = {name: getattr(report, name, None) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def _note_declined(client: ClientId, reason: Reason) -> None:
    log(WARNING, "device %s does not go on with the round: %s", client, reason.name.lower())
