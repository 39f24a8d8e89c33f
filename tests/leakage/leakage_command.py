"""`deltafl audit leakage` with its arguments read."""

import argparse

from deltafl.sim.inspect.leakage import cli


def command(*arguments):
    """The options that these arguments stand for."""
    parser = argparse.ArgumentParser(prog="deltafl audit leakage", allow_abbrev=False)
    cli.add_arguments(parser)
    return parser.parse_args(arguments)
