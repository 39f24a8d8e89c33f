"""What a page says of devices that lie: only a simulation has any, and only it knows of them."""

import math
from collections.abc import Sequence
from typing import Final

from deltafl.sim.charts import runs
from deltafl.sim.charts.chart import drawn
from deltafl.sim.record.snapshot import Method, Snapshot
from deltafl.sim.settings.attackers import AttackersConfig
from deltafl.sim.settings.config_io import show
from deltafl.sim.writing import count, number, percent

_OWN: Final = "their own"


def attackers_of(snapshots: Sequence[Snapshot], methods: Sequence[Method]) -> dict[str, object]:
    """What is known of the attackers of runs: who they are, charts, and what they came to.

    Args:
        snapshots: of the runs.
        methods: theirs, labelled as on the page.
    """
    lying = [
        (one, one.config.attackers)
        for one in snapshots
        if one.config is not None and one.config.attackers.lie
    ]
    charts = drawn(*(runs.chart_of(name, methods) for name in ("corrupted", "backdoor")))
    found = [(at, method.label, _corrupted(method)) for at, method in enumerate(methods)]
    return {
        "about": [_about(one, lies) for one, lies in lying],
        "charts": charts if lying else (),
        "methods": [one for one in found if one[-1] and lying],
    }


def _about(one: Snapshot, lies: AttackersConfig) -> tuple[tuple[str, str], ...]:
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
