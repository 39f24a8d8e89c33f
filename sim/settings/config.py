"""The settings of a run, one frozen dataclass per section of the TOML file.

The types carry their ranges (`constraints`); `config_io` checks them and reads and writes the
files. The defaults give a small run on the embedded digits. Sources are in the docs of each field;
the papers' settings are in the presets.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Final

from deltafl.fl import registry as learning
from deltafl.fl.read.exact import exact_number
from deltafl.fl.schedule import CosineDecay, StepDecay, WarmUp
from deltafl.fl.strategies.choices import DeviceWeights, Response
from deltafl.protocol.quantile import registry as quantile
from deltafl.protocol.weighting import Weighting as SearchWeighting
from deltafl.secagg.threat import Adversary
from deltafl.sim.settings.attackers import AttackersConfig
from deltafl.sim.settings.constraints import (
    AUTO,
    FULL,
    SUMS,
    Count,
    CountOrZero,
    FallingLevels,
    Interval,
    OneOf,
    Pattern,
    Positive,
)
from deltafl.sim.settings.own import OwnConfig
from deltafl.sim.settings.policy import PolicyConfig

PRIVATE: Final = "private-"
"""Prefix of the names of algorithms that run under secure aggregation."""

ALGORITHMS: Final = (
    *learning.WEIGHTED_MEANS,
    *learning.OTHER_STRATEGIES,
    *(PRIVATE + name for name in (*learning.WEIGHTED_MEANS, learning.DELTA_FL)),
)
OWN_STRATEGIES: Final = (learning.OWN, PRIVATE + learning.OWN)
"""What the settings call a strategy that a program passes, in clear or by secure sums."""

WITH_LEVELS: Final = (learning.DELTA_FL, PRIVATE + learning.DELTA_FL)
"""The algorithms that can train several conformity levels together."""

MODELS: Final = tuple(learning.MODELS)
FORMATS: Final = ("auto", *learning.FORMATS)
REFERENCE: Final = "reference"
PROCESSES: Final = "processes"
CUDA: Final = "cuda"
BACKENDS: Final = ("auto", REFERENCE, "batched", PROCESSES, CUDA)
MAX_WORKERS: Final = 1024  # or threads
COSINE: Final = "cosine"
REMOTE: Final = "remote"


class Sums(StrEnum):
    """How secure sums are made: with keys and masks, or without."""

    MASKED = "masked"
    IDEAL = "ideal"


class Search(StrEnum):
    """Whether devices check a search."""

    AUTO = "auto"
    VERIFIED = "verified"
    TRUSTED = "trusted"


class Votes(StrEnum):
    """Whether devices prove their answers to a search."""

    TRUSTED = "trusted"
    PROVED = "proved"


class Aggregation(StrEnum):
    """How the updates of a round become one."""

    MEAN = "mean"
    RFA = "rfa"
    CLIPPED = "clipped"


Seed = Annotated[int, Interval("[0, 9007199254740992)")]
Rate = Annotated[float, Interval("(0, 1e30]")]  # beyond, it is no float32
Penalty = Annotated[float, Interval("[0, 1e30]")]
NotNegative = Annotated[float, Interval("[0, inf)")]
Share = Annotated[float, Interval("[0, 1)")]
Bits = Annotated[int, Interval("[1, 48]")]


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which data, and how they are divided among devices.

    A setting that the format does not use is an error, except `num_devices` and
    `rotated_fraction`. More on the formats: `deltafl data list`, `deltafl.fl.data.registry`.

    Attributes:
        source: a path, or the name of a format that reads no files, such as "digits".
        format: the format of the source, one of `FORMATS`; "auto" recognises an .npz file or a
            folder of LEAF JSON files.
        rule: which devices are kept, how the data are split and how many classes there are: as
            "given" by the next five settings, or as "published" for the format; with "published",
            `min_samples`, `test_fraction`, `split` and `num_classes` must keep their defaults.
        min_samples: keep only devices with strictly more than this many samples.
        test_fraction: share of the devices that only evaluate and never train, or share of each
            device's samples used for testing, depending on `split`.
        validation_fraction: share of the others that are held out of training, to choose settings
            and models by.
        split: what is divided into train and test: the "devices", or the "samples" of each device.
        split_seed: seed of the split and of everything assigned or generated at random; the same
            for all seeds of an experiment, so that devices can be compared one by one.
        num_classes: number of classes; 0 means the largest label plus one.
        standardise: how features are scaled: not at all ("none"), by mean and standard deviation
            over all "train" devices or over each "device", or as in the published code of arXiv
            2002.11223 ("legacy").
        num_devices: number of devices to create (digits, synthetic formats, any partitioner except
            "natural"); 0 means the format's default.
        rotated_fraction: digits: share of the devices whose digits are rotated by 90 degrees.
        partitioner: who gets which samples: the users who produced them ("natural"), or new devices
            that differ in labels ("dirichlet").
        concentration: α of the partitioner; the smaller it is, the more devices differ.
        heterogeneity: synthetic-emnist, synthetic-sent140: how much devices differ.
        alpha: synthetic: α of Synthetic(α, β), how much the means of the devices' models differ.
        beta: synthetic: β of Synthetic(α, β), how much the devices' inputs differ.
        vectors: sent140, mqp: file of word vectors, glove.6B.50d.txt or .npz.
        features: sent140, synthetic-sent140: the "mean" of a text's word vectors, or its "tokens".
        lower_case: sent140: look words up in lower case.
        alphabet: shakespeare: 53 "letters" in windows of 20, or "leaf-80" in windows of 80.
        legacy_duplicates: femnist: store images twice where LEAF does.
        num_users: number of users to keep of those that the rule keeps; 0 keeps all. Not of adult,
            the synthetic formats and folders that are divided already.
        max_samples: most samples to keep per user, likewise; 0 keeps all.
        user_column: csv, parquet, hub: the column of the user; empty for a known data set of hub.
        input_column: hub: the column of the inputs; empty for a known data set.
        label_column: csv, parquet, hub: the column of the labels; empty for a known data set of
            hub.
        feature_columns: csv, parquet: the columns of the inputs, numbers; empty for all others.
        missing: csv, parquet: "refuse" rows in which something is missing that is used, or
            "leave-out" such rows.
        separator: csv: what stands between columns.
        decimal: csv: what stands before the fractions of numbers.
        classes: what the classes are called, in the order of their numbers; by default, texts are
            numbered in alphabetical order. On machines, it is how devices agree on them.
        unit: npz, csv, parquet, folder: the unit of labels that are numbers to be predicted, such
            as "mmHg", or "1" without one; empty if labels are classes.
        input_shape: of one input; empty for that of the data.
        means: what is subtracted from inputs, a number for each; with `scales`, in place of
            `standardise`.
        scales: what inputs are divided by after that.
    """

    source: str = "digits"
    format: Annotated[str, OneOf((*FORMATS, learning.OWN))] = "auto"
    rule: Annotated[str, OneOf(("given", "published"))] = "given"
    min_samples: CountOrZero = 0
    test_fraction: Annotated[Fraction, Interval("(0, 1)")] = Fraction(1, 2)
    validation_fraction: Annotated[Fraction, Interval("[0, 1)")] = Fraction(0)
    split: Annotated[str, OneOf(("devices", "samples"))] = "devices"
    split_seed: Seed = 0
    num_classes: Annotated[int, Interval("[0, 100000]")] = 0
    standardise: Annotated[str, OneOf(("none", "train", "device", "legacy"))] = "none"
    num_devices: Annotated[int, Interval("[0, 100000]")] = 0
    rotated_fraction: Annotated[Fraction, Interval("(0, 0.5]")] = Fraction(1, 5)
    partitioner: Annotated[str, OneOf(("natural", "dirichlet"))] = "natural"
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
    feature_columns: tuple[str, ...] = ()
    missing: Annotated[str, OneOf(("refuse", "leave-out"))] = "refuse"
    separator: Annotated[str, OneOf((",", ";", "|", "tab"))] = ","
    decimal: Annotated[str, OneOf((".", ","))] = "."
    classes: tuple[str, ...] = ()
    unit: str = ""
    input_shape: tuple[int, ...] = ()
    means: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is trained.

    Attributes:
        name: one of `MODELS`, each described in its module in `deltafl.fl.models`; or "own", which
            `own.module` sets.
    """

    name: Annotated[str, OneOf((*MODELS, learning.OWN))] = "linear"


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How one device trains.

    Attributes:
        learning_rate: γ0, the learning rate of round 0, or of the last one of the warm-up.
        decay: c; the learning rate t rounds after the warm-up is γ0 · c^⌊t / decay_every⌋.
        decay_every: t0, in rounds.
        decay_shape: how the rate falls: in "steps", as above; or as a "cosine", from γ0 to γ0 · c
            within decay_every rounds.
        warmup: rounds in which the rate grows from γ0 / warmup to γ0, the same each round.
        batch_size: samples per step.
        epochs: passes over the device's samples per round.
        local_steps: steps per round in place of `epochs`, whatever the number of samples; 0 for
            those of the epochs.
        l2: λ of the penalty (λ/2)·||w||².
        optimizer: "sgd" or "adam", with the constants of torch.optim; or "own". It begins anew on
            every device in every round.
        momentum: of "sgd".
        max_grad_norm: a step's gradient is scaled down to this L2 norm if it is longer; 0 for no
            limit.
        loss: what devices minimise: "cross-entropy"; or, for a module of one's own, "mse", "mae"
            or "own".
        metric: what is measured beside the loss: "error", the share misclassified; "mae", the mean
            absolute error, where labels are numbers; or "own".
        device: where tensors live: "cpu", "cuda", or "auto" (cuda if there is one).
        backend: where devices are simulated: "reference" (this process, one device after another),
            "batched" (this process, many devices as one batch), "processes" (one worker per core),
            "cuda" (batched on a GPU), or "auto" (cuda if there is a GPU, processes for long runs,
            otherwise reference).
        workers: number of workers of "processes"; 0 means one per core. The last bits of results
            may depend on it.
    """

    learning_rate: Rate = 0.1
    decay: Annotated[float, Interval("(0, 1]")] = 1.0
    decay_every: Count = 100
    decay_shape: Annotated[str, OneOf(("steps", COSINE))] = "steps"
    warmup: CountOrZero = 0
    batch_size: Count = 10
    epochs: Count = 1
    local_steps: CountOrZero = 0
    l2: Penalty = 0.0
    optimizer: Annotated[str, OneOf((*learning.OPTIMIZERS, learning.OWN))] = learning.SGD
    momentum: Share = 0.0
    max_grad_norm: NotNegative = 0.0
    loss: Annotated[str, OneOf((*learning.LOSSES, learning.OWN))] = learning.CROSS_ENTROPY
    metric: Annotated[str, OneOf((*learning.METRICS, learning.OWN))] = learning.ERROR
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"
    backend: Annotated[str, OneOf(BACKENDS)] = "auto"
    workers: Annotated[int, Interval(f"[0, {MAX_WORKERS}]")] = 0

    @property
    def schedule(self) -> WarmUp:
        """The learning rate of every round."""
        decay = CosineDecay if self.decay_shape == COSINE else StepDecay
        return WarmUp(decay(self.learning_rate, self.decay, self.decay_every), self.warmup)


