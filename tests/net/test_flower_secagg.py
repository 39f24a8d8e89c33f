"""The example's secure aggregation is its federated averaging, but for rounding."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")

import numpy as np
import torch
from flower_nodes import NODES, Grid, in_turn
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from deltafl.flower import PrivateDeltaFL

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "flower"
ROUNDS = 1


def client_app(folder, patch=None):
    """The example's nodes, with a patch or without, and its module of tasks."""
    shutil.copytree(EXAMPLE / "app", folder)
    if patch is not None:
        command = [shutil.which("patch"), "-p1", "-s", "-i", str(EXAMPLE / patch)]
        subprocess.run(command, cwd=folder, check=True)  # noqa: S603
    sys.path.insert(0, str(folder))
    try:
        from digits import client_app, task
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "digits"]:
            del sys.modules[name]

    def train(net, loader, lr):  # nodes are threads here, and torch has one generator for all
        loader.sampler.generator = torch.Generator().manual_seed(0)
        return task.train(net, loader, lr)

    client_app.train_fn = train
    return client_app.app, task


def trained(strategy, app, first):
    """The arrays after each round."""
    after = []

    def seen(_round, arrays):
        after.append({name: array.numpy() for name, array in arrays.items()})

    with in_turn:
        strategy.start(
            grid=Grid(app, config=lambda _: {"num-partitions": NODES}),
            initial_arrays=first,
            train_config=ConfigRecord({"lr": 0.1}),
            num_rounds=ROUNDS,
            evaluate_fn=seen,
        )
    return after


@pytest.mark.slow
def test_secure_aggregation_is_federated_averaging(tmp_path, monkeypatch):
    """But for rounding, after a round; later, a rounding may decide on which side of 0 a unit is.

    Each of m nodes rounds n_k·Δ_k to multiples of 2^-10, so that the mean is off by at most
    m·2^-11 / Σ n_k, with n_k = 143 here; and both means are of float32, of less than 1.
    """
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0
    plain, task = client_app(tmp_path / "plain")
    private, _ = client_app(tmp_path / "private", "secure-aggregation.patch")
    torch.manual_seed(1)
    net = task.Net()
    first = {name: one.clone() for name, one in net.state_dict().items()}
    usual = trained(FedAvg(fraction_evaluate=0.0), plain, ArrayRecord(first))
    secure = trained(PrivateDeltaFL(theta=1), private, ArrayRecord(first))

    def right(arrays):
        net.load_state_dict({name: torch.tensor(one) for name, one in arrays.items()})
        return np.mean([task.test(net, task.load_data(i, NODES)[1])[1] for i in range(NODES)])

    for one, other in zip(usual, secure, strict=True):
        print(f"{right(one):.4f} by FedAvg, {right(other):.4f} by secure aggregation")
    moved, apart = (
        max(np.abs(after[1][name] - usual[of][name]).max() for name in first)
        for after, of in ((usual, 0), (secure, 1))
    )
    assert moved > 0.01
    assert apart < 2**-11 / 143 + 4 * 2**-24
