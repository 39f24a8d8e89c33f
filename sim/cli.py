"""The command `deltafl`.

A request that cannot be carried out gets one sentence on stderr and exit code 2. A run that fails
exits with 1, an interrupted one with 130. Heavy modules are imported only when a command runs, so
that help is instant.
"""

import argparse
import contextlib
import importlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from deltafl import __version__
from deltafl.sim.errors import RunError, UserError, damaged
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.table import describe
from deltafl.sim.settings.config import BACKENDS, SEARCHES, SUMS, RunConfig
from deltafl.sim.settings.config_io import (
    assignment,
    build_config,
    preset_names,
    preset_text,
    read_config_file,
    read_table,
)
from deltafl.sim.settings.given import add_settings, data_of, files_of, single_settings_of
from deltafl.sim.visible import visible

_EXAMPLES: Final = """\
examples:
  deltafl run --preset quickstart
      train on the embedded digits, privately and by FedAvg, and compare (a few minutes)
  deltafl run --preset unipen62-linear --data data/unipen62.npz --seed 3 --out runs/third
      a preset on your own data: an .npz file, or a folder of LEAF JSON files
  deltafl run my.toml --set federation.theta=1/3 --set experiment.baselines='["fedavg"]'
      your own settings with two changes; config.toml in every run directory is a template
  deltafl run --preset quickstart --transcript full --truth --out runs/audited
      record everything an audit can use:
      `deltafl audit runs/audited --truth runs/audited/truth.bin`
  deltafl run --preset quickstart --dropout 0.1
      each device drops out in the middle of a round with probability 0.1
  deltafl run --out runs/third --resume
      continue an interrupted run; for a finished run, print its result again

settings: defaults < --preset < CONFIG.toml < --set < the flags above (later ones win).
θ (federation.theta) is the share of the devices, by weight, that training keeps: those with the
largest losses. 1 is FedAvg; a smaller θ favours the worst-off devices more.
exit codes: 0 success, 1 the run failed, 2 invalid request, 130 interrupted.
"""

_FLAGS: Final = {
    "rounds": "federation.rounds",
    "sums": "privacy.sums",
    "search": "quantile.search",
    "backend": "training.backend",
    "workers": "training.workers",
    "address": "training.address",
    "device": "training.device",
    "dropout": "faults.dropout",
    "seed": "experiment.seed",
    "transcript": "privacy.transcript",
    "truth": "privacy.truth",
}


_TOOLS: Final[Mapping[tuple[str, ...], tuple[str, str]]] = {
    ("audit", "leakage"): (
        "deltafl.sim.inspect.leakage.cli",
        "measure what the searches for the threshold reveal about single devices",
    ),
    ("audit",): (
        "deltafl.sim.inspect.audit.cli",
        "show what the server of a run saw and what it can infer",
    ),
    ("reproduce",): ("deltafl.sim.reproduce.cli", "reproduce the papers' tables and figures"),
    ("predict",): (
        "deltafl.sim.run.predict",
        "predict with the models of a finished run, at a conformity level you choose",
    ),
    ("watch",): (
        "deltafl.sim.view.watch_cli",
        "show a run in progress, or a finished one, as a page",
    ),
    ("report",): (
        "deltafl.sim.view.report_cli",
        "write results as one page to send, and figures for a paper",
    ),
    ("attack",): (
        "deltafl.sim.inspect.attacks.cli",
        "run attacks by the server, a device or the network against live sessions",
    ),
    ("serve",): (
        "deltafl.sim.net.serve_cli",
        "run the server of a federation of devices on machines of their own",
    ),
    ("device",): ("deltafl.sim.net.device_cli", "take part in a federation as one device"),
    ("enrol",): ("deltafl.sim.net.enrol_cli", "make the identity of a device"),
    ("federation",): (
        "deltafl.sim.net.federation_cli",
        "start a whole federation on this machine, each device a process of its own",
    ),
    ("data",): ("deltafl.sim.data.cli", "list, describe, convert and fetch data sets"),
    ("bench", "secagg"): (
        "deltafl.sim.bench.secagg_session",
        "the cost of one secure sum, optionally compared with Flower",
    ),
    ("bench", "audit"): (
        "deltafl.sim.bench.audit_replay",
        "time and memory to audit a transcript",
    ),
    ("bench", "masks"): (
        "deltafl.sim.bench.masks",
        "speed of mask generation on one thread, several threads and a GPU",
    ),
    ("bench", "messages"): (
        "deltafl.sim.bench.message_costs",
        "what each kind of message costs the party that receives it",
    ),
    ("bench", "net"): (
        "deltafl.sim.bench.connections",
        "one round with devices that are connected over the network",
    ),
    ("bench", "sim"): (
        "deltafl.sim.bench.simulation",
        "the simulator compared with other simulators, or private rounds with non-private ones",
    ),
    ("bench", "verify"): (
        "deltafl.sim.bench.verified_search",
        "the cost of checking the search for the threshold, per device and query",
    ),
    ("bench", "round"): (
        "deltafl.sim.bench.protocol_round",
        "the cost of one round of private Δ-FL, without training",
    ),
}
"""Commands with their own arguments: command words, module, help text. A module is imported only
when its command is called; it defines `add_arguments` and `main`."""


