"""A module for the federations of `conftest`."""

from torch import nn

FEW = {"rounds": 3, "cohort_size": 10, "progress": False}


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
