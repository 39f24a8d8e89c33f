"""Simulated devices, for the engine: a data set, and a backend that does the devices' work."""

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import DeviceData, FederatedDataset
from deltafl.fl.data.lazy import sizes_of
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import LocalTraining
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.levels import starting_models
from deltafl.fl.vectors import Vector
from deltafl.protocol.round import LostSearch
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.attackers import (
    Attack,
    AttackingDevices,
    Poisoned,
    attackers_of,
    poison_of,
    triggered,
)
from deltafl.sim.cohort.backends.base import Backend, CpuClock, ModelSpec, SampleReference
from deltafl.sim.cohort.sampling import Indices, others
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SecureRounds, SimulatedCohort
from deltafl.sim.cohort.work import BackendDevices, Devices
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.attacked import Population as Attackers
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.transcript import BegunRound, TranscriptWriter
from deltafl.sim.record.truth import Told
from deltafl.sim.run.algorithms import build_rounds, dropouts_of
from deltafl.sim.run.drawing import Lying, Measured
from deltafl.sim.settings.attackers import Kind
from deltafl.sim.settings.config import RunConfig, TrainingConfig


def spec_of(
    config: RunConfig,
    dataset: FederatedDataset,
    own: Callable[[], nn.Module] | None = None,
    criterion: Criterion = CLASSIFIES,
    optimizer: MakeOptimizer | None = None,
) -> ModelSpec:
    """The model of the settings, or a module of the caller's own, with the shapes of these data."""
    shapes = dataset.input_shape, dataset.num_classes
    return ModelSpec(config.model.name, *shapes, dataset.embedding, own, criterion, optimizer)


def training_in(settings: TrainingConfig, round_index: int) -> LocalTraining:
    """How devices train in a round, counted from 0.

    Raises:
        ConfigError: by then, the learning rate has fallen to nothing.
    """
    try:
        return LocalTraining(
            learning_rate=settings.schedule.rate(round_index),
            batch_size=settings.batch_size,
            epochs=settings.epochs,
            l2=settings.l2,
            optimizer=settings.optimizer,
            momentum=settings.momentum,
            max_grad_norm=settings.max_grad_norm,
            steps=settings.local_steps,
        )
    except ValueError as error:
        raise ConfigError(f"training.decay: {error}") from None


def first_model(config: RunConfig, spec: ModelSpec) -> Vector:
    """The initial weights of all conformity levels, joined; each level uses its own seed.

    They follow from seed and nonce, and from the shape of the data. With a nonce, a model that its
    architecture begins at zeros is drawn too, as PyTorch draws a linear layer. A device that
    answered for the same first model in two runs, or for nearly the same, among other devices each
    time, would give itself away by the difference.

    Args:
        config: Settings of one run.
        spec: The model of the settings, with the shapes of the data.

    Raises:
        ValueError: the model cannot take such shapes.
    """
    seeds = Seeds(config.experiment.seed, config.experiment.nonce)

    def build(level: int) -> Vector:
        model = to_vector(spec.build(seeds.integer(Purpose.WEIGHTS, device=level)))
        if model.any() or not seeds.nonce:
            return model
        most = 1 / math.sqrt(math.prod(spec.input_shape))
        generator = seeds.generator(Purpose.WEIGHTS, device=level)
        return generator.uniform(-most, most, model.size).astype(np.float32)

    return starting_models(
        len(config.federation.thetas),
        build,
        lambda level: seeds.generator(Purpose.WEIGHTS, device=level),
    )


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

    def keeps(self, begun: BegunRound) -> bool:
        """No: the devices, with their keys, were in the process that ended."""
        del begun
        return False

    def of_run(self, config: RunConfig, observer: Observer) -> "SimulatedDevices":
        """The devices of one run; see `Population`."""
        rounds = build_rounds(config, observer) if config.federation.is_private else None
        return SimulatedDevices(config, self.dataset, self.backend, rounds)


