"""Federations of processes that are killed with SIGKILL at random moments, until they are done.

    python tests/net/net_kills.py --runs 50 --seed 1

plays runs over TLS on this machine, each device and the server a process of its own: every other
run with 5 of 20 devices in each round, of which three are killed, and the server twice; the others
with all of 10 devices, where the server is killed three times. What is killed is started again. The
first run of each kind is left alone. It prints what came of each run as a line of JSON. It ends
with status 1 if a run does not end, a killed server loses a round, a device took part twice in one
context or answered twice in one slot, the audit finds anything of medium severity, or the model of
all devices is not what a simulation makes of the run's settings. The audit adds up the masked
vectors and the model again, so it finds a sum that is not exact.

Processes are forked from this one once everything is imported.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from deltafl.secagg.wire import Kind
from deltafl.sim.errors import ChainError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.net import device_flags, federation_cli, serve_flags
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import Message, read_transcript
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.progress import Several
from deltafl.sim.settings.config_io import build_config

ROUNDS, LIMIT_S = 8, 300.0


class Sort(NamedTuple):
    """Of a run.

    Attributes:
        devices: how many there are.
        cohort: how many are in a round.
        lost: how many of them are killed.
        kills: how often the server is.
    """

    devices: int
    cohort: int
    lost: int
    kills: int


SORTS = (
    Sort(20, 5, 3, 2),
    Sort(10, 10, 0, 3),
)


def config_of(sort):
    """Rounds that are long enough to be killed in."""
    return build_config(
        [
            {
                "data": {"num_devices": sort.devices, "split": "samples"},
                "federation": {"rounds": ROUNDS, "cohort_size": sort.cohort, "theta": "4/5"},
                "training": {"batch_size": 16, "device": "cpu", "backend": "reference"},
                "privacy": {
                    "transcript": "full",
                    "min_cohort": 4,
                    "expected_dropout": 0.3,
                },
            }
        ]
    )


def forked(module, arguments, log):
    """Run a command in a process of its own; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        status = module.main(parser.parse_args(arguments))
    except Exception:  # noqa: BLE001 - whatever it is, it is said
        traceback.print_exc()
    finally:
        os._exit(status)


