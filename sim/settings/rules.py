"""Which settings may not be combined: a row for each rule, checked wherever settings are read.

A row says when something must hold, what, and why. What the protocol refuses by itself is not said
again here: a run and a plan ask it (`deltafl.sim.run.arms`).
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

from deltafl.sim.settings.config import RunConfig

_SETTING: Final = re.compile(r"[a-z]\w*\.\w+")
_RELATIONS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "=": (operator.eq, "be"),
    "≠": (operator.ne, "not be"),
    "<": (operator.lt, "be below"),
    "≤": (operator.le, "be at most"),
    ">": (operator.gt, "be above"),
    "≥": (operator.ge, "be at least"),
    "not in": (lambda value, others: value not in others, "not be one of"),
    "begins with": (str.startswith, "begin with"),
}
_COMPARISON: Final = re.compile(rf"({_SETTING.pattern}) ({'|'.join(_RELATIONS)}) (.+)")


class Comparison(NamedTuple):
    """A setting, compared with a value or with another setting.

    Attributes:
        setting: its name.
        relation: how it is compared.
        other: the value, in JSON; or the name of another setting.
    """

    setting: str
    relation: str
    other: str

    def value(self, config: RunConfig) -> object:
        """The setting's value."""
        return operator.attrgetter(self.setting)(config)

    @property
    def is_of_settings(self) -> bool:
        """Whether it is compared with another setting."""
        return _SETTING.fullmatch(self.other) is not None

    def wanted(self, config: RunConfig) -> object:
        """What it is compared with."""
        if self.is_of_settings:
            return operator.attrgetter(self.other)(config)
        value = json.loads(self.other, parse_float=Fraction)  # 0.01 is 1/100
        return tuple(value) if isinstance(value, list) else value

    def holds(self, config: RunConfig) -> bool:
        """Whether it is so in these settings."""
        return _RELATIONS[self.relation][0](self.value(config), self.wanted(config))

    @property
    def demand(self) -> str:
        """How it is demanded, for the end of "must …", before what it is compared with."""
        return _RELATIONS[self.relation][1]


class Rule(NamedTuple):
    """What must hold of settings.

    Attributes:
        when: it is for settings of which all these hold.
        must: what has to hold then.
        because: why, for the end of a sentence.
    """

    when: tuple[Comparison, ...]
    must: Comparison
    because: str

    def refusal(self, config: RunConfig, shown: Callable[[object], str]) -> str:
        """What is refused: settings with their values, and what would be accepted.

        Args:
            config: the settings.
            shown: writes a value.
        """

        def told(one: Comparison) -> str:
            return f"{one.setting} = {shown(one.value(config))}"

        must, wanted = self.must, shown(self.must.wanted(config))
        named = f"{must.other} = {wanted}" if must.is_of_settings else wanted
        when = " and ".join(told(one) for one in self.when if one.setting != must.setting)
        by = when and f" with {when}"
        return f"{told(must)}: must {must.demand} {named}{by}, because {self.because}"


