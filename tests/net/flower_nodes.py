"""Nodes of Flower's that are threads, and the app that they run."""

import ast
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from types import SimpleNamespace
from unittest import mock

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from deltafl.flower import DeltaFLMod

NODES = 10


class Grid:
    """Nodes that are threads; some do not answer.

    Args:
        app: what they run.
        gone: which do not answer, counted from 0.
        config: of a node, beside its partition; called with its number.
        keys: of their SuperNodes (PEM), in order.
    """

    def __init__(self, app, gone=(), config=lambda _number: {}, keys=()):
        self.app, self.gone, self.seen, self.config, self.keys = app, gone, [], config, keys
        self.pool, self.replies = ThreadPoolExecutor(NODES), {}
        self.contexts = {
            1000 + i: Context(1, 1000 + i, {"partition-id": i, **config(i)}, RecordDict(), {})
            for i in range(NODES)
        }

    def get_node_ids(self):
        return range(1000, 1000 + NODES)

    def get_nodes(self):
        keys = [*self.keys, *[b""] * NODES]
        return [SimpleNamespace(node_id=1000 + i, public_key=keys[i]) for i in range(NODES)]

    def push_messages(self, messages):
        sent = []
        for message in messages:
            sent.append(f"message {len(self.replies)}")
            self.replies[sent[-1]] = self.pool.submit(self._one, message)
        return sent

    def pull_messages(self, ids):
        replies = {i: self.replies[i].result() for i in ids if self.replies[i].done()}
        for i, reply in replies.items():
            reply.metadata.__dict__["_reply_to_message_id"] = i
        return list(replies.values())

    def send_and_receive(self, messages, timeout=None):
        del timeout
        return list(self.pool.map(self._one, messages))

    def _one(self, message):
        node = message.metadata.dst_node_id
        self.seen.append(message)
        if node - 1000 in self.gone:
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        return self.app(message, self.contexts[node])


def app(train=None, policy=None):
    """Nodes whose update is all ones, times their number; their loss is it too."""

    def own_loss(message, context):
        return 1.0 + context.node_config["partition-id"], 10

    made = ClientApp(mods=[DeltaFLMod(own_loss, policy)])

    @made.train()
    def usual(message, context):
        arrays = message.content["arrays"]
        number = context.node_config["partition-id"] / 64
        new = {name: Array(array.numpy() + np.float32(number)) for name, array in arrays.items()}
        metrics = MetricRecord({"num-examples": 10})
        content = RecordDict({"arrays": ArrayRecord(new), "metrics": metrics})
        return (train or (lambda _m, _c, reply: reply))(
            message, context, Message(content, reply_to=message)
        )

    @made.evaluate()
    def evaluate(message, context):
        del context
        mean = float(message.content["arrays"]["w"].numpy().mean())
        metrics = MetricRecord({"mean": mean, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return made


_ONE, _evaluated = RLock(), ast.literal_eval


def _one_at_a_time(text):
    """`ast.literal_eval`, which in Python 3.11 may fail where several threads are in it.

    NumPy reads the shapes of Flower's arrays by it. On nodes that are processes, one thread does.
    """
    with _ONE:
        return _evaluated(text)


in_turn = mock.patch.object(ast, "literal_eval", _one_at_a_time)


def started(strategy, grid, rounds=1):
    first = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "n": Array(np.array([4]))})
    with in_turn:
        return strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)