class SimulatedDevices:
    """The devices of one run; see `drawing.Devices`.

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
        self._attack = _attack_of(config, len(dataset.train), self._seeds)
        self._poisoned = dataset.train
        if self._attack is not None:
            poison = poison_of(config.attackers, self._seeds, dataset.num_classes)
            if poison is not None:
                self._poisoned = Poisoned(dataset.train, self._attack.attackers, poison)

    @property
    def clock(self) -> CpuClock:
        """The CPU time of their work."""
        return self._backend.clock

    @property
    def attackers(self) -> Attackers | None:
        """Which of them lie; see `drawing.Devices`."""
        if self._attack is None:
            return None
        lying = tuple(sorted(self._attack.attackers))
        return Attackers(len(self._dataset.train), lying)

    @property
    def to_lose_fewer(self) -> str:
        """They drop out as the settings say."""
        return "lower faults.dropout (--dropout)"

    def num_others(self, without: AbstractSet[int], only: AbstractSet[int] | None = None) -> int:
        """All others; see `drawing.Devices`."""
        return len(self.present(0, without, only))

    def present(
        self, size: int, without: AbstractSet[int], only: AbstractSet[int] | None = None
    ) -> Indices:
        """All others: a device that drops out does so in the middle of a round."""
        del size
        found = others(len(self._sizes), without)
        return found if only is None else np.array([i for i in found if i in only], np.int64)

    def begin(
        self, ids: Sequence[int], round_index: int, transcript: TranscriptWriter, mark: Mark | None
    ) -> None:
        """Nothing: no other process could go on."""

    def cohort(
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> SimulatedCohort:
        """Some of them; see `drawing.Devices`."""
        refs = {index: self._reference(index) for index in ids}
        devices: Devices = BackendDevices(refs, self._backend, training, self._seeds, round_index)
        if self._attack is not None and lying is not None:
            devices = AttackingDevices(devices, self._attack, round_index, lying.known)
        return SimulatedCohort(
            devices,
            round_index,
            self._seeds,
            self._rounds,
            self._dropouts,
            told,
            None if lying is None else lying.aggregated,
            lost,
        )

    def _reference(self, index: int) -> SampleReference:
        lies = self._attack is not None and index in self._attack.attackers
        train = self._poisoned if lies else self._dataset.train
        return SampleReference(train, index, int(self._sizes[index]))

    def forget(self) -> None:
        """Drop requests to devices that have been lost meanwhile."""
        self._backend.forget()

    def evaluate(self, models: Sequence[Vector], round_number: int) -> Sequence[Measured]:
        """Measure models on every device; see `drawing.Devices`.

        With attackers among them, on honest devices: an attacker's own error counts for nobody.
        """
        del round_number
        return [
            Measured(
                **{
                    name: self._honest(self._backend.evaluate(model, side))
                    for name, side in self._dataset.sides.items()
                },
                backdoor=self._success(model),
            )
            for model in models
        ]

    def _honest(self, measured: Sequence[DeviceMetrics]) -> Sequence[DeviceMetrics]:
        if self._attack is None:
            return measured
        return [one for one in measured if one.id not in self._lying_ids]

    @cached_property
    def _lying_ids(self) -> frozenset[str]:
        """The attackers by id: where samples are split, they are among the test devices too."""
        lying = frozenset() if self._attack is None else self._attack.attackers
        return frozenset(self._dataset.train[index].id for index in lying)

    @cached_property
    def _triggered(self) -> Sequence[DeviceData]:
        """The test samples by which a backdoor is measured; none without one."""
        if self._attack is None or self._attack.settings.kind != Kind.BACKDOOR:
            return ()
        test = self._dataset.test
        honest = [index for index, one in enumerate(test) if one.id not in self._lying_ids]
        return tuple(triggered(test, honest, self._attack.settings))

    def _success(self, model: Vector) -> float | None:
        """Share of the test samples with a trigger that get its label."""
        if not self._triggered:
            return None
        measured = self._backend.evaluate(model, self._triggered)
        wrong = sum(one.error * one.num_samples for one in measured)
        return 1 - wrong / sum(one.num_samples for one in measured)


def _attack_of(config: RunConfig, num_devices: int, seeds: Seeds) -> Attack | None:
    """Who lies in a run, and how; None if nobody does."""
    settings, quantile = config.attackers, config.quantile
    if not settings.lie:
        return None
    return Attack(
        settings,
        attackers_of(seeds, settings.share, num_devices),
        loss_bound=float(quantile.loss_bound),
        tick=2.0**-quantile.resolution_bits,
        max_weight=config.privacy.max_weight,
        seeds=seeds,
    )
