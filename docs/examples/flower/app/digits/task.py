"""The model, the data and the training of the app."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two layers, for images of 8 by 8."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        """The logits of a batch."""
        return self.layers(x)


@cache
def _digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def load_data(partition_id, num_partitions):
    """The training and the test part of one partition, which has few of some digits."""
    x, y = _digits()
    random = np.random.default_rng(partition_id)
    shares = random.dirichlet([0.5] * 10)[y.numpy()]
    size = len(y) // num_partitions
    chosen = random.choice(len(y), size=size, replace=False, p=shares / shares.sum())
    cut = size * 4 // 5
    train, test = chosen[:cut], chosen[cut:]
    return (
        DataLoader(TensorDataset(x[train], y[train]), batch_size=16, shuffle=True),
        DataLoader(TensorDataset(x[test], y[test]), batch_size=64),
    )


def train(net, loader, lr):
    """Train for one epoch; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def test(net, loader):
    """The mean loss, and the share of right answers."""
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            logits = net(x)
            loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
            right += (logits.argmax(1) == y).sum().item()
            count += len(y)
    return loss / count, right / count