def read_comparison(text: str) -> Comparison:
    """Read a comparison.

    Raises:
        ValueError: it is none.

    >>> read_comparison("federation.theta < 1").holds(RunConfig())
    True
    """
    if (found := _COMPARISON.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is no comparison of a setting")
    return Comparison(*found.groups())


def broken(config: RunConfig) -> Iterator[tuple[Rule, RunConfig]]:
    """The rules that settings break, each with the run that does: the first, or a baseline.

    Of a run of several levels, theta is the smallest.
    """
    single = replace(config, experiment=replace(config.experiment, num_seeds=1))
    for arm in (config, *single.arms()[1:]):
        lowest = min(arm.federation.thetas)
        one = replace(arm, federation=replace(arm.federation, theta=lowest))
        for rule in RULES:
            if all(term.holds(one) for term in rule.when) and not rule.must.holds(one):
                yield rule, one


_SEARCH: Final = 'federation.algorithm = "private-delta-fl" and federation.theta < 1'
_CHECKED: Final = (
    "devices check a search over the complete graph; or set quantile.search = 'trusted'"
)
_SCALED: Final = "inputs are scaled once"
_NUMBERS: Final = "labels with a unit are numbers, not classes"
_ALONE: Final = "devices on machines of their own take part in one run at a time"
_SIMULATED: Final = "only a simulation knows or chooses what single devices do"
_MASKED: Final = "remote devices give nothing but masked sums"
_TABLE: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "federation.algorithm not in experiment.baselines": "a baseline is another algorithm",
        "quantile.epsilon ≤ quantile.loss_bound": "no loss is told from larger ones",
        "data.num_classes ≠ 1": "one class is nothing to tell apart; 0 takes it from the data",
    },
    "data.classes ≠ []": {"data.num_classes = 0": "they are counted where they are named"},
    "data.means ≠ []": {'data.standardise = "none"': _SCALED},
    "data.scales ≠ []": {'data.standardise = "none"': _SCALED},
    'data.unit ≠ ""': {
        "data.classes = []": _NUMBERS,
        "data.num_classes = 0": _NUMBERS,
        'training.loss ≠ "cross-entropy"': _NUMBERS,
        'training.metric ≠ "error"': _NUMBERS,
    },
    "training.local_steps > 0": {"training.epochs = 1": "steps take the place of epochs"},
    'training.decay_shape = "cosine"': {
        "training.decay < 1": "the rate falls to so much of its first value, such as 0.01",
    },
    'training.optimizer ≠ "sgd"': {"training.momentum = 0": "only 'sgd' has a momentum"},
    "federation.levels ≠ []": {
        'strategy.aggregation = "mean"': "a session makes one sum of each level's updates",
        "attackers.share = 0": "their share is told of one model; run one theta after the other",
    },
    'federation.levels ≠ [] and federation.algorithm begins with "private-"': {
        'strategy.server_optimizer = "sgd"': "the levels share one session",
        "strategy.server_learning_rate = 1": "the levels share one session",
    },
    'federation.algorithm begins with "private-"': {
        "federation.cohort_size ≥ privacy.min_cohort": "fewer devices are never summed; "
        "raise the one (have more devices train, as by data.split = 'samples'), or lower the "
        "other, to 2 at least, which then hides each among fewer",
        'strategy.aggregation ≠ "rfa"': "the difference of two sums of the same updates may be one "
        "device's; 'clipped' takes one sum",
    },
    'federation.devices = "remote"': {
        "experiment.baselines = []": _ALONE,
        "experiment.num_seeds = 1": _ALONE,
        'federation.algorithm begins with "private-"': _MASKED,
        'privacy.sums = "masked"': _MASKED,
        "privacy.truth = false": _SIMULATED,
        "faults.dropout = 0": _SIMULATED,
        "attackers.share = 0": _SIMULATED,
    },
    'federation.algorithm not in ["delta-fl", "private-delta-fl"]': {
        "federation.levels = []": "only delta-fl and private-delta-fl have conformity levels",
    },
    'federation.algorithm ≠ "private-delta-fl"': {
        "dp.noise = 0": "only 'private-delta-fl' adds noise to updates (with theta = 1, it "
        "averages all of them), and no baseline does",
    },
    'federation.algorithm not in ["fedavg", "fedprox", "delta-fl", "private-fedavg", '
    '"private-fedprox", "private-delta-fl"]': {
        'strategy.aggregation = "mean"': "others do not weigh devices by numbers of samples",
    },
    'federation.algorithm begins with "private-" and privacy.adversary = "active"': {
        'privacy.graph ≠ "sparse"': "an active server may choose the roster to suit the graph",
        'strategy.aggregation ≠ "clipped"': "an active server chooses the radius",
    },
    f'{_SEARCH} and privacy.adversary = "active"': {
        'quantile.search ≠ "trusted"': "devices expect a server that lies about its search",
    },
    'federation.algorithm = "aaggff-s"': {
        "faults.dropout = 0": "it needs every device in every round",
    },
    'attackers.share > 0 and attackers.kind = "flipped-labels"': {
        "attackers.from_class ≠ attackers.to_class": "nothing would be flipped",
    },
    f'{_SEARCH} and quantile.search = "verified" and privacy.adversary ≠ "active"': {
        "privacy.signed = true": "devices check a search only if each knows who signed what",
    },
    f'{_SEARCH} and quantile.search = "verified"': {'privacy.graph ≠ "sparse"': _CHECKED},
    'quantile.votes = "proved" and privacy.adversary ≠ "active"': {
        'quantile.search = "verified"': "devices prove what they have committed to",
    },
    f'{_SEARCH} and quantile.method = "noisy"': {
        'quantile.weights = "equal"': "its noise hides a device that counts one",
    },
    'quantile.method = "noisy"': {
        "quantile.noise > 0": "noise is all that hides devices in it",
    },
    'quantile.method ≠ "mm"': {"quantile.epsilon = 0": "only 'mm' has an ε"},
    'quantile.method ≠ "noisy"': {"quantile.noise = 0": "only 'noisy' adds noise"},
    "dp.epsilon_budget > 0": {
        "dp.noise > 0": "sums without noise spend more than any budget",
    },
    "dp.noise > 0": {
        "dp.noise ≥ 0.01": "less hides nobody",
        'strategy.aggregation = "mean"': "devices that add noise clip to dp.clip already",
        "federation.levels = []": "noise is counted for one model",
    },
    "dp.noise > 0 and federation.theta < 1": {
        'quantile.method = "noisy"': "other searches add no noise to their sums; or set theta = 1",
        "quantile.noise ≥ 0.01": "a search with less hides nobody",
    },
}
RULES: Final = tuple(
    Rule(
        tuple(map(read_comparison, when.split(" and "))) if when else (),
        read_comparison(must),
        because,
    )
    for when, rows in _TABLE.items()
    for must, because in rows.items()
)
"""All rules, in the order in which they are checked."""