@dataclass(frozen=True, slots=True)
class FederationConfig:
    """Who trains together, and by which algorithm.

    Attributes:
        algorithm: one of `ALGORITHMS`; those that begin with "private-" run under secure
            aggregation, the others without it.
        rounds: number of rounds.
        cohort_size: number of devices sampled per round, without replacement.
        theta: conformity level θ: the tail fraction that is kept; 1 is FedAvg.
        levels: delta-fl, private-delta-fl: conformity levels to train together, each with its own
            model, from the largest to the smallest; empty to train `theta` only.
        evaluate_every: rounds between two evaluations over all devices; the models before the first
            round and after the last are always evaluated. Nobody sees such numbers of remote
            devices.
        devices: where they are: "simulated", or "remote" on machines of their own, which connect to
            `deltafl serve` and give nothing but masked sums.
    """

    algorithm: Annotated[str, OneOf((*ALGORITHMS, *OWN_STRATEGIES))] = "private-delta-fl"
    rounds: Count = 100
    cohort_size: Count = 20
    theta: Annotated[Fraction, Interval("(0, 1]")] = Fraction(1, 2)
    levels: Annotated[tuple[str, ...], FallingLevels()] = ()
    evaluate_every: Count = 5
    devices: Annotated[str, OneOf(("simulated", REMOTE))] = "simulated"

    @property
    def is_private(self) -> bool:
        """Whether the algorithm runs under secure aggregation."""
        return self.algorithm.startswith(PRIVATE)

    def of_baseline(self, algorithm: str) -> "FederationConfig":
        """The same federation with another algorithm; no levels if the algorithm has none."""
        levels = self.levels if algorithm in WITH_LEVELS else ()
        return replace(self, algorithm=algorithm, levels=levels)

    @property
    def thetas(self) -> tuple[Fraction, ...]:
        """The conformity levels that are trained: `levels`, or `theta` if there are none."""
        if not self.levels or self.algorithm not in WITH_LEVELS:
            return (self.theta,)
        return tuple(map(exact_number, self.levels))


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """The algorithms' constants; each algorithm reads its own. Sources: `deltafl.fl.strategies`.

    Attributes:
        weighting: delta-fl: the weight of a device: its number of "samples", or the same for all
            ("uniform").
        eta_every: delta-fl: T_η, the rounds between two updates of the threshold η.
        proximal: fedprox: μ.
        q: q-ffl: q; 0 is FedAvg with equal weights.
        tilt: tilted-erm: t.
        mixture_rate: afl: γ_λ, the step size of the mixture weights.
        ceiling: propfair: M, larger than every loss that matters.
        mgda_epsilon: fedmgda: how far a weight may be from equal; 1 means no limit.
        response: aaggff-s, aaggff-d: the distribution function that maps losses to responses.
        aggregation: how the updates of a round become one: their weighted "mean"; "clipped", the
            mean of updates that are scaled down to a radius; or "rfa", their geometric median.
            Devices that train falsely move the last two less. For fedavg, fedprox and delta-fl; by
            secure sums, not "rfa".
        rfa_passes: rfa: weighted means of a round, the first of which is the mean.
        rfa_smoothing: rfa: ν of the first round, in units of the model's parameters; later rounds
            set it by the distances between the updates and their median.
        clipped_quantile: clipped: γ, the share of updates that the radius is to leave as they are.
        clipped_rate: clipped: η_C, how fast the radius follows; 0 keeps it.
        clipped_radius: clipped: the radius of the first round, in units of the model's parameters.
        server_optimizer: how the server applies the algorithm's change of the model: "sgd" (the
            change times server_learning_rate), "momentum", "adam", "yogi" or "adagrad".
        server_learning_rate: η_s, the server's step size.
        server_beta1: decay of the first moment.
        server_beta2: decay of the second moment.
        server_tau: τ, the adaptivity.
    """

    weighting: Annotated[str, OneOf(tuple(DeviceWeights))] = "samples"
    eta_every: Count = 1
    proximal: Penalty = 0.1
    q: Annotated[float, Interval("[0, 1e6]")] = 1.0
    tilt: Annotated[float, Interval("(0, 1e6]")] = 1.0
    mixture_rate: Positive = 0.1
    ceiling: Positive = 5.0
    mgda_epsilon: Annotated[float, Interval("[0, 1]")] = 0.5
    response: Annotated[str, OneOf(tuple(Response))] = "normal"
    aggregation: Annotated[str, OneOf(tuple(Aggregation))] = Aggregation.MEAN.value
    rfa_passes: Annotated[int, Interval("[2, 16]")] = 3
    rfa_smoothing: Positive = 1.0
    clipped_quantile: Annotated[float, Interval("[0, 1]")] = 0.5
    clipped_rate: Annotated[float, Interval("[0, 1]")] = 0.2
    clipped_radius: Positive = 1.0
    server_optimizer: Annotated[str, OneOf(tuple(learning.SERVER_OPTIMIZERS))] = "sgd"
    server_learning_rate: Positive = 1.0
    server_beta1: Share = 0.9
    server_beta2: Share = 0.999
    server_tau: Positive = 1e-4


