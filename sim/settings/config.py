"""The settings of a run, one frozen dataclass per section of the TOML file.

The types carry their ranges (`constraints`); `config_io` checks them, reads and writes the files.
The defaults are a small run on the embedded digits. Sources: docs of each field; the papers'
settings are in the presets.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Final

from deltafl.fl import registry as learning
from deltafl.fl.schedule import StepDecay
from deltafl.fl.strategies.choices import DeviceWeights, Response
from deltafl.protocol.quantile import registry as quantile
from deltafl.protocol.weighting import Weighting as SearchWeighting
from deltafl.sim.settings import backends
from deltafl.sim.settings.constraints import FallingLevels, Interval, OneOf

PRIVATE: Final = "private-"
"""What the name of an algorithm begins with that runs under secure aggregation."""

ALGORITHMS: Final = (
    *learning.WEIGHTED_MEANS,
    *learning.OTHER_STRATEGIES,
    *(PRIVATE + name for name in (*learning.WEIGHTED_MEANS, learning.DELTA_FL)),
)
WITH_LEVELS: Final = (learning.DELTA_FL, PRIVATE + learning.DELTA_FL)
"""The algorithms that can train several conformity levels together."""

RESPONSES: Final = tuple(Response)
SERVER_OPTIMIZERS: Final = tuple(learning.SERVER_OPTIMIZERS)
MODELS: Final = tuple(learning.MODELS)
FORMATS: Final = ("auto", *learning.FORMATS)
BACKENDS: Final = ("auto", *backends.BACKENDS)
METHODS: Final = tuple(quantile.METHODS)
WEIGHTS: Final = tuple(SearchWeighting)
SUMS: Final = ("masked", "ideal")

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

    What a format has no use for is refused, but for `num_devices` and `rotated_fraction`. More on
    the formats: `deltafl data list`, `deltafl.fl.data.registry`.

    Attributes:
        source: a path, or the name of a format that needs none, such as "digits".
        format: what lies at the source, one of `FORMATS`; "auto" takes an .npz file or a folder of
            LEAF JSON files for what they look like.
        rule: who stays, how the data are split and how many classes there are: as "given" by the
            next five settings, or as "published" for the format, which leaves no say to
            `min_samples`, `test_fraction`, `split` and `num_classes`.
        min_samples: keep devices with more than so many samples (strictly more).
        test_fraction: share of the devices that only evaluate, never train, or of each device's
            samples.
        split: what is divided into train and test: "devices", or the "samples" of each device.
        split_seed: seed of the split, and of all that is assigned or made up; the same for all
            seeds of an experiment, so that its devices can be compared one by one.
        num_classes: how many classes there are; 0 takes the largest label plus one.
        standardise: scale features by "none", by mean and deviation over the "train" devices or
            over each "device", or as the published code of arXiv 2002.11223 ("legacy").
        num_devices: how many devices to make (digits, synthetic formats, any partitioner but
            "natural"); 0 takes the format's own number.
        rotated_fraction: digits: share of the devices that write rotated by 90 degrees.
        partitioner: who gets which samples: their makers ("natural"), or new devices that differ in
            labels ("dirichlet") or in sizes ("quantity").
        concentration: α of the partitioner: the smaller, the more devices differ.
        heterogeneity: synthetic-emnist, synthetic-sent140: how far devices differ.
        alpha: synthetic: α of Synthetic(α, β), how far the means of the devices' models differ.
        beta: synthetic: its β, how far their inputs differ.
        vectors: sent140, mqp: file of word vectors, glove.6B.50d.txt or .npz.
        features: sent140, synthetic-sent140: "mean" of the vectors of a text, or its "tokens".
        lower_case: sent140: look words up in lower case.
        alphabet: shakespeare: 53 "letters" in windows of 20, or "leaf-80" in windows of 80.
        legacy_duplicates: femnist: store images twice where LEAF does.
        num_users: npz, femnist, sent140, shakespeare: as many of the users that the rule keeps; 0
            is all.
        max_samples: npz, femnist, sent140, shakespeare: at most so many samples of each; 0 is all.
        user_column: hub: the column of the user; empty for a known data set.
        input_column: hub: the column of the inputs, likewise.
        label_column: hub: the column of the labels, likewise.
        cache: keep what was read in $DELTAFL_CACHE or ~/.cache/deltafl, and read it from there.
    """

    source: str = "digits"
    format: Annotated[str, OneOf(FORMATS)] = "auto"
    rule: Annotated[str, OneOf(("given", "published"))] = "given"
    min_samples: CountOrZero = 0
    test_fraction: Annotated[Fraction, Interval("(0, 1)")] = Fraction(1, 2)
    split: Annotated[str, OneOf(("devices", "samples"))] = "devices"
    split_seed: Seed = 0
    num_classes: Annotated[int, Interval("[0, inf)")] = 0
    standardise: Annotated[str, OneOf(("none", "train", "device", "legacy"))] = "none"
    num_devices: Annotated[int, Interval("[0, 100000]")] = 0
    rotated_fraction: Annotated[Fraction, Interval("(0, 0.5]")] = Fraction(1, 5)
    partitioner: Annotated[str, OneOf(("natural", "dirichlet", "quantity"))] = "natural"
    concentration: Positive = 1.0
    heterogeneity: Annotated[float, Interval("[0, 1]")] = 0.5
    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    vectors: str = ""
    features: Annotated[str, OneOf(("mean", "tokens"))] = "mean"
    lower_case: bool = False
    alphabet: Annotated[str, OneOf(("letters", "leaf-80"))] = "letters"
    legacy_duplicates: bool = False
    num_users: CountOrZero = 0
    max_samples: CountOrZero = 0
    user_column: str = ""
    input_column: str = ""
    label_column: str = ""
    cache: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is trained.

    Attributes:
        name: one of `MODELS`; each is described in its file of `deltafl.fl.models`.
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
        backend: who does the devices' work: "reference" (this process, one device after another),
            "batched" (this process, many devices as one batch), "processes" (one worker per core),
            "cuda" (batched on a GPU), "ray" (workers on a Ray cluster, extra `ray`), or "auto"
            (cuda if there is a GPU, processes for long runs, else reference).
        workers: workers of "processes" and "ray"; 0 is one per core. Last bits may depend on it.
        address: of the Ray cluster, "auto" for one that runs on this machine; empty starts one.
    """

    learning_rate: Positive = 0.5
    decay: Annotated[float, Interval("(0, 1]")] = 1.0
    decay_every: Count = 100
    batch_size: Count = 16
    epochs: Count = 1
    l2: NotNegative = 0.0
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"
    backend: Annotated[str, OneOf(BACKENDS)] = "auto"
    workers: Annotated[int, Interval("[0, 1024]")] = 0
    address: str = ""

    @property
    def schedule(self) -> StepDecay:
        """The learning rate of every round."""
        return StepDecay(self.learning_rate, self.decay, self.decay_every)


@dataclass(frozen=True, slots=True)
class FederationConfig:
    """Who trains together, and by which algorithm.

    Attributes:
        algorithm: one of `ALGORITHMS`; those that begin with "private-" run under secure
            aggregation, the others in clear.
        rounds: how many.
        cohort_size: devices drawn per round, without replacement.
        theta: conformity level θ: the tail fraction that is kept; 1 is FedAvg.
        levels: delta-fl, private-delta-fl: conformity levels to train together, each with a model
            of its own, from the largest to the smallest; empty for `theta` alone.
        evaluate_every: rounds between two evaluations over all devices; 0 and the last always.
    """

    algorithm: Annotated[str, OneOf(ALGORITHMS)] = "private-delta-fl"
    rounds: Count = 30
    cohort_size: Count = 20
    theta: Annotated[Fraction, Interval("(0, 1]")] = Fraction(1, 2)
    levels: Annotated[tuple[str, ...], FallingLevels()] = ()
    evaluate_every: Count = 5

    @property
    def is_private(self) -> bool:
        """Whether the algorithm runs under secure aggregation."""
        return self.algorithm.startswith(PRIVATE)

    def of_baseline(self, algorithm: str) -> "FederationConfig":
        """The same federation under another algorithm, without levels where it has none."""
        levels = self.levels if algorithm in WITH_LEVELS else ()
        return replace(self, algorithm=algorithm, levels=levels)

    @property
    def thetas(self) -> tuple[Fraction, ...]:
        """The conformity levels that are trained: `levels`, or `theta` alone."""
        if not self.levels or self.algorithm not in WITH_LEVELS:
            return (self.theta,)
        return tuple(map(Fraction, self.levels))


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """The constants of the algorithms; each looks at its own. Sources: `deltafl.fl.strategies`.

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

    weighting: Annotated[str, OneOf(tuple(DeviceWeights))] = "samples"
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
    """How sums are kept secure (algorithms whose names begin with "private-").

    Attributes:
        sums: "masked" (real keys, real bytes) or "ideal" (the same sums without cryptography).
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
        update_resolution_bits: updates are rounded to multiples of 2^-update_resolution_bits. This
            and max_weight are for algorithms that weigh by n_k; "private-q-ffl" and
            "private-tilted-erm" choose their own (`deltafl.fl.strategies.masked`).
        max_weight: bound of a device's weight n_k; heavier devices count as this.
        transcript: what is kept of the server's messages: "headers" (sizes and hashes), "full", or
            "every=N" (full in every N-th round).
        truth: whether the simulation writes down what every device had to hide, for audits to
            compare with; nothing of it passes the server.
    """

    sums: Annotated[str, OneOf(SUMS)] = "masked"
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
            replace(self, federation=federation, experiment=ExperimentConfig(seed=seed))
            for federation in (
                self.federation,
                *(self.federation.of_baseline(name) for name in self.experiment.baselines),
            )
            for seed in range(first, first + self.experiment.num_seeds)
        )
