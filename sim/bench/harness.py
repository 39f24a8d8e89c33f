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
from typing import Annotated, Final, Generic, TypeAlias, TypeVar

import numpy as np

from deltafl.protocol.errors import ProtocolError
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.params import MAX_SLOTS, GraphKind
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.settings.given import whole

Report = dict[str, object]
_Case = TypeVar("_Case")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field of a benchmark is given on the command line; it annotates the field's type.

    Attributes:
        text: what it is.
        metavar: the name of its value.
        kind: reads it; by default the type of the field's default.
        choices: its values, if they are few.
    """

    text: str
    metavar: str = "N"
    kind: Callable[[str], object] | None = None
    choices: Sequence[str] | None = None


CLIENTS: Final = whole("[0, 100000]")
"""So many devices at most; more would fill the memory, or never end."""

Clients: TypeAlias = Annotated[int, Flag("devices", kind=CLIENTS)]
Dim: TypeAlias = Annotated[int, Flag("numbers in a device's vector, or in its update", "D")]
Slots: TypeAlias = Annotated[int, Flag("secure sums", "T", whole(f"[0, {MAX_SLOTS}]"))]
Rounds: TypeAlias = Annotated[int, Flag("rounds", "R", whole("[0, 1000000]"))]
Graph: TypeAlias = Annotated[GraphKind, Flag("which devices share masks")]
Signed: TypeAlias = Annotated[bool, Flag("devices sign keys, and agree on who is in a sum")]
Dropout: TypeAlias = Annotated[float, Flag("share of the devices that vanish", "P")]
Repeats: TypeAlias = Annotated[int, Flag("times that each is measured, in turns", "R")]
Seed: TypeAlias = Annotated[
    int, Flag("seed of all that is made up; keys come from the operating system", "S")
]

_KERNELS: Final = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""By these a processor is kept from its best kernels, or led to them: figures depend on it."""


def add_flags(parser: argparse.ArgumentParser, kind: Callable[..., object]) -> None:
    """Declare a flag for each field of a benchmark that has one, and how the report is told."""
    for name, field in inspect.signature(kind).parameters.items():
        for flag in getattr(field.annotation, "__metadata__", ()):
            _add_flag(parser, name.replace("_", "-"), flag, field.default)
    add_json(parser)
    add_quiet(parser)


def _add_flag(parser: argparse.ArgumentParser, name: str, flag: Flag, default: object) -> None:
    if isinstance(default, bool):
        parser.add_argument(f"--{name}", action="store_true", help=flag.text)
        return
    choices = flag.choices
    if isinstance(default, StrEnum):
        choices = [str(one) for one in type(default)]
    parser.add_argument(
        f"--{name}",
        type=str if choices else flag.kind or type(default),
        choices=choices,
        default=default,
        metavar=None if choices else flag.metavar,
        help=flag.text if default is None else f"{flag.text} ({default})",
    )


def case_of(kind: Callable[..., _Case], options: argparse.Namespace) -> _Case:
    """What to measure, from the options that `add_flags` declares."""
    fields = {
        name: type(field.default)(getattr(options, name))
        if isinstance(field.default, StrEnum)
        else getattr(options, name)
        for name, field in inspect.signature(kind).parameters.items()
    }
    return kind(**fields)


def check_least(**least: tuple[int, int]) -> None:
    """Refuse the first number that is too small, and name no other.

    >>> check_least(clients=(5, 2), dim=(0, 1))
    Traceback (most recent call last):
    ValueError: dim=0 must be at least 1

    Args:
        least: by name, a number and the least that it may be.

    Raises:
        ValueError: one is smaller.
    """
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise ValueError(f"{name}={value} must be at least {lowest}")


def check_dropout(dropout: float) -> None:
    """Refuse a share of devices that is none.

    Raises:
        ValueError: it is not in [0, 1).
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} is not in [0, 1)")


def command(
    measure: Callable[[argparse.Namespace], Report],
) -> Callable[[argparse.Namespace], int]:
    """The `main` of a benchmark: measures and prints; its exit code says whether it could."""

    def main(options: argparse.Namespace) -> int:
        load = round(os.getloadavg()[0], 2)
        try:
            report = measure(options)
        except (SecAggError, ProtocolError, UserError, ValueError) as error:
            print(f"deltafl: {error}", file=sys.stderr)
            return 2
        except RunError as error:
            print(f"deltafl: the benchmark failed: {error}", file=sys.stderr)
            return 1
        report["machine"] = machine() | {"load": load}
        print(json.dumps(report, indent=2) if options.json else as_text(report))
        return 0

    return main


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
    return "none" if value is None else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
