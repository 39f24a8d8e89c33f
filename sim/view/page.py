"""Whole pages: a live one, and one of results.

Names of devices, methods and files are text of others. The templates escape all that they print,
what is invisible is written as escapes, and the page's policy forbids every request, and every
script and style but its own.
"""

import base64
import functools
import time
from collections.abc import Sequence
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from typing import Final

import jinja2
from markupsafe import Markup

from deltafl.sim import writing
from deltafl.sim.charts import svg
from deltafl.sim.reproduce.comparison import p_value
from deltafl.sim.view.costs import STAGES
from deltafl.sim.view.pairs import LEVEL
from deltafl.sim.view.sections import OF_A_RUN, SECTIONS, Page
from deltafl.sim.visible import visible

_HERE: Final = "deltafl.sim.view"


def live_policy() -> str:
    """The policy of a live page."""
    return _policy(_script())


def _policy(script: str) -> str:
    """The policy of a page: no request leaves it, and it runs its own script alone.

    Args:
        script: its text; without one, the page asks for nothing at all.
    """
    rules = ["default-src 'none'", f"style-src '{_digest(_style())}'", "img-src data:"]
    if script:
        rules += [f"script-src '{_digest(script)}'", "connect-src 'self'"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def live_page(page: Page) -> str:
    """The page of a run that asks for its own sections again and again."""
    return _page(page, OF_A_RUN, "Δ-FL run", _script())


def page_of_results(page: Page) -> str:
    """The page of results; it runs nothing, and asks for nothing."""
    return _page(page, tuple(SECTIONS), "Δ-FL results")


def state(page: Page) -> dict[str, object]:
    """What a live page asks for, as JSON values."""
    return {
        "title": f"{page.state.title}: {visible(page.name)}",
        "sections": fragments(page),
        "labels": list(map(visible, page.labels)),
        "baseline": "" if page.baseline is None else visible(page.baseline.label),
        "is_over": page.state.level == "clean",
        "is_busy": page.audit.state == "running",
    }


def fragments(page: Page, sections: Sequence[str] = OF_A_RUN) -> dict[str, Markup]:
    """Sections in HTML, by their names."""
    macros = _environment().get_template("sections.html.j2").module
    return {name: getattr(macros, name)(**SECTIONS[name](page)) for name in sections}


def _page(page: Page, sections: Sequence[str], kicker: str, own_script: str = "") -> str:
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            sections=fragments(page, sections),
            kicker=kicker,
            style=Markup(_style()),  # noqa: S704 - ours
            script=Markup(own_script),  # noqa: S704 - ours
            policy=_policy(own_script),
            moment=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            version=metadata.version("deltafl"),
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def _text(package: str, name: str) -> str:
    """A file that comes with a package of ours."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _script() -> str:
    """The script of a live page."""
    return _text(_HERE, "view.js")


@functools.cache
def _style() -> str:
    """The style sheets of the audit's page and of charts, and what there is here beside them."""
    audits = _text("deltafl.sim.inspect.audit.html", "style.css")
    return audits + _text("deltafl.sim.charts", "charts.css") + _text(_HERE, "view.css")


def in_points(value: float) -> str:
    """A difference of shares, in percentage points.

    >>> in_points(-0.125), in_points(0.0), in_points(0.031), in_points(float("-inf"))
    ('−12.5', '0', '+3.1', '−∞')
    """
    text = f"{100 * value:+.1f}".replace("-", "−").replace("inf", "∞")
    return "0" if text in ("+0.0", "−0.0") else text


@functools.cache
def _environment() -> jinja2.Environment:
    drawn = (svg.line_chart, svg.distribution_chart, svg.pair_chart, svg.swatch)
    written = (in_points, p_value)
    return writing.templates([_HERE], *drawn, *written, LEVEL=LEVEL, STAGES=STAGES)
