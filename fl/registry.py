"""Everything in `fl` that has a name; each entry is imported only when it is used.

To add a strategy, a model or a data set, write its file and add one line here: docs/extending.md.
The settings and the help of the command line take their names from these tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltafl.protocol.registry import Entry, T_co

if TYPE_CHECKING:
    from torch import nn

    from deltafl.fl.strategies.base import Strategy
    from deltafl.fl.strategies.server_optimizer import ServerOptimizer
    from deltafl.fl.strategies.weighted_mean import WeightedMean

DELTA_FL: Final = "delta-fl"
"""Algorithm 2; under secure aggregation it is Algorithm 3."""

WEIGHTED_MEANS: Final[Mapping[str, "Entry[WeightedMean]"]] = {
    "fedavg": Entry("deltafl.fl.strategies.fedavg:FedAvg"),
    "fedprox": Entry("deltafl.fl.strategies.fedavg:FedProx", ("proximal",)),
    "q-ffl": Entry("deltafl.fl.strategies.q_ffl:QFFL", ("q", "learning_rate")),
    "tilted-erm": Entry("deltafl.fl.strategies.tilted_erm:TiltedERM", ("tilt",)),
    "propfair": Entry("deltafl.fl.strategies.fedavg:PropFair", ("ceiling",)),
}
"""Strategies that need only two sums: each runs with and without secure aggregation.

The arguments are settings of the section `strategy`, `theta`, or `learning_rate`, a function from
the round to the learning rate of the devices' training in it."""

OTHER_STRATEGIES: Final[Mapping[str, "Entry[Strategy]"]] = {
    "afl": Entry("deltafl.fl.strategies.afl:AFL", ("mixture_rate",)),
    "fedmgda": Entry("deltafl.fl.strategies.fedmgda:FedMGDA", ("mgda_epsilon",)),
    "aaggff-s": Entry("deltafl.fl.strategies.aaggff:AAggFFSilo", ("response",)),
    "aaggff-d": Entry("deltafl.fl.strategies.aaggff:AAggFFDevice", ("response",)),
    DELTA_FL: Entry("deltafl.fl.strategies.delta_fl:DeltaFL", ("theta", "weighting", "eta_every")),
}
"""Strategies that need to see more than sums, so they run only without secure aggregation; the
arguments are like those of `WEIGHTED_MEANS`."""

OWN: Final = "own"
"""What the settings call a module, or data, that a program passes (`deltafl.sim.api`)."""

SGD: Final = "sgd"
OPTIMIZERS: Final[Mapping[str, str]] = {SGD: "SGD", "adam": "Adam"}
"""What a device can train by, by name: classes of `torch.optim`."""

CROSS_ENTROPY: Final = "cross-entropy"
LOSSES: Final = (CROSS_ENTROPY, "mse", "mae")
"""What can be minimised, by name: the cross-entropy of logits, and the squared and the absolute
error of numbers (`deltafl.fl.criterion`)."""

ERROR: Final = "error"
ABSOLUTE: Final = "mae"
METRICS: Final = (ERROR, ABSOLUTE)
"""What is reported of a device beside its loss: the share of samples that are misclassified, and
the mean absolute error."""

_SERVER_RATES: Final = (
    "server_learning_rate",
    "server_beta1",
    "server_beta2",
    "server_tau",
)

BEST_BY: Final = ("mean", "p90")
"""What the best model is chosen by: the mean of devices' errors, or their 90th percentile."""

SERVER_OPTIMIZERS: Final[Mapping[str, "Entry[ServerOptimizer]"]] = {
    "sgd": Entry("deltafl.fl.strategies.server_optimizer:Sgd", _SERVER_RATES[:1]),
    "momentum": Entry("deltafl.fl.strategies.server_optimizer:Momentum", _SERVER_RATES[:2]),
    "adam": Entry("deltafl.fl.strategies.server_optimizer:adam", _SERVER_RATES),
    "yogi": Entry("deltafl.fl.strategies.server_optimizer:yogi", _SERVER_RATES),
    "adagrad": Entry("deltafl.fl.strategies.server_optimizer:adagrad", _SERVER_RATES),
}
"""How the server steps; the arguments are settings of the section `strategy`."""


@dataclass(frozen=True, slots=True)
class ModelEntry(Entry[T_co]):
    """A model; its arguments are those of `deltafl.fl.models.build_model`.

    Attributes:
        reads_tokens: whether it reads rows of tokens; others take numbers.
    """

    arguments: tuple[str, ...] = ("input_shape", "num_classes")
    reads_tokens: bool = False


MODELS: Final[Mapping[str, "ModelEntry[nn.Module]"]] = {
    "linear": ModelEntry("deltafl.fl.models.linear:Linear"),
    "convnet": ModelEntry("deltafl.fl.models.convnet:ConvNet"),
    "logistic": ModelEntry("deltafl.fl.models.linear:without_bias"),
    "logistic-bias": ModelEntry("deltafl.fl.models.linear:with_bias"),
    "lstm": ModelEntry(
        "deltafl.fl.models.lstm:FrozenEmbeddingLSTM",
        ("input_shape", "num_classes", "embedding"),
        reads_tokens=True,
    ),
    "gru": ModelEntry("deltafl.fl.models.gru:OneHotGRU", reads_tokens=True),
    "gru-embedding": ModelEntry("deltafl.fl.models.gru:EmbeddingGRU", reads_tokens=True),
    "convnet-groupnorm": ModelEntry("deltafl.fl.models.convnet:GroupNormConvNet"),
    "lstm-stacked": ModelEntry("deltafl.fl.models.lstm:StackedLSTM", reads_tokens=True),
    "m5": ModelEntry("deltafl.fl.models.m5:M5"),
}
"""The models of the papers."""

FORMATS: Final[Mapping[str, str]] = {
    "digits": "deltafl.fl.data.digits:FORMAT",
    "digits-by-writer": "deltafl.fl.data.digits:BY_WRITER",
    "npz": "deltafl.fl.data.npz:FORMAT",
    "csv": "deltafl.fl.data.own_files:CSV",
    "parquet": "deltafl.fl.data.own_files:PARQUET",
    "folder": "deltafl.fl.data.own_files:FOLDER",
    "images": "deltafl.fl.data.image_folder:FORMAT",
    "leaf": "deltafl.fl.data.leaf:FORMAT",
    "femnist": "deltafl.fl.data.femnist:FORMAT",
    "qmnist": "deltafl.fl.data.qmnist:FORMAT",
    "sent140": "deltafl.fl.data.sent140:FORMAT",
    "shakespeare": "deltafl.fl.data.shakespeare:FORMAT",
    "heart": "deltafl.fl.data.heart:FORMAT",
    "adult": "deltafl.fl.data.adult:FORMAT",
    "berka": "deltafl.fl.data.berka:FORMAT",
    "mqp": "deltafl.fl.data.mqp:FORMAT",
    "hub": "deltafl.fl.data.hub:FORMAT",
    "synthetic-emnist": "deltafl.fl.data.synthetic:EMNIST",
    "synthetic-sent140": "deltafl.fl.data.synthetic:SENT140",
    "synthetic": "deltafl.fl.data.synthetic:FORMAT",
}
"""Data sets and kinds of files; `deltafl.fl.data.registry` says what each says of itself."""
