"""Flags that many commands have: one name, one meaning and one help text."""

import argparse


def add_json(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare `--json`: stdout is one JSON document, whatever the command says to people."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_quiet(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare `--quiet`: no progress on stderr; notes and errors are there still."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")
