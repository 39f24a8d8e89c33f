"""A run whose devices are canaries, what it shows of their coins, and the bound on ε that follows.

In every round, the first devices of the cohort are canaries, as many as the model has parameters.
Each has a number of the update to itself, in which it sends C or -C, by the coin that is its own in
all rounds. It claims the largest loss, so that it passes the filter; the others claim no loss and
send zeros. All else is as in a run of these settings: who is invited, the noise, the session, the
devices that drop out. The guess is the sign of what the server reads in these numbers, added up
over the rounds.

Whoever guesses the coins from the sums, and is right more often than (ε, δ)-differential privacy
under replacement allows, has shown that the sums are not private to that degree. One run is enough,
because the coins are independent. A bound above what the accountant says is a fault of the noise or
of the accountant; one below proves nothing, since there may be better guesses.

What canaries lay bare is in the sums of updates. Of the searches, they test nothing.

Source: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2 and
appendix D.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, foldnorm, norm

from deltafl.fl.cohort import CohortView, SecureRoundResult
from deltafl.fl.errors import DataError
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.server_optimizer import without_optimizer
from deltafl.fl.vectors import Vector
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.protocol.update_noise import Sizes
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.session import NoObserver
from deltafl.sim.cohort.sampling import dealt
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SecureRounds, SimulatedCohort
from deltafl.sim.cohort.work import device_objects
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.progress import Bar
from deltafl.sim.run.accounting import account_of
from deltafl.sim.run.algorithms import build_rounds, build_strategy, dropouts_of
from deltafl.sim.run.fitting import check_fit
from deltafl.sim.run.simulated import first_model, spec_of
from deltafl.sim.settings.config import RunConfig

_LEAST_NOISE = Fraction(1, 100)  # that settings allow


@dataclass(frozen=True, slots=True)
class Measured:
    """What guesses came to.

    Attributes:
        canaries: Coins tossed.
        guesses: Coins guessed.
        right: Guesses that were right.
        epsilon: The bound that follows.
    """

    canaries: int
    guesses: int
    right: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two bounds, and the claim between them.

    Attributes:
        claimed: ε of the settings, by the accountant.
        delta: δ of all three.
        confidence: Of each bound.
        rounds: Rounds played.
        participations: In how many of them a device is invited at most.
        with_noise: The run as it is.
        without_noise: The control.
    """

    claimed: float
    delta: float
    confidence: float
    rounds: int
    participations: int
    with_noise: Measured
    without_noise: Measured

    @property
    def holds(self) -> bool:
        """Whether nothing refutes the claim."""
        return self.with_noise.epsilon <= self.claimed

    @property
    def control(self) -> bool:
        """Whether the canaries would have told that noise is missing."""
        return self.without_noise.epsilon > self.claimed


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


def measure(config: RunConfig, *, quiet: bool = False) -> Comparison:
    """Play a run with canaries, with noise and without.

    Args:
        config: Settings with noise in the sums of updates.
        quiet: Whether to show no progress.

    Raises:
        UserError: the settings, or the data that they name, do not fit together.
    """
    try:
        return _measure(next(iter(config.arms())), quiet=quiet)
    except (DataError, RunError, ProtocolError, SecAggError) as error:
        raise UserError(str(error)) from error


def _measure(config: RunConfig, *, quiet: bool) -> Comparison:
    dataset = build_dataset(config.data)
    spec = spec_of(config, dataset)
    check_fit(config, dataset, spec)
    number, length = len(dataset.train), first_model(config, spec).size
    account, rounds = account_of(config, number, length), config.federation.rounds
    if account is None:
        raise TypeError("a run with noise has no account: this is a bug")
    account.check(rounds)
    spent = account.after(rounds)
    with Bar(total=2 * rounds, unit="round", desc="canaries", quiet=quiet) as bar:
        told = play(config, number, length, build_rounds(config, NoObserver()), bar.update)
        bar.set_description("canaries without noise")
        off = without_noise(config)
        bare = play(off, number, length, build_rounds(off, NoObserver()), bar.update)
    if not len(told.coins) or not len(bare.coins):
        raise UserError("all rounds were lost, so nothing was summed: lower faults.dropout")
    strength = signal(config, length, spent.participations)
    guesses = guesses_to_make(strength, len(told.coins), spent.delta)
    return Comparison(
        claimed=spent.epsilon,
        delta=spent.delta,
        confidence=CONFIDENCE,
        rounds=rounds,
        participations=spent.participations,
        with_noise=_guessed(told, guesses, spent.delta),
        without_noise=_guessed(bare, len(bare.coins), spent.delta),
    )


def _guessed(told: Told, num_guesses: int, delta: float) -> Measured:
    """Guess so many coins."""
    number, right = len(told.coins), told.right(num_guesses)
    return Measured(number, num_guesses, right, epsilon_at_least(right, num_guesses, number, delta))


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
    strategy = without_optimizer(build_strategy(config))
    size = config.federation.cohort_size
    noise = strategy.update_noise(size, length) if isinstance(strategy, PrivateDeltaFL) else None
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


CONFIDENCE: Final = 0.95
"""A bound is wrong with a probability of at most one in twenty."""

_LARGEST: Final = 64.0
_HALVINGS: Final = 40
_SHARES: Final = tuple(2.0**-halvings for halvings in range(7))


def epsilon_at_least(
    num_right: int,
    num_guesses: int,
    num_canaries: int,
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """The largest ε that guesses refute, with this confidence; 0 if they refute none.

    The number of guesses must not depend on the coins or on what was seen.

    Args:
        num_right: Guesses that were right.
        num_guesses: Guesses made, at most the canaries; others were abstained from.
        num_canaries: Coins tossed.
        delta: δ.
        confidence: One less the probability of a bound that is too high.
    """
    low, high = 0.0, _LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if chance(num_right, num_guesses, num_canaries, middle, delta) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def chance(
    num_right: int, num_guesses: int, num_canaries: int, epsilon: float, delta: float
) -> float:
    """How likely so many right guesses are at most, under (ε, δ)-differential privacy.

    Args:
        num_right: Guesses that were right, from 0 to those made.
        num_guesses: Guesses made.
        num_canaries: Coins tossed.
        epsilon: ε ≥ 0.
        delta: δ.
    """
    each = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(num_right - 1, num_guesses, each))
    fewer = np.arange(1, num_right + 1)
    added = np.cumsum(binom.pmf(num_right - fewer, num_guesses, each)) / fewer
    return min(tail + float(added.max(initial=0.0)) * delta * 2 * num_canaries, 1.0)


def guesses_to_make(signal: float, num_canaries: int, delta: float) -> int:
    """How many coins to guess, for a large bound: those whose scores are farthest from zero.

    It is worked out before anything is seen, as if scores were Gaussian.

    Args:
        signal: A canary's part of its score, in standard deviations of the score; above 0.
        num_canaries: Coins tossed, at least 1.
        delta: δ.
    """

    def expected(share: float) -> tuple[float, int]:
        num_guesses = max(int(num_canaries * share), 1)
        least = foldnorm.isf(share, signal)  # the distance from zero beyond which this share lies
        right = float(norm.sf(least - signal)) / share
        bound = epsilon_at_least(int(num_guesses * right), num_guesses, num_canaries, delta)
        return bound, num_guesses

    return max(map(expected, _SHARES))[1]
