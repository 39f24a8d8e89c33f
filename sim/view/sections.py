"""What each section of a page shows of runs; a section is a function, and a row of a table.

What a function gives is what the template's macro of the same name takes.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, cast

from deltafl.sim.charts import runs
from deltafl.sim.charts.chart import drawn
from deltafl.sim.inspect.audit.html.verdict import Verdict
from deltafl.sim.record.events import dropped, values_of
from deltafl.sim.record.labels import labels_of
from deltafl.sim.record.snapshot import Method, Snapshot, Trained
from deltafl.sim.run.accounting import DELTA, SPENT, rounded_up
from deltafl.sim.run.summary import search_privacy
from deltafl.sim.run.table import spent_by_all
from deltafl.sim.settings.attackers import AttackersConfig
from deltafl.sim.settings.config import WITH_LEVELS, RunConfig
from deltafl.sim.settings.config_io import show, to_toml
from deltafl.sim.view import pairs
from deltafl.sim.view.costs import Cost, cost_of, stage_times
from deltafl.sim.writing import count, number, percent, quantity

MAX_METHODS: Final = 12
"""The most methods of which a page draws distributions and pairs."""

BINS: Final = 20
"""Bins of a distribution of test errors."""

QUIET_S: Final = 60.0
"""After so many seconds without a new round, or five times the longest round, a run may be dead."""

_MOST_VERSIONS: Final = 40
_LONGEST: Final = 200  # of what files say
_OWN: Final = "their own"

Content = Mapping[str, object]
"""What a section shows, by the names of its macro's arguments."""


class State(NamedTuple):
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
class AuditState:
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


