"""What `deltafl serve` does: the server of a federation. Its arguments are in `serve_flags`."""

import argparse
import contextlib
import json
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Final

from deltafl.fl.errors import DivergenceError
from deltafl.fl.metrics import Summary
from deltafl.fl.strategies.base import Strategy
from deltafl.protocol.errors import ProtocolError
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.wire import max_bytes
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.data.dataset import agreed_of, build_dataset
from deltafl.sim.errors import ConfigError, RunError, UserError
from deltafl.sim.net import logs
from deltafl.sim.net.admission import Door
from deltafl.sim.net.app import served, serving
from deltafl.sim.net.certificates import Tls
from deltafl.sim.net.frames import MAX_SETTINGS, OVERHEAD
from deltafl.sim.net.identities import DeviceList
from deltafl.sim.net.logs import say, warn
from deltafl.sim.net.post import Post
from deltafl.sim.net.remote import run_federation, with_nonce
from deltafl.sim.net.status import Status
from deltafl.sim.net.trips import Site, Waiting
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.events import Event
from deltafl.sim.record.rundir import RunDirectory, settings_in
from deltafl.sim.run.accounting import note_on_delta
from deltafl.sim.run.algorithms import of_few
from deltafl.sim.run.arms import (
    KnownData,
    check_arms,
    check_data,
    fewest_devices,
    losable_rounds,
    session_of,
    with_cohort,
    works,
)
from deltafl.sim.run.engine import MAX_LOST_ROUNDS, Stop
from deltafl.sim.run.own_code import OwnCode
from deltafl.sim.run.progress import Several
from deltafl.sim.run.simulated import first_model, spec_of
from deltafl.sim.run.table import describe
from deltafl.sim.settings.config import REMOTE, FederationConfig, PrivacyConfig, RunConfig
from deltafl.sim.settings.config_io import Table, build_config, read_table, to_toml
from deltafl.sim.settings.given import address, config_of, joined, quickstart, with_digests
from deltafl.sim.visible import visible

ON_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")
_STOPPING: Final = "stopping after this round; a second signal stops at once"
_A_DAY: Final = 86400.0  # seconds; how often it is looked at the certificate's dates
_DRAINED_S: Final = 10.0  # for devices to hear that the run is over


def main(options: argparse.Namespace) -> int:
    """Serve until the run is over; the exit code."""
    logs.start(options.log)
    directory = RunDirectory(options.out)
    directory.check_unused()
    devices = DeviceList(options.devices)
    config = with_nonce(_config(options, len(devices.keys)), directory)
    directory.check(config, resume=options.resume)  # before any device hears of the run
    code = OwnCode.of(config)
    tls, shapes = _tls(options), _shapes(config, code)
    at = address(options.listen, "--listen")
    if tls is None and at[0] not in ON_THIS_MACHINE:
        raise UserError(f"--listen {options.listen}: without TLS, only 127.0.0.1 can be served")
    num_parameters = _num_parameters(config, shapes)
    now = _with_fewer(config, len(devices.keys)) if _has_begun(options) else config
    _preflight(now, num_parameters, len(devices.keys), options.devices, code.strategy)
    _, params = session_of(config, num_parameters, code.strategy)
    max_frame = max_bytes(params) + OVERHEAD
    post = Post(time.monotonic, config.federation.rounds, _rounds_done(options))
    door = Door(devices, tls)
    status = Status(config, post, door)
    try:
        waiting = Waiting(options.most_wait, options.least_wait)
    except ValueError as error:
        raise UserError(f"--most-wait, --least-wait: {error}") from None
    with contextlib.ExitStack() as stack:
        if options.status != "off":
            page = address(options.status, "--status")
            shown = stack.enter_context(served(status.application(), *page, flag="--status"))
            say(f"Until it is over, the state of the run is at http://{joined(*shown)}")
            if page[0] not in ON_THIS_MACHINE:
                warn(
                    f"whoever reaches {options.status} can read the state of the run: it has "
                    "neither TLS nor a password (--status)"
                )
        where = serving(post, door, at, max_frame=max_frame)
        say(f"Devices connect to {stack.enter_context(where)}")
        say(f"{len(devices.keys)} devices are on the list: {devices.fingerprint()}")
        if note := note_on_delta(config.dp, len(devices.keys)):
            warn(note)
        if config.dp.noise:
            say("No model is measured on the devices: that would be by sums without noise")
        _say_losable(config, num_parameters, len(devices.keys), code.strategy)
        fewest = fewest_devices(config, num_parameters, code.strategy) or 0
        asked, looked = Flag(), -math.inf

        def again() -> None:
            nonlocal looked
            if asked.is_set():
                asked.clear()
                _read_again(door, post, fewest)
                looked = -math.inf
            if tls is not None and time.monotonic() - looked > _A_DAY:
                looked = time.monotonic()
                if (concern := tls.concern()) is not None:
                    warn(concern)

        site = Site(
            *(post, devices, time.monotonic, waiting, options.patience, options.gather),
            measured=status.measured,
            declined=status.declined,
            late=status.late,
            taken=status.taken,
            stage=status.stage,
            again=again,
        )
        again()
        stack.enter_context(_ended_by_signals(site.stop, asked.set))
        status.ready(is_ready=True)
        try:
            return _serve(options, config, site, shapes, status, code.strategy)
        finally:
            status.ready(is_ready=False)
            _drain(post)


