"""Flags that many commands have: one name, one meaning and one help text.

`--quiet` is asked for once, and known wherever a bar of progress is drawn.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_QUIET: Final = ContextVar("quiet", default=False)


def add_json(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare `--json`: stdout is one JSON document, whatever the command says to people."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_quiet(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare `--quiet`: no progress on stderr; notes and errors are there still."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_log(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare `--log`: the form of the lines that a process logs to stderr."""
    parser.add_argument(
        "--log", choices=["text", "json"], default="text", help="form of the lines on stderr (text)"
    )


def is_quiet() -> bool:
    """Whether no progress is to be shown."""
    return _QUIET.get()


@contextmanager
def quieted(quiet: bool) -> Iterator[None]:
    """Show no progress meanwhile, if `quiet`."""
    token = _QUIET.set(quiet or _QUIET.get())
    try:
        yield
    finally:
        _QUIET.reset(token)
