"""The settings of a run, one frozen dataclass per section of the TOML file.

The types carry their ranges (`sim.constraints`); `sim.config_io` checks them and reads and writes
the files. The defaults are a small run on the embedded digits. Sources: docs of each field; the
papers' settings are in the presets.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Final

from sim.constraints import Interval, OneOf

ALGORITHMS: Final = ("fedavg", "delta-fl", "private-delta-fl")
METHODS: Final = ("mm", "bracketed", "histogram", "noisy")
WEIGHTS: Final = ("samples", "powers-of-two", "equal")

Count = Annotated[int, Interval("[1, inf)")]
CountOrZero = Annotated[int, Interval("[0, inf)")]
Seed = Annotated[int, Interval("[0, 9007199254740992)")]
Positive = Annotated[float, Interval("(0, inf)")]
NotNegative = Annotated[float, Interval("[0, inf)")]
Share = Annotated[float, Interval("[0, 1)")]
Bits = Annotated[int, Interval("[1, 48]")]


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Whose data.

    Attributes:
        source: "digits" (embedded), a folder of LEAF JSON files, or an .npz file.
        min_samples: keep devices with more than so many samples (strictly more).
        test_fraction: share of the devices that only evaluate, never train.
        split_seed: seed of the split, and of the dealing of the digits; the same for all seeds of
            an experiment, so that its devices can be compared one by one.
        num_classes: how many classes there are; 0 takes the largest label plus one.
        standardise: scale features by "none", or by mean and deviation over the "train" devices.
        num_devices: number of devices to deal the digits to.
        rotated_fraction: share of the digits' devices that write rotated by 90 degrees.
    """

    source: str = "digits"
    min_samples: CountOrZero = 0
    test_fraction: Annotated[Fraction, Interval("(0, 1)")] = Fraction(1, 2)
    split_seed: Seed = 0
    num_classes: Annotated[int, Interval("[0, inf)")] = 0
    standardise: Annotated[str, OneOf(("none", "train"))] = "none"
    num_devices: Annotated[int, Interval("[8, 300]")] = 60
    rotated_fraction: Annotated[Fraction, Interval("(0, 0.5]")] = Fraction(1, 5)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is trained.

    Attributes:
        name: "linear" (softmax regression) or "convnet" (two 5 x 5 convolutions).
    """

    name: Annotated[str, OneOf(("linear", "convnet"))] = "linear"


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How one device trains: SGD.

    Attributes:
        learning_rate: γ0 of round 0.
        decay: c; the rate of round t is γ0 · c^⌊t / decay_every⌋.
        decay_every: t0, in rounds.
        batch_size: samples per step.
        epochs: passes over the device's samples per round.
        l2: λ of the penalty (λ/2)·||w||².
        device: where tensors live: "cpu", "cuda", or "auto" (cuda if there is one).
    """

    learning_rate: Positive = 0.5
    decay: Annotated[float, Interval("(0, 1]")] = 1.0
    decay_every: Count = 100
    batch_size: Count = 16
    epochs: Count = 1
    l2: NotNegative = 0.0
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"


@dataclass(frozen=True, slots=True)
class FederationConfig:
    """Who trains together, and by which algorithm.

    Attributes:
        algorithm: "fedavg", "delta-fl" (losses in clear) or "private-delta-fl" (sums only).
        rounds: how many.
        cohort_size: devices drawn per round, without replacement.
        theta: conformity level θ: the tail fraction that is kept; 1 is FedAvg.
        evaluate_every: rounds between two evaluations over all devices; 0 and the last always.
    """

    algorithm: Annotated[str, OneOf(ALGORITHMS)] = "private-delta-fl"
    rounds: Count = 30
    cohort_size: Count = 20
    theta: Annotated[Fraction, Interval("(0, 1]")] = Fraction(1, 2)
    evaluate_every: Count = 5