def _has_begun(options: argparse.Namespace) -> bool:
    """Whether a run is gone on with."""
    return options.resume and RunDirectory(options.out).is_run


def _with_fewer(config: RunConfig, listed: int) -> RunConfig:
    """With as many devices in a round as are listed: so a run goes on whose list got shorter."""
    return with_cohort(config, min(config.federation.cohort_size, listed))


def _preflight(
    config: RunConfig, num_parameters: int, listed: int, path: Path, own: Strategy | None = None
) -> None:
    """Refuse, before anybody waits for it, a run that could not have a round."""
    data = KnownData(str(path), listed)
    try:
        check_data(config, data)
        check_arms(config, num_parameters, listed, own)
    except ConfigError as error:
        fewest = _fewest_listed(config, num_parameters, listed, own)
        mend = f"; with these settings, {fewest} devices are the fewest" if fewest else ""
        raise ConfigError(f"{error}{mend}") from error


def _fewest_listed(
    config: RunConfig, num_parameters: int, listed: int, own: Strategy | None
) -> int | None:
    """With how many devices on the list there would be rounds; what follows from it changes too."""
    if of_few(listed)["privacy"]["min_cohort"] == config.privacy.min_cohort:
        for number in range(listed + 1, PrivacyConfig().min_cohort + 1):
            privacy = replace(config.privacy, **of_few(number)["privacy"])
            config = with_cohort(replace(config, privacy=privacy), number)
            if works(config, num_parameters, own):
                return number
    return fewest_devices(config, num_parameters, own)


def _rounds_done(options: argparse.Namespace) -> int:
    """How far the run is that is gone on with."""
    if not _has_begun(options):
        return 0
    with RunDirectory(options.out).read() as record:
        checkpoint = load_checkpoint(record)
    return 0 if checkpoint is None else checkpoint.state.round


def _read_again(door: Door, post: Post, fewest: int) -> None:
    """Take the list and the certificate as their files have them now; keep those that are wrong.

    Args:
        door: has both.
        post: whose connections are of devices on the list.
        fewest: how many devices a round needs.
    """
    if not isinstance(door.devices, DeviceList):
        return
    try:
        say(f"{door.devices.read_again()}; its fingerprint: {door.devices.fingerprint()}")
        post.keep_only(door.devices.keys)
        if (listed := len(door.devices.keys)) < fewest:
            warn(
                f"a round needs {fewest} devices, and {listed} are on the list: the run ends with "
                f"the next round, unless {fewest - listed} more are listed before (SIGHUP)"
            )
    except UserError as error:
        warn(f"the list stays as it was: {error}")
    try:
        if door.tls is not None:
            door.tls.read()
            say("new connections are shown the certificate as its file has it now")
    except UserError as error:
        warn(f"the certificate stays as it was: {error}")


def _say_losable(
    config: RunConfig, num_parameters: int, listed: int, own: Strategy | None = None
) -> None:
    """Say how many rounds may be lost, before it is too late to list more devices."""
    cohort = config.federation.cohort_size
    fewest = fewest_devices(config, num_parameters, own)
    rounds = min(losable_rounds(config, fewest, listed), MAX_LOST_ROUNDS - 1)
    if rounds:
        say(f"the run goes on after {rounds} lost rounds in a row, and stops after one more")
    else:
        warn(
            "the run ends with the first round that is lost, because these devices answer for a "
            f"model once: a lost round needs {cohort + (fewest or cohort)} devices on the list"
        )


