"""`deltafl audit leakage` with its arguments read."""

from deltafl.sim.inspect.leakage import cli
from deltafl.sim.parser import Parser


def command(*arguments):
    """The options that these arguments stand for."""
    parser = Parser(prog="deltafl audit leakage")
    cli.add_arguments(parser)
    return parser.parse_args(arguments)
