"""`deltafl reproduce`: the papers' tables and figures, and tests of our own."""

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltafl.fl.read.exact import exact_number
from deltafl.sim.errors import ConfigError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.settings.config_io import assignment
from deltafl.sim.settings.given import add_flags, add_set, within
from deltafl.sim.visible import visible

if TYPE_CHECKING:
    from deltafl.sim.reproduce.cells import Outcome
    from deltafl.sim.reproduce.experiment import Cell, Report, Request
    from deltafl.sim.reproduce.grid import Experiment

    Plan = tuple[Experiment, Sequence[Cell]]

_LIST: Final = "list"
_ALL: Final = "all"
_ROBUST: Final = "robust"

_INTERRUPTED: Final = 130

_LISTED: Final = {
    "experiments": ("deltafl reproduce NAME", ("name", "title", "source", "data")),
    "tasks": (
        "--models takes the model, or the full name of the task",
        ("name", "title", "family", "model"),
    ),
    "data": (
        "--data NAME=PATH, or --data NAME of one with a source",
        ("name", "title", "family", "stands_for", "source"),
    ),
    "methods": ("--methods", ("key", "label", "constants")),
}
"""How a thing of each kind is given, and what `list` says of it."""

_DESCRIPTION: Final = """\
Reproduce a table or a figure of the papers, with the published numbers next to ours.

An experiment is a set of runs (tasks x methods x seeds) and the tables and figures made from them.
Runs execute in parallel, each with one process and one thread. Finished runs are kept in DIR/cells
and never repeated, so tables and figures share runs. The most telling runs are first. After an
interruption, also by `timeout`, there are the results of what is finished, and the same command
continues.
"""

_EPILOGUE: Final = """\
examples:
  timeout 8h deltafl reproduce all --data unipen62=u.npz
      overnight: the most telling first, with the papers' rounds; the same again goes on
  deltafl reproduce table2 --data digits --rounds 20 --seeds 2 --methods fedavg,delta-fl-0.5
      a one-minute trial on the embedded digits

settings: the paper's (with --settings script, the published code's where the two differ) < the
method's < those a stand-in needs < --rounds < --set (later ones win). With fewer rounds, the
learning rate decays after the same fractions of the run, and there are fewer evaluations (one every
quarter of the rounds).
results: DIR/NAME/report.md; each table also as .csv and .jsonl, each figure as .png and .svg.
exit codes: 0 success, 1 some runs failed (they are listed and the others reported), 2 invalid
request, 130 interrupted.
"""


_MANY: Final = within("[1, 100000]")
_FLAGS: Final = {
    "--models": ("LIST", "models, such as linear,convnet (default: all)", str),
    "--methods": ("LIST", "methods, such as fedavg,delta-fl-0.5 (default: all)", str),
    "--attacks": ("LIST", "with robust, robust-shares: attacks, such as labels,sign-top", str),
    "--seeds": ("N", "number of seeds (default: the paper's)", _MANY),
    "--rounds": ("R|P%", "how many, or a percentage such as 15%% (default: the paper's)", str),
    "--jobs": ("J", "number of parallel runs (default: one per core)", _MANY),
    "--out": ("DIR", "folder for results", "runs/reproduce"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOGUE
    parser.add_argument(
        "target",
        nargs="?",
        default=_LIST,
        metavar="list|NAME|all",
        help="list the experiments (default), or run one, or all",
    )
    add_flags(parser, _FLAGS)
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a data set and its path; may be repeated (default: synthetic stand-ins)",
    )
    parser.add_argument(
        "--settings",
        choices=("paper", "script"),
        default="paper",
        help="take hyper-parameters from the paper or from its published code (default: paper)",
    )
    add_set(parser, "change one setting in every run; may be repeated")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and which are done; run nothing"
    )
    add_json(parser)
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """List experiments, or run them and report; return the exit code."""
    if options.target == _LIST:
        return _list(as_json=options.json)
    request = request_of(options)
    plans = _plans(options, request)
    if options.dry_run:
        return _dry_run(plans, request, as_json=options.json)
    return _make(options, plans, request)


def request_of(options: argparse.Namespace) -> "Request":
    """Parse the arguments into a request.

    Raises:
        ConfigError: an argument is invalid.
    """
    from deltafl.sim.reproduce.experiment import Request
    from deltafl.sim.reproduce.methods import merged

    return Request(
        out=Path(options.out),
        data=_data(options.data),
        models=_words(options.models),
        methods=_words(options.methods),
        attacks=_words(options.attacks),
        seeds=options.seeds,
        rounds=None if options.rounds is None else _rounds(options.rounds),
        settings=options.settings,
        overrides=functools.reduce(merged, map(assignment, options.assignments), {}),
    )


def _rounds(text: str) -> int | Fraction:
    number, percent = text.removesuffix("%"), text.endswith("%")
    with contextlib.suppress(ValueError):
        rounds = exact_number(number) / 100 if percent else int(number)
        if rounds > 0:
            return rounds
    raise ConfigError(f"--rounds {text}: must be at least 1, or a percentage such as 15%")


def _data(texts: Sequence[str]) -> dict[str, Path]:
    from deltafl.sim.reproduce.tasks import data_set_named

    data: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        known = data_set_named(name)
        if name in data:
            raise ConfigError(f"--data {text}: {name} is named twice; name it once")
        if known.source is None and not (equals and path):
            raise ConfigError(f"--data {text}: must have the form {name}=PATH")
        if known.source is not None and path:
            raise ConfigError(f"--data {text}: {name} comes with the package; write --data {name}")
        if path and not Path(path).exists():
            raise ConfigError(f"--data {text}: there is no {path}; check the path")
        data[name] = Path(path)
    return data


