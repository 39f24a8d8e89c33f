"""Run by test_backends_ray_cluster in a process of its own: ray leaves open what pytest minds."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deltafl.fl.criterion import criterion_of
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.parameters import to_vector
from deltafl.sim.cohort.backends.base import ModelSpec, SampleReference
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.errors import UserError

SPEC = ModelSpec("convnet", (16, 16), 4)
TRAINING = LocalTraining(0.3, batch_size=4, epochs=2)


def made(index):
    rng = np.random.default_rng(index)
    x = rng.random((index + 1, 16, 16), np.float32)
    return DeviceData(str(index), x, rng.integers(0, 4, index + 1))


def main():
    torch.set_num_threads(1)
    devices = tuple(map(made, range(9)))
    refs = [SampleReference(devices, k, k + 1) for k in range(9)]
    start, learner = to_vector(SPEC.build(1)), Learner(SPEC.build())
    try:
        open_backend(Choice("ray", 1, 1), SPEC, address="127.0.0.1:1")
    except UserError as error:
        print("refused:", error)
    backend = open_backend(Choice("ray", 2, 1), SPEC)
    losses = [backend.begin_loss(start, ref) for ref in refs]
    updates = [backend.begin_update(start, ref, TRAINING, k) for k, ref in enumerate(refs)]
    print("losses:", [one.result() for one in losses] == learner.losses(start, devices))
    expected = list(learner.updates(start, devices, TRAINING, range(9)))
    found = [one.result() for one in updates]
    print("updates:", [u.tobytes() for u in found] == [u.tobytes() for u in expected])
    print("control:", found[0].tobytes() == found[1].tobytes())
    print("evaluation:", backend.evaluate(start, devices) == learner.evaluate(start, devices))
    print("elsewhere:", backend.clock.elsewhere > 0 == backend.clock.here)
    try:
        backend.begin_loss(start[:-1], refs[0]).result()
    except ValueError as error:
        print("misfit:", error)
    backend.close()
    print("own:", own(devices, refs))


def own(devices, refs):
    """Whether a module and a loss that no other process could import come to the same update."""
    scale = torch.tensor(0.5)

    def halved(outputs, targets):
        return scale * cross_entropy(outputs, targets, reduction="none")

    criterion = criterion_of(halved, of_numbers=False)
    spec = ModelSpec("own", (16, 16), 4, own=lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 4)))
    spec = replace(spec, criterion=criterion)
    start = to_vector(spec.build(1))
    backend = open_backend(Choice("ray", 2, 1), spec)
    found = [backend.begin_update(start, ref, TRAINING, k) for k, ref in enumerate(refs)]
    answers = [one.result().tobytes() for one in found]
    backend.close()
    learner = Learner(spec.build(), criterion=criterion)
    expected = learner.updates(start, devices, TRAINING, range(9))
    return answers == [one.tobytes() for one in expected]


if __name__ == "__main__":
    main()