@contextlib.contextmanager
def _ended_by_signals(stop: Flag, again: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`, the second interrupts; SIGHUP does something `again`."""

    def ended(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # in other threads: the signal may have come while this one held what they need
        Thread(target=say, args=(_STOPPING,)).start()

    def told(_number: int, _frame: FrameType | None) -> None:
        Thread(target=again).start()

    if current_thread() is not main_thread():  # as in tests: only the main thread has handlers
        yield
        return
    handlers = {signal.SIGTERM: ended, signal.SIGINT: ended, signal.SIGHUP: told}
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _serve(
    options: argparse.Namespace,
    config: RunConfig,
    site: Site,
    shapes: ModelSpec,
    status: Status,
    own: Strategy | None,
) -> int:
    try:
        summary = run_federation(
            config,
            options.out,
            site,
            shapes,
            resume=options.resume,
            progress=Several((status,) if options.quiet else (status, _Lines())),
            warn=warn,
            own=own,
        )
    except (RunError, DivergenceError, ProtocolError, SecAggError, OSError) as error:
        said = f"the run failed: {error}; finished rounds are kept in {options.out}"
        say(said, logging.ERROR)
        return 1
    except (Stop, KeyboardInterrupt) as ended:
        is_soft = isinstance(ended, Stop)
        told = "stopped after a round" if is_soft else "interrupted"
        say(f"{told}; continue with --out {options.out} --resume")
        return 0 if is_soft else 130
    status.over()
    if options.json:
        print(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    print(visible(describe(summary)))
    print(
        f"\nResults are in {options.out}. To see the run as a page: deltafl watch {options.out}; "
        f"to see what the server saw: deltafl audit {options.out}"
    )
    return 0


def _config(options: argparse.Namespace, listed: int) -> RunConfig:
    """The settings, of one run with remote devices; what they leave out is as the fleet needs it.

    Args:
        options: of the command line.
        listed: how many devices are on the list.
    """
    alone: Table = {
        "federation": {"devices": REMOTE},
        # a nonce in the settings is that of another run
        "experiment": {"baselines": [], "num_seeds": 1, "nonce": ""},
    }
    if _has_begun(options):  # with what it has, however many devices are on the list now
        otherwise = [read_table(settings_in(options.out), f"the settings of {options.out}")]
        kept = build_config(otherwise)
        cohort, fewest = kept.federation.cohort_size, kept.privacy.min_cohort
        usual: Table = {"federation": {"cohort_size": cohort}, "privacy": {"min_cohort": fewest}}
    else:
        cohort = max(1, min(listed, FederationConfig().cohort_size))
        usual = {"federation": {"cohort_size": cohort}, **of_few(listed)}
        otherwise = [quickstart(), usual]
    given = config_of(options, usual=(usual,), otherwise=otherwise, always=(alone,))
    config = with_digests(given)
    if (size := len(to_toml(config).encode())) > MAX_SETTINGS:
        told = f"the settings have {size:,} bytes, and devices take up to {MAX_SETTINGS:,}"
        raise ConfigError(f"{told}: name fewer columns or classes")
    return config


def _tls(options: argparse.Namespace) -> Tls | None:
    if options.no_tls:
        if options.tls_cert or options.tls_key:
            raise UserError("--no-tls is given together with a certificate: choose one")
        return None
    if not (options.tls_cert and options.tls_key):
        raise UserError(
            "--tls-cert and --tls-key are needed, the server's certificate and its key; "
            "for devices on this machine alone, --no-tls"
        )
    tls = Tls(options.tls_cert, options.tls_key)
    tls.read()
    return tls


def _shapes(config: RunConfig, code: OwnCode) -> ModelSpec:
    """What the server knows of the devices' data: shapes, not numbers."""
    data, agreed = config.data, agreed_of(config.data)
    classes = len(data.classes) or data.num_classes
    parts = code.module, code.criterion, code.optimizer
    if not (agreed.shape or data.classes or data.unit):
        return spec_of(config, build_dataset(data), *parts)
    if not agreed.shape or not (classes or data.unit):
        raise UserError(
            "inputs and labels belong together: say what inputs are, by data.feature_columns or "
            "data.input_shape, and what labels are, by data.classes, data.unit or data.num_classes"
        )
    if agreed.is_scaled:
        agreed.scale(agreed.shape)  # says which constants do not fit
    return ModelSpec(config.model.name, agreed.shape, classes, None, *parts)


def _num_parameters(config: RunConfig, shapes: ModelSpec) -> int:
    """Of the model of one conformity level."""
    try:
        return first_model(config, shapes).size // len(config.federation.thetas)
    except ValueError as error:
        raise ConfigError(f"model.name = {config.model.name!r}: {error}") from error


def _drain(post: Post) -> None:
    """Let the devices hear that the run is over."""
    end = time.monotonic() + _DRAINED_S
    while not post.is_drained() and time.monotonic() < end:
        time.sleep(0.05)


class _Lines:
    """A line for each round."""

    def __init__(self) -> None:
        self._rounds, self._filters = 0, True

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        self._rounds = config.federation.rounds
        self._filters = min(config.federation.thetas) < 1  # else all pass, and noise says nothing
        wanted = config.federation.cohort_size
        say(f"{rounds_done} of {self._rounds} rounds are done; a round needs {wanted} devices")

    def played(self, event: Event) -> None:
        say(_line(event, self._rounds, filters=self._filters))

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        pass


def _line(event: Mapping[str, object], rounds: int, *, filters: bool) -> str:
    seconds = event.get("wall_s")
    took = f", {seconds:.1f} s" if isinstance(seconds, float) else ""
    if event.get("aborted"):
        return f"round {event['round']} of {rounds}: lost, because {event['aborted']}{took}"
    kept = event.get("kept_devices")
    about = "about " if "epsilon" in event else ""  # of noisy counts
    tail = "" if kept is None or not filters else f", {about}{kept} passed the filter"
    return f"round {event['round']} of {rounds}: {event.get('secure_sums')} sums{tail}{took}"
