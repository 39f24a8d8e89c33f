"""Apps of Flower's, under its own strategy loop, with nodes that are threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

flwr = pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")

from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from deltafl.flower import DeltaFLMod, PrivateDeltaFL  # noqa: E402
from deltafl.protocol.policy import RoundPolicy  # noqa: E402
from deltafl.sim.errors import ConfigError  # noqa: E402

NODES = 10


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0


class Grid:
    """Nodes that are threads; some do not answer."""

    def __init__(self, app, gone=()):
        self.app, self.gone, self.seen = app, gone, []
        self.pool = ThreadPoolExecutor(NODES)

    def get_node_ids(self):
        return range(1000, 1000 + NODES)

    def push_messages(self, messages):
        self.replies = {str(i): self.pool.submit(self._one, m) for i, m in enumerate(messages)}
        return list(self.replies)

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
        config = {"partition-id": node - 1000}
        return self.app(message, Context(1, node, config, RecordDict(), {}))


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


def started(strategy, grid, rounds=1):
    first = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "n": Array(np.array([4]))})
    return strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)


def evaluated(*args, **options):
    """Private Δ-FL whose nodes show the server what they measure."""
    return PrivateDeltaFL(*args, nodes=FedAvg(), **options)


def means(result):
    found = [record["mean"] for record in result.evaluate_metrics_clientapp.values()]
    return pytest.approx(found)


def test_the_tail_trains_an_ordinary_app():
    """Of devices 0 to 9, η keeps those from 4 on, whose mean is 6.5."""
    grid = Grid(app())
    result = started(evaluated("1/2"), grid, rounds=2)
    assert means(result) == [6.5 / 64, 13 / 64]
    assert result.arrays["n"].numpy().tolist() == [4]
    assert result.train_metrics_clientapp[1]["kept_devices"] == 6
    for message in grid.seen:
        if "deltafl" in message.content:
            assert "arrays" not in message.content  # it goes over the transport, once


def test_federated_averaging_by_sums():
    result = started(evaluated(1, algorithm="private-fedavg"), Grid(app()))
    assert result.train_metrics_clientapp[1]["kept_devices"] == NODES
    assert means(result) == [4.5 / 64]


def test_nodes_weigh_themselves_as_the_algorithm_says():
    """q-FFL weighs by the loss, here 1 to 10; of FedAvg, the mean is 4.5."""
    policy = RoundPolicy(max_weight=1 << 40, min_update_resolution_bits=0)
    strategy = evaluated(1, algorithm="private-q-ffl")
    result = started(strategy, Grid(app(policy=policy)))
    assert result.evaluate_metrics_clientapp[1]["mean"] > 4.5 / 64


def test_a_round_below_a_nodes_policy_is_refused_and_the_model_stays():
    result = started(evaluated(1, algorithm="private-q-ffl"), Grid(app()))
    assert means(result) == [0.0]


def test_a_node_that_is_gone_costs_its_update_only():
    settings = {"privacy": {"expected_dropout": 0.2, "min_cohort": 6}}
    policy = RoundPolicy(min_cohort=6, dropout_rate=0.2)
    strategy = evaluated(1, algorithm="private-fedavg", settings=settings)
    result = started(strategy, Grid(app(policy=policy), gone=[9]))
    assert means(result) == [4 / 64]


def test_training_that_fails_counts_as_zeros():
    def train(message, context, reply):
        if context.node_config["partition-id"] == 9:
            raise RuntimeError("no")
        return reply

    result = started(evaluated(1, algorithm="private-fedavg"), Grid(app(train)))
    assert means(result) == [3.6 / 64]


def test_sessions_that_need_identities_are_refused():
    with pytest.raises(ConfigError, match="deltafl serve"):
        evaluated(settings={"privacy": {"adversary": "active"}})


def test_the_example_is_a_few_lines_away_from_fedavg():
    folder = Path(__file__).parents[2] / "docs" / "examples" / "flower"
    lines = (folder / "private.patch").read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert 0 < len(added) <= 15


def test_unless_it_is_asked_for_no_node_shows_what_it_measures():
    grid = Grid(app())
    result = started(PrivateDeltaFL(), grid)
    assert not result.evaluate_metrics_clientapp
    assert {message.metadata.message_type for message in grid.seen} == {"train"}
    assert result.arrays["w"].numpy().mean() == pytest.approx(6.5 / 64)
