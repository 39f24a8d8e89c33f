"""What `deltafl device` does: one device of a federation. Its arguments are in `device_flags`."""

import argparse
import asyncio
import signal
from dataclasses import dataclass, replace
from threading import Event, Thread, current_thread, main_thread

import torch

from deltafl.fl.errors import DataError
from deltafl.protocol.participations import Limit, limits_of
from deltafl.protocol.policy import MOST_PARTICIPATIONS
from deltafl.secagg.errors import LedgerError
from deltafl.secagg.ledger import Ledger, SqliteLedger
from deltafl.sim.cohort.hardware import choose_threads
from deltafl.sim.errors import UserError
from deltafl.sim.net import logs
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.dialling import Server, take_part
from deltafl.sim.net.identities import alone, ledger_beside, read_listed, same_keys
from deltafl.sim.net.logs import say, warn
from deltafl.sim.net.own_data import OwnFile
from deltafl.sim.net.own_work import OwnData, work_on
from deltafl.sim.run.accounting import Account, held_to, rounded_up
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
    policy, account = held_to(policy_of(config, own=True), config)
    if not path.exists():
        say(f"a new ledger is begun, {path}: an identity that had another one is to be replaced")
    try:
        with alone(options.identity), SqliteLedger(path) as ledger:
            spending = None
            if account is not None:
                spending = Spending(account, limits_of(policy, None)[0], ledger)
                say(str(spending))
            notes = _notes(options, spending)
            side = DeviceSide(own, directory, policy, ledger, work, notes)
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


@dataclass(frozen=True, slots=True)
class Spending:
    """What a device whose owner asks for noise has spent of its privacy, by its own count.

    Attributes:
        account: what a round costs at most.
        limit: on its rounds.
        ledger: where they are counted.
    """

    account: Account
    limit: Limit
    ledger: Ledger

    @property
    def counted(self) -> int:
        """Rounds in the ledger, also where they are more than what is accepted now."""
        return replace(self.limit, most=MOST_PARTICIPATIONS).counted(self.ledger)

    @property
    def left(self) -> int:
        """How many more rounds the device takes part in."""
        return max(0, self.limit.most - self.counted)

    def __str__(self) -> str:
        """A sentence."""
        spent = self.account.after(self.counted)
        return (
            f"rounds counted: {spent.participations:,}; with the noise that these settings ask "
            f"for, ε = {rounded_up(spent.epsilon)} at δ = {spent.delta:g} at most; "
            f"{self.left:,} more are accepted"
        )


def _notes(options: argparse.Namespace, spending: Spending | None) -> Notes:
    notes = Notes.spoken(say)
    if options.quiet:
        return notes

    def joined(done: int, rounds: int) -> None:
        say(f"admitted; {done} of {rounds} rounds are done")
        if spending is not None and spending.left < rounds - done:
            warn(
                f"of the {rounds - done} rounds to come, this device takes part in "
                f"{spending.left} at most (dp.epsilon_budget, policy.max_participations)"
            )

    def over(done: int) -> None:
        say(f"round {done} is over{'' if spending is None else f'; {spending}'}")

    return replace(
        notes, joined=joined, began=lambda number: say(f"round {number} begins"), over=over
    )
