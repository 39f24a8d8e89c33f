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

from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.experiment import Request
from deltafl.sim.reproduce.methods import Layer


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Data and a model.

    Attributes:
        name: such as "emnist-linear".
        family: the kind of data that it is for.
        model: its word in --models.
        title: its name in tables.
        settings: hyper-parameters of the paper, {section: {key: value}}.
        script: what the published scripts change in them.
        seeds: how many the paper ran.
    """

    name: str
    family: str
    model: str
    title: str
    settings: Layer
    script: Layer = field(default_factory=dict)
    seeds: int = 5


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Data that tasks of a family can run on.

    Attributes:
        name: its word in --data.
        family: the kind of data.
        title: in words.
        source: `data.source` where no path is needed; None where one is.
        settings: the [data] section, and what else goes with the data for all tasks.
        changes: from a task's name to the settings that fit this data and not the paper's.
        is_stand_in: whether it stands for data that it is not.
        models: the models that can take it; None is all of the family's.
        reads_vectors: whether its words are looked up in the vectors of `VECTORS`.
        remark: what tells results on it from the published ones, a sentence; empty if nothing.
    """

    name: str
    family: str
    title: str
    source: str | None = None
    settings: Layer = field(default_factory=dict)
    changes: Mapping[str, Layer] = field(default_factory=dict)
    is_stand_in: bool = False
    models: tuple[str, ...] | None = None
    reads_vectors: bool = False
    remark: str = ""

    def suits(self, task: Task) -> bool:
        """Whether a task can run on it."""
        return task.family == self.family and (self.models is None or task.model in self.models)


def _p(learning_rate: float, batch_size: int, rounds: int, every: int, cohort: int) -> Layer:
    return {
        "training": {"learning_rate": learning_rate, "batch_size": batch_size, "epochs": 1},
        "federation": {"rounds": rounds, "evaluate_every": every, "cohort_size": cohort},
    }


def _with(base: Layer, **sections: Mapping[str, object]) -> Layer:
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}


