"""The arguments of `deltafl device`; nothing heavy is loaded for its help."""

import argparse
import signal
from pathlib import Path
from typing import Final

from deltafl.sim.flags import add_log
from deltafl.sim.settings.given import add_flags, add_settings

MAX_STEPS: Final = 100_000
"""Most steps of SGD in a round that a device takes, unless it is told otherwise."""

MAX_FRAME: Final = 1 << 28
"""Bytes of the longest frame that a device takes by default: a model has to fit."""

_DESCRIPTION: Final = """\
Take part in a federation as one device: connect to its server, train on own data, send masked sums.

The settings are the device's own. Those of [data] say where its samples are and how they are
written; which columns are inputs, and what the classes are called, the server says, unless it is
said here.
Those of [privacy], [quantile], [dp] and [policy] say what the device accepts of it, and whatever
falls short of them it refuses; those of [own] name all code that it may import. How to train, the
server says. Without settings, the defaults hold, which are safe. Where the device's own list has
fewer than ten devices, it accepts sums over all of them.
SIGHUP has it read the list again.

The ledger is a file that remembers what the device took part in. Never restore it from a backup: a
device that has lost it needs a new identity.
"""

_EXAMPLES: Final = """\
examples:
  deltafl device --server wss://fl.example.org:8443 --identity device-7.identity \\
      --devices devices.txt --data mine.csv
      train on all samples in mine.csv
  deltafl device --server wss://localhost:8443 --ca ca.pem --identity device-7.identity \\
      --devices devices.txt --preset quickstart --index 7
      as the eighth training device of a preset's data, for trials
exit codes: 0 the run is over, or SIGTERM has ended the device between two messages; 1 its patience
is over; 2 invalid request, or data that do not fit what the server says; 130 interrupted.
"""

_FLAGS: Final = {
    "--ca": ("FILE", "certificates to trust in place of the system's (PEM)", str),
    "--ledger": ("FILE", "default: beside the identity, .ledger", Path),
    "--index": (
        "I",
        "which training device of data that several share, divided as by `deltafl run`, from 0",
        int,
    ),
    "--max-steps": ("N", "most steps of training in a round", MAX_STEPS),
    "--patience": ("S", "seconds without being admitted after which it ends", 86400.0),
    "--max-frame": ("BYTES", "longest message to take from the server", MAX_FRAME),
}


_NEEDED: Final = {
    "--server": ("URL", "such as wss://fl.example.org:8443", str),
    "--identity": ("FILE", "from `deltafl enrol`", Path),
    "--devices": ("FILE", "own copy of the list", Path),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_settings(parser)
    add_flags(parser, _NEEDED, required=True)
    add_flags(parser, _FLAGS)
    add_log(parser)
    parser.add_argument("--quiet", action="store_true", help="say nothing of rounds")


def main(options: argparse.Namespace) -> int:
    """Take part until the run is over; the exit code."""
    # it waits until there is a handler; by itself, it would end this process
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    from deltafl.sim.net import device_cli

    return device_cli.main(options)
