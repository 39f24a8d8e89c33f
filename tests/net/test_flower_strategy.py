"""Apps of Flower's, under its own strategy loop, with nodes that are threads."""

import logging
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")

import numpy as np
from flower_nodes import NODES, Grid, app, started
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from supernode_keys import enrolled

from deltafl.flower import Enrolled, PrivateDeltaFL
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import ClientId
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.flower.strategy import _devices_of, _Invitations
from deltafl.sim.net.post import Post
from deltafl.sim.net.trips import Waiting


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0


@pytest.fixture
def said(caplog):
    """What is logged; Flower's log tells nobody else by itself."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def evaluated(*args, **options):
    """Private Δ-FL whose nodes show the server what they measure."""
    return PrivateDeltaFL(*args, nodes=FedAvg(), **options)


def means(result):
    found = [record["mean"] for record in result.evaluate_metrics_clientapp.values()]
    return pytest.approx(found)


@pytest.mark.slow
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


@pytest.mark.slow
def test_nodes_weigh_themselves_as_the_algorithm_says():
    """q-FFL weighs by the loss, here 1 to 10; of FedAvg, the mean is 4.5."""
    policy = RoundPolicy(max_weight=1 << 40, min_update_resolution_bits=0)
    strategy = evaluated(1, algorithm="private-q-ffl")
    result = started(strategy, Grid(app(policy=policy)))
    assert result.evaluate_metrics_clientapp[1]["mean"] > 4.5 / 64


def test_a_round_below_a_nodes_policy_is_refused_and_the_model_stays():
    result = started(evaluated(1, algorithm="private-q-ffl"), Grid(app()))
    assert means(result) == [0.0]


def start_with(name, **strategy):
    """Play no round, with a model that has one array, of ones, under this name."""
    first = ArrayRecord({name: Array(np.ones(3, np.float32))})
    private = PrivateDeltaFL(1, settings={"strategy": strategy})
    return private.start(grid=Grid(app()), initial_arrays=first, num_rounds=0)


@pytest.mark.parametrize(
    "strategy", [{"server_optimizer": "momentum"}, {"server_learning_rate": 1.5}]
)
def test_arrays_without_names_are_refused_where_the_server_does_more_than_average(strategy):
    with pytest.raises(ConfigError, match=r"no names.*state_dict.*server_optimizer at 'sgd'"):
        start_with("0", **strategy)


@pytest.mark.parametrize("strategy", [{}, {"server_learning_rate": 0.5}])
def test_where_it_averages_they_are_not(strategy):
    assert not start_with("0", **strategy).train_metrics_clientapp


def test_with_names_it_may_do_more():
    assert not start_with("0.weight", server_optimizer="adam").train_metrics_clientapp


def test_running_statistics_are_refused_before_any_node_is_asked():
    with pytest.raises(ValueError, match=r"bn\.running_var.*with_group_norm"):
        start_with("bn.running_var")


@pytest.mark.slow
def test_a_node_that_is_gone_costs_its_update_only():
    settings = {"privacy": {"expected_dropout": 0.2, "min_cohort": 6}}
    policy = RoundPolicy(min_cohort=6, dropout_rate=0.2)
    strategy = evaluated(1, algorithm="private-fedavg", settings=settings)
    result = started(strategy, Grid(app(policy=policy), gone=[9]))
    assert means(result) == [4 / 64]


@pytest.mark.slow
def test_training_that_fails_counts_as_zeros():
    def train(message, context, reply):
        if context.node_config["partition-id"] == 9:
            raise RuntimeError("no")
        return reply

    result = started(evaluated(1, algorithm="private-fedavg"), Grid(app(train)))
    assert means(result) == [3.6 / 64]


def test_sessions_that_need_identities_are_refused():
    with pytest.raises(ConfigError, match="Enrolled"):
        evaluated(settings={"privacy": {"adversary": "active"}})


@pytest.mark.parametrize("name", ["private", "secure-aggregation"])
def test_the_example_is_a_few_lines_away_from_fedavg(name):
    folder = Path(__file__).parents[2] / "docs" / "examples" / "flower"
    lines = (folder / f"{name}.patch").read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert 0 < len(added) <= 15


@pytest.mark.slow
def test_unless_it_is_asked_for_no_node_shows_what_it_measures():
    grid = Grid(app())
    result = started(PrivateDeltaFL(), grid)
    assert not result.evaluate_metrics_clientapp
    assert {message.metadata.message_type for message in grid.seen} == {"train"}
    assert result.arrays["w"].numpy().mean() == pytest.approx(6.5 / 64)


def listed(folder, ids, run_config=None):
    """A grid of nodes with identities, and a strategy that takes no others."""
    keys = enrolled(folder, ids)

    def config(number):
        return {
            "deltafl-identity": str(folder / f"device-{ids[number]}.identity"),
            "deltafl-devices": str(folder / "devices.txt"),
        }

    grid = Grid(app(), config=config, keys=keys)
    strategy = PrivateDeltaFL(
        settings={"privacy": {"adversary": "active"}},
        enrolled=Enrolled(folder / "devices.txt", folder / "supernodes.txt"),
        run_config=run_config or {},
    )
    return strategy, grid


@pytest.mark.slow
def test_nodes_with_identities_take_part(tmp_path):
    """In another order than that of the nodes; the ledger lies beside the identity."""
    ids = [31, 4, 15, 9, 2, 6, 5, 35, 8, 97]
    strategy, grid = listed(tmp_path, ids)
    result = started(strategy, grid)
    assert result.arrays["w"].numpy().mean() == pytest.approx(6.5 / 64)
    assert {path.stem for path in tmp_path.glob("*.ledger")} == {f"device-{i}" for i in ids}
    handed = {m.metadata.dst_node_id: m.content["deltafl"] for m in grid.seen}
    assert {node: record["client"] for node, record in handed.items()} == {
        1000 + number: client for number, client in enumerate(ids)
    }
    assert all(record["token"] == b"" for record in handed.values())


def test_nodes_whose_keys_are_not_listed_are_left_out(tmp_path):
    strategy, grid = listed(tmp_path, list(range(NODES)))
    grid.keys = ()
    with pytest.raises(ConfigError, match="none of the nodes"):
        started(strategy, grid)
    assert not grid.seen


def test_one_key_is_one_device_whatever_the_superlink_says(tmp_path):
    strategy, grid = listed(tmp_path, list(range(NODES)))
    found = _devices_of([1000, 1001, 1002], strategy._supernodes, grid)
    assert found == {1000: 0, 1001: 1, 1002: 2}
    grid.keys = [grid.keys[0], grid.keys[0], grid.keys[2]]
    assert _devices_of([1000, 1001, 1002], strategy._supernodes, grid) == {1002: 2}


def told_otherwise(change):
    """A grid whose first node is sent something else than the others."""

    class Lying(Grid):
        def push_messages(self, messages):
            changed = [change(m) if m.metadata.dst_node_id == 1000 else m for m in messages]
            return super().push_messages(changed)

    return Lying


def other_config(message):
    message.content["config"]["lr"] = 7.0
    return message


def other_layout(message):
    message.content["deltafl"]["layout"] = '[["w"],[[6]],["float32"]]'
    return message


def other_group(message):
    return Message(message.content, dst_node_id=1000, message_type="train", group_id="7")


@pytest.mark.slow
@pytest.mark.parametrize("change", [other_config, other_layout, other_group])
def test_a_node_that_is_told_otherwise_than_the_others_takes_no_part(tmp_path, change, said):
    """What Flower's messages say is in the session's graph seed."""
    strategy, honest = listed(tmp_path, list(range(NODES)))
    grid = told_otherwise(change)(honest.app, config=honest.config, keys=honest.keys)
    result = started(strategy, grid)
    assert result.arrays["w"].numpy().mean() == 0  # nine are too few
    assert "device 0 does not go on with the round: settings" in said.text


@pytest.mark.slow
def test_what_the_app_is_handed_is_what_the_session_is_about(tmp_path):
    """A model in the message, or any other record, goes nowhere."""

    def with_a_model(message):
        message.content["arrays"] = ArrayRecord({"w": Array(np.ones((2, 3), np.float32))})
        message.content["more"] = ConfigRecord({"lr": 7.0})
        return message

    seen = []

    def train(message, context, reply):
        seen.append((sorted(message.content), float(message.content["arrays"]["w"].numpy().sum())))
        return reply

    strategy, honest = listed(tmp_path, list(range(NODES)))
    grid = told_otherwise(with_a_model)(app(train), config=honest.config, keys=honest.keys)
    result = started(strategy, grid)
    assert seen == [(["arrays", "config"], 0.0)] * NODES
    assert result.arrays["w"].numpy().mean() == pytest.approx(6.5 / 64)


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_sessions_of_an_active_server_are_about_the_runs_configuration(tmp_path, same, said):
    strategy, grid = listed(tmp_path, list(range(NODES)), run_config={"lr": 0.1, "n": 1})
    for number, context in enumerate(grid.contexts.values()):
        context.run_config = {"n": 1, "lr": 0.1 if same or number else 7.0}
    started(strategy, grid)
    assert ("does not go on with the round: settings" in said.text) is not same


def test_a_node_with_an_identity_answers_to_nothing_else(tmp_path, said):
    """Else a server would ask it to train, and be shown its model."""
    _, grid = listed(tmp_path, list(range(NODES)))
    arrays = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32))})
    for kind in ("train", "evaluate"):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({})})
        message = Message(content, dst_node_id=1000, message_type=kind)
        with pytest.raises(RuntimeError, match="its log says why"):
            grid.app(message, grid.contexts[1000])
    assert "rounds of PrivateDeltaFL only" in said.text


@pytest.mark.parametrize(
    "options",
    [
        {"run_config": {}},
        {"enrolled": True, "run_config": None},
        {"enrolled": True, "run_config": {}, "adversary": "curious"},
    ],
)
def test_sessions_of_an_active_server_need_all_that_they_are_about(tmp_path, options):
    enrolled(tmp_path, [0])
    lists = Enrolled(tmp_path / "devices.txt", tmp_path / "supernodes.txt")
    with pytest.raises(ConfigError, match="active"):
        PrivateDeltaFL(
            settings={"privacy": {"adversary": options.get("adversary", "active")}},
            enrolled=lists if options.get("enrolled") else None,
            run_config=options["run_config"],
        )


def test_a_node_that_answers_what_it_was_not_asked_changes_nothing():
    class Forged(Grid):
        def pull_messages(self, ids):
            replies = super().pull_messages(ids)
            for reply in replies:
                if reply.metadata.src_node_id == 1000:
                    reply.metadata.__dict__["_reply_to_message_id"] = "of somebody else"
            return replies

    grid = Forged(app(), gone=range(NODES))
    strategy = PrivateDeltaFL(waiting=Waiting(1.0, 0.5))
    result = started(strategy, grid)
    assert result.arrays["w"].numpy().tolist() == [[0, 0, 0]] * 2


def test_a_nodes_own_words_are_one_short_line_of_the_log(said):
    class Rude(Grid):
        def _one(self, message):
            words = "out\nWARNING: node 7 is left out" + "x" * 10**6
            return Message(Error(0, words), reply_to=message)

    message = Message(RecordDict({}), dst_node_id=1000, message_type="train")
    grid = Rude(app())
    invitations = _Invitations(Post(lambda: 0.0, 0), grid, {ClientId(3): message})
    grid.pool.shutdown()
    assert invitations.gone() == [3]
    (line,) = {record.getMessage() for record in said.records}
    assert "is gone: 'out\\nWARNING" in line
    assert "\n" not in line
    assert len(line) < 300