def _silo(rate: float, rounds: int, cohort: int, **training: object) -> Layer:
    """A's cross-silo settings: everybody in every round, B = 20, E = 1."""
    return _with(
        _p(rate, 20, rounds, max(1, rounds // 10), cohort),
        model={"name": "logistic-bias"},
        training=training,
    )


TASKS: Final = (
    Task(
        "emnist-linear",
        "emnist",
        "linear",
        "EMNIST, linear",
        _with(_p(1.0, 10, 3000, 50, 100), model={"name": "linear"}, training={"l2": 1e-9}),
        # C: the script sets 10 and never passes it; the argument's default is 32
        {"training": {"batch_size": 32}},
    ),
    Task(
        "emnist-convnet",
        "emnist",
        "convnet",
        "EMNIST, ConvNet",
        _with(
            _p(0.32, 16, 1000, 10, 100),
            model={"name": "convnet"},
            training={"decay": 0.5, "decay_every": 400},
        ),
    ),
    Task(
        "sent140-linear",
        "sent140",
        "linear",
        "Sent140, linear",
        _with(_p(0.01, 10, 1000, 20, 100), model={"name": "logistic"}, training={"l2": 1e-6}),
        {"training": {"batch_size": 32}},  # as above; C also runs Δ-FL for 2000 rounds, we do not
    ),
    Task(
        "sent140-lstm",
        "sent140",
        "lstm",
        "Sent140, RNN",
        _with(
            _p(2.0, 10, 600, 25, 50),
            model={"name": "lstm"},
            training={"decay": 0.5, "decay_every": 200},
            data={"features": "tokens"},
        ),
        {"training": {"batch_size": 32}},
    ),
    Task(
        "shakespeare-gru",
        "shakespeare",
        "gru",
        "Shakespeare, RNN",
        _with(
            _p(0.1, 16, 600, 10, 100),
            model={"name": "gru"},
            training={"decay": 0.5, "decay_every": 200},
        ),
        # C: 400 rounds; a learned embedding in place of one-hot characters
        {"federation": {"rounds": 400}, "model": {"name": "gru-embedding"}},
    ),
    Task("heart", "heart", "logistic", "Heart", _silo(0.01, 200, 4), seeds=3),
    Task(
        "berka",
        "berka",
        "logistic",
        "Berka",
        _silo(1.0, 100, 7, l2=0.001, decay=0.99, decay_every=10),
        seeds=3,
    ),
    Task(
        "mqp",
        "mqp",
        "logistic",
        "MQP",
        # A fine-tunes DistilBERT with γ0 = 0.00316; the rate for logistic regression is our choice
        _silo(0.1, 100, 11, l2=0.01, decay=0.99, decay_every=15),
        seeds=3,
    ),
    # rate: fair_flearn's for AFL on Adult; rounds: its advice
    Task("adult", "adult", "logistic", "Adult", _silo(0.1, 600, 2), seeds=3),
    # of no paper: the headline's, whose settings are in `deltafl.sim.reproduce.declared`
    Task(
        "mnist-linear",
        "mnist",
        "linear",
        "MNIST by writer, linear",
        _with(_p(0.05, 10, 50, 5, 10), model={"name": "linear"}),
        seeds=12,
    ),
    # likewise; rates, rounds and seeds are in `deltafl.sim.reproduce.declared_others`
    *(
        Task(
            f"{data}-linear",
            data,
            "linear",
            title,
            _with(_p(0.1, 10, 50, 10, 10), model={"name": "linear"}),
            seeds=10,
        )
        for data, title in (
            ("unipen-digits", "UNIPEN's digits, linear"),
            ("unipen-lower", "UNIPEN's lower case, linear"),
            ("unipen-all", "UNIPEN's 62 classes, linear"),
        )
    ),
    Task(
        "schools-logistic",
        "schools",
        "logistic",
        "Pupils by school, logistic",
        _with(_p(0.1, 10, 50, 10, 10), model={"name": "logistic-bias"}),
        seeds=10,
    ),
    Task(
        "mnist-convnet",
        "mnist",
        "convnet",
        "MNIST by writer, ConvNet",
        _with(_p(0.1, 10, 50, 50, 10), model={"name": "convnet"}),
        seeds=10,
    ),
    Task(
        "plays-gru",
        "plays",
        "gru",
        "Shakespeare by role, GRU",
        _with(_p(0.5, 10, 30, 30, 10), model={"name": "gru"}),
        seeds=8,
    ),
)
"""P's five tasks, then the cross-silo ones of A and of AFL, and ours."""

_TABLE_1_RULE: Final = {"test_fraction": "1/2"}
_SILO_RULE: Final = {"split": "samples", "test_fraction": "1/5"}
_EMNIST: Final = {"min_samples": 100, "num_classes": 62, **_TABLE_1_RULE}
_WRITERS: Final = {"min_samples": 50, "num_classes": 10, **_TABLE_1_RULE}
_UNIPEN: Final = {"format": "npz", "max_samples": 200, **_TABLE_1_RULE}
VECTORS: Final = "glove"
"""The word in --data for the file of word vectors."""


def _silo_data(name: str) -> Layer:
    return {"data": {"format": name, "standardise": "train", **_SILO_RULE}}


_LEGACY: Final[Layer] = {"data": {"standardise": "legacy"}}

DATA_SETS: Final = (
    DataSet(
        "femnist",
        "emnist",
        "FEMNIST from NIST's by_class and by_write",
        # P draws half of the writers that the rule keeps, 1,730, and splits these
        settings={"data": {"format": "femnist", "num_users": 1730, **_EMNIST}},
        changes={"emnist-linear": _LEGACY, "emnist-convnet": _LEGACY},
    ),
    DataSet(
        "emnist",
        "emnist",
        "FEMNIST in LEAF's JSON",
        settings={"data": {"format": "leaf", **_EMNIST}},
        changes={"emnist-linear": _LEGACY, "emnist-convnet": _LEGACY},
    ),
    DataSet(
        "unipen62",
        "emnist",
        "UNIPEN characters by writer",
        # 10 of 96 train devices are P's share, 100 of 865. At most 200 samples of a device, for the
        # largest has 4,885 of them and P's largest 447. Ink is 1 on 0, so the inputs need no
        # scaling; the batch is that of the preset unipen62-linear.
        settings={
            "data": {**_EMNIST, "max_samples": 200},
            "federation": {"cohort_size": 10},
        },
        changes={"emnist-linear": {"training": {"batch_size": 32}}},
        is_stand_in=True,
    ),
    DataSet(
        "digits",
        "emnist",
        "the embedded 8 x 8 digits",
        source="digits",
        settings={"federation": {"cohort_size": 15}, "data": dict(_TABLE_1_RULE)},
        # of the preset quickstart
        changes={"emnist-linear": {"training": {"learning_rate": 0.2, "l2": 0.03}}},
        is_stand_in=True,
        models=("linear",),
    ),
    DataSet(
        "synthetic-emnist",
        "emnist",
        "synthetic characters",
        source="synthetic-emnist",
        settings={"data": {"format": "synthetic-emnist", **_EMNIST}},
        changes={"emnist-linear": {"training": {"learning_rate": 0.1}}},
        is_stand_in=True,
    ),
    DataSet(
        "sent140",
        "sent140",
        "Sent140",
        settings={"data": {"format": "sent140", "min_samples": 50, **_TABLE_1_RULE}},
        changes={"sent140-linear": _LEGACY},
        reads_vectors=True,
    ),
    DataSet(
        "synthetic-sent140",
        "sent140",
        "synthetic tweets",
        source="synthetic-sent140",
        settings={"data": {"format": "synthetic-sent140", "min_samples": 50, **_TABLE_1_RULE}},
        is_stand_in=True,
    ),
    DataSet(
        "shakespeare",
        "shakespeare",
        "Shakespeare by role",
        settings={"data": {"format": "shakespeare", "min_samples": 100, **_TABLE_1_RULE}},
        remark="Numbers hang on the edition of the text; the paper's is Gutenberg's of 1994.",
    ),
    # FLamby standardises each hospital's features by itself
    DataSet(
        "heart",
        "heart",
        "UCI Heart Disease, four hospitals",
        settings={"data": {"format": "heart", "standardise": "device", **_SILO_RULE}},
        remark="AAggFF splits by strata where it can; here one random split holds for every seed.",
    ),
    DataSet(
        "berka",
        "berka",
        "Berka's loans, seven regions",
        settings=_silo_data("berka"),
        remark="AAggFF measures berka by the area under the ROC curve, here it is the accuracy.",
    ),
    DataSet(
        "mqp",
        "mqp",
        "Medical Question Pairs, eleven doctors, by mean word vectors",
        settings=_silo_data("mqp"),
        reads_vectors=True,
        remark="AAggFF fine-tunes DistilBERT on mqp; here it is logistic regression on vectors.",
    ),
    DataSet("adult", "adult", "UCI Adult, PhD or not", settings=_silo_data("adult")),
    DataSet(
        "qmnist",
        "mnist",
        "MNIST by writer, from MNIST's and QMNIST's files",
        settings={"data": {"format": "qmnist", **_WRITERS}},
    ),
    DataSet(
        "mnist-writers",
        "mnist",
        "MNIST by writer, in an .npz archive",
        settings={"data": {"format": "npz", **_WRITERS}},
    ),
    # docs/results.md says how these archives are made; of a writer, at most 200 characters
    DataSet(
        "unipen-digits",
        "unipen-digits",
        "UNIPEN's digits by writer, in an .npz archive",
        settings={"data": {**_UNIPEN, "min_samples": 20, "num_classes": 10}},
    ),
    DataSet(
        "unipen-lower",
        "unipen-lower",
        "UNIPEN's lower-case letters by writer, in an .npz archive",
        settings={"data": {**_UNIPEN, "min_samples": 50, "num_classes": 26}},
    ),
    DataSet(
        "unipen-all",
        "unipen-all",
        "UNIPEN's digits and letters by writer, in an .npz archive",
        settings={"data": {**_UNIPEN, "min_samples": 100, "num_classes": 62}},
    ),
    DataSet(
        "schools",
        "schools",
        "pupils by school (Hsb82 of R's mlmRev), in an .npz archive",
        settings={"data": {"format": "npz", "min_samples": 30, "num_classes": 2, **_TABLE_1_RULE}},
    ),
    DataSet(
        "plays",
        "plays",
        "200 of Shakespeare's roles",
        settings={
            "data": {
                "format": "shakespeare",
                "min_samples": 100,
                "num_users": 200,
                "max_samples": 100,
                "num_classes": 53,
                **_TABLE_1_RULE,
            }
        },
    ),
    DataSet(VECTORS, VECTORS, "word vectors, for sent140 and mqp"),
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
    for task in TASKS:
        if task.name == name:
            return task
    raise ConfigError(f"there is no task {name!r}: {nearest(name, [t.name for t in TASKS])}")


def data_set_named(name: str) -> DataSet:
    """Find a data set by name.

    Raises:
        ConfigError: there is none.
    """
    for data in DATA_SETS:
        if data.name == name:
            return data
    raise ConfigError(f"--data: there is no {name!r}: {nearest(name, [d.name for d in DATA_SETS])}")


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
    known = {word for one in tasks for word in (one.model, one.name)}
    for word in models:
        if word not in known:
            raise ConfigError(f"--models: there is no {word!r}: {nearest(word, sorted(known))}")
    return task.model in models or task.name in models


def _without_path(task: Task) -> DataSet | None:
    for data in DATA_SETS:
        if data.suits(task) and data.source is not None and data.name != "digits":
            return data
    return None
