"""A run whose devices are canaries: they send what is easiest to tell, and somebody tells it.

In every round, the first devices of the cohort are canaries, as many as the model has parameters.
Each has a number of the update to itself, in which it sends C or -C, by the coin that is its own in
all rounds. It claims the largest loss, so that it passes the filter; the others claim no loss and
send zeros. All else is as in a run of these settings: who is invited, the noise, the session, the
devices that drop out. The guess is the sign of what the server reads in these numbers, added up
over the rounds.

What canaries lay bare is in the sums of updates. Of the searches, they test nothing.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt

from deltafl.fl.cohort import CohortView, SecureRoundResult
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.update_noise import Sizes
from deltafl.sim.cohort.sampling import dealt
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SecureRounds, SimulatedCohort
from deltafl.sim.cohort.work import device_objects
from deltafl.sim.run.algorithms import build_strategy, dropouts_of
from deltafl.sim.settings.config import RunConfig

_LEAST_NOISE = Fraction(1, 100)  # that settings allow


@dataclass(frozen=True, slots=True)
class Told:
    """What a run lays bare of its canaries.

    Attributes:
        scores: What the server has read of each, float64 of shape (canaries,).
        coins: What it sent, 1 or -1, of the same shape.
    """

    scores: npt.NDArray[np.float64]
    coins: npt.NDArray[np.int64]

    def right(self, num_guesses: int) -> int:
        """How many guesses are right, of the scores that are farthest from zero."""
        told = np.argsort(-np.abs(self.scores), kind="stable")[:num_guesses]
        return int(np.count_nonzero(np.sign(self.scores[told]) == self.coins[told]))


@dataclass(frozen=True, slots=True)
class _Device:
    """A device that claims a loss, and sends one number in the place that is its own, or zeros."""

    id: int
    claimed: float
    place: int
    sent: float
    length: int

    @property
    def weight(self) -> int:
        return 1

    def loss(self, model: Vector) -> float:
        del model
        return self.claimed

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        del model, objective
        update = np.zeros(self.length, np.float32)
        update[self.place] = self.sent
        return update


def _keep(heard: list[SecureRoundResult], _levels: Levels, result: SecureRoundResult) -> None:
    heard.append(result)


def play(
    config: RunConfig,
    num_devices: int,
    length: int,
    rounds: SecureRounds,
    told: Callable[[], object] = lambda: None,
) -> Told:
    """Play a run with canaries.

    Args:
        config: The settings of one run, with noise in the sums of updates.
        num_devices: Devices that cohorts are dealt from.
        length: Parameters of the model.
        rounds: Plays the rounds.
        told: Called after each.

    Raises:
        ConfigError: the settings contradict each other.
        PeerError: the devices refuse such a round.
    """
    seeds, strategy = Seeds(config.experiment.seed), build_strategy(config)
    state = strategy.init(np.zeros(length, np.float32), num_devices)
    scores: dict[int, float] = defaultdict(float)
    for index in range(config.federation.rounds):
        ids = _invited(config, seeds, num_devices, index)
        cohort = _cohort(config, seeds, ids, index, length, rounds)
        heard: list[SecureRoundResult] = []
        watched = CohortView(cohort, shown=partial(_keep, heard))
        state, _ = strategy.apply(state, watched)
        for outcome in (one for result in heard for one in result.outcomes):
            if outcome.update is not None:
                for place, device in enumerate(ids[:length]):
                    if device not in outcome.drops:
                        scores[device] += float(outcome.update[place])
        told()
    coins = [_coin(seeds, device) for device in scores]
    return Told(np.array(list(scores.values())), np.array(coins, dtype=np.int64))


def without_noise(config: RunConfig) -> RunConfig:
    """The same run with the least noise that there can be, which hides no canary: the control."""
    accepted = replace(config.policy, min_update_noise=Fraction(0))
    return replace(config, dp=replace(config.dp, noise=_LEAST_NOISE), policy=accepted)


def signal(config: RunConfig, length: int, times: int) -> float:
    """A canary's part of its score, in standard deviations of the noise.

    Args:
        config: The settings.
        length: Parameters of the model.
        times: In how many rounds it sends.
    """
    strategy, size = build_strategy(config), config.federation.cohort_size
    inner = getattr(strategy, "strategy", strategy)  # what a server does with a sum adds no noise
    noise = inner.update_noise(size, length) if isinstance(inner, PrivateDeltaFL) else None
    if noise is None:
        raise TypeError("the sum of updates has no noise: this is a bug")
    steps = Sizes.of(length, size).clip * _sent(config) / noise.norm
    return steps / noise.deviation * math.sqrt(times / size)


def _invited(config: RunConfig, seeds: Seeds, num_devices: int, index: int) -> tuple[int, ...]:
    """The devices of a round, as a run with noise deals them, ascending."""
    size = config.federation.cohort_size
    ids = dealt(seeds.shuffle_of_population, num_devices, size, index)
    return tuple(int(device) for device in ids)


def _cohort(
    config: RunConfig,
    seeds: Seeds,
    ids: Sequence[int],
    index: int,
    length: int,
    rounds: SecureRounds,
) -> SimulatedCohort:
    top, sent = float(config.quantile.loss_bound), _sent(config)
    devices = [
        _Device(device, top, place, sent * _coin(seeds, device), length)
        if place < length
        else _Device(device, 0.0, 0, 0.0, length)
        for place, device in enumerate(ids)
    ]
    return SimulatedCohort(device_objects(devices), index, seeds, rounds, dropouts_of(config))


def _sent(config: RunConfig) -> float:
    """The largest number that a device may send."""
    return min(config.dp.clip, config.privacy.update_clip)


def _coin(seeds: Seeds, device: int) -> int:
    return 1 if seeds.digest(Purpose.CANARY, device=device)[0] & 1 else -1
