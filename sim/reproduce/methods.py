"""The methods that the papers compare, as changes of a run's settings.

Sources: P = arXiv 2002.11223; W = its workshop version (NeurIPS 2022, DistShift); A = AAggFF
(arXiv 2405.20821) with its published code. W says that the constants of its baselines were tuned by
the 90th percentile of the test error and does not print them: the ones here are our choice, inside
the grids that the methods' own papers recommend. `deltafl reproduce tune` and `--set` try others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError

Layer: TypeAlias = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A row of a table.

    Attributes:
        key: its word on the command line.
        label: its name in tables and figures.
        layer: the settings that make a run one of this method, {section: {key: value}}.
        by_task: further settings, from a task's name.
        constants: where its constants come from; empty where it has none.
    """

    key: str
    label: str
    layer: Layer
    by_task: Mapping[str, Layer] = field(default_factory=dict)
    constants: str = ""


def _strategy(algorithm: str, **constants: object) -> Layer:
    layer: dict[str, dict[str, object]] = {"federation": {"algorithm": algorithm}}
    if constants:
        layer["strategy"] = constants
    return layer


def _each(constant: str, values: Mapping[str, object]) -> dict[str, Layer]:
    return {task: {"strategy": {constant: value}} for task, value in values.items()}


_L2_OF_DELTA_FL: Final[dict[str, Layer]] = {
    # published scripts of P: 1e-9 for FedAvg, 1e-7 for Δ-FL at every θ; P tuned λ and prints none
    "emnist-linear": {"training": {"l2": 1e-7}}
}

OUR_CHOICE: Final = "not printed in the paper; our choice"

FEDAVG: Final = Method("fedavg", "FedAvg", _strategy("fedavg"))

FEDPROX: Final = Method(
    "fedprox",
    "FedProx",
    _strategy("fedprox", proximal=0.1),
    # γ·μ is the share of the way back to the start in each step, so a large γ wants a small μ
    {
        **_each(
            "proximal", {"emnist-linear": 0.01, "sent140-lstm": 0.01, "shakespeare-gru": 0.001}
        ),
        **_each("proximal", dict.fromkeys(("heart", "berka", "mqp"), 0.001)),  # A's scripts
    },
    f"μ: {OUR_CHOICE} in FedProx's recommended 0.001 … 1; heart, berka, mqp: A's scripts, 0.001",
)

Q_FFL: Final = Method(
    "q-ffl",
    "q-FFL",
    _strategy("q-ffl", q=1.0),
    _each("q", {"shakespeare-gru": 0.001, "mqp": 0.1}),
    f"q = 1, on shakespeare-gru 0.001: {OUR_CHOICE}; berka, mqp: A's scripts (1 and 0.1)",
)

TILTED_ERM: Final = Method(
    "tilted-erm",
    "Tilted-ERM",
    _strategy("tilted-erm", tilt=1.0),
    _each("tilt", dict.fromkeys(("heart", "berka", "mqp", "adult"), 0.1)),
    f"t = 1, on heart and adult 0.1: {OUR_CHOICE}; berka, mqp: A's scripts, 0.1",
)

AFL_AS_Q_FFL: Final = Method(
    "afl-q10",
    "AFL (q-FFL, q=10)",
    _strategy("q-ffl", q=10.0),
    constants="W ran q-FFL with q = 10 in place of AFL",
)

AFL: Final = Method(
    "afl",
    "AFL",
    _strategy("afl", mixture_rate=0.1),
    _each("mixture_rate", dict.fromkeys(("berka", "mqp"), 0.01)),
    f"γ_λ = 0.1: fair_flearn on Adult, else {OUR_CHOICE}; berka, mqp: A's scripts, 0.01",
)

PROPFAIR: Final = Method(
    "propfair",
    "PropFair",
    _strategy("propfair", ceiling=5.0),
    _each("ceiling", {"heart": 3.0, "berka": 3.0, "adult": 3.0, "mqp": 2.0}),
    f"M = 5, on heart and adult 3: {OUR_CHOICE} in A's 2 … 5; berka, mqp: A's scripts (3 and 2)",
)

FEDMGDA: Final = Method(
    "fedmgda",
    "FedMGDA+",
    _strategy("fedmgda", mgda_epsilon=0.5),
    _each("mgda_epsilon", {"berka": 1.0, "mqp": 0.1}),
    f"ε = 0.5: {OUR_CHOICE} in A's 0.1 … 1; berka, mqp: A's scripts (1 and 0.1)",
)

AAGGFF_S: Final = Method(
    "aaggff-s",
    "AAggFF-S",
    _strategy("aaggff-s", response="normal"),
    _each("response", {"heart": "frechet", "mqp": "logistic"}),
    "responses of A's scripts: Fréchet on heart, normal on berka, logistic on mqp; else normal",
)

AAGGFF_D: Final = Method(
    "aaggff-d",
    "AAggFF-D",
    _strategy("aaggff-d", response="weibull"),
    constants=f"Weibull responses: {OUR_CHOICE}, as in A's script for speech",
)


