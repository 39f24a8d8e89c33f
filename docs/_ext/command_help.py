"""The directive `command-help`: what a command says with `--help`, when the site is built."""

import contextlib
import io
import os

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from deltafl.sim.cli import main


def help_of(*words: str) -> str:
    """What `deltafl WORDS --help` prints, 88 columns wide.

    Raises:
        ValueError: the command does not know itself.
    """
    os.environ["COLUMNS"] = "88"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            code = main([*words, "--help"])
        except SystemExit as end:  # how argparse ends after it has helped
            code = end.code
    if code:
        raise ValueError(f"`deltafl {' '.join(words)} --help` ended with {code}")
    return said.getvalue()


class CommandHelp(Directive):
    """`.. command-help:: audit leakage`."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The text, as a block."""
        text = help_of(*(self.arguments[0].split() if self.arguments else ()))
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
