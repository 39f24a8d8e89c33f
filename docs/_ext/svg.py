"""Pieces of SVG: escaped text, lines, boxes, and a frame that says what it shows.

Everything is drawn in the colour of the text around it, so a drawing suits light and dark pages.
"""

from collections.abc import Iterable
from html import escape

CHARACTER = 6.6
"""Mean width of a character in pixels, at 12 pixels."""

_STYLE = """
.drawn text { font: 12px system-ui, sans-serif; fill: currentColor; }
.drawn .name { font-weight: 600; }
.drawn .line { stroke: currentColor; stroke-width: 1.3; fill: none; opacity: .75; }
.drawn .some { stroke-dasharray: 5 3; }
.drawn .box { stroke: currentColor; stroke-width: 1.3;
  fill: var(--color-background-secondary, Canvas); }
.drawn .region { stroke: currentColor; stroke-width: 1.3; fill: none; opacity: .6; }
.drawn .solid { fill: currentColor; }
"""


def frame(name: str, said: tuple[str, str], size: tuple[float, float], parts: Iterable[str]) -> str:
    """A drawing with a title and a description for those who do not see it.

    Args:
        name: distinguishes its ids from those of other drawings on the page.
        said: the title and the description.
        size: width and height in pixels.
        parts: what is drawn.
    """
    width, height = (round(side) for side in size)
    title, description = map(escape, said)
    return (
        f'<svg class="drawn" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{title}</title><desc id="{name}-desc">{description}</desc>'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>"
    )


def text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    """One line of text whose baseline is at `y`."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(said)}</text>'


def line(points: Iterable[tuple[float, float]], *, some: bool = False) -> str:
    """A line through points; `some` makes it dashed."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="line{" some" if some else ""}" points="{path}"/>'


def region(x: float, y: float, width: float, height: float) -> str:
    """A border around several things."""
    corner = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"'
    return f'<rect class="region" {corner}/>'


def box(x: float, y: float, width: float, height: float, *, double: bool = False) -> str:
    """A rectangle with round corners, which hides what is below; `double` has two borders."""
    drawn = f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>'
    return drawn + (box(x + 3, y + 3, width - 6, height - 6) if double else "")


def dot(x: float, y: float, radius: float = 2.5) -> str:
    """A filled circle."""
    return f'<circle class="solid" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>'


def head(x: float, y: float, towards: str) -> str:
    """The head of an arrow whose point is at (x, y): towards "left", "right" or "down"."""
    across, along = 4, 8
    corners = {
        "left": ((x + along, y - across), (x + along, y + across)),
        "right": ((x - along, y - across), (x - along, y + across)),
        "down": ((x - across, y - along), (x + across, y - along)),
    }[towards]
    path = " ".join(f"{a:g},{b:g}" for a, b in ((x, y), *corners))
    return f'<polygon class="solid" points="{path}"/>'
