"""Private Δ-FL: federated learning for the worst-served devices, by sums alone.

    deltafl.secagg      one session of secure aggregation; needs no other layer
    deltafl.protocol    a round of private Δ-FL over secure sums
    deltafl.fl          models, data, local training, strategies, metrics
    deltafl.sim         the command `deltafl`: simulator, records, audits, attacks, benchmarks

The layers import downwards only: sim, fl, protocol, secagg. The last two need what the distribution
itself requires; fl and sim need its extra `sim`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deltafl.fl.batch_norm import with_group_norm
    from deltafl.fl.criterion import DeviceMetric
    from deltafl.fl.strategies.weighted_mean import Share, WeightedMean
    from deltafl.sim.api.callbacks import Callback, EarlyStopping, Stop
    from deltafl.sim.api.federation import Federation
    from deltafl.sim.api.methods import DeltaFL, FedAvg, Method, OwnMethod, PrivateDeltaFL
    from deltafl.sim.api.results import Comparison, Result
    from deltafl.sim.api.training import compare, train
    from deltafl.sim.api.tuning import Tuned, tune

__version__: Final = "0.2.0"

__all__ = [
    "Callback",
    "Comparison",
    "DeltaFL",
    "DeviceMetric",
    "EarlyStopping",
    "FedAvg",
    "Federation",
    "Method",
    "OwnMethod",
    "PrivateDeltaFL",
    "Result",
    "Share",
    "Stop",
    "Tuned",
    "WeightedMean",
    "__version__",
    "compare",
    "train",
    "tune",
    "with_group_norm",
]

_API: Final = {
    "Callback": "sim.api.callbacks",
    "Comparison": "sim.api.results",
    "DeltaFL": "sim.api.methods",
    "DeviceMetric": "fl.criterion",
    "EarlyStopping": "sim.api.callbacks",
    "FedAvg": "sim.api.methods",
    "Federation": "sim.api.federation",
    "Method": "sim.api.methods",
    "OwnMethod": "sim.api.methods",
    "PrivateDeltaFL": "sim.api.methods",
    "Result": "sim.api.results",
    "Share": "fl.strategies.weighted_mean",
    "Stop": "sim.api.callbacks",
    "WeightedMean": "fl.strategies.weighted_mean",
    "compare": "sim.api.training",
    "train": "sim.api.training",
    "Tuned": "sim.api.tuning",
    "tune": "sim.api.tuning",
    "with_group_norm": "fl.batch_norm",
}
"""Where each name of the Python interface is; imported once it is used, for torch takes seconds."""


def __getattr__(name: str) -> object:
    if name in _API:
        return getattr(import_module(f"deltafl.{_API[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
