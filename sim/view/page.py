"""Whole pages: a live one, one of a moment, and one of results.

Names of devices, methods and files are text of others. The templates escape all that they print,
what is invisible is written as escapes, and the page's policy forbids every request, and every
script and style but its own.
"""

import base64
import functools
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import metadata
from typing import Final

import jinja2
from markupsafe import Markup

from deltafl.sim.inspect.audit.html import writing
from deltafl.sim.view import charts
from deltafl.sim.view.series import LEVEL
from deltafl.sim.view.shown import Shown
from deltafl.sim.view.stages import STAGES
from deltafl.sim.visible import visible

SECTIONS: Final = (
    "status",
    "errors",
    "paired",
    "devices",
    "searches",
    "costs",
    "dropouts",
    "attackers",
    "audit",
    "settings",
)
"""The sections of the page of a run, in their order."""

OF_RESULTS: Final = (
    "status",
    "facts",
    "compared",
    "errors",
    "paired",
    "devices",
    "searches",
    "costs",
    "dropouts",
    "attackers",
    "audit",
    "settings",
)
"""The sections of a page of results."""

_SHORT: Final = 24
_HERE: Final = "deltafl.sim.view"


def policy(style: str, script: str) -> str:
    """The policy of a page: no request leaves it, and it runs its own script alone.

    Args:
        style: the text of its style sheet.
        script: that of its script; without one, it asks for nothing at all.
    """
    rules = ["default-src 'none'", f"style-src '{_digest(style)}'", "img-src data:"]
    if script:
        rules += [f"script-src '{_digest(script)}'", "connect-src 'self'"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def live_page(one: Shown) -> str:
    """The page of a run that asks for its own sections again and again."""
    return _page(one, SECTIONS, "Δ-FL run", script())


def page_of_moment(one: Shown) -> str:
    """The page of a run as it is now; it runs nothing, and asks for nothing."""
    return _page(one, SECTIONS, "Δ-FL run")


def page_of_results(one: Shown) -> str:
    """The page of results; it runs nothing, and asks for nothing."""
    return _page(one, OF_RESULTS, "Δ-FL results")


def state(one: Shown) -> dict[str, object]:
    """What a live page asks for, as JSON values."""
    return {
        "title": f"{one.state.title}: {visible(one.name)}",
        "sections": fragments(one),
        "labels": list(map(visible, one.labels)),
        "baseline": visible(one.baseline),
        "is_over": one.state.level == "clean",
        "is_busy": one.audit.state == "running" or one.carried_share < 1,
    }


def fragments(one: Shown) -> dict[str, str]:
    """The sections of the page of a run, in HTML, by their names."""
    macros = _environment().get_template("sections.html.j2").module
    return {name: str(getattr(macros, name)(one)) for name in SECTIONS}


def _page(one: Shown, sections: Sequence[str], kicker: str, own_script: str = "") -> str:
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            one=one,
            sections=sections,
            kicker=kicker,
            style=Markup(style()),  # noqa: S704 - ours
            script=Markup(own_script),  # noqa: S704 - ours
            policy=policy(style(), own_script),
            moment=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            version=metadata.version("deltafl"),
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def _text(package: str, name: str) -> str:
    """A file that comes with a package of ours."""
    return jinja2.PackageLoader(package, "").get_source(jinja2.Environment(autoescape=True), name)[
        0
    ]


@functools.cache
def script() -> str:
    """The script of a live page."""
    return _text(_HERE, "view.js")


@functools.cache
def style() -> str:
    """The style sheet of the audit's page, and what there is here beside it."""
    return _text("deltafl.sim.inspect.audit.html", "style.css") + _text(_HERE, "view.css")


def in_points(value: float) -> str:
    """A difference of shares, in percentage points.

    >>> in_points(-0.125), in_points(0.0), in_points(0.031)
    ('−12.5', '0', '+3.1')
    """
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0" if text in ("+0.0", "−0.0") else text


def p_value(value: float | None) -> str:
    """A p-value.

    >>> p_value(0.0312), p_value(0.0001), p_value(None)
    ('0.031', '< 0.001', '—')
    """
    if value is None:
        return writing.NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def shortened(text: str) -> str:
    """A text that fits into a chart.

    >>> shortened("fedavg"), shortened("x" * 99)
    ('fedavg', 'xxxxxxxxxxxxxxxxxxxxxxx…')
    """
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(_HERE, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=writing.shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: tuple[Callable[..., str], ...] = (
        writing.number,
        writing.count,
        writing.size,
        writing.quantity,
        charts.percent,
        in_points,
        p_value,
        shortened,
    )
    environment.filters.update({one.__name__: one for one in filters})
    environment.globals.update(chart_frame=charts, NONE=writing.NONE, LEVEL=LEVEL, STAGES=STAGES)
    return environment