def delta_fl(theta: str) -> Method:
    """Δ-FL at one conformity level, which is written as in tables: "0.5"."""
    return Method(
        f"delta-fl-{theta}",
        f"Δ-FL θ={theta}",
        {"federation": {"algorithm": "delta-fl", "theta": theta}},
        _L2_OF_DELTA_FL,
    )


def private_delta_fl(theta: str, colluding: float = 0.1) -> Method:
    """Δ-FL at one conformity level under secure aggregation, if such a share may collude."""
    return Method(
        f"private-delta-fl-{theta}",
        f"private Δ-FL θ={theta}",
        {
            "federation": {"algorithm": "private-delta-fl", "theta": theta},
            "privacy": {"colluding": colluding},
        },
        {
            **_L2_OF_DELTA_FL,
            # the largest role of Shakespeare has 66,963 windows (P, Table 1)
            "shakespeare-gru": {"privacy": {"max_weight": 2**17}, "policy": {"max_weight": 2**17}},
        },
    )


DELTA_FL: Final = tuple(delta_fl(theta) for theta in ("0.8", "0.5", "0.1"))
"""The conformity levels of P and W."""

PRIVATE_DELTA_FL: Final = private_delta_fl("0.5")

PRIVATE_FEDAVG: Final = Method("private-fedavg", "private FedAvg", _strategy("private-fedavg"))


_PASSES: Final = 3


def by_medians(method: Method) -> Method:
    """A method that steps by the geometric median of the updates."""
    strategy = {**method.layer.get("strategy", {}), "aggregation": "rfa", "rfa_passes": _PASSES}
    return Method(
        f"{method.key}-rfa",
        f"{method.label} + RFA",
        {**method.layer, "strategy": strategy},
        method.by_task,
        method.constants,
    )


def by_clipping(method: Method) -> Method:
    """A method whose devices scale long updates down to a radius."""
    strategy = {**method.layer.get("strategy", {}), "aggregation": "clipped"}
    layer = {**method.layer, "strategy": strategy}
    label = f"{method.label}, clipped"
    return Method(f"{method.key}-clipped", label, layer, method.by_task, method.constants)


MEDIANS: Final = tuple(by_medians(one) for one in (FEDAVG, DELTA_FL[1]))
"""RFA (Pillutla et al. 2022), over FedAvg and Δ-FL, in clear."""

CLIPPED: Final = tuple(
    by_clipping(one) for one in (FEDAVG, DELTA_FL[1], PRIVATE_FEDAVG, PRIVATE_DELTA_FL)
)
"""Norm clipping, over the same, in clear and by secure sums."""

WORKSHOP: Final = (FEDAVG, FEDPROX, Q_FFL, TILTED_ERM, AFL_AS_Q_FFL, *DELTA_FL)
"""The rows of W's tables, in their order."""

ERROR_TABLES: Final = (*WORKSHOP[:4], AFL, *WORKSHOP[4:], PRIVATE_DELTA_FL)
"""The rows of our Tables 2 and 3: P's columns, W's baselines, AFL proper, and private Δ-FL."""

CROSS_SILO: Final = (FEDAVG, AAGGFF_S, AFL, Q_FFL, TILTED_ERM, PROPFAIR, FEDMGDA)
"""The rows of A's tables with full participation."""

CROSS_DEVICE: Final = (FEDAVG, AAGGFF_D, Q_FFL, TILTED_ERM, PROPFAIR, FEDMGDA, DELTA_FL[1])
"""The rows of A's tables with sampled devices, and Δ-FL; AFL wants everybody."""

PRIVATE_AT_LEVELS: Final = (
    *map(private_delta_fl, ("0.8", "0.5")),
    private_delta_fl("0.1", colluding=0.04),
)
"""Private Δ-FL at the levels of P and W.

In a tail of a tenth of P's cohorts of 50, two others are left if no more than 2 of the 50 collude.
"""

METHODS: Final = (
    *ERROR_TABLES,
    *(one for one in PRIVATE_AT_LEVELS if one.key != PRIVATE_DELTA_FL.key),
    PROPFAIR,
    FEDMGDA,
    AAGGFF_S,
    AAGGFF_D,
    PRIVATE_FEDAVG,
    *MEDIANS,
    *CLIPPED,
)
"""Everything that --methods knows."""


def choose_methods(
    wanted: tuple[str, ...] | None, default: tuple[Method, ...]
) -> tuple[Method, ...]:
    """Find methods by key or label; `default` if nothing is wanted.

    Raises:
        ConfigError: a word is neither.
    """
    if wanted is None:
        return default
    known = {word: method for method in METHODS for word in (method.key, method.label)}
    for word in wanted:
        if word not in known:
            keys = [method.key for method in METHODS]
            raise ConfigError(f"--methods: there is no {word!r}: {nearest(word, keys)}")
    return tuple(dict.fromkeys(known[word] for word in wanted))