@dataclass(frozen=True, eq=False)
class Page:
    """What a page is about.

    Attributes:
        snapshots: of the runs.
        asked: the audit of the first of them; None if nobody asked for one.
        wanted: the label of what others are compared with; by default FedAvg, or the last.
        now: seconds since the epoch; by default, those of the clock.
    """

    snapshots: Sequence[Snapshot]
    asked: AuditState | None = None
    wanted: str | None = None
    now: float | None = None

    @property
    def name(self) -> str:
        """Of the run, or of the runs."""
        return ", ".join(str(one.path) for one in self.snapshots)

    @cached_property
    def methods(self) -> list[Method]:
        """The methods, each with a label of its own."""
        return methods_of(self.snapshots)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods."""
        return tuple(one.label for one in self.methods)

    @cached_property
    def baseline(self) -> Method | None:
        """What the others are compared with; None if there is nothing to compare.

        Raises:
            ValueError: there is no method of the label `wanted`.
        """
        return pairs.baseline_of(self.methods, self.wanted)

    @cached_property
    def costs(self) -> list[Cost]:
        """What the methods have cost."""
        return [cost_of(method, at) for at, method in enumerate(self.methods)]

    @cached_property
    def state(self) -> State:
        """How the runs are doing."""
        return _state(self.snapshots, time.time() if self.now is None else self.now)

    @property
    def audit(self) -> AuditState:
        """What it says of the audit."""
        return self.asked or AuditState("none", sentence=_no_audit(self.methods))


def methods_of(snapshots: Sequence[Snapshot]) -> list[Method]:
    """The methods of several runs that have begun, each with a label of its own."""
    found = [
        (one, method)
        for one in snapshots
        for method in one.methods
        if any(run.events or run.tested or run.summed for run in method.runs)
    ]
    labels = labels_of([(one.given, method.config) for one, method in found])
    alike, names = Counter(labels), Counter(one.path.name for one in snapshots)
    for at, (one, _) in enumerate(found):
        if alike[labels[at]] > 1:  # equal settings
            place = one.path.name if names[one.path.name] == 1 else one.path
            labels[at] = f"{labels[at]} ({place})"
    return [replace(method, label=label) for (_, method), label in zip(found, labels, strict=True)]


def status(page: Page) -> Content:
    """How the runs are doing, notable figures, and what cannot be read."""
    problems = [sentence for one in page.snapshots for sentence in one.problems]
    return {"state": page.state, "glance": _glance(page), "problems": problems}


def errors(page: Page) -> Content:
    """Charts of the test error, and how methods are drawn."""
    return {
        "legend": list(enumerate(page.labels)),
        "charts": drawn(*runs.error_charts(page.methods)),
        "is_several": any(len(method.runs) > 1 for method in page.methods),
    }


def paired(page: Page) -> Content:
    """Who is helped and who is hurt, by method; or why that is not known."""
    baseline = page.baseline
    if baseline is None:
        problem = "There is one method, and nothing to compare it with."
        return {"baseline": "", "found": [], "problem": problem}
    found = [one for _, one in pairs.pairs_of(page.methods[:MAX_METHODS], baseline)]
    problem = (
        f"No method has two seeds in which it was evaluated on the same split and devices as "
        f"{baseline.label}, after the same rounds. With one seed, who is served badly cannot be "
        "told from who was unlucky."
    )
    return {"baseline": baseline.label, "found": found, "problem": "" if found else problem}


def devices(page: Page) -> Content:
    """How errors lie over devices, by method."""
    found = [
        one
        for at, method in enumerate(page.methods[:MAX_METHODS])
        if (one := pairs.distribution(method, at, BINS)) is not None
    ]
    is_summed = any(run.summed for method in page.methods for run in method.runs)
    return {"found": found, "more": len(page.methods) - len(found), "is_summed": is_summed}


def searches(page: Page) -> Content:
    """Charts of the searches for the threshold."""
    shown = ("queries", "threshold", "kept")
    return {"charts": drawn(*(runs.chart_of(name, page.methods) for name in shown))}


def costs(page: Page) -> Content:
    """Seconds and bytes of methods, and seconds of stages."""
    return {
        "costs": page.costs,
        "charts": drawn(runs.chart_of("seconds", page.methods)),
        "stage_times": stage_times(page.methods[:MAX_METHODS]),
    }


def dropouts(page: Page) -> Content:
    """Devices lost, by stage and by round, and what noisy sums have cost."""
    stages = sorted({stage for one in page.costs for stage in one.dropped})[:MAX_METHODS]
    return {
        "costs": page.costs,
        "stages": stages,
        "charts": drawn(runs.chart_of("lost", page.methods)) if stages else (),
        "privacy": _privacy(page.snapshots),
    }


def lying(page: Page) -> Content:
    """Devices that lie: only a simulation has any, and only the simulator knows of them."""
    runs_of_liars = [
        (one, one.config.attackers)
        for one in page.snapshots
        if one.config is not None and one.config.attackers.lie
    ]
    if not runs_of_liars:
        return {"about": (), "charts": (), "methods": ()}
    found = [(at, one.label, _corrupted(one)) for at, one in enumerate(page.methods)]
    return {
        "about": [_liars(one, lies) for one, lies in runs_of_liars],
        "charts": drawn(*(runs.chart_of(name, page.methods) for name in ("corrupted", "backdoor"))),
        "methods": [one for one in found if one[-1]],
    }


def audit(page: Page) -> Content:
    """What is known of the audit."""
    return {"found": page.audit}


def settings(page: Page) -> Content:
    """Settings as TOML, and versions, of each run."""
    return {"runs": [_settings(one) for one in page.snapshots]}


def facts(page: Page) -> Content:
    """What the runs were, as names and values: what is the same in all comes first, once."""
    about = [dict(_about(one, page.methods)) for one in page.snapshots if one.config is not None]
    shared = [
        (name, value)
        for name, value in (about[0] if about else {}).items()
        if all(one.get(name) == value for one in about)
    ]
    others = [[pair for pair in one.items() if pair not in shared] for one in about]
    return {"about": [one for one in (shared, *others) if one]}


def compared(page: Page) -> Content:
    """Tables of paired differences of finished runs; or why there are none."""
    baseline, tables = page.baseline, []
    if baseline is None:
        problem = "There is one method, and nothing to compare it with."
        return {"tables": (), "problem": problem}
    if not all(one.is_finished for one in page.snapshots):
        problem = (
            "Differences are tested when all runs are finished: tested again and again on the "
            "way, chance would be a gain sooner or later."
        )
        return {"tables": (), "problem": problem}
    for title, percentile in (
        (f"{runs.TAIL}th percentile over devices", runs.TAIL),
        ("Mean over devices", None),
    ):
        try:
            rows = pairs.comparisons(page.methods, baseline, percentile)
        except ValueError as error:
            return {"tables": (), "problem": f"There are no paired differences: {error}."}
        tables.append({"title": title, "baseline": baseline.label, "rows": rows})
    return {"tables": tables, "problem": ""}


SECTIONS: Final[Mapping[str, Callable[[Page], Content]]] = {
    "status": status,
    "facts": facts,
    "compared": compared,
    "errors": errors,
    "paired": paired,
    "devices": devices,
    "searches": searches,
    "costs": costs,
    "dropouts": dropouts,
    "attackers": lying,
    "audit": audit,
    "settings": settings,
}
"""The sections of a page of results, in their order."""

OF_A_RUN: Final = tuple(name for name in SECTIONS if name != "facts")
"""Those of the page of a run that may be in progress."""


def _state(snapshots: Sequence[Snapshot], now: float) -> State:
    without = [one for one in snapshots if one.config is None]
    if any(one.problems for one in without):
        return State("high", "Cannot be read", "The settings of the run cannot be read.")
    if without:
        return State("info", "Not begun", "There is no run here yet.")
    if all(one.is_finished for one in snapshots):
        return State("clean", "Finished", _progress(snapshots))
    written = max(one.written for one in snapshots)
    quiet = max(0.0, now - written)
    played = [event for one in snapshots for run in one.runs for event in run.events]
    longest = max(values_of(played, "wall_s"), default=0.0)
    if quiet > max(QUIET_S, 5 * longest):
        return State(
            "medium",
            "Not finished",
            f"{_progress(snapshots)} Nothing has been written for {_duration(quiet)}: it may have "
            "stopped. `deltafl run --resume` continues a run.",
        )
    return State("info", "In progress", _progress(snapshots))


def _progress(snapshots: Sequence[Snapshot]) -> str:
    played = [run for one in snapshots for run in one.runs]
    done, wanted = sum(len(run.events) for run in played), sum(run.rounds for run in played)
    text = f"{number(done)} of {count(wanted, 'round')} of {count(len(played), 'run')}."
    for one in snapshots:
        going_on = [(m, r) for m in one.methods for r in m.runs if len(r.events) < r.rounds]
        if going_on and not one.is_finished:
            method, run = going_on[0]
            text += (
                f" Now: {method.label}, seed {run.seed}, after round "
                f"{number(len(run.events))} of {number(run.rounds)}."
            )
            break
    return text


def _glance(page: Page) -> list[tuple[str, str, str]]:
    """Notable figures: what, value, remark."""
    played = [run for one in page.snapshots for run in one.runs]  # levels share their rounds
    events = [event for run in played for event in run.events]
    lost = sum(bool(event.get("aborted")) for event in events)
    tested = [one for method in page.methods for run in method.runs for one in run.tested]
    known = max((len(one.devices) for one in tested), default=0)
    found = [
        ("Rounds", number(len(events)), f"of {number(sum(run.rounds for run in played))}"),
        ("Secure sums", number(sum(one.sums for one in page.costs)), "over all runs"),
        ("Time in rounds", _duration(sum(values_of(events, "wall_s"))), "over all runs"),
        ("Lost rounds", number(lost), f"{count(dropped(events).total(), 'device')} dropped out"),
    ]
    if known:
        found.append(("Test devices", number(known), count(len(page.costs), "method")))
    return found


def _privacy(snapshots: Sequence[Snapshot]) -> list[str]:
    """What sums with noise have cost so far: all of them, or the searches of every round."""
    found = []
    for one in snapshots:
        seeds = 1 if one.config is None else one.config.experiment.num_seeds
        if spent := one.summary.get("privacy"):
            told = spent_by_all(cast("dict[str, float]", spent), seeds)
            found.append(f"{one.path}: {told}")
        elif one.config is not None:  # of each algorithm, the run of the first seed
            arms = [*zip(one.config.arms(), one.runs, strict=True)][::seeds]
            found += [told for arm, run in arms if run.events if (told := _spent(arm, run))]
    return found


def _spent(arm: RunConfig, run: Trained) -> str:
    """What the noisy sums of one run have cost; empty without any."""
    rounds = count(len(run.events), "round")
    if arm.dp.noise:
        epsilon, delta = (run.events[-1].get(key) for key in SPENT)
        if isinstance(epsilon, float) and isinstance(delta, float):
            return (
                f"{run.path}: all sums of {rounds} cost a device at most "
                f"ε = {rounded_up(epsilon)} at δ = {quantity(delta)}, in this run alone. Runs "
                "of further seeds are over the same devices, and add up."
            )
    elif searches := search_privacy(arm, len(run.events)):
        return (
            f"{run.path}: the searches of {rounds} cost a device that is in "
            f"every round ε = {rounded_up(cast('float', searches['epsilon']))} at δ = "
            f"{quantity(DELTA)}. This is not the privacy of the run as a whole."
        )
    return ""


def _liars(one: Snapshot, lies: AttackersConfig) -> tuple[tuple[str, str], ...]:
    """The settings of the attackers of a run, and how many there are."""
    known = next((run.attacked for run in one.runs if run.attacked is not None), None)
    if known is None:
        many = "not known yet"
    else:
        devices = count(known.population.devices, "training device")
        many = f"{number(len(known.population.attackers))} of {devices}"
    return (
        ("Run", str(one.path)),
        ("Share that is asked for", show(lies.share)),
        ("Devices that lie", many),
        ("Kind", lies.kind),
        ("Loss that they claim", _OWN if lies.loss == "own" else lies.loss),
        ("Samples that they claim", _OWN if lies.weight == "own" else lies.weight),
    )


def _corrupted(method: Method) -> tuple[str, ...]:
    """What attackers came to under a method, over its seeds; empty without attackers."""
    attacked = [run.attacked for run in method.runs if run.attacked is not None]
    if not attacked:
        return ()
    largest = [one.largest_share for one in attacked if one.largest_share is not None]
    return (
        _mean([one.mean_share for one in attacked]),
        percent(max(largest, default=None)),
        _mean([one.last_success for one in attacked]),
    )


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return percent(math.fsum(known) / len(known) if known else None)


def _no_audit(methods: Sequence[Method]) -> str:
    if any(method.config.federation.is_private for method in methods):
        return "No audit was asked for. `deltafl audit` makes one."
    return "Nothing was summed securely, so there is nothing to audit."


def _settings(one: Snapshot) -> tuple[str, str, Mapping[str, object]]:
    text = "" if one.config is None else to_toml(one.config)
    several = list(one.versions.items())[:_MOST_VERSIONS]
    return str(one.path), text, {_short(name): _short(value) for name, value in several}


def _short(value: object) -> str:
    """What a file says, as far as a page repeats it."""
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _about(one: Snapshot, methods: Sequence[Method]) -> tuple[tuple[str, str], ...]:
    """What a run was; its methods are called as on the whole page."""
    config = one.config
    assert config is not None  # noqa: S101 - of such runs it is asked
    federation, experiment = config.federation, config.experiment
    ended = time.gmtime(one.written)
    known = one.summary
    sizes = [known.get(key) for key in ("train_devices", "test_devices")]
    with_levels = federation.algorithm in WITH_LEVELS
    places = {run.path for run in one.runs}
    own = [method for method in methods if any(run.path in places for run in method.runs)]
    facts = (
        ("Run", str(one.path)),
        ("Written last", time.strftime("%Y-%m-%d %H:%M UTC", ended) if one.written else ""),
        ("Data", _short(known.get("data") or config.data.source)),
        ("SHA-256 of the data", _short(one.versions.get("data_sha256") or "")),
        ("Devices", "" if None in sizes else f"{_short(sizes[0])} train, {_short(sizes[1])} test"),
        ("Cohort", count(federation.cohort_size, "device")),
        ("Model", config.model.name),
        ("θ", ", ".join(map(show, federation.thetas)) if with_levels else ""),
        ("Rounds", number(federation.rounds)),
        ("Seeds", f"{count(experiment.num_seeds, 'seed')}, from {experiment.seed}"),
        ("Methods", ", ".join(_summed(method) for method in own)),
    )
    return tuple((name, value) for name, value in facts if value)


def _summed(method: Method) -> str:
    """A method, and how its updates are summed."""
    config = method.config
    sums = f"{config.privacy.sums} sums" if config.federation.is_private else "in clear"
    return f"{method.label} ({sums})"


def _duration(seconds: float) -> str:
    """A time in words.

    >>> _duration(7.2), _duration(200), _duration(9000)
    ('7 s', '3 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
