"""What a node does."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import Net, load_data
from digits.task import test as test_fn
from digits.task import train as train_fn

app = ClientApp()


def prepare(msg: Message, context: Context):
    """The model of a message, and the node's data."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    config = context.node_config
    return net, *load_data(config["partition-id"], config["num-partitions"])


@app.train()
def train(msg: Message, context: Context):
    """Train the model on the node's data."""
    net, loader, _ = prepare(msg, context)
    torch.manual_seed(0)
    loss = train_fn(net, loader, msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Measure the model on the node's data."""
    net, _, loader = prepare(msg, context)
    loss, accuracy = test_fn(net, loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
