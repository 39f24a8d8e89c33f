"""Docstrings and signatures of this project, made to fit Sphinx.

In a docstring, `|x|` is an absolute value, and a colon in the first line of an attribute's is one.
In a signature, an array is its element type. A name that is public in another module than its own
leads to where it is described.
"""

import re
from typing import Any

from docutils import nodes
from numpy.typing import ArrayLike
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import stringify_annotation

_CODE_OR_BAR = re.compile(r"(``.*?``|`[^`]*`)|\|")
_ARRAY = re.compile(
    r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[([^\[\]]+)\]\]"
)
_LIKE_AN_ARRAY = stringify_annotation(ArrayLike, "smart")
_ATTRIBUTES = ("attribute", "data", "property")
_BEFORE_NAPOLEON = 400


def plain(line: str) -> str:
    r"""A line in which bars mean nothing else; those in code stay as they are.

    >>> print(plain("|F - μ| and `a | b`"))
    \|F - μ\| and `a | b`
    """
    return _CODE_OR_BAR.sub(lambda found: found[1] or r"\|", line)


def unlike_a_type(lines: list[str]) -> list[str]:
    """Text whose first line has no colon that napoleon would take for the end of a type.

    >>> unlike_a_type(["Whether it is new: nobody has seen it."])
    ['Whether it is new:', 'nobody has seen it.']
    """
    begin, colon, rest = lines[0].partition(": ") if lines else ("", "", "")
    return [begin + ":", rest, *lines[1:]] if colon else lines


def with_maps(lines: list[str]) -> list[str]:
    """The docstring of a module, whose indented lines are a map of it, as they are.

    >>> with_maps(["Sums.", "", "    one    first", "    two    second"])
    ['Sums.', '', '::', '', '    one    first', '    two    second']
    """
    kept: list[str] = []
    text = ""
    for line in lines:
        begins = line.startswith("    ") and text[:1].strip() and not kept[-1]
        if begins and not text.endswith("::"):
            kept += ["::", ""]
        text = line or text
        kept.append(line)
    return kept


def short(signature: str | None) -> str | None:
    """A signature with short names of arrays.

    >>> short("(x: ~numpy.ndarray[tuple[~typing.Any, ...], ~numpy.dtype[~numpy.uint32]])")
    '(x: NDArray[~numpy.uint32])'
    """
    return signature and _ARRAY.sub(r"NDArray[\1]", signature.replace(_LIKE_AN_ARRAY, "ArrayLike"))


def _found_by_last_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    if node.get("refdomain") != "py":
        return None
    objects = env.domains["py"].objects
    name = node["reftarget"].rpartition(".")[2]
    homes = [home for home in objects if home.rpartition(".")[2] == name]
    if len(homes) != 1:
        return None
    entry = objects[homes[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, shown, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Change each docstring and each signature when it is read."""

    def read(_app: Sphinx, what: str, *given: Any) -> None:  # noqa: ANN401 Sphinx' signature
        lines: list[str] = given[-1]
        if what == "module":
            lines[:] = with_maps([line if line[:1] == " " else plain(line) for line in lines])
        else:
            lines[:] = map(plain, unlike_a_type(lines) if what in _ATTRIBUTES else lines)

    def sign(*given: Any) -> tuple[str | None, str | None]:  # noqa: ANN401
        arguments, result = given[-2:]
        return short(arguments), short(result)

    app.connect("autodoc-process-docstring", read, priority=_BEFORE_NAPOLEON)
    app.connect("autodoc-process-signature", sign)
    app.connect("missing-reference", _found_by_last_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
