"""The methods that the papers compare, as changes of a run's settings, and the numbers they print.

Sources: P = arXiv 2002.11223; W = its workshop version (NeurIPS 2022, DistShift); A = AAggFF
(arXiv 2405.20821) with its published code. W says that the constants of its baselines were tuned by
the 90th percentile of the test error and does not print them: the ones here are our choice, inside
the grids that the methods' own papers recommend. `deltafl reproduce … --set` tries others.

Published errors and accuracies are in percent, mean and standard deviation over seeds (5 in P and
W, 3 in A). Numbers that both P (v1) and W print agree, but for the mean of Δ-FL θ=0.8 on the
ConvNet: 16.08 in P, 16.09 in W. What W prints for AFL it measured with q-FFL at q = 10.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from deltafl.sim.reproduce.experiment import find

Layer: TypeAlias = Mapping[str, Mapping[str, object]]

_NOWHERE: Final[Mapping[str, object]] = {}


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


def merged(first: Layer, then: Layer) -> Layer:
    """Both layers, the second one winning."""
    return {
        section: {**first.get(section, {}), **then.get(section, {})}
        for section in {**first, **then}
    }


def _method(
    label: str,
    constants: str = "",
    by_task: Mapping[str, object] = _NOWHERE,
    key: str = "",
    algorithm: str = "",
    **own: object,
) -> Method:
    """A method with its own constants, and those of some tasks; it is named after its label."""
    key = key or label.lower().replace(" ", "-").rstrip("+")
    layer: dict[str, dict[str, object]] = {"federation": {"algorithm": algorithm or key}}
    if own:
        layer["strategy"] = own
    (name,) = own or ("",)
    others = {task: {"strategy": {name: value}} for task, value in by_task.items()}
    return Method(key, label, layer, others, constants)


OUR_CHOICE: Final = "not printed in the paper; our choice"

FEDAVG: Final = _method("FedAvg")

FEDPROX: Final = _method(
    "FedProx",
    f"μ: {OUR_CHOICE} in FedProx's recommended 0.001 … 1; heart, berka, mqp: A's scripts, 0.001",
    # γ·μ is the share of the way back to the start in each step, so a large γ wants a small μ
    {"emnist-linear": 0.01, "sent140-lstm": 0.01}
    | dict.fromkeys(("shakespeare-gru", "heart", "berka", "mqp"), 0.001),
    proximal=0.1,
)

Q_FFL: Final = _method(
    "q-FFL",
    f"q = 1, on shakespeare-gru 0.001: {OUR_CHOICE}; berka, mqp: A's scripts (1 and 0.1)",
    {"shakespeare-gru": 0.001, "mqp": 0.1},
    q=1.0,
)

TILTED_ERM: Final = _method(
    "Tilted-ERM",
    f"t = 1, on heart and adult 0.1: {OUR_CHOICE}; berka, mqp: A's scripts, 0.1",
    dict.fromkeys(("heart", "berka", "mqp", "adult"), 0.1),
    tilt=1.0,
)

AFL_AS_Q_FFL: Final = _method(
    "AFL (q-FFL, q=10)",
    "W ran q-FFL with q = 10 in place of AFL",
    key="afl-q10",
    algorithm="q-ffl",
    q=10.0,
)

AFL: Final = _method(
    "AFL",
    f"γ_λ = 0.1: fair_flearn on Adult, else {OUR_CHOICE}; berka, mqp: A's scripts, 0.01",
    {"berka": 0.01, "mqp": 0.01},
    mixture_rate=0.1,
)

PROPFAIR: Final = _method(
    "PropFair",
    f"M = 5, on heart and adult 3: {OUR_CHOICE} in A's 2 … 5; berka, mqp: A's scripts (3 and 2)",
    {"heart": 3.0, "berka": 3.0, "adult": 3.0, "mqp": 2.0},
    ceiling=5.0,
)

FEDMGDA: Final = _method(
    "FedMGDA+",
    f"ε = 0.5: {OUR_CHOICE} in A's 0.1 … 1; berka, mqp: A's scripts (1 and 0.1)",
    {"berka": 1.0, "mqp": 0.1},
    mgda_epsilon=0.5,
)

AAGGFF_S: Final = _method(
    "AAggFF-S",
    "responses of A's scripts: Fréchet on heart, normal on berka, logistic on mqp; else normal",
    {"heart": "frechet", "mqp": "logistic"},
    response="normal",
)

AAGGFF_D: Final = _method(
    "AAggFF-D", f"Weibull responses: {OUR_CHOICE}, as in A's script for speech", response="weibull"
)

PRIVATE_FEDAVG: Final = _method("private FedAvg")

_L2_OF_DELTA_FL: Final[Mapping[str, Layer]] = {
    # published scripts of P: 1e-9 for FedAvg, 1e-7 for Δ-FL at every θ; P tuned λ and prints none
    "emnist-linear": {"training": {"l2": 1e-7}}
}


def delta_fl(theta: str) -> Method:
    """Δ-FL at one conformity level, which is written as in tables: "0.5"."""
    layer = {"federation": {"algorithm": "delta-fl", "theta": theta}}
    return Method(f"delta-fl-{theta}", f"Δ-FL θ={theta}", layer, _L2_OF_DELTA_FL)


def private_delta_fl(theta: str, colluding: float = 0.1) -> Method:
    """Δ-FL at one conformity level under secure aggregation, if such a share may collude."""
    layer: Layer = {
        "federation": {"algorithm": "private-delta-fl", "theta": theta},
        "privacy": {"colluding": colluding},
    }
    # the largest role of Shakespeare has 66,963 windows (P, Table 1)
    heavy = {"privacy": {"max_weight": 2**17}, "policy": {"max_weight": 2**17}}
    by_task = {**_L2_OF_DELTA_FL, "shakespeare-gru": heavy}
    return Method(f"private-delta-fl-{theta}", f"private Δ-FL θ={theta}", layer, by_task)


DELTA_FL: Final = tuple(delta_fl(theta) for theta in ("0.8", "0.5", "0.1"))
"""The conformity levels of P and W."""

PRIVATE_DELTA_FL: Final = private_delta_fl("0.5")

_PASSES: Final = 3


def varied(method: Method, suffix: str, words: str, **strategy: object) -> Method:
    """A method with other settings of its strategy, and what is added to its key and its label."""
    layer = merged(method.layer, {"strategy": strategy})
    key, label = f"{method.key}-{suffix}", f"{method.label}{words}"
    return replace(method, key=key, label=label, layer=layer)


MEDIANS: Final = tuple(
    varied(one, "rfa", " + RFA", aggregation="rfa", rfa_passes=_PASSES)
    for one in (FEDAVG, DELTA_FL[1])
)
"""RFA (Pillutla et al. 2022), over FedAvg and Δ-FL, in clear: a step by the geometric median of the
updates."""

CLIPPED: Final = tuple(
    varied(one, "clipped", ", clipped", aggregation="clipped")
    for one in (FEDAVG, DELTA_FL[1], PRIVATE_FEDAVG, PRIVATE_DELTA_FL)
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

COMPARED: Final = (FEDAVG, DELTA_FL[1], PRIVATE_FEDAVG, PRIVATE_DELTA_FL, *MEDIANS, *CLIPPED)
"""The rows of the tables of attacks. A robust strategy that is added here belongs to them too."""

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
    """Find methods by key or label, of `default` and of all; `default` if nothing is wanted.

    Raises:
        ConfigError: a word is neither.
    """
    if wanted is None:
        return default
    known = {word: method for method in (*METHODS, *default) for word in (method.key, method.label)}
    found = (find(word, known, "--methods: there is no") for word in wanted)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Published:
    """A number of a paper.

    Attributes:
        mean: over seeds, in percent.
        std: over seeds, in percentage points.
    """

    mean: float
    std: float


Column: TypeAlias = Mapping[str, Published]
"""From the label of a method to its number."""

_TASKS: Final = (
    "emnist-linear",
    "emnist-convnet",
    "sent140-linear",
    "sent140-lstm",
    "shakespeare-gru",
)
_THETA_08, _THETA_05, _THETA_01 = DELTA_FL


def _columns(
    tasks: tuple[str, ...], rows: Mapping[Method, tuple[float, ...]]
) -> Mapping[str, Column]:
    """A table as it is printed: of each method a mean and a deviation for each task, or for some.

    Returns:
        From a task to its column.
    """
    return {
        task: {
            method.label: Published(*row[2 * at : 2 * at + 2])
            for method, row in rows.items()
            if len(row) > 2 * at
        }
        for at, task in enumerate(tasks)
    }


TAIL_ERROR: Final = _columns(
    _TASKS,
    {
        FEDAVG: (49.66, 0.67, 28.46, 1.07, 46.83, 0.54, 49.67, 3.95, 46.45, 0.11),
        FEDPROX: (49.15, 0.74, 27.01, 1.86, 46.83, 0.54, 49.86, 4.07),
        Q_FFL: (49.90, 0.58, 28.02, 0.80, 46.39, 0.40, 48.66, 4.68),
        TILTED_ERM: (48.59, 0.62, 25.46, 1.49, 46.69, 0.49, 46.54, 3.27),
        AFL_AS_Q_FFL: (51.62, 0.28, 45.08, 1.00, 47.52, 0.32, 57.78, 1.19),
        _THETA_08: (49.10, 0.24, 26.23, 1.15, 46.44, 0.38, 46.46, 4.39, 46.33, 0.10),
        _THETA_05: (48.44, 0.38, 23.69, 0.94, 46.64, 0.41, 50.48, 8.24, 46.32, 0.13),
        _THETA_01: (50.34, 0.95, 25.46, 2.77, 51.39, 1.07, 86.45, 10.95, 47.17, 0.14),
    },
)
"""90th percentile of the test error over devices: P Table 2; baselines W Table 1."""

MEAN_ERROR: Final = _columns(
    _TASKS,
    {
        FEDAVG: (34.38, 0.38, 16.64, 0.50, 34.75, 0.31, 30.16, 0.44, 42.90, 0.04),
        FEDPROX: (33.82, 0.30, 16.02, 0.54, 34.74, 0.31, 30.20, 0.48),
        Q_FFL: (34.34, 0.33, 16.59, 0.30, 34.48, 0.06, 29.96, 0.56),
        TILTED_ERM: (34.02, 0.30, 15.68, 0.38, 34.70, 0.31, 30.04, 0.25),
        AFL_AS_Q_FFL: (39.33, 0.27, 33.01, 0.37, 35.98, 0.08, 37.74, 0.65),
        _THETA_08: (34.49, 0.26, 16.08, 0.40, 34.41, 0.22, 30.31, 0.33, 42.93, 0.05),
        _THETA_05: (35.02, 0.20, 15.49, 0.30, 35.29, 0.25, 33.59, 2.44, 43.13, 0.05),
        _THETA_01: (38.33, 0.48, 16.37, 1.03, 37.79, 0.89, 51.98, 11.81, 44.18, 0.12),
    },
)
"""Mean of the test error over devices: P Table 3; baselines W Table 2."""

FAIRNESS: Final = {
    "average": _columns(
        ("heart",), {FEDAVG: (84.42, 2.45), FEDPROX: (84.48, 0.25), AAGGFF_S: (85.04, 2.86)}
    ),
    "worst": _columns(
        ("heart",), {FEDAVG: (65.22, 9.78), FEDPROX: (65.44, 9.77), AAGGFF_S: (66.56, 10.81)}
    ),
}
"""A Table 7: the area under the ROC curve, in %, on the average and of the worst client, of the
methods as they are and of AAggFF on top of FedAvg."""
