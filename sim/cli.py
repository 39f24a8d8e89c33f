"""The command `deltafl`.

A request that cannot be carried out gets one sentence on stderr and exit code 2. A run that fails
exits with 1, an interrupted one with 130. Heavy modules are imported only when a command runs, so
that help is instant.
"""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from deltafl import __version__
from deltafl.fl.errors import DataError
from deltafl.fl.nearest import alike
from deltafl.sim.errors import UserError
from deltafl.sim.flags import quieted
from deltafl.sim.parser import Parser
from deltafl.sim.visible import visible

_DESCRIPTION: Final = (
    "Private Δ-FL: federated learning that favours the worst-off devices while the server sees "
    "only sums over devices."
)
_EPILOG: Final = "Each command explains itself: deltafl run --help. Begin with: deltafl doctor"
_BENCH: Final = "Run a benchmark. Each explains itself, as in: deltafl bench round --help"

TOOLS: Final[Mapping[tuple[str, ...], tuple[str, str]]] = {
    ("run",): ("run.cli", "train, evaluate and compare; write a run directory"),
    ("plan",): ("plan.cli", "say before a run what it survives, costs and reveals"),
    ("presets",): ("run.presets_cli", "list the presets, or show one"),
    ("doctor",): (
        "doctor.cli",
        "check what is installed, what this machine has, and that sums work",
    ),
    ("audit", "leakage"): (
        "inspect.leakage.cli",
        "measure what the searches for the threshold reveal about single devices",
    ),
    ("audit", "canaries"): (
        "inspect.canaries.cli",
        "measure a lower bound on ε, beside what a differentially private run claims",
    ),
    ("audit",): ("inspect.audit.options", "show what the server of a run saw and can infer"),
    ("reproduce",): ("reproduce.cli", "reproduce the papers' tables and figures"),
    ("predict",): (
        "run.predict_flags",
        "predict with the models of a finished run, at a conformity level you choose",
    ),
    ("watch",): ("view.watch_flags", "show a run in progress, or a finished one, as a page"),
    ("report",): ("view.report_cli", "write results as one page to send, and figures for a paper"),
    ("compare",): (
        "compare.cli",
        "compare finished runs in pairs: intervals, tests, effect sizes, LaTeX and CSV",
    ),
    ("attack",): (
        "inspect.attacks.cli",
        "run attacks by the server, a device or the network against live sessions",
    ),
    ("serve",): (
        "net.serve_flags",
        "run the server of a federation of devices on machines of their own",
    ),
    ("device",): ("net.device_flags", "take part in a federation as one device"),
    ("enrol",): ("net.enrol_cli", "make the identity of a device"),
    ("federation",): (
        "net.federation_cli",
        "start a whole federation on this machine, each device a process of its own",
    ),
    ("data",): ("data.cli", "list, describe, convert and fetch data sets"),
    ("completion",): ("completion", "print what makes a shell complete commands and flags"),
    ("bench", "secagg"): (
        "bench.secagg",
        "the cost of one secure sum, optionally compared with Flower",
    ),
    ("bench", "audit"): ("bench.audit_flags", "time and memory to audit a transcript"),
    ("bench", "net"): (
        "bench.net_flags",
        "one round with devices that are connected over the network",
    ),
    ("bench", "sim"): (
        "bench.sim_flags",
        "the simulator compared with other simulators, or private rounds with non-private ones",
    ),
    ("bench", "round"): (
        "bench.round_flags",
        "the cost of one round of private Δ-FL, without training",
    ),
}
"""Commands with their own arguments: command words, module, help text. A module is imported only
when its command is called, so that help is instant; it lies in `deltafl.sim`, and has
`add_arguments` and `main`."""


_EXTRAS: Final = {
    "starlette": "net",
    "uvicorn": "net",
    "websockets": "net",
    "flwr": "flower",
    "tensorboardX": "tensorboard",
}
"""What brings a package that is missing; of all others, "sim" does."""


_BROKEN_PIPE: Final = 141  # the exit code that a shell reports for a program killed by SIGPIPE


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
        commands(whole=False).print_help()
        return 0
    for words in TOOLS:
        if tuple(arguments[: len(words)]) == words:
            return _tool(words, arguments[len(words) :])
    commands(whole=False).parse_args(arguments)  # help, the version, or an error
    return 2


def commands(*, whole: bool) -> Parser:
    """The parser of all commands.

    Args:
        whole: whether each has its own arguments, for which its module is imported, if all that it
            needs is installed; otherwise only the names are there, and what they do.
    """
    parser = Parser(prog="deltafl", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"deltafl {__version__}")
    names = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for words, (_, what) in TOOLS.items():
        if len(words) == 1:
            _fill(names.add_parser(words[0], help=what, add_help=whole), words, whole=whole)
    bench = names.add_parser("bench", help="run a benchmark", description=_BENCH)
    _fill(bench, ("bench",), whole=whole)
    return parser


def _fill(parser: Parser, words: tuple[str, ...], *, whole: bool) -> None:
    """Add to a command the words that may follow it and, if `whole`, its arguments."""
    nested = _nested(words)
    if nested and (whole or words not in TOOLS):
        metavar = "BENCHMARK" if words not in TOOLS else "ACTION"
        more = parser.add_subparsers(dest="more", required=words not in TOOLS, metavar=metavar)
        for name in nested:
            longer = (*words, name)
            _fill(more.add_parser(name, help=TOOLS[longer][1], add_help=whole), longer, whole=whole)
    if whole and words in TOOLS:
        with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed
            _module(words).add_arguments(parser)


def _module(words: tuple[str, ...]) -> ModuleType:
    return importlib.import_module(f"deltafl.sim.{TOOLS[words][0]}")


def _nested(words: tuple[str, ...]) -> list[str]:
    """The words that may come next in a command."""
    return [longer[-1] for longer in TOOLS if longer[:-1] == words]


def _tool(words: tuple[str, ...], arguments: Sequence[str]) -> int:
    tool = _module(words)
    parser = Parser(prog=" ".join(("deltafl", *words)))
    tool.add_arguments(parser)
    first = arguments[0] if arguments else ""
    if (near := alike(first, _nested(words))) and not Path(first).exists():
        parser.error(f"there is no {first!r}: did you mean {near[0]!r}?")
    options = parser.parse_args(arguments)
    try:
        with quieted(getattr(options, "quiet", False)):
            code: int = tool.main(options)
    except (UserError, DataError) as error:
        return _fail(2, str(error))
    except OSError as error:
        if error.filename is None:  # a pipe is closed, or there is no room for what is printed
            raise
        return _fail(2, f"{error.filename}: {error.strerror}; check the path and its permissions")
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    return code


def _fail(code: int, sentence: str) -> int:
    print(f"deltafl: {visible(sentence)}", file=sys.stderr)
    return code
