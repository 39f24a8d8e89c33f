"""The command `deltafl compare`."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltafl.sim.errors import UserError
from deltafl.sim.flags import add_json
from deltafl.sim.settings.given import add_flags, add_runs, within
from deltafl.sim.visible import say, visible

if TYPE_CHECKING:
    from deltafl.sim.compare.runs import Method

_MEAN: Final = "mean"
_CSV_BEGINS: Final = rb"method,pairs,mean,std,"
_LATEX_BEGINS: Final = (
    rb"% [^\n]*\n\\begin\{tabular\}\{lr+\}\n\\toprule\nmethod & [^\n]*difference "
)
_HEAD: Final = 1 << 16  # bytes in which a table has begun

_DESCRIPTION: Final = """\
Compare finished runs in pairs: differences with intervals, p-values and effect sizes.

Runs that differ in their seeds alone are one method. Two runs are a pair if they have the same
experiment.seed and data.split_seed, so that they met the same devices and cohorts. All runs of an
experiment count, with its other seeds and its baselines, and all of a folder of `deltafl.compare`,
under the labels that they got there; of a run of several conformity levels, each level is a method.
What is compared is the last evaluation. Runs without a pair do not count: the baseline's mean is
over those that are in any pair.
"""

_EXAMPLES: Final = """\
examples:
  deltafl compare runs/quickstart
      its method and its baselines, over its seeds
  deltafl compare runs/a runs/b --baseline fedavg --latex table.tex --csv table.csv
      two experiments in one table, which is also written for a paper
  deltafl compare slow=runs/a fast=runs/b --mean
      runs with names, by the mean of the test error

All p-values are two-sided, and below 0.05 where the 95% interval leaves out 0: over runs by a
paired t test, which says what training again would give, and over devices by a paired bootstrap,
which says what others like them would see; of one pair, it tells two models apart, not two methods.
"Holm" is p after Holm's correction for the number of methods. The LaTeX table is over runs where
two or more are paired, else over devices; --csv has every number. What each of them means:
docs/how-to/p-values-and-latex.md.
exit codes: 0 success, 2 invalid request.
"""


_FLAGS: Final = {
    "--percentile": ("P", "of the test error over devices (90)", within("[0, 100]", float)),
    "--level": ("L", "coverage of the intervals (0.95)", within("(0, 1)", float)),
    "--csv": ("FILE", "write every number here (replaces an earlier table, and no other)", Path),
    "--latex": ("FILE", "write a LaTeX table of five columns here (likewise)", Path),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_runs(parser)
    add_flags(parser, _FLAGS)
    parser.add_argument(
        "--mean", action="store_true", help="compare the mean of the test error over devices"
    )
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """Compare and print; the exit code.

    Raises:
        UserError: the runs cannot be compared, or a file of a run would be replaced.
    """
    from deltafl.fl.registry import ERROR
    from deltafl.sim.compare.runs import compare_in_pairs, differing, left_out, read_methods
    from deltafl.sim.record.own_files import write_file
    from deltafl.sim.reproduce.comparison import comparison_table, paper_table
    from deltafl.sim.reproduce.output import as_csv, as_json_lines, as_latex, laid_out

    _check_outputs(options)
    methods = read_methods(list(dict.fromkeys(options.runs)))
    baseline = _baseline(methods, options.baseline)
    tail = 90.0 if options.percentile is None else options.percentile
    percentile, level = None if options.mean else tail, options.level or 0.95
    try:
        compared, means = (
            compare_in_pairs(methods, baseline, percentile=one, level=level)
            for one in (percentile, None)
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    metric = _metric(methods)
    what = _MEAN if percentile is None else f"percentile {percentile:g}"
    measured = "test error" if metric == ERROR else f"test {metric}"
    statistic = f"{what} of the {measured} over devices"
    title = (
        f"{statistic[:1].upper()}{statistic[1:]}; a difference is a method less {baseline.label}"
    )
    how: Any = {"level": level, "is_share": metric == ERROR}
    table = comparison_table("compare", title, compared, statistic=statistic, **how)
    also = () if percentile is None else means
    name = what.replace("percentile ", "p")
    short = paper_table(title, compared, also, statistic=name, **how)
    for method in methods:
        for run in method.runs.values():
            last, wanted = run.evaluation.round, run.config.federation.rounds
            if last < wanted:
                say(
                    f"deltafl: note: {run.path} stopped before round {wanted}: compared is its "
                    f"model of round {last}"
                )
        if unpaired := left_out(method, baseline):
            say(f"deltafl: note: {method.label}: {unpaired} have no pair and do not count")
        if others := differing(method, baseline):
            say(f"deltafl: note: {method.label} has {'; '.join(others)} of {baseline.label}")
    if any(one.pairs == 1 for one in compared):
        say(
            "deltafl: note: of one pair of runs, p over devices tells two models apart, not two "
            "methods: two runs of one method often differ by as much; train several seeds "
            "(experiment.num_seeds)"
        )
    if options.json:
        print(as_json_lines(table), end="")
    else:
        print(visible(laid_out(table)))
    for file, text in ((options.csv, as_csv(table)), (options.latex, as_latex(short))):
        if file is not None:
            write_file(file, text.encode())
            say(f"deltafl: {file} is written")
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    from deltafl.sim.record.rundir import check_output

    if options.csv is not None and options.csv == options.latex:
        raise UserError(f"--csv and --latex are both {options.csv}: name two files")
    for output, begins in ((options.csv, _CSV_BEGINS), (options.latex, _LATEX_BEGINS)):
        if output is not None:
            check_output(output)
            if output.exists() and not _is_table(output, begins):
                raise UserError(
                    f"{output} exists and is no table of `deltafl compare`: choose another file to "
                    "write to, or remove it"
                )


def _is_table(file: Path, begins: bytes) -> bool:
    """Whether a file may be replaced, since a call like this one has written it."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return re.match(begins, opened.read(_HEAD)) is not None


def _metric(methods: "Sequence[Method]") -> str:
    """What was measured of all methods."""
    metrics = sorted({method.config.training.metric for method in methods})
    if len(metrics) > 1:
        raise UserError(
            f"training.metric is {' and '.join(map(repr, metrics))}: compare runs of one metric"
        )
    return metrics[0]


def _baseline(methods: "Sequence[Method]", wanted: str | None) -> "Method":
    from deltafl.fl.nearest import nearest
    from deltafl.sim.record.labels import usual_baseline

    if len(methods) < 2:
        raise UserError(
            f"there is one method only, {methods[0].label}: name another run, or run it with "
            "baselines (experiment.baselines)"
        )
    known = {method.label: method for method in methods}
    if wanted is None:
        algorithms = [method.config.federation.algorithm for method in methods]
        return methods[usual_baseline(algorithms)]
    if wanted not in known:
        raise UserError(f"--baseline: there is no {wanted!r}: {nearest(wanted, list(known))}")
    return known[wanted]
