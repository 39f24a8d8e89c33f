"""The papers' tasks: which data, which model, and which hyper-parameters.

Sources: P = arXiv 2002.11223, Appendix C.2; C = its published code (krishnap25/simplicial-fl), for
`--settings script`; A = AAggFF (arXiv 2405.20821) and the scripts of its published code. Where
P and C differ, `settings` is P's and `script` says what C changes. The published code scales its
inputs as (x − mean) / mean, and its learning rates go with that ("legacy"). P's λ are not printed;
C's are taken.

A data set that cannot be had is replaced by another, by name: `DataSet.is_stand_in`. Some of the
hyper-parameters hang on the data (the scale of the inputs, the number of devices), so a data set
may change them; what it changes is printed with every result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.experiment import Request, find
from deltafl.sim.reproduce.methods import Layer


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Data and a model.

    Attributes:
        name: the kind of data and the model, such as "emnist-linear".
        title: its name in tables.
        settings: hyper-parameters of the paper, {section: {key: value}}.
        seeds: how many the paper ran.
        script: what the published scripts change in the settings.
    """

    name: str
    title: str
    settings: Layer
    seeds: int = 5
    script: Layer = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The kind of data that it is for."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def model(self) -> str:
        """Its word in --models; a task that is named after its data alone has logistic ones."""
        return self.name.rpartition("-")[2] if "-" in self.name else "logistic"


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Data that tasks of a family can run on.

    Attributes:
        name: its word in --data.
        title: in words.
        section: the settings in [data].
        changes: from a task's name to the settings that fit this data and not the paper's.
        cohort: devices a round that fit it, for all tasks; None takes the paper's.
        source: `data.source` where no path is needed; None where one is.
        is_stand_in: whether it stands for data that it is not.
        models: the models that can take it; None is all of the family's.
        reads_vectors: whether its words are looked up in the vectors of `VECTORS`.
        remark: what tells results on it from the published ones, a sentence; empty if nothing.
        of: the family; empty for one of its own name.
    """

    name: str
    title: str
    section: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[str, Layer] = field(default_factory=dict)
    cohort: int | None = None
    source: str | None = None
    is_stand_in: bool = False
    models: tuple[str, ...] | None = None
    reads_vectors: bool = False
    remark: str = ""
    of: str = ""

    @property
    def family(self) -> str:
        """The kind of data."""
        return self.of or self.name

    @property
    def settings(self) -> Layer:
        """What goes with the data for all tasks."""
        federation = {} if self.cohort is None else {"cohort_size": self.cohort}
        return {"data": self.section, "federation": federation}

    def suits(self, task: Task) -> bool:
        """Whether a task can run on it."""
        return task.family == self.family and (self.models is None or task.model in self.models)


def _layer(
    model: str, rate: float, batch: int, rounds: int, every: int, cohort: int, **training: object
) -> Layer:
    """Model, learning rate, batch, rounds, rounds between evaluations, cohort, and the rest."""
    return {
        "model": {"name": model},
        "training": {"learning_rate": rate, "batch_size": batch, "epochs": 1, **training},
        "federation": {"rounds": rounds, "evaluate_every": every, "cohort_size": cohort},
    }


def _silo(rate: float, rounds: int, cohort: int, **training: object) -> Layer:
    """A's cross-silo settings: everybody in every round, B = 20, E = 1."""
    return _layer("logistic-bias", rate, 20, rounds, max(1, rounds // 10), cohort, **training)


# C: the script sets 10 and never passes it; the argument's default is 32
_BATCH: Final[Layer] = {"training": {"batch_size": 32}}
_TOKENS: Final[Layer] = {"data": {"features": "tokens"}}

TASKS: Final = (
    Task(
        "emnist-linear",
        "EMNIST, linear",
        _layer("linear", 1.0, 10, 3000, 50, 100, l2=1e-9),
        script=_BATCH,
    ),
    Task(
        "emnist-convnet",
        "EMNIST, ConvNet",
        _layer("convnet", 0.32, 16, 1000, 10, 100, decay=0.5, decay_every=400),
    ),
    # C also runs Δ-FL for 2000 rounds, we do not
    Task(
        "sent140-linear",
        "Sent140, linear",
        _layer("logistic", 0.01, 10, 1000, 20, 100, l2=1e-6),
        script=_BATCH,
    ),
    Task(
        "sent140-lstm",
        "Sent140, RNN",
        {**_layer("lstm", 2.0, 10, 600, 25, 50, decay=0.5, decay_every=200), **_TOKENS},
        script=_BATCH,
    ),
    Task(
        "shakespeare-gru",
        "Shakespeare, RNN",
        _layer("gru", 0.1, 16, 600, 10, 100, decay=0.5, decay_every=200),
        # C: 400 rounds; a learned embedding in place of one-hot characters
        script={"federation": {"rounds": 400}, "model": {"name": "gru-embedding"}},
    ),
    Task("heart", "Heart", _silo(0.01, 200, 4), 3),
    Task("berka", "Berka", _silo(1.0, 100, 7, l2=0.001, decay=0.99, decay_every=10), 3),
    # A fine-tunes DistilBERT with γ0 = 0.00316; the rate for logistic regression is our choice
    Task("mqp", "MQP", _silo(0.1, 100, 11, l2=0.01, decay=0.99, decay_every=15), 3),
    # rate: fair_flearn's for AFL on Adult; rounds: its advice
    Task("adult", "Adult", _silo(0.1, 600, 2), 3),
    # of no paper: the headline's; rates, rounds and seeds are in `deltafl.sim.reproduce.declared`
    Task("mnist-linear", "MNIST by writer, linear", _layer("linear", 0.05, 10, 50, 5, 10), 12),
    *(
        Task(f"{data}-linear", f"{title}, linear", _layer("linear", 0.1, 10, 50, 10, 10), 10)
        for data, title in (
            ("unipen-digits", "UNIPEN's digits"),
            ("unipen-lower", "UNIPEN's lower case"),
            ("unipen-all", "UNIPEN's 62 classes"),
        )
    ),
    Task(
        "schools-logistic",
        "Pupils by school, logistic",
        _layer("logistic-bias", 0.1, 10, 50, 10, 10),
        10,
    ),
    Task("mnist-convnet", "MNIST by writer, ConvNet", _layer("convnet", 0.1, 10, 50, 50, 10), 10),
    Task("plays-gru", "Shakespeare by role, GRU", _layer("gru", 0.5, 10, 30, 30, 10), 8),
)
"""P's five tasks, then the cross-silo ones of A and of AFL, and ours."""

VECTORS: Final = "glove"
"""The word in --data for the file of word vectors."""


def _halves(format: str, min_samples: int, **section: object) -> Mapping[str, object]:
    """The rule of P's Table 1: half of the devices that are large enough are tested."""
    given = {"format": format, "min_samples": min_samples, "test_fraction": "1/2", **section}
    return {key: value for key, value in given.items() if value}


def _fifths(format: str, standardise: str = "train") -> Mapping[str, object]:
    """The rule of silos: a fifth of each one's samples is tested."""
    return {
        "format": format,
        "standardise": standardise,
        "split": "samples",
        "test_fraction": "1/5",
    }


def _archive(min_samples: int, num_classes: int, **section: object) -> Mapping[str, object]:
    """An archive of the headline's; docs/results.md says how it is made."""
    return _halves("npz", min_samples, num_classes=num_classes, **section)


_LEGACY: Final[Layer] = {"data": {"standardise": "legacy"}}
_LEGACY_EMNIST: Final = {"emnist-linear": _LEGACY, "emnist-convnet": _LEGACY}

DATA_SETS: Final = (
    DataSet(
        "femnist",
        "FEMNIST from NIST's by_class and by_write",
        # P draws half of the writers that the rule keeps, 1,730, and splits these
        _halves("femnist", 100, num_classes=62, num_users=1730),
        _LEGACY_EMNIST,
        of="emnist",
    ),
    DataSet(
        "emnist", "FEMNIST in LEAF's JSON", _halves("leaf", 100, num_classes=62), _LEGACY_EMNIST
    ),
    DataSet(
        "unipen62",
        "UNIPEN characters by writer",
        # 10 of 96 train devices are P's share, 100 of 865. At most 200 samples of a device, for the
        # largest has 4,885 of them and P's largest 447. Ink is 1 on 0, so the inputs need no
        # scaling; the batch is that of the preset unipen62-linear.
        _halves("", 100, num_classes=62, max_samples=200),
        {"emnist-linear": _BATCH},
        cohort=10,
        is_stand_in=True,
        of="emnist",
    ),
    DataSet(
        "digits",
        "the embedded 8 x 8 digits",
        _halves("", 0),
        # of the preset quickstart
        {"emnist-linear": {"training": {"learning_rate": 0.2, "l2": 0.03}}},
        cohort=15,
        source="digits",
        is_stand_in=True,
        models=("linear",),
        of="emnist",
    ),
    DataSet(
        "synthetic-emnist",
        "synthetic characters",
        _halves("synthetic-emnist", 100, num_classes=62),
        {"emnist-linear": {"training": {"learning_rate": 0.1}}},
        source="synthetic-emnist",
        is_stand_in=True,
        of="emnist",
    ),
    DataSet(
        "sent140",
        "Sent140",
        _halves("sent140", 50),
        {"sent140-linear": _LEGACY},
        reads_vectors=True,
    ),
    DataSet(
        "synthetic-sent140",
        "synthetic tweets",
        _halves("synthetic-sent140", 50),
        source="synthetic-sent140",
        is_stand_in=True,
        of="sent140",
    ),
    DataSet(
        "shakespeare",
        "Shakespeare by role",
        _halves("shakespeare", 100),
        remark="Numbers hang on the edition of the text; the paper's is Gutenberg's of 1994.",
    ),
    DataSet(
        "heart",
        "UCI Heart Disease, four hospitals",
        _fifths("heart", "device"),  # FLamby standardises each hospital's features by itself
        remark="AAggFF splits by strata where it can; here one random split holds for every seed.",
    ),
    DataSet(
        "berka",
        "Berka's loans, seven regions",
        _fifths("berka"),
        remark="AAggFF measures berka by the area under the ROC curve, here it is the accuracy.",
    ),
    DataSet(
        "mqp",
        "Medical Question Pairs, eleven doctors, by mean word vectors",
        _fifths("mqp"),
        reads_vectors=True,
        remark="AAggFF fine-tunes DistilBERT on mqp; here it is logistic regression on vectors.",
    ),
    DataSet("adult", "UCI Adult, PhD or not", _fifths("adult")),
    DataSet(
        "qmnist",
        "MNIST by writer, from MNIST's and QMNIST's files",
        _halves("qmnist", 50, num_classes=10),
        of="mnist",
    ),
    DataSet("mnist-writers", "MNIST by writer, in an .npz archive", _archive(50, 10), of="mnist"),
    *(  # of a writer, at most 200 characters
        DataSet(
            name,
            f"UNIPEN's {title} by writer, in an .npz archive",
            _archive(least, classes, max_samples=200),
        )
        for name, title, least, classes in (
            ("unipen-digits", "digits", 20, 10),
            ("unipen-lower", "lower-case letters", 50, 26),
            ("unipen-all", "digits and letters", 100, 62),
        )
    ),
    DataSet(
        "schools", "pupils by school (Hsb82 of R's mlmRev), in an .npz archive", _archive(30, 2)
    ),
    DataSet(
        "plays",
        "200 of Shakespeare's roles",
        _halves("shakespeare", 100, num_users=200, max_samples=100, num_classes=53),
    ),
    DataSet(VECTORS, "word vectors, for sent140 and mqp"),
)
"""Everything that --data knows, the first of a family being what the paper used."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A task on the data that it will run on.

    Attributes:
        task: the task.
        data: the data set.
        path: where it lies; None for one that needs no path.
    """

    task: Task
    data: DataSet
    path: Path | None

    @property
    def label(self) -> str:
        """The task's title, which names a stand-in."""
        return (
            f"{self.task.title} (on {self.data.name})" if self.data.is_stand_in else self.task.title
        )


def choose_tasks(request: Request, tasks: tuple[Task, ...]) -> tuple[Chosen, ...]:
    """Find which of an experiment's tasks are asked for, and what each runs on.

    With data named, the tasks are those that it serves; with none, every task runs on a stand-in
    that needs no file, if it has one. `request.models` are models ("linear") or tasks.

    Raises:
        ConfigError: a data set or a model is unknown, two data sets are given for one family, a
            model that was named has no data, word vectors are lacking, or nothing is left.
    """
    given = _given(request)
    wanted = [task for task in tasks if _is_wanted(task, request.models, tasks)]
    chosen = []
    for task in wanted:
        if task.family in given and given[task.family][0].suits(task):
            chosen.append(Chosen(task, *given[task.family]))
        elif not set(given) - {VECTORS} and (stand_in := _without_path(task)):
            chosen.append(Chosen(task, stand_in, None))
    served = {word for one in chosen for word in (one.task.model, one.task.name)}
    unserved = set(request.models or ()) - served
    lacking = [task for task in wanted if not chosen or {task.model, task.name} & unserved]
    if lacking:
        usable = [data.name for data in DATA_SETS if any(map(data.suits, lacking))]
        raise ConfigError(
            f"no data for {', '.join(task.name for task in lacking)}: pass --data NAME=PATH with "
            f"NAME one of {', '.join(usable)}"
        )
    for one in chosen:
        is_told = VECTORS in request.data or "vectors" in request.overrides.get("data", {})
        if one.data.reads_vectors and not is_told:
            raise ConfigError(
                f"{one.data.name} is read with word vectors: pass --data {VECTORS}=PATH "
                f"(`deltafl data fetch {VECTORS}` downloads them)"
            )
    return tuple(chosen)


def task_named(name: str) -> Task:
    """Find a task by name.

    Raises:
        ConfigError: there is none.
    """
    return find(name, {task.name: task for task in TASKS}, "there is no task")


def data_set_named(name: str) -> DataSet:
    """Find a data set by name.

    Raises:
        ConfigError: there is none.
    """
    return find(name, {data.name: data for data in DATA_SETS}, "--data: there is no")


def _given(request: Request) -> dict[str, tuple[DataSet, Path | None]]:
    given: dict[str, tuple[DataSet, Path | None]] = {}
    for name, path in request.data.items():
        data = data_set_named(name)
        if data.family in given:
            other = given[data.family][0].name
            raise ConfigError(
                f"--data: {other} and {name} are for the same tasks: name one of them"
            )
        given[data.family] = (data, None if data.source is not None else path)
    return given


def _is_wanted(task: Task, models: tuple[str, ...] | None, tasks: tuple[Task, ...]) -> bool:
    if models is None:
        return True
    known = {word: one for one in tasks for word in (one.model, one.name)}
    for word in models:
        find(word, known, "--models: there is no")
    return task.model in models or task.name in models


def _without_path(task: Task) -> DataSet | None:
    for data in DATA_SETS:
        if data.suits(task) and data.source is not None and data.name != "digits":
            return data
    return None