@dataclass(frozen=True, slots=True)
class QuantileConfig:
    """How the threshold η is searched for by secure sums (private-delta-fl only).

    Attributes:
        method: "bracketed", "mm" (the one of Algorithm 3), "histogram" or "noisy". The first three
            find the same η. A search by "mm" tells more about the losses, unless it is over a
            hundred devices or more.
        search: whether devices check the search themselves. "verified": each device commits to its
            answers, checks every sum, and accepts only the questions and the η that follow from the
            sums. This takes signed sessions and the complete graph. "trusted": devices answer
            whatever the server asks; a server that lies can then ask until its sums are about a
            single device. "auto": "verified" against an active server, otherwise "trusted".
        votes: whether devices prove that their answers to a search are valid. "proved": each device
            proves, without telling anything else, that it votes once, with one legal weight in all
            queries of a search; a device that does not is dropped before its answer is added. It
            can still lie about its loss. This takes a "verified" search by "bracketed" or
            "histogram". "trusted": devices that lie can answer anything that fits the encoding.
        max_queries: most secure sums that a round may spend on the search; 0 means the method's
            default limit.
        resolution_bits: losses are rounded to multiples of 2^-resolution_bits nats.
        loss_bound: larger losses are clipped to this bound, in nats.
        warm_start: whether a search starts from the last round's η.
        weights: the weight of a device in the search: its number of "samples", that number rounded
            down to "powers-of-two", or "equal" weights. The less the weights differ, the less a
            search reveals about which device has which loss; η is then the quantile under these
            weights. Updates are always averaged by number of samples.
        epsilon: ε of "mm", in nats: a loss closer than ε to a queried point counts as if it were ε
            away. This hides how close losses are and costs more queries; 0 means no ε. Other
            methods have none.
        min_cohort: fewest devices to search over; with fewer, the round keeps every device.
        noise: σ of the noise in every count of "noisy", in devices, contributed by
            `privacy.min_cohort` devices (or `min_cohort`, if larger) minus the colluding ones; must
            be 0 with the other methods. "noisy" needs "equal" weights and makes one query per
            round.
    """

    method: Annotated[str, OneOf(tuple(quantile.METHODS))] = "bracketed"
    search: Annotated[str, OneOf(tuple(Search))] = "auto"
    votes: Annotated[str, OneOf(tuple(Votes))] = "trusted"
    max_queries: Annotated[int, Interval("[0, 4095]")] = 0
    resolution_bits: Bits = 16
    loss_bound: Count = 32
    warm_start: bool = True
    weights: Annotated[str, OneOf(tuple(SearchWeighting))] = "samples"
    epsilon: NotNegative = 0.0
    min_cohort: CountOrZero = 0
    noise: Annotated[Fraction, Interval("[0, inf)")] = Fraction(0)


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """How sums are kept secure (algorithms whose names begin with "private-").

    Attributes:
        sums: "masked" (real keys, real bytes) or "ideal" (the same sums without cryptography).
        adversary: the server to defend against: "noncolluding" (it follows the protocol, and no
            device helps it), "curious" (it follows the protocol and pools what it sees with
            colluding devices) or "active" (it may deviate from the protocol in any way: devices
            refuse sparse graphs, searches that they cannot check, and lost rounds repeated).
            By default curious, and unsigned: it is trusted to hand out the true keys.
        signed: whether devices have identities and agree on the survivors of every sum; always so
            against an active server.
        graph: which devices share masks: "complete" (all pairs), "sparse", or "auto" (by cohort
            size; always complete against an active server and for a verified search).
        expected_dropout: δ, the share of a cohort that may drop out without losing the sum; on a
            sparse graph, the sum is lost as soon as more do.
        colluding: γ, the share of devices that may collude with the server.
        min_cohort: smallest cohort in which a device agrees to take part.
        min_honest_tail: fewest devices that do not collude in a tail, besides the share `colluding`
            of the invited ones that may. Fewer are not asked for their updates: the search keeps as
            many more as are missing, or the round ends. Runs whose θ cannot keep so many are
            refused. 0, only with `sums` = "ideal", counts none.
        update_clip: bound on each number of a device's update; larger ones are clipped and counted.
        update_resolution_bits: updates are rounded to multiples of 2^-update_resolution_bits. This
            and max_weight are for algorithms that weigh by n_k; "private-q-ffl" and
            "private-tilted-erm" choose their own (`deltafl.fl.strategies.masked`).
        max_weight: bound on a device's weight n_k; larger weights are reduced to it.
        transcript: what is recorded of the server's messages: "full", all of them; "sums", sizes,
            hashes and sums, which no audit plays again; "auto", full if at most 1 GB.
        truth: whether the simulation writes each device's private values to truth.sqlite, for an
            audit to compare with what the server saw; none of them pass through the server.
    """

    sums: Annotated[str, OneOf(tuple(Sums))] = "masked"
    adversary: Annotated[str, OneOf(tuple(Adversary))] = "curious"
    signed: bool = False
    graph: Annotated[str, OneOf(("auto", "complete", "sparse"))] = "auto"
    expected_dropout: Share = 0.1
    colluding: Share = 0.1
    min_cohort: Annotated[int, Interval("[2, inf)")] = 10
    min_honest_tail: CountOrZero = 2
    update_clip: Positive = 2.0
    update_resolution_bits: Bits = 10
    max_weight: Count = 8192
    transcript: Annotated[str, OneOf((AUTO, FULL, SUMS))] = AUTO
    truth: bool = False

    @property
    def sessions_are_signed(self) -> bool:
        """Whether sessions are signed: if the settings say so, and against an active server."""
        return self.signed or self.adversary == "active"


