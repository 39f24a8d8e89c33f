"""Sphinx draws the pages' `mermaid` blocks itself: as SVG, without a browser's help.

A code host draws the same blocks. Those of docs/spec.md are made from the tables of the code.
"""

from typing import Any

import sequence_drawing
import state_drawing
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

KINDS = {"stateDiagram-v2": state_drawing, "sequenceDiagram": sequence_drawing}
"""Who reads and draws a block, by its first word."""


def drawn(name: str, title: str, source: str) -> str:
    """A Mermaid block as SVG.

    Raises:
        ValueError: it is of a kind that nobody here draws, or has a line that is not understood.
    """
    kind = source.split(maxsplit=1)[0]
    if kind not in KINDS:
        raise ValueError(f"{kind} is not drawn here: only {', '.join(KINDS)}")
    module = KINDS[kind]
    return module.draw(name, title, module.parse(source.strip()))


class Draw(SphinxTransform):
    """Puts a drawing in the place of each block, under the title of its section."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:  # noqa: ANN401 docutils' signature
        """Draw all blocks of a page."""
        del kwargs
        for number, block in enumerate(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                section = block.parent
                while not isinstance(section, nodes.section):
                    section = section.parent
                title = section.next_node(nodes.title).astext()
                picture = drawn(f"drawing-{number}", title, block.astext())
                html = f'<div class="drawing" tabindex="0">{picture}</div>'
                block.replace_self(nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
