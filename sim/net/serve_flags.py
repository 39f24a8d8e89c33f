"""The arguments of `deltafl serve`; nothing heavy is loaded for its help."""

import argparse
import signal
from pathlib import Path
from typing import Final

from deltafl.sim.flags import add_json, add_log, add_quiet
from deltafl.sim.settings.given import add_flags, add_settings

MOST_WAIT_S: Final = 600.0
"""How long a server waits for an answer before it knows how long devices take, and at most."""

LEAST_WAIT_S: Final = 10.0
"""How long it waits at least."""

_DESCRIPTION: Final = """\
Run the server of a federation: devices connect to it, train, and give nothing but masked sums.

Rounds begin as soon as enough devices of the list are connected. SIGTERM or Ctrl-C ends the server
after the current round, a second one at once; SIGHUP has it read the list of devices and the
certificate again, once the round is over. What the settings leave out follows from the list: fewer
than twenty devices are all in every round, and of fewer than ten, all are in every sum. Killed at
any moment and started again with --resume, it goes on with the round that it was in. It never asks
a device two things where it asked one.
"""

_EXAMPLES: Final = """\
examples:
  deltafl serve --preset quickstart --devices devices.txt \\
      --tls-cert server.pem --tls-key server.key --out runs/first
      serve the list of devices over TLS, on port 8443 of all addresses
  deltafl serve fleet.toml --set own.module=clinic.models:net --devices devices.txt \\
      --tls-cert server.pem --tls-key server.key --out runs/clinic
      a module of your own, and in fleet.toml the columns and classes of everybody's data
  deltafl serve my.toml --devices devices.txt --listen 127.0.0.1:8443 --no-tls --out runs/trial
      without TLS, for devices on this machine
  deltafl serve --out runs/first --devices devices.txt --tls-cert server.pem \\
      --tls-key server.key --resume
      go on after the server was stopped

The page with the state of the run is at http://127.0.0.1:8081 (--status), and there are /metrics,
for Prometheus, /healthz and /readyz. `deltafl audit DIR` shows afterwards what the server saw.
exit codes: 0 the run is over, or a signal has ended the server between rounds; 1 the run failed,
2 invalid request, 130 ended at once by a second signal.
"""

_FLAGS: Final = {
    "--listen": ("HOST:PORT", "for devices", "0.0.0.0:8443"),
    "--tls-cert": ("FILE", "certificate chain (PEM)", Path),
    "--tls-key": ("FILE", "its private key (PEM)", Path),
    "--status": (
        "HOST:PORT",
        "page and metrics for the operator, without TLS; 'off' for none",
        "127.0.0.1:8081",
    ),
    "--most-wait": ("S", "seconds to wait for an answer before durations are known", MOST_WAIT_S),
    "--least-wait": ("S", "seconds to wait for an answer at least", LEAST_WAIT_S),
    "--patience": ("S", "seconds to wait until enough devices are connected", 3600.0),
    "--gather": (
        "S",
        "seconds to wait before each round until all devices are connected; by default, a round "
        "begins with the first that are enough",
        0.0,
    ),
}


_NEEDED: Final = {
    "--devices": ("FILE", "the list of devices", Path),
    "--out": ("DIR", "run directory", Path),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_settings(parser)
    add_flags(parser, _NEEDED, required=True)
    parser.add_argument("--resume", action="store_true", help="continue the run in DIR")
    add_json(parser)
    add_quiet(parser)
    add_log(parser)
    parser.add_argument(
        "--no-tls", action="store_true", help="serve without TLS, on this machine alone"
    )
    add_flags(parser, _FLAGS)


def main(options: argparse.Namespace) -> int:
    """Serve until the run is over; the exit code."""
    # it waits until there is a handler; by itself, it would end this process
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    from deltafl.sim.net import serve_cli

    return serve_cli.main(options)
