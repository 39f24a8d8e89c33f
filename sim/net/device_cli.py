"""What `deltafl device` does: one device of a federation. Its arguments are in `device_flags`."""

import argparse
import asyncio
import signal
from dataclasses import replace
from threading import Event, Thread, current_thread, main_thread

import torch

from deltafl.fl.errors import DataError
from deltafl.secagg.errors import LedgerError
from deltafl.secagg.ledger import SqliteLedger
from deltafl.sim.cohort.hardware import choose_threads
from deltafl.sim.errors import UserError
from deltafl.sim.net import logs
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.dialling import Server, take_part
from deltafl.sim.net.identities import alone, ledger_beside, read_listed, same_keys
from deltafl.sim.net.logs import say, warn
from deltafl.sim.net.own_data import OwnFile
from deltafl.sim.net.own_work import OwnData, work_on
from deltafl.sim.run.algorithms import of_few, policy_of
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.given import config_of, with_digests
from deltafl.sim.settings.own import NotAllowedError


def main(options: argparse.Namespace) -> int:
    """Take part until the run is over; the exit code."""
    logs.start(options.log)
    own, directory = read_listed(options.identity, options.devices)
    config = with_digests(config_of(options, usual=(of_few(len(directory.keys)),)))
    server = Server(options.server, options.ca, options.max_frame)
    strategy = OwnCode.of(config).strategy
    file, stop = OwnFile(config, options.index, options.max_steps), Event()
    unfit: list[DataError | NotAllowedError] = []

    def data(said: RunConfig) -> OwnData:
        try:
            return file(said)
        except (DataError, NotAllowedError) as error:  # another round would change nothing
            unfit.append(error)
            stop.set()
            raise

    work = work_on(data, own.client, strategy)
    torch.set_num_threads(choose_threads(config.model.name))
    path = options.ledger or ledger_beside(options.identity)
    try:
        with alone(options.identity), SqliteLedger(path) as ledger:
            side = DeviceSide(
                own, directory, policy_of(config, own=True), ledger, work, _notes(options)
            )
            if current_thread() is main_thread():
                signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
                signal.signal(signal.SIGHUP, lambda _number, _frame: _read_again(options, side))
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
            asyncio.run(take_part(server, side, say, stop, options.patience))
    except LedgerError as error:
        raise UserError(str(error)) from None
    if unfit:
        raise unfit[0]
    if side.has_ended():
        say("the run is over")
    elif not stop.is_set():
        return 1
    return 0


def _read_again(options: argparse.Namespace, side: DeviceSide) -> None:
    """Take the list of devices as its file has it now, from the next round on."""

    def read() -> None:
        try:
            _, listed = read_listed(options.identity, options.devices)
            same_keys(side.directory, listed)
        except UserError as error:
            warn(f"the list stays as it was: {error}")
            return
        side.directory = listed
        say(f"{len(listed.keys)} devices are on the list: {listed.fingerprint()}")
        if (number := len(listed.keys)) < (fewest := side.policy.min_cohort):
            here = f"this one declines rounds of fewer than {fewest}"
            warn(f"the list has {number} devices, and {here}")

    Thread(target=read).start()  # the signal may have come while this thread was logging


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