def _words(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ConfigError(f"{text!r} is an empty list: name at least one, or leave out the option")
    return words


def _plans(options: argparse.Namespace, request: "Request") -> "list[Plan]":
    """The experiments to run; with "all", every experiment whose data are given."""
    from deltafl.sim.reproduce.catalogue import EXPERIMENTS, experiment_named

    if options.attacks is not None and not options.target.startswith(_ROBUST):
        raise ConfigError(f"--attacks needs {_ROBUST} or {_ROBUST}-shares")
    if options.target != _ALL:
        experiment = experiment_named(options.target)
        return [(experiment, experiment.cells(request))]
    plans: list[Plan] = []
    for experiment in EXPERIMENTS:
        try:
            plans.append((experiment, experiment.cells(request)))
        except ConfigError as error:
            print(f"deltafl: note: {experiment.name} is skipped: {error}", file=sys.stderr)
    if not plans:
        raise ConfigError(
            "no experiment can run with the given data: `deltafl reproduce list` shows which data "
            "each one needs"
        )
    return plans


def _dry_run(plans: "Sequence[Plan]", request: "Request", *, as_json: bool) -> int:
    from deltafl.sim.reproduce.cells import directories_of

    cells = [cell for _, own in plans for cell in own]
    runs: dict[str, dict[str, object]] = {}
    for cell, place in zip(cells, directories_of(cells, request.out), strict=True):
        name, rounds = place.path.name, cell.config.federation.rounds
        of = {"done": place.is_finished, "rounds": rounds, "what": str(cell)}
        runs[name] = {"run": name, **of}
    if as_json:
        print(json.dumps(list(runs.values()), indent=2, ensure_ascii=False))
        return 0
    for run in runs.values():
        state = "done" if run["done"] else "to do"
        print(f"{run['run']}  {state:<5}  {run['rounds']:>5} rounds  {run['what']}")
    done = sum(bool(run["done"]) for run in runs.values())
    print(f"{len(runs)} runs, {done} of them done; nothing was run.")
    return 0


def _make(options: argparse.Namespace, plans: "Sequence[Plan]", request: "Request") -> int:
    from deltafl.sim.reproduce.cells import run_cells
    from deltafl.sim.reproduce.grid import most_telling_first
    from deltafl.sim.reproduce.output import as_json, as_text, write_report

    cells = most_telling_first([cell for _, own in plans for cell in own])
    outcome = run_cells(cells, request.out, jobs=options.jobs, quiet=options.quiet)
    documents: list[object] = []
    for experiment, report in _reports(plans, request, outcome):
        folder = write_report(experiment, report, request.out)
        if options.json:
            documents.append(as_json(experiment, report, folder))
        else:
            print(visible(as_text(experiment, report, folder)))
    if options.json:
        print(json.dumps(documents, indent=2, ensure_ascii=False, allow_nan=False))
    if outcome.failed:
        print(f"deltafl: {len(outcome.failed)} of {len(cells)} runs failed", file=sys.stderr)
    if outcome.unfinished:
        print(
            f"deltafl: interrupted; finished rounds are kept in {request.out / 'cells'}; run the "
            f"same command again to continue",
            file=sys.stderr,
        )
        return _INTERRUPTED
    return 1 if outcome.failed else 0


def _reports(
    plans: "Sequence[Plan]", request: "Request", outcome: "Outcome"
) -> "Iterator[tuple[Experiment, Report]]":
    """Of each experiment that has a result, with what is missing; told where every run failed."""
    from deltafl.sim.reproduce.experiment import Finished

    finished, failed, unfinished = outcome
    for experiment, cells in plans:
        there = [Finished(cell, finished[cell]) for cell in cells if cell in finished]
        failures = [failed[cell] for cell in cells if cell in failed]
        if cells and not there:
            if failures:  # else none was begun, or none is finished
                told = f"{experiment.name}: every run failed; {failures[0]}"
                print(f"deltafl: {told}", file=sys.stderr)
            continue
        lacking = [f"Missing: {failure}." for failure in failures]
        lacking += [f"Missing: {cell}: not finished." for cell in cells if cell in unfinished]
        report = experiment.report(request, there)
        yield experiment, replace(report, notes=(*lacking, *report.notes))


def _list(*, as_json: bool) -> int:
    from deltafl.sim.reproduce.catalogue import NAMED
    from deltafl.sim.reproduce.methods import METHODS
    from deltafl.sim.reproduce.tasks import DATA_SETS, TASKS

    experiments = NAMED.values()
    things = {"experiments": experiments, "tasks": TASKS, "data": DATA_SETS, "methods": METHODS}
    known = {
        kind: [{field: getattr(one, field) for field in fields} for one in things[kind]]
        for kind, (_, fields) in _LISTED.items()
    }
    if as_json:
        print(json.dumps(known, indent=2, ensure_ascii=False))
        return 0
    for kind, rows in known.items():
        print(f"{kind} ({_LISTED[kind][0]})")
        for row in rows:
            name, title, *_ = row.values()
            told = [str(title), *(_told(*item) for item in list(row.items())[2:])]
            print(f"  {name:<22} {'; '.join(filter(None, told))}")
    return 0


def _told(key: str, value: str | list[str] | None) -> str:
    """What the list says of something, beside its name and its title."""
    if isinstance(value, list):
        value = ", ".join(value) or "none"
    return f"{key.replace('_', ' ')}: {value}" if value else ""
