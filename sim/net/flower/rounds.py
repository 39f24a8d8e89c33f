"""The rounds of a run under Flower, each in a thread while Flower waits for the nodes."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from logging import INFO, WARNING
from statistics import median
from typing import Any, Final

from flwr.common import log

from deltafl.fl.strategies.base import RoundReport, TrainingState
from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.directory import Directory
from deltafl.secagg.identity import SEED_SIZE, IdentityKey, identity
from deltafl.secagg.randomness import system_randomness
from deltafl.secagg.session import Observer
from deltafl.sim.net.deadlines import Waiting
from deltafl.sim.net.flower.handover import Handover
from deltafl.sim.net.flower.layout import Layout
from deltafl.sim.net.frames import Reason
from deltafl.sim.net.post import Post
from deltafl.sim.net.remote import RemoteDevices, Site
from deltafl.sim.run.levels import strategy_of
from deltafl.sim.settings.config import RunConfig

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
        self._config = config
        self._listed = devices
        self._strategy = strategy_of(config)
        self._trips: list[float] = []
        self._next_id = 0
        self._told = b""
        site = Site(
            self.post,
            devices,
            time.monotonic,
            waiting,
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


def _note_declined(client: ClientId, reason: Reason) -> None:
    log(WARNING, "device %s does not go on with the round: %s", client, reason.name.lower())
