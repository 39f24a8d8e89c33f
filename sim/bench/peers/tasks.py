"""What the parties play: a model and the samples of some clients, made up from a seed.

A task is written to a folder once and read by every party, so that all of them have the same
arrays and none pays for making them. Sizes, batches and models are those of the published tasks of
arXiv 2002.11223; the samples are made up, for speed does not depend on what they show.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.sim.bench.harness import check_least
from deltafl.sim.cohort.seeds import Purpose, Seeds

Inputs: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[np.int64]

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
        input_shape: of one sample: float32 features, or int64 tokens for a GRU.
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

    def __post_init__(self) -> None:
        check_least(clients=(self.clients, 1), samples=(self.samples, 1), seed=(self.seed, 0))

    def shuffle_seed(self, round_index: int, client: int) -> int:
        """The seed of torch's generator that shuffles a client's samples, in [0, 2^63)."""
        return Seeds(self.seed).integer(Purpose.SHUFFLE, round_index=round_index, device=client)


TASKS: Final = {
    "cnn": BenchmarkTask("cnn", "convnet", 40, 179, 16, 0.03, (_SIDE, _SIDE), _CLASSES),
    "linear": BenchmarkTask("linear", "linear", 100, 179, 10, 0.03, (_SIDE * _SIDE,), _CLASSES),
    "gru": BenchmarkTask("gru", "gru", 10, 1288, 16, 0.3, (_WINDOW,), _ALPHABET),
}


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """A task with all that is needed to play it.

    Attributes:
        task: its sizes and settings.
        x: inputs, [clients, samples, *input_shape], float32 or int64.
        y: labels, int64 [clients, samples].
        model: the parameters before the first round, float32, as `deltafl.fl.parameters` orders
            them.
    """

    task: BenchmarkTask
    x: Inputs
    y: Labels
    model: npt.NDArray[np.float32]

    def save(self, folder: Path) -> None:
        """Write the task into a folder that exists."""
        (folder / "task.json").write_text(json.dumps(asdict(self.task)))
        for name in ("x", "y", "model"):
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> "Federation":
        """Read what `save` wrote; arrays stay on the disk until they are used."""
        settings: dict[str, Any] = json.loads((folder / "task.json").read_text())
        task = BenchmarkTask(**settings | {"input_shape": tuple(settings["input_shape"])})
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y", "model")]
        return cls(task, *arrays)


def make(task: BenchmarkTask) -> Federation:
    """Make up the samples of a task and its first model."""
    from deltafl.fl.models import build_model  # here, so that parties need not load it
    from deltafl.fl.parameters import to_vector

    makers = {"gru": _texts}
    clients = [
        makers.get(task.model, _images)(task, Seeds(task.seed).generator(Purpose.COHORT, device=k))
        for k in range(task.clients)
    ]
    module = build_model(
        task.model,
        input_shape=task.input_shape,
        num_classes=task.num_classes,
        seed=Seeds(task.seed).integer(Purpose.WEIGHTS),
    )
    x, y = (np.stack(parts) for parts in zip(*clients, strict=True))
    return Federation(task, x, y, to_vector(module))


def resized(
    task: BenchmarkTask, *, clients: int | None, samples: int | None, seed: int
) -> BenchmarkTask:
    """Give a task other sizes where they are given, and a seed.

    Raises:
        ValueError: a number is out of its range.
    """
    return replace(
        task,
        clients=task.clients if clients is None else clients,
        samples=task.samples if samples is None else samples,
        seed=seed,
    )


def _images(task: BenchmarkTask, generator: np.random.Generator) -> tuple[Inputs, Labels]:
    """Noisy copies of one picture per class; clients differ in their classes and in the noise."""
    shape = (task.num_classes, *task.input_shape)
    pictures = Seeds(task.seed).generator(Purpose.COHORT, device=task.clients).random(shape)
    y = generator.choice(
        task.num_classes, task.samples, p=generator.dirichlet(np.full(task.num_classes, 0.5))
    )
    noise = generator.uniform(0, 2 * _NOISE) * generator.standard_normal((task.samples, *shape[1:]))
    return np.clip(pictures[y] + noise, 0, 1).astype(np.float32), y.astype(np.int64)


def _texts(task: BenchmarkTask, generator: np.random.Generator) -> tuple[Inputs, Labels]:
    """Windows of one text per client, whose symbols follow each other by a rule and by chance."""
    (window,) = task.input_shape
    steps = generator.integers(1, 4, task.samples + window).cumsum()
    text = (steps + generator.integers(task.num_classes)) % task.num_classes
    windows = np.lib.stride_tricks.sliding_window_view(text, window + 1)[: task.samples]
    return windows[:, :-1].astype(np.int64), windows[:, -1].astype(np.int64)
