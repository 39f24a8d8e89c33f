"""Who carries a round's trips: connections of the nodes, or messages of Flower's.

Either way, the frames are those of `deltafl.sim.net.frames`, and the round meets them in a `Post`.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from logging import WARNING
from typing import Final, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from deltafl.secagg import ClientId, DecodeError
from deltafl.sim.net.flower.messages import frames_of, record_of
from deltafl.sim.net.post import Line, Post

_UNUSUAL_S: Final = 60.0  # after which it is said that nodes have not connected
_MOST_FRAMES: Final = 8  # of an answer: each envelope is answered by one
_NOT_CONNECTED: Final = (
    "%d of %d nodes have connected. All nodes of a round take part at the same time: a simulation "
    "has to run all of them at once, with --federation-config 'client-resources-num-cpus=1 "
    "init-args-num-cpus=N' for N nodes, at most four more than there are CPUs"
)


@dataclass(frozen=True, slots=True)
class Invited:
    """A node that takes part in a round.

    Attributes:
        client: its id in the round.
        node: Flower's number of it.
        content: what it is told.
    """

    client: ClientId
    node: int
    content: Mapping[str, ArrayRecord | ConfigRecord]

    def message(self, frames: Sequence[bytes] = ()) -> Message:
        """A message to it, which may carry frames."""
        carried = record_of(frames) if frames else {}
        content = RecordDict({**self.content, **carried})
        return Message(content, dst_node_id=self.node, message_type=MessageType.TRAIN)


class Trips(Protocol):
    """Carries the trips of one round."""

    def look(self) -> Collection[ClientId]:
        """Carry what there is to carry; the nodes that will not answer any more."""

    def end(self) -> None:
        """The round is over."""


class ByConnection:
    """Nodes connect by themselves; one message of Flower's to each says where.

    Args:
        post: where the connections meet the round.
        grid: Flower's.
        invited: the nodes.
    """

    def __init__(self, post: Post, grid: Grid, invited: Sequence[Invited]) -> None:
        self._post, self._grid, self._number = post, grid, len(invited)
        sent = grid.push_messages([one.message() for one in invited])
        self._gone = list[ClientId]()
        self._waiting = dict[str, ClientId]()
        for one, name in zip_longest(invited, sent):
            if name:
                self._waiting[name] = one.client
            else:
                self._gone.append(one.client)  # it is not there any more
        self._warned_at = time.monotonic() + _UNUSUAL_S

    def look(self) -> Collection[ClientId]:
        """See who has answered; a node does once it takes no further part."""
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
                _log_gone(reply)
        return self._gone

    def end(self) -> None:
        """Nothing: nodes are told so by their connections."""


@dataclass(slots=True, eq=False)
class ByMessages:
    """All that passes is in messages of Flower's, of which a node has one at a time.

    Attributes:
        post: where they meet the round.
        grid: Flower's.
        longest: bytes of an answer, at most.
    """

    post: Post
    grid: Grid
    longest: int
    _lines: dict[Line, Invited] = field(default_factory=dict)
    _waiting: dict[str, Line] = field(default_factory=dict)
    _gone: list[ClientId] = field(default_factory=list)

    def invite(self, invited: Sequence[Invited]) -> None:
        """Let nodes take part."""
        self._lines = {self.post.connect(one.client, _wake): one for one in invited}

    def look(self) -> Collection[ClientId]:
        """Fetch what nodes have answered, and send them what is due."""
        for reply in self.grid.pull_messages(list(self._waiting)) if self._waiting else ():
            line = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if line is None:
                log(WARNING, "node %s answers what it was not asked", reply.metadata.src_node_id)
                continue
            try:
                self._take(line, reply)
            except (DecodeError, ValueError) as error:
                log(WARNING, "node %s breaks the rules: %s", self._lines[line].node, error)
                self._lose(line)
        busy = set(self._waiting.values())
        due = [
            (line, frames)
            for line in self._lines
            if line not in busy and (frames := self._due(line))
        ]
        messages = [self._lines[line].message(f) for line, f in due]
        sent = self.grid.push_messages(messages) if messages else ()
        for (line, _), name in zip_longest(due, sent):
            if name:
                self._waiting[name] = line
            else:
                self._lose(line)  # it is not there any more
        return self._gone

    def is_waiting(self) -> bool:
        """Whether a node has not answered yet."""
        return bool(self._waiting)

    def end(self) -> None:
        """Take no more part. What nodes answer now, nobody fetches."""
        for line in self._lines:
            self.post.disconnect(line)

    def _take(self, line: Line, reply: Message) -> None:
        if reply.has_error():
            _log_gone(reply)
            self._lose(line)
            return
        for frame in frames_of(reply.content, most=_MOST_FRAMES, longest=self.longest):
            self.post.received(line, frame)

    def _due(self, line: Line) -> list[bytes]:
        frames = list[bytes]()
        while (frame := self.post.take(line)) is not None:
            frames.append(frame)
        return frames

    def _lose(self, line: Line) -> None:
        self._gone.append(line.client)
        self.post.disconnect(line)


def _wake() -> None:
    """Nothing: it is looked often enough."""


def _log_gone(reply: Message) -> None:
    # the node's own words: they could be long, or look like other lines of the log
    log(WARNING, "node %s is gone: %.200r", reply.metadata.src_node_id, reply.error.reason)
