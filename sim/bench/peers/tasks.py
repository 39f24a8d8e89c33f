"""What the parties play: a model and the samples of some clients, made up from a seed.

Every party makes the same arrays before the first round. Sizes, batches and models are those of the
published tasks of arXiv 2002.11223; the samples are made up, for speed does not depend on what they
show.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.parameters import to_vector
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.seeds import Purpose, Seeds

_CLASSES: Final = 62
_SIDE: Final = 28
_ALPHABET: Final = 53
_WINDOW: Final = 20
_NOISE: Final = 0.3


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """One synchronous round of FedAvg: every client trains for one epoch by SGD.

    Attributes:
        name: what to call it.
        model: one of `deltafl.fl.models.MODELS`.
        clients: how many take part; every round has all of them.
        samples: of each client.
        batch_size: samples in a step of SGD; the last step takes what is left.
        learning_rate: of SGD.
        input_shape: of one sample: float32 features, or tokens for a GRU.
        num_classes: labels are below it.
        seed: of the samples, the first model and the shuffles, at least 0.
    """

    name: str
    model: str
    clients: int
    samples: int
    batch_size: int
    learning_rate: float
    input_shape: tuple[int, ...]
    num_classes: int
    seed: int = 1

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return ModelSpec(self.model, self.input_shape, self.num_classes)

    def first_model(self) -> Vector:
        """The parameters before the first round, as `deltafl.fl.parameters` orders them."""
        return to_vector(self.spec.build(Seeds(self.seed).integer(Purpose.WEIGHTS)))

    def samples_of(self, client: int) -> DeviceData:
        """Make up the samples of a client, in [0, clients)."""
        generator = Seeds(self.seed).generator(Purpose.COHORT, device=client)
        return (_texts if self.model == "gru" else _images)(self, client, generator)

    def shuffle_seed(self, round_index: int, client: int) -> int:
        """The seed of torch's generator that shuffles a client's samples, in [0, 2^63)."""
        return Seeds(self.seed).integer(Purpose.SHUFFLE, round_index=round_index, device=client)


TASKS: Final = {
    "cnn": BenchmarkTask("cnn", "convnet", 40, 179, 16, 0.03, (_SIDE, _SIDE), _CLASSES),
    "linear": BenchmarkTask("linear", "linear", 100, 179, 10, 0.03, (_SIDE * _SIDE,), _CLASSES),
    "gru": BenchmarkTask("gru", "gru", 10, 1288, 16, 0.3, (_WINDOW,), _ALPHABET),
}


def _images(task: BenchmarkTask, client: int, generator: np.random.Generator) -> DeviceData:
    """Noisy copies of one picture per class; clients differ in their classes and in the noise."""
    shape = (task.num_classes, *task.input_shape)
    pictures = Seeds(task.seed).generator(Purpose.COHORT, device=task.clients).random(shape)
    y = generator.choice(
        task.num_classes, task.samples, p=generator.dirichlet(np.full(task.num_classes, 0.5))
    )
    noise = generator.uniform(0, 2 * _NOISE) * generator.standard_normal((task.samples, *shape[1:]))
    x = np.clip(pictures[y] + noise, 0, 1).astype(np.float32)
    return DeviceData(str(client), x, y.astype(np.int64))


def _texts(task: BenchmarkTask, client: int, generator: np.random.Generator) -> DeviceData:
    """Windows of one text per client, whose symbols follow each other by a rule and by chance."""
    (window,) = task.input_shape
    steps = generator.integers(1, 4, task.samples + window).cumsum()
    text = (steps + generator.integers(task.num_classes)) % task.num_classes
    windows = np.lib.stride_tricks.sliding_window_view(text, window + 1)[: task.samples]
    tokens = windows[:, :-1].astype(np.int8)  # as our data sets keep them
    return DeviceData(str(client), tokens, windows[:, -1].astype(np.int64))
