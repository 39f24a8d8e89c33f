"""What a page says of devices that lie: only a simulation has any, and only it knows of them."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from deltafl.sim.inspect.audit.html.writing import count, number, quantity
from deltafl.sim.settings.attackers import AttackersConfig, Kind
from deltafl.sim.settings.config_io import show
from deltafl.sim.view import charts, series
from deltafl.sim.view.look import Look, Method
from deltafl.sim.view.shown import AttackersShown, Corrupted, Facts

_SCALED: Final = (
    Kind.BACKDOOR,
    Kind.SCALED,
    Kind.SIGN_FLIPPED,
    Kind.GAUSSIAN,
    Kind.INNER_PRODUCT,
    Kind.NOISE,
)
"""The kinds that read `attackers.scale`."""

_OWN: Final = "their own"


def attackers_of(looks: Sequence[Look], methods: Sequence[Method]) -> AttackersShown | None:
    """What is known of the attackers of runs; None where no run has any.

    Args:
        looks: the runs.
        methods: theirs, labelled as on the page.
    """
    lying = [
        (look, look.config.attackers)
        for look in looks
        if look.config is not None and look.config.attackers.lie
    ]
    if not lying:
        return None
    drawn = (
        charts.line_chart(
            "The attackers' share of the aggregate",
            "share of the weight",
            series.corrupted_curves(methods),
            is_share=True,
        ),
        charts.line_chart(
            "How often the backdoor works",
            "share of samples",
            series.backdoor_curves(methods),
            is_share=True,
        ),
    )
    return AttackersShown(
        about=tuple(_about(look, lies) for look, lies in lying),
        charts=tuple(one for one in drawn if one is not None),
        methods=tuple(
            found
            for at, method in enumerate(methods)
            if (found := _corrupted(method, at)) is not None
        ),
    )


def _about(look: Look, lies: AttackersConfig) -> Facts:
    """The settings of the attackers of a run, and how many there are."""
    known = next((run.attacked for run in look.runs if run.attacked is not None), None)
    if known is None:
        many = "not known yet"
    else:
        devices = count(known.population.devices, "training device")
        many = f"{number(len(known.population.attackers))} of {devices}"
    facts = (
        ("Run", str(look.path)),
        ("Share that is asked for", show(lies.share)),
        ("Devices that lie", many),
        ("Kind", lies.kind),
        *_details(lies),
        ("Loss that they claim", _OWN if lies.loss == "own" else lies.loss),
        ("Samples that they claim", _OWN if lies.weight == "own" else lies.weight),
    )
    return tuple(facts)


def _details(lies: AttackersConfig) -> Iterable[tuple[str, str]]:
    """What else the kind reads."""
    if lies.kind in _SCALED:
        yield "Scale", quantity(lies.scale)
    if lies.kind == Kind.LITTLE:
        yield "Deviations", quantity(lies.deviations)
    if lies.kind == Kind.BACKDOOR:
        yield "Label of the trigger", str(lies.to_class)
    if lies.kind == Kind.FLIPPED_LABELS:
        every = "every y to C − 1 − y"
        yield "Labels", every if lies.from_class < 0 else f"{lies.from_class} to {lies.to_class}"


def _corrupted(method: Method, at: int) -> Corrupted | None:
    """What became of a method under attack, over its seeds; None without attackers."""
    attacked = [run.attacked for run in method.runs if run.attacked is not None]
    if not attacked:
        return None
    shares = [share for one in attacked for share in one.shares.values()]
    last = [one.backdoor[max(one.backdoor)] for one in attacked if one.backdoor]
    return Corrupted(
        charts.look_of(method.label, at),
        charts.percent(_mean(shares)),
        charts.percent(max(shares, default=None)),
        charts.percent(_mean(last)),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
