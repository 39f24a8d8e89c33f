"""`deltafl federation up`: a whole federation on this machine, each device a process of its own.

What is heavy is loaded when it runs, so that help is instant.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

from deltafl.sim.errors import UserError
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import DEVICES, FEDERATED, RunDirectory
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import Table, build_config, read_table, to_toml
from deltafl.sim.settings.given import add_flags, add_settings, config_of, quickstart
from deltafl.sim.visible import visible

_DESCRIPTION: Final = """\
Start a federation on this machine: a server, and a process for each device, over TLS on loopback.

Everything is as between machines: identities, a list of devices, a certificate, settings of the
devices' own. All of it lies in the directory, so that single parts can be started by hand. Kill any
process in the middle of a round: the others go on, and it is started again. At the end, the record
of what the server saw is audited.
"""

_EXAMPLES: Final = """\
examples:
  deltafl federation up
      twenty devices and the embedded digits; open http://127.0.0.1:8081 meanwhile
  deltafl federation up --devices 30 --preset quickstart --set federation.rounds=5 --out trial
      other numbers; `deltafl audit trial/run` shows afterwards what the server saw
exit codes: those of `deltafl serve`; 1 also if the audit finds something.
"""

_MADE: Final = 60
_COHORT: Final = 20
_ALONE: Final = """\
[experiment]
baselines = []
num_seeds = 1
"""
_HOST: Final = "127.0.0.1"
_GATHER_S: Final = 30.0  # before each round: devices that were killed are soon back
_INVALID: Final = 2  # the exit code of a request that cannot be carried out
_PAUSE_S: Final = 0.2
_GOODBYE_S: Final = 15.0

_FLAGS: Final = {
    "--devices": ("N", "how many; without settings of yours, a round asks at most twenty", 20),
    "--out": ("DIR", "where everything goes", Path("runs/federation")),
    "--port": ("P", "for devices", 8443),
    "--status": (
        "HOST:PORT",
        "for the page with the state of the run; 'off' for none",
        f"{_HOST}:8081",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument("what", choices=["up"], help="start it, and wait until it is done")
    add_settings(parser)
    add_flags(parser, _FLAGS)
    parser.add_argument("--resume", action="store_true", help="go on with the one in DIR")


def main(options: argparse.Namespace) -> int:
    """Start all processes, and wait for the server; its exit code."""
    out: Path = options.out
    if out.exists() and not options.resume:
        raise UserError(f"{out} already exists: add --resume to go on, or choose another --out")
    if (out / "ca.pem").exists():
        raise UserError(f"{out} is of an earlier version of this program: choose another --out")
    config = _config(options)
    _prepare(out, config, options.devices)
    devices = [_device(options, i) for i in range(options.devices)]
    return _supervise(_server(options), devices, out) or _audit(out)


def _config(options: argparse.Namespace) -> RunConfig:
    """The settings of server and devices, of data that have enough devices."""
    own = options.out / "settings.toml"
    if options.resume and own.exists():
        return build_config([read_table(own.read_text(encoding="utf-8"), str(own))])
    config = config_of(
        options,
        otherwise=(quickstart(), _trial(options.devices)),
        always=(read_table(_ALONE, "federation up"),),
    )
    from deltafl.sim.data.dataset import build_dataset

    available, cohort = len(build_dataset(config.data).train), config.federation.cohort_size
    if not cohort <= options.devices <= available:
        raise UserError(
            f"--devices {options.devices}: must be from {cohort}, the devices of a round "
            f"(federation.cohort_size), to {available}, the training devices of the data"
        )
    return config


def _trial(devices: int) -> Table:
    """What differs from the quickstart, where no settings are given."""
    from deltafl.sim.run.algorithms import of_few

    return {
        # every device has test data too
        "data": {"num_devices": max(devices, _MADE), "split": "samples"},
        "federation": {"cohort_size": min(devices, _COHORT)},
        "privacy": {"transcript": "full", **of_few(devices)["privacy"]},
    }


def _prepare(out: Path, config: RunConfig, number: int) -> None:
    """Write what server and devices need, but for what is there."""
    from deltafl.secagg import ClientId, TrustedKeys
    from deltafl.sim.net.certificates import make_certificate
    from deltafl.sim.net.identities import OwnIdentity

    out.mkdir(parents=True, exist_ok=True)
    listed = {}
    for index in range(number):
        path = _identity(out, index)
        own = OwnIdentity.read(path) if path.exists() else OwnIdentity.create(path, ClientId(index))
        listed[own.client] = own.identity.public
    write_file(out / DEVICES, TrustedKeys(listed).dump().encode())
    write_file(out / "settings.toml", to_toml(config).encode())
    if not (out / "server.key").exists():
        made = make_certificate([_HOST, "localhost"])
        write_file(out / "server.pem", made.certificate)
        key = os.open(out / "server.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(key, "wb") as file:
            file.write(made.key)


def _server(options: argparse.Namespace) -> list[str]:
    out = options.out
    command = [*_program("serve"), f"{out / 'settings.toml'}", f"--devices={out / DEVICES}"]
    command += [f"--tls-cert={out / 'server.pem'}", f"--tls-key={out / 'server.key'}"]
    command += [f"--listen={_HOST}:{options.port}", f"--status={options.status}", "--resume"]
    return [*command, f"--out={out / FEDERATED}", f"--gather={_GATHER_S:g}"]


def _device(options: argparse.Namespace, index: int) -> list[str]:
    out = options.out
    command = [*_program("device"), f"{out / 'settings.toml'}", f"--index={index}"]
    command += [f"--server=wss://{_HOST}:{options.port}", f"--ca={out / 'server.pem'}"]
    return [*command, f"--identity={_identity(out, index)}", f"--devices={out / DEVICES}"]


def _identity(out: Path, index: int) -> Path:
    return out / f"device-{index}.identity"


def _program(command: str) -> list[str]:
    return [sys.executable, "-m", "deltafl", command]


def _supervise(server: Sequence[str], devices: Sequence[Sequence[str]], out: Path) -> int:
    """Run all until the server is done; what is killed is started again."""
    running = _started(server)
    logs = [(out / f"device-{index}.log").open("ab") for index in range(len(devices))]
    processes = [_started(command, log) for command, log in zip(devices, logs, strict=True)]

    def ended(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, ended)
    try:
        run = RunDirectory(out / FEDERATED)
        while (status := running.poll()) is None or status < 0 or not (status or run.is_finished):
            if status is not None:
                print("the server ended and is started again", file=sys.stderr)
                running = _started(server)
            for index, process in enumerate(processes):
                if process.poll() == _INVALID:
                    raise UserError(f"device {index} cannot run: see {logs[index].name}")
                if process.returncode is not None and (process.returncode or not run.is_finished):
                    print(f"device {index} ended and is started again", file=sys.stderr)
                    processes[index] = _started(devices[index], logs[index])
            time.sleep(_PAUSE_S)
        end = time.monotonic() + _GOODBYE_S
        for process in processes if status == 0 else ():  # they hear that the run is over
            _wait(process, end - time.monotonic())
        return status
    finally:
        running.terminate()
        _wait(running, _GOODBYE_S)  # it ends its round, for which it needs the devices
        for process in processes:
            process.terminate()
        for process in (running, *processes):
            _wait(process, _GOODBYE_S)
            process.kill()
            process.wait()
        for log in logs:
            log.close()


def _audit(out: Path) -> int:
    """Audit the run, and say what came out; 0, or 1 if something was found."""
    page = out / "audit.html"
    command = [*_program("audit"), str(out / FEDERATED), "--json", "--html", str(page)]
    done = subprocess.run(command, stdout=subprocess.PIPE)  # noqa: S603 our own program
    if not done.stdout:
        return done.returncode
    verdict = json.loads(done.stdout)["verdict"]
    print(visible(f"\nAudit: {verdict['sentence']} {verdict['coverage']}"))
    print(f"What the server saw is in {page}")
    return done.returncode


def _started(command: Sequence[str], log: BinaryIO | None = None) -> "subprocess.Popen[bytes]":
    """A process that Ctrl-C does not reach: this one ends it, in its turn."""
    return subprocess.Popen(command, stdout=log, stderr=log, process_group=0)  # noqa: S603 our own


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        return
