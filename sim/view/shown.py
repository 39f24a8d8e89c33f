"""What is on a page, section by section, as templates read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from deltafl.sim.inspect.audit.html.verdict import Verdict
from deltafl.sim.reproduce.statistics import Comparison
from deltafl.sim.view import charts, device_charts
from deltafl.sim.view.stages import StageTimes
from deltafl.sim.view.wire import Carried


@dataclass(frozen=True, slots=True)
class State:
    """How a run is doing.

    Attributes:
        level: the class of its banner: "clean" (finished), "info" (in progress), "medium" (has
            written nothing for long) or "high" (cannot be read).
        title: in a few words.
        sentence: in a sentence.
    """

    level: str
    title: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What a method has cost so far, over all its seeds.

    Attributes:
        look: how the method is drawn.
        rounds: how many were played.
        sums: secure sums.
        train_s: CPU seconds in which devices measured and trained.
        protocol_s: the other CPU seconds of rounds.
        wall_s: seconds that passed.
        up: bytes that a device sent in a round, on average; None without messages.
        lost: rounds that were given up.
        dropped: devices lost, by the stage at which they were.
    """

    look: charts.Look
    rounds: int
    sums: int
    train_s: float
    protocol_s: float
    wall_s: float
    up: float | None
    lost: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AuditShown:
    """What a page says of the audit of a run.

    Attributes:
        state: "none" (there is nothing to audit), "early" (the run is not over), "ready" (it can be
            asked for), "running", "done" or "failed".
        done: how much of the transcript has been read, from 0 to 1.
        verdict: of an audit that is done.
        sentence: why there is none, or why it failed.
        has_report: whether the whole report can be opened from the page.
    """

    state: str
    done: float = 0.0
    verdict: Verdict | None = None
    sentence: str = ""
    has_report: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A table of methods with paired differences.

    Attributes:
        title: what is compared.
        baseline: the label of what the others are compared with.
        rows: one for each method.
    """

    title: str
    baseline: str
    rows: tuple[Comparison, ...]


Facts: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values."""


@dataclass(frozen=True, slots=True)
class Corrupted:
    """What attackers came to under a method, over its seeds; as texts.

    Attributes:
        look: how the method is drawn.
        share: their share of the aggregate's weight, on average over rounds.
        largest: the largest of a round.
        backdoor: how often the backdoor of the last model evaluated works.
    """

    look: charts.Look
    share: str
    largest: str
    backdoor: str


@dataclass(frozen=True, slots=True)
class AttackersShown:
    """What only the simulator knows of devices that lie.

    Attributes:
        about: of each run that has any, who they are, what they send and what they claim.
        charts: their share of the aggregate by round, and how often a backdoor works.
        methods: what they came to.
    """

    about: tuple[Facts, ...]
    charts: tuple[charts.Chart, ...]
    methods: tuple[Corrupted, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything on a page.

    Attributes:
        name: of the run, or of the runs.
        state: how it is doing.
        glance: notable figures: what, value, remark.
        problems: what cannot be read, in sentences.
        legend: how methods are drawn.
        errors: charts of the test error.
        is_several: whether there are several seeds of some method, so that bands are drawn.
        heats: how errors lie over devices, by method.
        pairs: who is helped and who is hurt, by method.
        pair_problem: why there are no pairs, in a sentence.
        baseline: the label of what others are compared with; "" if there is nothing to compare.
        labels: the methods that it may be.
        searches: charts of the searches.
        costs: what methods have cost.
        seconds: chart of the seconds of a round.
        stage_times: how rounds divide over the stages of their sessions.
        carried: the messages of the transcript of the first run.
        carried_share: how much of that transcript has been read, from 0 to 1.
        dropouts: chart of the devices lost by round; None where none were.
        stages: the stages at which devices were lost.
        privacy: what noisy searches have cost, in sentences.
        audit: of the audit.
        compared: tables of differences.
        compared_problem: why there are none, in a sentence.
        runs: settings and versions: of each run its name, the settings as TOML, and versions.
        about: of each run, what it was, as names and values.
        attackers: devices that lie; None where no run has any.
    """

    name: str
    state: State
    glance: tuple[tuple[str, str, str], ...]
    problems: tuple[str, ...]
    legend: tuple[charts.Look, ...]
    errors: tuple[charts.Chart, ...]
    is_several: bool
    heats: tuple[device_charts.Heat, ...]
    pairs: tuple[device_charts.PairChart, ...]
    pair_problem: str
    baseline: str
    labels: tuple[str, ...]
    searches: tuple[charts.Chart, ...]
    costs: tuple[Cost, ...]
    seconds: charts.Chart | None
    stage_times: tuple[StageTimes, ...]
    carried: tuple[Carried, ...]
    carried_share: float
    dropouts: charts.Chart | None
    stages: tuple[str, ...]
    privacy: tuple[str, ...]
    audit: AuditShown
    compared: tuple[Compared, ...] = ()
    compared_problem: str = ""
    runs: tuple[tuple[str, str, Mapping[str, object]], ...] = ()
    about: tuple[Facts, ...] = ()
    attackers: AttackersShown | None = None
