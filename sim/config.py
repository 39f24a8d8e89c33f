"""The settings of a run, one frozen dataclass per section of the TOML file.

The types carry their ranges (`sim.constraints`); `sim.config_io` checks them and reads and writes
the files. The defaults are a small run on the embedded digits. Sources: docs of each field; the
papers' settings are in the presets.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Final

from sim.constraints import Interval, OneOf

PRIVATE: Final = "private-"
"""What the name of an algorithm begins with that runs under secure aggregation."""

ALGORITHMS: Final = (
    "fedavg",
    "fedprox",
    "q-ffl",
    "tilted-erm",
    "propfair",
    "afl",
    "fedmgda",
    "aaggff-s",
    "aaggff-d",
    "delta-fl",
    "private-fedavg",
    "private-fedprox",
    "private-q-ffl",
    "private-tilted-erm",
    "private-propfair",
    "private-delta-fl",
)
RESPONSES: Final = ("weibull", "exponential", "frechet", "normal", "gumbel", "logistic")
SERVER_OPTIMIZERS: Final = ("sgd", "momentum", "adam", "yogi", "adagrad")
MODELS: Final = (
    "linear",
    "convnet",
    "logistic",
    "logistic-bias",
    "lstm",
    "gru",
    "gru-embedding",
    "convnet-groupnorm",
    "lstm-stacked",
    "m5",
)
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
        test_fraction: share of the devices that only evaluate, never train, or of each device's
            samples.
        split: what is divided into train and test: "devices", or the "samples" of each device.
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
    split: Annotated[str, OneOf(("devices", "samples"))] = "devices"
    split_seed: Seed = 0
    num_classes: Annotated[int, Interval("[0, inf)")] = 0
    standardise: Annotated[str, OneOf(("none", "train"))] = "none"
    num_devices: Annotated[int, Interval("[8, 300]")] = 60
    rotated_fraction: Annotated[Fraction, Interval("(0, 0.5]")] = Fraction(1, 5)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is trained.

    Attributes:
        name: one of `MODELS`; each is described in its file of `fl.models`.
    """

    name: Annotated[str, OneOf(MODELS)] = "linear"


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
        algorithm: one of `ALGORITHMS`; those that begin with "private-" run under secure
            aggregation, the others in clear.
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

    @property
    def is_private(self) -> bool:
        """Whether the algorithm runs under secure aggregation."""
        return self.algorithm.startswith(PRIVATE)


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """The constants of the algorithms; each algorithm looks at its own. Sources: `fl.strategies`.

    Attributes:
        weighting: delta-fl: what a device weighs: its number of "samples", or all the same
            ("uniform").
        eta_every: delta-fl: T_η, the rounds between two updates of the threshold η.
        proximal: fedprox: μ.
        q: q-ffl: q; 0 is FedAvg with equal weights.
        tilt: tilted-erm: t.
        mixture_rate: afl: the step γ_λ of the weights of the mixture.
        ceiling: propfair: M, above every loss that matters.
        mgda_epsilon: fedmgda: how far a weight may be from equal; 1 is no limit.
        response: aaggff-s, aaggff-d: the distribution function that maps losses to responses.
        server_optimizer: how the server steps along the algorithm's change of the model: "sgd"
            (takes it as it is, times server_learning_rate), or "momentum", "adam", "yogi",
            "adagrad".
        server_learning_rate: η_s of that step.
        server_beta1: decay of the first moment.
        server_beta2: decay of the second moment.
        server_tau: τ, the adaptivity.
    """

    weighting: Annotated[str, OneOf(("samples", "uniform"))] = "samples"
    eta_every: Count = 1
    proximal: NotNegative = 0.1
    q: NotNegative = 1.0
    tilt: Positive = 1.0
    mixture_rate: Positive = 0.1
    ceiling: Positive = 5.0
    mgda_epsilon: Annotated[float, Interval("[0, 1]")] = 0.5
    response: Annotated[str, OneOf(RESPONSES)] = "normal"
    server_optimizer: Annotated[str, OneOf(SERVER_OPTIMIZERS)] = "sgd"
    server_learning_rate: Positive = 1.0
    server_beta1: Share = 0.9
    server_beta2: Share = 0.999
    server_tau: Positive = 1e-4


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
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
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
