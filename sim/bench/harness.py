"""What every benchmark has: flags of one meaning, work that takes turns, and a report.

A report holds numbers, words, spreads (`spread`) and tables, which are mappings of mappings, by
name; what is timed is called seconds by the wall clock, or CPU seconds. `--json` prints all of it,
and without it a table has all but lists. The report ends with the machine: its processor, usable
cores, the load of the minute before, and what of the environment chooses the kernels of BLAS.
"""

import argparse
import inspect
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.quantile.registry import QUANTILE_METHODS
from deltafl.protocol.registry import Entry
from deltafl.secagg.errors import PeerError, Refusal, SecAggError
from deltafl.secagg.params import GraphKind
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.settings.config import BACKENDS
from deltafl.sim.settings.given import within

Report = dict[str, object]
_Case = TypeVar("_Case")
_Result = TypeVar("_Result")


class Flag(NamedTuple):
    """How a field of a benchmark is given on the command line.

    Attributes:
        text: what it is.
        metavar: the name of its value.
        kind: reads it.
        choices: its values, if they are few; those of an enumeration are known.
    """

    text: str
    metavar: str = "N"
    kind: Callable[[str], object] = str
    choices: Sequence[str] | None = None


MOST_PIVOTS: Final = 320
"""Of `histogram`; devices of a benchmark accept as many of any method."""

_ANY: Final = within("[1, inf)")

FLAGS: Final = {
    "backend": Flag("backend of our simulator", choices=BACKENDS),
    # more would fill the memory, or never end
    "clients": Flag("devices", kind=within("[2, 100000]")),
    "dim": Flag("numbers in a device's vector, or in its update", "D", within("[1, 100000000]")),
    "dropout": Flag("share of the devices that vanish", "P", within("[0, 1)", float)),
    "graph": Flag("which devices share masks"),
    "method": Flag("of the search for the threshold", choices=QUANTILE_METHODS),
    "methods": Flag("of the search for the threshold", "NAME,…", lambda text: text.split(",")),
    "neighbours": Flag("of a device on the sparse graph, instead of the computed", "K", _ANY),
    "no_tls": Flag("without encryption"),
    "peer": Flag("also measure SecAgg(+) of flwr (extra bench), and ratios", choices=["flower"]),
    "peers": Flag(
        "peers to compare with, or none (default: those installed)",
        "NAME,…",
        lambda text: text.split(","),
    ),
    "private": Flag("measure the overhead of privacy, without peers"),
    "processes": Flag("processes of devices", "P", _ANY),
    "queries": Flag("most sums of the search", "Q", within("[1, 4095]")),
    "repeats": Flag("times that each is measured, in turns", "R", _ANY),
    "rounds": Flag("rounds", "R", within("[1, 1000000]")),
    "samples": Flag("samples of a client", "N", _ANY),
    "search": Flag(
        "whether devices check the search, and prove their answers",
        choices=("trusted", "verified", "proved"),
    ),
    "seed": Flag(
        "seed of all that is made up; keys come from the operating system", "S", within("[0, inf)")
    ),
    "task": Flag(
        "cnn: ConvNet, 40 clients of 179 images, batch 16; linear: 784 -> 62, 100 clients of "
        "179, batch 10; gru: GRU(128) on 53 symbols, 10 clients of 1288 texts, batch 16",
        choices=("cnn", "linear", "gru"),
    ),
    "transcript": Flag("what to record", "full|sums"),
    "wait": Flag(
        "seconds for an answer (30 if devices vanish, else 600)", "S", within("(0, inf)", float)
    ),
}
"""The flags of all benchmarks, by the field that they fill: one name has one meaning."""