class Processes:
    """The server and the devices of one run, which are started again when they are killed."""

    def __init__(self, out, port, devices):
        options = argparse.Namespace(out=out, port=port, status="off")
        self.out = out
        self.commands = {"server": federation_cli._server(options)[4:]}
        for index in range(devices):
            self.commands[index] = federation_cli._device(options, index)[4:]
        self.running = {}
        for name in self.commands:
            self.start(name)

    def start(self, name):
        module = serve_flags if name == "server" else device_flags
        arguments = self.commands[name]
        if name == "server":
            arguments = [*arguments, "--least-wait", "4", "--most-wait", "20"]
        self.running[name] = forked(module, arguments, self.out / f"{name}.log")

    def kill(self, name):
        os.kill(self.running[name], signal.SIGKILL)

    def status_of(self, name):
        """None while it runs; else how it ended."""
        done, status = os.waitpid(self.running[name], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None

    def end(self):
        for name, process in self.running.items():
            if self.status_of(name) is None:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def play(out, random_, port, sort, whole):
    """Play a run to its end; how the server ended, and how many were killed.

    Args:
        out: its directory.
        random_: where moments and victims come from.
        port: where the server listens.
        sort: of the run.
        whole: about how many bytes the record will have; 0 to kill nobody.
    """
    federation_cli._prepare(out, config_of(sort), sort.devices)
    processes, start = Processes(out, port, sort.devices), time.monotonic()
    victims = [*random_.sample(range(sort.devices), sort.lost), *["server"] * sort.kills]
    # moments of a run are bytes of its record: the clock says little of where a run is
    moments = sorted(
        (random_.randrange(7 * whole // 10), str(one), one) for one in victims if whole
    )
    record, killed, ended = out / "run" / "record.sqlite", 0, {}
    try:
        while time.monotonic() - start < LIMIT_S:
            time.sleep(0.001)
            while moments and size_of(record) > moments[0][0]:
                _, _, name = moments.pop(0)
                if name not in ended:
                    processes.kill(name)
                    killed += 1
            for name in [name for name in processes.running if name not in ended]:
                status = processes.status_of(name)
                if status is not None and status < 0:
                    processes.start(name)
                elif status is not None:
                    ended[name] = status
                    if name == "server":
                        return status, killed
        return "not ended", killed
    finally:
        processes.running = {n: p for n, p in processes.running.items() if n not in ended}
        processes.end()


def size_of(record):
    """Bytes of a record and its journal; the journal may go at any moment."""
    total = 0
    for one in (record, record.with_name(f"{record.name}-wal")):
        with suppress(FileNotFoundError):
            total += one.stat().st_size
    return total


def simulated(out):
    """The model that the settings of a run make in one process, with sums in clear."""
    config = RunDirectory(out / "run").config()
    alone = replace(
        config,
        federation=replace(config.federation, devices="simulated"),
        privacy=replace(config.privacy, sums="ideal", transcript="full"),
    )
    path, silent = out / "alone", Several(())
    made = run_experiment(alone, path, resume=False, progress=silent, warn=print, plots=False)
    return made["final_model_sha256"]


def account_of(out, has_twin):
    """What came of a run: numbers, and what is wrong with it.

    Args:
        out: its directory.
        has_twin: whether its model must be the simulated one.
    """
    took_part, answers = Counter(), Counter()
    decoder, last = Decoder(), None
    try:
        for record in read_transcript(out / "run" / "record.sqlite"):
            if not isinstance(record, Message):
                continue
            if record.round != last:
                decoder, last = Decoder(), record.round
            content = decoder.decode(record).content
            params = decoder.params.get(content.tag)
            context = params.context.hex() if params is not None else ""
            if not record.sent and content.kind is Kind.ADVERTISE:
                took_part[record.peer, context] += 1
            if not record.sent and content.kind is Kind.MASKED:
                answers[record.peer, context, content.slot] += 1
    except (ChainError, FileNotFoundError) as error:
        return {"wrong": [f"the transcript cannot be read: {error}"]}
    report = audit(out / "run")
    found = Counter(f.rule for f in report.findings if f.severity >= Severity.MEDIUM)
    with RunDirectory(out / "run").read() as record:
        summary = record.json("summary")
    wrong = []
    if max(took_part.values(), default=0) > 1:
        wrong.append("a device took part twice in one context")
    if max(answers.values(), default=0) > 1:
        wrong.append("a device answered twice in one slot")
    if found:
        wrong.append(f"the audit found {dict(found)}")
    if summary["interrupted_rounds"]:
        wrong.append("a round was lost because the server was killed")
    if has_twin and summary["final_model_sha256"] != simulated(out):
        wrong.append("the model is another one")
    return {
        "model": summary["final_model_sha256"],
        "rounds": summary["rounds"],
        "lost_rounds": summary["lost_rounds"],
        "interrupted_rounds": summary["interrupted_rounds"],
        "dropped": sum(summary["dropped_by_stage"].values()),
        "answers": sum(answers.values()),
        "wrong": wrong,
    }


def free_port():
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main():
    """Play runs, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    random_ = random.Random(options.seed)  # noqa: S311 moments, not secrets
    num_wrong = kills = 0
    whole = dict.fromkeys(SORTS, 0)
    for number in range(-len(SORTS), options.runs):  # the first are not killed, and give the sizes
        sort = SORTS[number % len(SORTS)]
        with tempfile.TemporaryDirectory(prefix="net-kills-") as folder:
            out = Path(folder) / "out"
            start = time.monotonic()
            status, killed = play(out, random_, free_port(), sort, whole[sort])
            took, kills = time.monotonic() - start, kills + killed
            if status == 0:
                account = account_of(out, has_twin=not sort.lost)
                whole[sort] = whole[sort] or (out / "run" / "record.sqlite").stat().st_size
            else:
                said = (out / "server.log").read_text()[-600:]
                account = {"wrong": [f"the server ended with {status}: {said}"]}
        num_wrong += bool(account["wrong"])
        seen = {"run": number, **sort._asdict(), "killed": killed, "seconds": round(took, 1)}
        print(json.dumps(seen | account), flush=True)
    print(json.dumps({"runs": options.runs, "kills": kills, "wrong": num_wrong}))
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