_EXTRAS: Final = {
    "starlette": "net",
    "uvicorn": "net",
    "websockets": "net",
    "flwr": "flower",
    "tensorboardX": "tensorboard",
}
"""What brings a package that is missing; of all others, "sim" does."""


_BROKEN_PIPE: Final = 141  # the exit code that a shell reports for a program killed by SIGPIPE


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _dispatch(arguments)
        finally:
            if sys.stdout is not None:  # None: closed before the program started
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe
        return _BROKEN_PIPE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "deltafl":
            raise
        extra = _EXTRAS.get(error.name.partition(".")[0], "sim")
        return _fail(
            2,
            f"this needs {error.name}, which is not installed: install deltafl with its extra "
            f"{extra!r}, as in: pip install '.[{extra}]'",
        )
    except MemoryError:
        return _fail(2, "this needs more memory than there is: ask for less, or give it more")
    except OSError as error:
        _drop_output()
        return _fail(1, f"{error.filename or 'standard output'}: {error.strerror}")


def _drop_output() -> None:
    """Discard all further output; otherwise Python reports the error again when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments:
        _parser().print_help()
        return 0
    for words, (module, _) in _TOOLS.items():
        if tuple(arguments[: len(words)]) == words:
            return _tool(words, module, arguments[len(words) :])
    options = _parser().parse_args(arguments)
    if options.command == "bench":
        _parser().error(f"bench: name a benchmark, one of {', '.join(_benchmarks())}")
    return _presets(options.name) if options.command == "presets" else _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="deltafl",
        description="Private Δ-FL: federated learning that favours the worst-off devices while the "
        "server sees only sums over devices.",
        epilog="`deltafl run --help` explains the settings and gives examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"deltafl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="train, evaluate and compare; write a run directory",
        description="Simulate federated training and write the results to a run directory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_settings(run)
    run.add_argument("--rounds", metavar="N", help="number of rounds")
    run.add_argument(
        "--sums",
        metavar="|".join(SUMS),
        help="how secure sums are computed: masked (real keys and masks) or ideal (the same sums "
        "without cryptography)",
    )
    run.add_argument(
        "--search",
        metavar="|".join(SEARCHES),
        help="whether devices check the search for the threshold: verified (each checks every sum, "
        "and accepts only what follows from the sums; needs signed sessions and the complete "
        "graph), trusted (they answer whatever the server asks) or auto (verified against an "
        "active server, privacy.adversary)",
    )
    run.add_argument(
        "--backend", metavar="NAME", help=f"where devices are simulated: {', '.join(BACKENDS)}"
    )
    run.add_argument(
        "--workers",
        metavar="N",
        help="number of workers of the backends processes and ray (default: one per core)",
    )
    run.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster to use (default: start one on this machine)",
    )
    run.add_argument("--device", metavar="auto|cpu|cuda", help="where to train")
    run.add_argument(
        "--dropout", metavar="P", help="probability that a device drops out of a round"
    )
    run.add_argument("--seed", metavar="S", help="first seed")
    run.add_argument(
        "--transcript",
        metavar="full|every=N|headers",
        help="how much of the server's messages to record, for audits: everything, everything in "
        "every N-th round, or only sizes and hashes",
    )
    run.add_argument(
        "--truth",
        action="store_const",
        const="true",
        help="also write each device's private values to truth.bin, for audits",
    )
    run.add_argument("--out", metavar="DIR", help="run directory (default: runs/<preset or file>)")
    run.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in an existing run directory, and do nothing if it is finished; a "
        "round with masked sums that was interrupted is lost, for no device answers twice",
    )
    run.add_argument(
        "--no-plots", action="store_true", help="draw no figures (saves a few seconds)"
    )
    run.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write event files for TensorBoard, to the folder tensorboard of the run "
        "directory (extra tensorboard)",
    )
    run.add_argument("--quiet", action="store_true", help="no progress bars")
    presets = commands.add_parser(
        "presets",
        help="list the presets, or show one",
        description="List the presets: settings that come with the package. With a name, print "
        "that preset, which also says where to get its data.",
        allow_abbrev=False,
    )
    presets.add_argument("name", nargs="?", metavar="NAME", help="print this preset")
    for words, (_, what) in _TOOLS.items():
        if len(words) == 1:
            commands.add_parser(words[0], help=what, add_help=False)
    described = "; ".join(f"`deltafl bench {name}`: {what}" for name, what in _benchmarks().items())
    bench = commands.add_parser(
        "bench", help="run a benchmark", description=described, allow_abbrev=False
    )
    bench.add_argument("benchmark", nargs="*", help="its name, followed by its own arguments")
    return parser


def _benchmarks() -> dict[str, str]:
    return {words[1]: what for words, (_, what) in _TOOLS.items() if words[0] == "bench"}


def _presets(wanted: str | None) -> int:
    if wanted is not None:
        try:
            print(preset_text(wanted), end="")
        except UserError as error:
            return _fail(2, str(error))
        return 0
    width = max(map(len, preset_names()))
    for name in preset_names():
        first_line = preset_text(name).partition("\n")[0]
        print(f"{name:<{width}}  {first_line.removeprefix('#').strip()}")
    return 0


def _tool(words: Sequence[str], module: str, arguments: Sequence[str]) -> int:
    tool = importlib.import_module(module)
    parser = _Parser(
        prog=" ".join(("deltafl", *words)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tool.add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        code: int = tool.main(options)
    except UserError as error:
        return _fail(2, str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(2, f"{error.filename}: {error.strerror}; check the path and its permissions")
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    return code


def _run(options: argparse.Namespace) -> int:
    out = _out(options)
    try:
        config = _config(options, out)
        return _run_experiment(
            config,
            out,
            resume=options.resume,
            quiet=options.quiet,
            plots=not options.no_plots,
            tensorboard=options.tensorboard,
        )
    except UserError as error:
        return _fail(2, str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(2, f"{error.filename}: {error.strerror}; check the path and its permissions")
    except KeyboardInterrupt:
        if not (out / "config.toml").exists():
            return _fail(130, "interrupted before anything was written")
        again = f"{_called()} run --out {shlex.quote(str(out))} --resume"
        return _fail(130, f"interrupted; finished rounds are kept; continue with `{again}`")


def _run_experiment(
    config: RunConfig, out: Path, *, resume: bool, quiet: bool, plots: bool, tensorboard: bool
) -> int:
    if finished := RunDirectory(out).finished(config, resume=resume):
        try:
            return _show(finished, out)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise damaged(RunDirectory(out).summary, "it is not what a run writes") from error
    from deltafl.fl.errors import DataError, DivergenceError
    from deltafl.protocol.errors import ProtocolError
    from deltafl.secagg.errors import SecAggError
    from deltafl.sim.run.experiment import run_experiment
    from deltafl.sim.run.progress import ProgressBars, Several
    from deltafl.sim.run.tensorboard import TensorBoard

    try:
        with contextlib.ExitStack() as stack:
            told = [
                stack.enter_context(contextlib.closing(one))
                for one in (ProgressBars(quiet=quiet), *([TensorBoard(out)] if tensorboard else ()))
            ]
            summary = run_experiment(
                config, out, resume=resume, progress=Several(told), warn=_warn, plots=plots
            )
    except DataError as error:
        return _fail(2, str(error))
    except (RunError, DivergenceError, ProtocolError, SecAggError, OSError) as error:
        return _fail(1, f"the run failed: {error}; finished rounds are kept in {out}")
    return _show(summary, out)


def _show(summary: Mapping[str, object], out: Path) -> int:
    print(visible(describe(summary)))
    plots = "plots/, " if (out / "plots").exists() else ""
    print(f"\nResults are in {out}: summary.json, {plots}metrics/, events.jsonl.")
    if summary.get("sums") == "masked":
        print(f"To see what the server saw: {_called()} audit {shlex.quote(str(out))}")
    return 0


def _called() -> str:
    """How to call this command again: its name, or its path if it is not on the search path."""
    program = sys.argv[0]
    if Path(program).name != "deltafl" or shutil.which("deltafl") is not None:
        return "deltafl"
    return shlex.quote(program)


def _out(options: argparse.Namespace) -> Path:
    if options.out is not None:
        return Path(options.out)
    if options.config is not None:
        return Path("runs") / Path(options.config).stem
    return Path("runs") / (options.preset or "quickstart")


def _config(options: argparse.Namespace, out: Path) -> RunConfig:
    layers = files_of(options)
    if not layers and options.resume and (out / "config.toml").exists():
        layers.append(read_config_file(out / "config.toml"))
    elif not layers:
        if options.resume and not _names_settings(options):
            raise UserError(
                f"{out}: there is no run to continue: check --out; to start a new run, or continue "
                "it if it exists, also give its settings, as in --preset quickstart --resume"
            )
        layers.append(read_table(preset_text("quickstart"), "preset quickstart"))
    layers += single_settings_of(options)
    for flag, key in _FLAGS.items():
        if (value := getattr(options, flag)) is not None:
            layers.append(assignment(f"{key}={value}"))
    return build_config([*layers, *data_of(options)])


def _names_settings(options: argparse.Namespace) -> bool:
    """Whether any flag gives a setting."""
    flags = (getattr(options, flag) for flag in _FLAGS)
    return bool(options.assignments) or any(value is not None for value in (options.data, *flags))


def _warn(sentence: str) -> None:
    print(f"deltafl: note: {visible(sentence)}", file=sys.stderr)


def _fail(code: int, sentence: str) -> int:
    print(f"deltafl: {visible(sentence)}", file=sys.stderr)
    return code
