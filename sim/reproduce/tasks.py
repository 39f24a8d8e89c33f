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
        script: what the published scripts change in the settings.
        seeds: how many the paper ran.
    """

    name: str
    title: str
    settings: Layer
    script: Layer = field(default_factory=dict)
    seeds: int = 5

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
        models: the models that can take it; None is all of the family's.
        reads_vectors: whether its words are looked up in the vectors of `VECTORS`.
        remark: what tells results on it from the published ones, a sentence; empty if nothing.
        of: the family; empty for one of its own name.
        stands_for: the family in whose place it is taken, though it is other data; empty if it is
            what its family is.
    """

    name: str
    title: str
    section: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[str, Layer] = field(default_factory=dict)
    cohort: int | None = None
    source: str | None = None
    models: tuple[str, ...] | None = None
    reads_vectors: bool = False
    remark: str = ""
    of: str = ""
    stands_for: str = ""

    @property
    def family(self) -> str:
        """The kind of data."""
        return self.of or self.stands_for or self.name

    @property
    def is_stand_in(self) -> bool:
        """Whether it stands for data that it is not."""
        return bool(self.stands_for)

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


def _halved(every: int) -> dict[str, object]:
    """The learning rate is halved after so many rounds, again and again."""
    return {"decay": 0.5, "decay_every": every}


def _ours(name: str, title: str, model: str) -> Task:
    return Task(name, title, _layer(model, 0.1, 10, 50, 10, 10))


# C: the script sets 10 and never passes it; the argument's default is 32
_BATCH: Final[Layer] = {"training": {"batch_size": 32}}

TASKS: Final = (
    Task(
        "emnist-linear", "EMNIST, linear", _layer("linear", 1.0, 10, 3000, 50, 100, l2=1e-9), _BATCH
    ),
    Task(
        "emnist-convnet",
        "EMNIST, ConvNet",
        _layer("convnet", 0.32, 16, 1000, 10, 100, **_halved(400)),
    ),
    # C also runs Δ-FL for 2000 rounds, we do not
    Task(
        "sent140-linear",
        "Sent140, linear",
        _layer("logistic", 0.01, 10, 1000, 20, 100, l2=1e-6),
        _BATCH,
    ),
    Task(
        "sent140-lstm",
        "Sent140, RNN",
        {**_layer("lstm", 2.0, 10, 600, 25, 50, **_halved(200)), "data": {"features": "tokens"}},
        _BATCH,
    ),
    Task(
        "shakespeare-gru",
        "Shakespeare, RNN",
        _layer("gru", 0.1, 16, 600, 10, 100, **_halved(200)),
        # C: 400 rounds; a learned embedding in place of one-hot characters
        {"federation": {"rounds": 400}, "model": {"name": "gru-embedding"}},
    ),
    Task("heart", "Heart", _silo(0.01, 200, 4), seeds=3),
    Task("berka", "Berka", _silo(1.0, 100, 7, l2=0.001, decay=0.99, decay_every=10), seeds=3),
    # A fine-tunes DistilBERT with γ0 = 0.00316; the rate for logistic regression is our choice
    Task("mqp", "MQP", _silo(0.1, 100, 11, l2=0.01, decay=0.99, decay_every=15), seeds=3),
    # rate: fair_flearn's for AFL on Adult; rounds: its advice
    Task("adult", "Adult", _silo(0.1, 600, 2), seeds=3),
    # of no paper: the headline's; rates, rounds and seeds are in `deltafl.sim.reproduce.declared`
    _ours("mnist-linear", "MNIST by writer, linear", "linear"),
    _ours("unipen-digits-linear", "UNIPEN's digits, linear", "linear"),
    _ours("unipen-lower-linear", "UNIPEN's lower case, linear", "linear"),
    _ours("unipen-all-linear", "UNIPEN's 62 classes, linear", "linear"),
    _ours("schools-logistic", "Pupils by school, logistic", "logistic-bias"),
    _ours("mnist-convnet", "MNIST by writer, ConvNet", "convnet"),
    _ours("plays-gru", "Shakespeare by role, GRU", "gru"),
)
"""P's five tasks, then the cross-silo ones of A and of AFL, and ours."""

VECTORS: Final = "glove"
"""The word in --data for the file of word vectors."""


def _halves(format: str, min_samples: int, **section: object) -> Mapping[str, object]:
    """The rule of P's Table 1: half of the devices that are large enough are tested."""
    given = {"format": format, "min_samples": min_samples, "test_fraction": "1/2", **section}
    return {key: value for key, value in given.items() if value}


def _unipen(num_classes: int) -> dict[str, int]:
    """At most 200 characters of a writer."""
    return {"num_classes": num_classes, "max_samples": 200}


def _fifths(format: str, standardise: str = "train") -> Mapping[str, object]:
    """The rule of silos: a fifth of each one's samples is tested."""
    samples = {"split": "samples", "test_fraction": "1/5"}
    return {"format": format, "standardise": standardise, **samples}


_LEGACY: Final[Layer] = {"data": {"standardise": "legacy"}}
_LEGACY_EMNIST: Final = {"emnist-linear": _LEGACY, "emnist-convnet": _LEGACY}
_SYNTHETIC: Final = "synthetic-emnist", "synthetic-sent140"
_ARCHIVE: Final = "in an .npz archive"  # docs/results.md says how each is made

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
        stands_for="emnist",
    ),
    DataSet(
        "digits",
        "the embedded 8 x 8 digits",
        _halves("", 0),
        # of the preset quickstart
        {"emnist-linear": {"training": {"learning_rate": 0.2, "l2": 0.03}}},
        cohort=15,
        source="digits",
        models=("linear",),
        stands_for="emnist",
    ),
    DataSet(
        _SYNTHETIC[0],
        "synthetic characters",
        _halves(_SYNTHETIC[0], 100, num_classes=62),
        {"emnist-linear": {"training": {"learning_rate": 0.1}}},
        source=_SYNTHETIC[0],
        stands_for="emnist",
    ),
    DataSet(
        "sent140",
        "Sent140",
        _halves("sent140", 50),
        {"sent140-linear": _LEGACY},
        reads_vectors=True,
    ),
    DataSet(
        _SYNTHETIC[1],
        "synthetic tweets",
        _halves(_SYNTHETIC[1], 50),
        source=_SYNTHETIC[1],
        stands_for="sent140",
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
    *(
        DataSet(name, f"{title}, {_ARCHIVE}", _halves("npz", least, **more), of=of)
        for name, of, title, least, more in (
            ("mnist-writers", "mnist", "MNIST by writer", 50, {"num_classes": 10}),
            ("unipen-digits", "", "UNIPEN's digits by writer", 20, _unipen(10)),
            ("unipen-lower", "", "UNIPEN's lower-case letters by writer", 50, _unipen(26)),
            ("unipen-all", "", "UNIPEN's digits and letters by writer", 100, _unipen(62)),
            ("schools", "", "pupils by school (Hsb82 of R's mlmRev)", 30, {"num_classes": 2}),
        )
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
        return self.task.title + f" (on {self.data.name})" * self.data.is_stand_in


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
    known = {word: one for one in tasks for word in (one.model, one.name)}
    for word in models or ():
        find(word, known, "--models: there is no")
    return models is None or task.model in models or task.name in models


def _without_path(task: Task) -> DataSet | None:
    return next((data for data in DATA_SETS if data.suits(task) and data.name in _SYNTHETIC), None)