_KERNELS: Final = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""By these a processor is kept from its best kernels, or led to them: figures depend on it."""


def command(
    kind: Callable[..., _Case],
    measure: Callable[[_Case], Report] | str,
    description: str,
    epilog: str | None = None,
) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """A benchmark as a command: what declares its arguments, and what measures and prints.

    Args:
        kind: makes what is to be measured, of fields that have a flag and a default.
        measure: measures it; or where that is, `"module:function"`, so that help loads nothing.
        description: for the command's help, with the epilog behind the flags.
        epilog: the same.
    """
    defaults = {name: field.default for name, field in inspect.signature(kind).parameters.items()}

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description, parser.epilog = description, epilog
        for name, default in defaults.items():
            _add_flag(parser, name, default)
        add_json(parser)
        add_quiet(parser)

    def main(options: argparse.Namespace) -> int:
        busy = round(os.getloadavg()[0], 2)
        given = {name: getattr(options, name) for name in defaults}
        words = {name: one for name, one in defaults.items() if isinstance(one, StrEnum)}
        try:
            fields = given | {name: type(one)(given[name]) for name, one in words.items()}
            case = kind(**fields)
            found: Any = Entry(measure).make(case) if isinstance(measure, str) else measure(case)
            report: Report = found
        except (SecAggError, ProtocolError, UserError, ValueError) as error:
            print(f"deltafl: {error}{_remedy(error, given)}", file=sys.stderr)
            return 2
        except RunError as error:
            print(f"deltafl: the benchmark failed: {error}", file=sys.stderr)
            return 1
        report["machine"] = machine() | {"load": busy}
        print(json.dumps(report, indent=2) if options.json else as_text(report))
        return 0

    return add_arguments, main


def _add_flag(parser: argparse.ArgumentParser, name: str, default: object) -> None:
    flag, word = FLAGS[name], f"--{name.replace('_', '-')}"
    if default is False:
        parser.add_argument(word, action="store_true", help=flag.text)
        return
    choices = list(map(str, type(default))) if isinstance(default, StrEnum) else flag.choices
    parser.add_argument(
        word,
        type=flag.kind,
        choices=choices,
        default=default,
        metavar=None if choices else flag.metavar,
        help=flag.text if default is None else f"{flag.text} ({_cell(default)})",
    )


def _remedy(error: Exception, given: Mapping[str, object]) -> str:
    """What to do where devices refuse a session, for the end of a sentence; "" if not known."""
    refused = isinstance(error, PeerError) and error.reason is Refusal.POLICY
    if not refused or given.get("graph") != GraphKind.SPARSE:
        return ""
    return (
        f"; {given['clients']} devices are too few for a sparse graph: pass --graph complete, or a "
        "larger --clients"
    )


def machine() -> dict[str, object]:
    """What figures depend on, beside the benchmark."""
    from deltafl.sim.cohort.hardware import processor, usable_cores  # loads torch: memory is told

    return {
        "processor": processor(),
        "cores": usable_cores(),
        "system": f"{platform.machine()}, Python {platform.python_version()}",
        "numpy": np.__version__,
        **{name: os.environ[name] for name in _KERNELS if name in os.environ},
    }


@dataclass(frozen=True, slots=True)
class Timed(Generic[_Result]):
    """What some work came to, and its seconds: by the clock, and of this process's CPU time."""

    result: _Result
    wall_s: float
    cpu_s: float


def timed(work: Callable[[], _Result]) -> Timed[_Result]:
    """Do some work and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return Timed(result, time.perf_counter() - wall, time.process_time() - cpu)


def in_turns(
    works: Mapping[str, Callable[[], _Result]],
    repeats: int,
    check: Callable[[Mapping[str, _Result]], None] = lambda _: None,
) -> dict[str, list[_Result]]:
    """Do each work so often, all in turn, so that other load falls on all of them alike.

    The first turn is not counted: it fills caches and starts what has to be started.

    Args:
        works: by name.
        repeats: turns that count.
        check: gets what the first turn gives, and raises if nothing may be compared.
    """
    found: dict[str, list[_Result]] = {name: [] for name in works}
    from deltafl.sim.progress import Bar  # a machine with a GPU need not have its library

    with Bar(total=len(works) * (1 + repeats), desc="turns") as bar:
        for turn in range(1 + repeats):
            for name, work in works.items():
                bar.set_description(name)
                found[name].append(work())
                bar.update()
            if turn == 0:
                check({name: results.pop() for name, results in found.items()})
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    each = {"median": median(values), "lowest": min(values), "highest": max(values)}
    return {name: round(value, 4) for name, value in each.items()}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """How many times the one is the other, turn by turn: a spread."""
    return spread([one / other for one, other in zip(above, below, strict=True)])


def as_text(report: Report) -> str:
    """A report for people: a line for each number or word, then the tables.

    >>> print(as_text({"devices": 5, "by_stage": {"mask": {"cpu_s": 0.25}, "share": {"kb": 2}}}))
    devices: 5
    <BLANKLINE>
    by stage  cpu s  kb
    mask      0.25
    share            2
    """
    lines, tables = [], []
    for name, value in report.items():
        if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
            tables += ["", *_table(_words(name), value)]
        elif not isinstance(value, list):
            lines.append(f"{_words(name)}: {_cell(value)}")
    return "\n".join([*lines, *tables])


def _table(title: str, rows: Mapping[str, Mapping[str, object]]) -> list[str]:
    names = dict.fromkeys(
        name for row in rows.values() for name in row if not isinstance(row[name], list)
    )
    cells = [[title, *map(_words, names)]]
    cells += [
        [key, *(_cell(row[name]) if name in row else "" for name in names)]
        for key, row in rows.items()
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"median", "lowest", "highest"}:
            middle, low, high = map(_cell, value.values())
            return f"{middle} ({low}–{high})"
        return ", ".join(f"{_words(name)} {_cell(one)}" for name, one in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
