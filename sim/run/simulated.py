"""Simulated devices, for the engine: a data set, and a backend that does the devices' work."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from torch import nn

from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import FederatedDataset
from deltafl.fl.data.lazy import sizes_of
from deltafl.fl.local import LocalTraining
from deltafl.fl.vectors import Vector
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.backends.base import Backend, CpuClock, ModelSpec, SampleReference
from deltafl.sim.cohort.devices import BackendDevices
from deltafl.sim.cohort.sampling import Indices, others
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SecureRounds, SimulatedCohort
from deltafl.sim.record.truth import Told
from deltafl.sim.run.algorithms import build_rounds, dropouts_of
from deltafl.sim.run.population import Measured
from deltafl.sim.settings.config import RunConfig


def spec_of(
    config: RunConfig,
    dataset: FederatedDataset,
    own: Callable[[], nn.Module] | None = None,
    criterion: Criterion = CLASSIFIES,
) -> ModelSpec:
    """The model of the settings, or a module of the caller's own, with the shapes of these data."""
    shapes = dataset.input_shape, dataset.num_classes
    return ModelSpec(config.model.name, *shapes, dataset.embedding, own, criterion)


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPopulation:
    """All devices of a data set; a `Population`.

    Attributes:
        dataset: their data.
        backend: computes what they compute.
        own: makes the module that is trained, if it is one of the caller's own.
    """

    dataset: FederatedDataset
    backend: Backend
    own: Callable[[], nn.Module] | None = None

    @property
    def num_devices(self) -> int:
        """How many train."""
        return len(self.dataset.train)

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model; see `Population`."""
        return spec_of(config, self.dataset, self.own)

    def of_run(self, config: RunConfig, observer: Observer) -> "SimulatedDevices":
        """The devices of one run; see `Population`."""
        rounds = build_rounds(config, observer) if config.federation.is_private else None
        return SimulatedDevices(config, self.dataset, self.backend, rounds)


class SimulatedDevices:
    """The devices of one run; see `population.Devices`.

    Args:
        config: the settings of one run.
        dataset: the devices' data.
        backend: computes what they compute.
        rounds: plays secure rounds; None for algorithms in clear.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: FederatedDataset,
        backend: Backend,
        rounds: SecureRounds | None,
    ) -> None:
        self._dataset = dataset
        self._backend = backend
        self._rounds = rounds
        self._sizes = sizes_of(dataset.train)
        self._seeds = Seeds(config.experiment.seed)
        self._dropouts = dropouts_of(config)

    @property
    def clock(self) -> CpuClock:
        """The CPU time of their work."""
        return self._backend.clock

    def present(self, size: int, without: AbstractSet[int]) -> Indices:
        """All others: a device that drops out does so in the middle of a round."""
        del size
        return others(len(self._sizes), without)

    def cohort(
        self, ids: Sequence[int], round_index: int, training: LocalTraining, told: Told | None
    ) -> SimulatedCohort:
        """Some of them; see `population.Devices`."""
        train = self._dataset.train
        refs = {index: SampleReference(train, index, int(self._sizes[index])) for index in ids}
        return SimulatedCohort(
            BackendDevices(refs, self._backend, training, self._seeds, round_index),
            round_index,
            self._seeds,
            self._rounds,
            self._dropouts,
            told,
        )

    def forget(self) -> None:
        """Drop requests to devices that have been lost meanwhile."""
        self._backend.forget()

    def evaluate(self, models: Sequence[Vector], round_number: int) -> Sequence[Measured]:
        """Measure models on every device; see `population.Devices`."""
        del round_number
        return [
            Measured(
                train=self._backend.evaluate(model, self._dataset.train),
                test=self._backend.evaluate(model, self._dataset.test),
            )
            for model in models
        ]