@dataclass(frozen=True, slots=True)
class DPConfig:
    """Noise in the sums of updates, so that a whole run is differentially private.

    For private-delta-fl. Every sum must then have noise: with a θ below 1, the search must be
    "noisy". Simulated devices are dealt into cohorts that have nothing in common, so that none is
    invited more than ⌈rounds / ⌊devices / cohort_size⌋⌉ times; others may be in every round.
    In the settings of a device's owner, these are the least noise that it accepts and the largest
    ε that it spends.

    Attributes:
        noise: z, the standard deviation of the noise in a sum of updates, over the most that
            another contribution of one device can change in it; 0 adds none. It is contributed by
            `privacy.min_cohort` devices minus the colluding ones; more devices add more. All
            devices weigh the same: `privacy.max_weight` must be 1.
        clip: C, the L2 norm of a device's update; longer ones are scaled down to it.
        delta: δ of the ε that is printed; to be far below 1 over the number of devices that train,
            because a run that shows each device with probability δ would keep the promise.
        epsilon_budget: the largest ε that a run may spend at δ. A run that would spend more is
            refused; 0 means no limit.
    """

    noise: Annotated[Fraction, Interval("[0, 1000000]")] = Fraction(0)
    clip: Positive = 1.0
    delta: Annotated[float, Interval("(0, 0.1]")] = 1e-5
    epsilon_budget: NotNegative = 0.0


