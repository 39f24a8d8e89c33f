"""`deltafl device`: one device of a federation."""

import argparse
import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Final

import torch

from deltafl.secagg.errors import LedgerError
from deltafl.secagg.ledger import SqliteLedger
from deltafl.sim.cohort.hardware import choose_threads
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import UserError
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.dialling import MAX_FRAME, Server, take_part
from deltafl.sim.net.identities import ledger_beside, read_listed
from deltafl.sim.net.own_work import MAX_STEPS, OwnData, work_on
from deltafl.sim.run.algorithms import policy_of
from deltafl.sim.run.simulated import spec_of
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.given import add_flags, add_settings, config_of
from deltafl.sim.visible import say

_DESCRIPTION: Final = """\
Take part in a federation as one device: connect to its server, train on own data, send masked sums.

The settings are the device's own. Those of [data] say what it trains on; those of [privacy],
[quantile] and [policy] say what it accepts of the server, and whatever falls short of them it
refuses. How to train, the server says. Without settings, the defaults hold, which are safe.

The ledger is a file that remembers what the device took part in. Never restore it from a backup: a
device that has lost it needs a new identity.
"""

_EXAMPLES: Final = """\
examples:
  deltafl device --server wss://fl.example.org:8443 --identity device-7.identity \\
      --devices devices.txt --data mine.npz
      train on the only device in mine.npz
  deltafl device --server wss://localhost:8443 --ca ca.pem --identity device-7.identity \\
      --devices devices.txt --preset quickstart --index 7
      as the eighth training device of a preset's data, for trials
exit codes: 0 the run is over, or SIGTERM has ended the device between two messages; 2 invalid
request, 130 interrupted.
"""

_FLAGS: Final = {
    "--ca": ("FILE", "certificates to trust in place of the system's (PEM)", str),
    "--ledger": ("FILE", "default: beside the identity, .ledger", Path),
    "--index": (
        "I",
        "which training device of the data this is, from 0; needed if there are several",
        int,
    ),
    "--max-steps": ("N", "most steps of training in a round", MAX_STEPS),
    "--max-frame": ("BYTES", "longest message to take from the server", MAX_FRAME),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_settings(parser)
    parser.add_argument(
        "--server", required=True, metavar="URL", help="such as wss://fl.example.org:8443"
    )
    parser.add_argument(
        "--identity", type=Path, required=True, metavar="FILE", help="from `deltafl enrol`"
    )
    parser.add_argument(
        "--devices", type=Path, required=True, metavar="FILE", help="own copy of the list"
    )
    add_flags(parser, _FLAGS)
    parser.add_argument("--quiet", action="store_true", help="say nothing of rounds")


def main(options: argparse.Namespace) -> int:
    """Take part until the run is over; the exit code."""
    config = config_of(options)
    own, directory = read_listed(options.identity, options.devices)
    server = Server(options.server, options.ca, options.max_frame)
    work = work_on(_data(options, config), own.client)
    torch.set_num_threads(choose_threads(config.model.name))
    path = options.ledger or ledger_beside(options.identity)
    try:
        with SqliteLedger(path) as ledger:
            side = DeviceSide(
                own, directory, policy_of(config, own=True), ledger, work, _notes(options)
            )
            stop = Event()
            if current_thread() is main_thread():
                signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
            asyncio.run(take_part(server, side, say, stop))
    except LedgerError as error:
        raise UserError(str(error)) from None
    return 0


def _data(options: argparse.Namespace, config: RunConfig) -> OwnData:
    dataset = build_dataset(config.data, keeps_whole=True)
    number, index = len(dataset.train), options.index
    if index is None and number > 1:
        raise UserError(
            f"{dataset.name} has {number} training devices: say which of them this is, as in "
            "--index 0"
        )
    if not 0 <= (index or 0) < number:
        raise UserError(f"--index {index}: must be from 0 to {number - 1}")
    if options.max_steps < 1:
        raise UserError(f"--max-steps {options.max_steps}: must be at least 1")
    own = dataset.train[index or 0]
    test = next((one for one in dataset.test if one.id == own.id), None)
    return OwnData(own, spec_of(config, dataset), options.max_steps, test)


def _notes(options: argparse.Namespace) -> Notes:
    notes = Notes.spoken(say)
    if options.quiet:
        return notes
    return replace(
        notes,
        joined=lambda done, rounds: say(f"admitted; {done} of {rounds} rounds are done"),
        began=lambda number: say(f"round {number} begins"),
        over=lambda done: say(f"round {done} is over"),
    )
