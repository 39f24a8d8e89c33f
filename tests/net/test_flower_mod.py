"""What a node's mod hands to the app, and what it lets the server see, without a round."""

import logging

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")

import numpy as np
from federations import settings
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from supernode_keys import enrolled

from deltafl.flower import DeltaFLMod
from deltafl.secagg import ClientId
from deltafl.secagg.identity import identity
from deltafl.sim.net.flower import mod
from deltafl.sim.net.flower.messages import RECORD, Handover, Layout
from deltafl.sim.net.frames import Decline, Reason, Task, decode, encode
from deltafl.sim.settings.config_io import to_toml

LAYOUT = Layout(("w",), ((2,),), ("float32",))


@pytest.fixture
def node(tmp_path):
    """A node's context; it has an identity of its own."""
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0
    enrolled(tmp_path, [0])
    files = {
        "deltafl-identity": str(tmp_path / "device-0.identity"),
        "deltafl-devices": str(tmp_path / "devices.txt"),
    }
    return Context(1, 1000, files, RecordDict(), {})


def message(config, token=b""):
    handover = Handover("ws://127.0.0.1:1", "", ClientId(0), token, LAYOUT)
    content = {
        "config": ConfigRecord(config),
        RECORD: ConfigRecord(dict(handover.to_record())),
    }
    return Message(RecordDict(content), dst_node_id=1000, message_type="train")


def handed(monkeypatch, node, tmp_path, config, run):
    """The digest of what a node is told, and what its app is handed, each as it is ordered."""
    seen = []

    def own_loss(msg, context):
        seen.extend([list(msg.content["config"].items()), list(context.run_config.items())])
        return 1.0, 1

    async def take_part(_server, device, *_args, **_options):
        app = device.work_of.__self__
        app.loss(np.zeros(2, np.float32))
        seen.append(app.told.digest())

    monkeypatch.setattr(mod, "take_part", take_part)
    node.run_config = run
    DeltaFLMod(own_loss, folder=tmp_path)(message(config), node, lambda msg, _context: msg)
    return seen


def test_the_same_in_another_order_is_the_same_for_the_app(monkeypatch, node, tmp_path):
    """The digest says nothing of orders, so a server must not be able to choose one for a node."""
    one = handed(monkeypatch, node, tmp_path, {"b": 1, "a": 2.5}, {"x": True, "w": "1"})
    other = handed(monkeypatch, node, tmp_path, {"a": 2.5, "b": 1}, {"w": "1", "x": True})
    assert one == other
    assert one[0] == [("a", 2.5), ("b", 1)]
    different = handed(monkeypatch, node, tmp_path, {"a": 2.5, "b": 1.0}, {"w": "1", "x": True})
    assert different[-1] != one[-1]


def test_what_the_session_is_not_about_is_declined(monkeypatch, node, tmp_path):
    answers = []

    async def take_part(_server, device, *_args, **_options):
        about = device.work_of.__self__.told.digest()
        for beside in (b"x" * 32, about):
            toml = to_toml(settings()).encode()
            answers.append(device.receive(encode(Task(beside[:16], 0, 0, toml, beside=beside))))

    monkeypatch.setattr(mod, "take_part", take_part)
    DeltaFLMod(lambda *_: (1.0, 1), folder=tmp_path)(message({}), node, lambda msg, _context: msg)
    declined, begun = answers
    assert decode(declined) == Decline(b"x" * 16, Reason.SETTINGS)
    assert begun is None


def test_what_the_server_hands_a_node_signs_in_no_session(monkeypatch, node, tmp_path):
    """A token only opens the door: whom the others know, the node has drawn itself."""
    found = []

    async def take_part(_server, device, *_args, **_options):
        found.extend([device.own.identity, device.credentials(), device.credentials()])

    monkeypatch.setattr(mod, "take_part", take_part)
    node.node_config.clear()
    DeltaFLMod(lambda *_: (1.0, 1), folder=tmp_path)(message({}, bytes(32)), node, lambda *_: None)
    door, one, other = found
    assert door.public == identity(bytes(32)).public
    assert len({door.public, one.identity.public, other.identity.public}) == 3
    one.directory.learn({ClientId(1): door.public})
    assert not one.directory.accepts(ClientId(1), other.identity.public)
    assert other.directory.accepts(ClientId(1), other.identity.public)


@pytest.mark.parametrize(
    "error", [PermissionError(13, "denied", "/home/alice/x"), RuntimeError("/home/alice/x")]
)
def test_what_goes_wrong_on_a_node_is_said_on_the_node_only(
    monkeypatch, node, tmp_path, error, caplog
):
    """Flower shows the server what a mod raises."""

    async def take_part(*_args, **_options):
        raise error

    monkeypatch.setattr(mod, "take_part", take_part)
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(RuntimeError) as raised:
            DeltaFLMod(lambda *_: (1.0, 1), folder=tmp_path)(message({}), node, lambda *_: None)
    finally:
        logger.removeHandler(caplog.handler)
    assert str(raised.value) == "the node cannot take part, and its log says why"
    assert "alice" in caplog.text