@dataclass(frozen=True, slots=True)
class FaultsConfig:
    """Simulated faults.

    Attributes:
        dropout: probability that a device of the cohort drops out at some step of the round.
    """

    dropout: Share = 0.0


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """How many repetitions, and which baselines to compare with.

    Attributes:
        seed: first seed; it determines cohorts, initial weights, shuffles and faults.
        nonce: what initial weights are drawn from besides, so that two runs with the same devices
            begin with different models; up to 64 letters and digits. `deltafl serve` draws another
            for each run. "" for initial weights as in the papers, where linear models begin at
            zeros.
        num_seeds: number of seeds, counting up from the first.
        baselines: other algorithms to run with the same seeds and therefore the same cohorts.
        best_by: what the best model is chosen by, where there are validation devices: the "mean" of
            their errors, or the 90th percentile, "p90".
    """

    seed: Seed = 1
    nonce: Annotated[str, Pattern("[0-9A-Za-z]{0,64}", "up to 64 letters and digits")] = ""
    num_seeds: Annotated[int, Interval("[1, 10000]")] = 1
    baselines: Annotated[tuple[str, ...], OneOf(ALGORITHMS)] = ()
    best_by: Annotated[str, OneOf(learning.BEST_BY)] = learning.BEST_BY[0]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """All settings of a run, or of an experiment of several runs."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    own: OwnConfig = field(default_factory=OwnConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    quantile: QuantileConfig = field(default_factory=QuantileConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    dp: DPConfig = field(default_factory=DPConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    attackers: AttackersConfig = field(default_factory=AttackersConfig)
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)

    @property
    def has_masked_sums(self) -> bool:
        """Whether devices answer a server under masks, so that no round may be played twice."""
        return self.federation.is_private and self.privacy.sums == Sums.MASKED

    def arms(self) -> tuple["RunConfig", ...]:
        """Split an experiment into runs of one algorithm and one seed; the main run is the first.

        Seeds vary fastest, so the main algorithm comes before its baselines.
        """
        first, nonce = self.experiment.seed, self.experiment.nonce
        return tuple(
            replace(self, federation=federation, experiment=ExperimentConfig(seed, nonce))
            for federation in (
                self.federation,
                *(self.federation.of_baseline(name) for name in self.experiment.baselines),
            )
            for seed in range(first, first + self.experiment.num_seeds)
        )