@dataclass(frozen=True, slots=True)
class QuantileConfig:
    """How the threshold η is searched for by secure sums (private-delta-fl only).

    Attributes:
        method: "mm" (Algorithm 3), "bracketed", "histogram" or "noisy".
        max_queries: most sums a round may spend on the search; 0: the method's own limit.
        resolution_bits: losses are rounded to multiples of 2^-resolution_bits nats.
        loss_bound: losses above are clipped to it, in nats.
        warm_start: whether a search starts from the last round's η.
        weights: what a device weighs in the search: its number of "samples", that rounded down to
            "powers-of-two", or "equal" weights. The less they differ, the less a search tells of
            who is where; η is then the quantile of these weights. Updates are averaged by samples.
        epsilon: ε of "mm" in nats: losses nearer to a queried point count as if so far away, which
            hides how near they are, and costs queries; 0: no ε. Other methods have none.
        min_cohort: fewest devices to search over; with fewer, the round keeps everybody.
        noise: σ of the noise in every count of "noisy", in devices, from `privacy.min_cohort` (or
            `min_cohort`, if it is larger) less the colluding devices; 0 with the other methods.
            "noisy" wants "equal" weights and asks one query a round.
    """

    method: Annotated[str, OneOf(METHODS)] = "mm"
    max_queries: CountOrZero = 0
    resolution_bits: Bits = 16
    loss_bound: Count = 32
    warm_start: bool = True
    weights: Annotated[str, OneOf(WEIGHTS)] = "samples"
    epsilon: NotNegative = 0.0
    min_cohort: CountOrZero = 0
    noise: Annotated[Fraction, Interval("[0, inf)")] = Fraction(0)


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """How sums are kept secure (private-delta-fl only).

    Attributes:
        backend: "masked" (real keys, real bytes) or "ideal" (the same sums without cryptography).
        adversary: what the server may be: "curious" (it follows the protocol and pools what it sees
            with colluding devices) or "active" (it may depart from the protocol in every way).
        signed: whether devices have identities and agree on the survivors of every sum; against an
            active server they do in any case.
        graph: who shares masks with whom: "complete", "sparse", or "auto" (by cohort size; against
            an active server always complete).
        expected_dropout: δ, the share of a cohort that may vanish without losing the sum.
        colluding: γ, the share of devices that may collude with the server.
        min_cohort: smallest cohort that a device agrees to be summed with.
        update_clip: bound of one number of a device's update; beyond, it is clipped and counted.
        update_resolution_bits: updates are rounded to multiples of 2^-update_resolution_bits.
        max_weight: bound of a device's weight n_k; heavier devices count as this.
        transcript: what is kept of the server's messages: "headers" (sizes and hashes), "full", or
            "every=N" (full in every N-th round).
        truth: whether the simulation writes down what every device had to hide, for audits to
            compare with; nothing of it passes the server.
    """

    backend: Annotated[str, OneOf(("masked", "ideal"))] = "masked"
    adversary: Annotated[str, OneOf(("curious", "active"))] = "curious"
    signed: bool = False
    graph: Annotated[str, OneOf(("auto", "complete", "sparse"))] = "auto"
    expected_dropout: Share = 0.1
    colluding: Share = 0.1
    min_cohort: Annotated[int, Interval("[2, inf)")] = 10
    update_clip: Positive = 2.0
    update_resolution_bits: Bits = 10
    max_weight: Count = 8192
    transcript: str = "headers"
    truth: bool = False

    @property
    def sessions_are_signed(self) -> bool:
        """Whether sessions are signed: if the settings say so, and against an active server."""
        return self.signed or self.adversary == "active"


@dataclass(frozen=True, slots=True)
class FaultsConfig:
    """What goes wrong on purpose.

    Attributes:
        dropout: probability that a device of a cohort vanishes at some step of the round.
    """

    dropout: Share = 0.0


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """How often, and against what.

    Attributes:
        seed: first seed; cohorts, initial weights, shuffles and faults follow from it.
        num_seeds: number of seeds, counted up from the first.
        baselines: further algorithms to run with the same seeds, hence the same cohorts.
    """

    seed: Seed = 1
    num_seeds: Count = 1
    baselines: Annotated[tuple[str, ...], OneOf(ALGORITHMS)] = ()


@dataclass(frozen=True, slots=True)
class RunConfig:
    """All settings of a run, or of an experiment of several runs."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    quantile: QuantileConfig = field(default_factory=QuantileConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)

    def arms(self) -> tuple["RunConfig", ...]:
        """Split an experiment into runs of one algorithm and one seed; the main run is the first.

        Seeds vary fastest, so the main algorithm comes before its baselines.
        """
        first = self.experiment.seed
        return tuple(
            replace(
                self,
                federation=replace(self.federation, algorithm=algorithm),
                experiment=ExperimentConfig(seed=seed),
            )
            for algorithm in (self.federation.algorithm, *self.experiment.baselines)
            for seed in range(first, first + self.experiment.num_seeds)
        )
