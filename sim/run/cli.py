"""`deltafl run`: train, evaluate and compare.

Nothing heavy is loaded before the settings are in order, so that help and refusals are instant.
"""

import argparse
import contextlib
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deltafl.sim.errors import RunError, UserError, damaged
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.record.rundir import RunDirectory, settings_in
from deltafl.sim.run.table import describe
from deltafl.sim.settings.config import (
    ALGORITHMS,
    MODELS,
    RunConfig,
)
from deltafl.sim.settings.config_io import Table, read_table
from deltafl.sim.settings.given import (
    RUN_FLAGS,
    add_run_flags,
    add_settings,
    config_of,
    is_of_own_data,
    quickstart,
    source_of,
    with_digests,
)
from deltafl.sim.visible import visible

_EXAMPLES: Final = """\
examples:
  deltafl run --preset quickstart
      train on the embedded digits, privately and by FedAvg, and compare (minutes)
  deltafl run --preset unipen62-linear --data data/unipen62.npz --out runs/third
      a preset on your own data: an .npz file, or a folder of LEAF JSON files
  deltafl run my.toml --set federation.theta=1/3 --rounds 50
      your own settings, two changed; `deltafl presets RUN` prints those of a run
  deltafl run --preset quickstart --transcript full --truth --out runs/audited
      record all that an audit can use; then: deltafl audit runs/audited \\
      --truth runs/audited/truth.sqlite
  deltafl run --out runs/third --resume
      continue an interrupted run; of a finished run, print the result again. A
      round with masked sums that was interrupted is lost: no device answers twice
  deltafl run --out runs/third --resume --rounds 500
      make it longer: bit for bit the run that was begun with 500 rounds

settings: defaults < --preset < CONFIG.toml < --set < the flags (later ones win);
with neither --preset nor CONFIG.toml, the quickstart's, or with data of your own
the defaults: 100 rounds of 20 devices, private Δ-FL at θ = 0.5, one seed;
every one is explained in docs/data-and-results.md and sim/settings/config.py.
θ (federation.theta) is the share of the devices, by weight, that training
keeps: those with the largest losses. 1 is FedAvg; a smaller θ favours the
worst-off devices more.
algorithms (--set federation.algorithm=NAME):
{algorithms}
models (--set model.name=NAME):
{models}
exit codes: 0 success, 1 the run failed, 2 invalid request, 130 interrupted.
"""


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return textwrap.fill(
        text, 76, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = "Simulate federated training; write the results to a run directory."
    parser.epilog = _EXAMPLES.format(algorithms=_listed(ALGORITHMS), models=_listed(MODELS))
    parser.usage = "deltafl run [CONFIG.toml] [--preset NAME] [--out DIR] [more flags]"
    add_settings(parser)

    add_run_flags(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", metavar="DIR", help="run directory (default: in runs/, of its name)"
    )
    output.add_argument(
        "--resume", action="store_true", help="continue the run in DIR, or make it longer"
    )
    output.add_argument("--no-plots", action="store_true", help="draw no figures")
    output.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write event files for TensorBoard",
    )
    add_json(output)
    add_quiet(output)


def main(options: argparse.Namespace) -> int:
    """Run; the exit code.

    Raises:
        UserError: the request cannot be carried out.
        DataError: the data cannot be used.
    """
    out = _out(options)
    try:
        return _run(options, _config(options, out), out)
    except KeyboardInterrupt:
        if not RunDirectory(out).record.exists():
            return _fail(130, "interrupted before anything was written")
        again = f"{called()} run --out {shlex.quote(str(out))} --resume"
        return _fail(130, f"interrupted; finished rounds are kept; continue with `{again}`")


def _run(options: argparse.Namespace, config: RunConfig, out: Path) -> int:
    if finished := RunDirectory(out).finished(config, resume=options.resume):
        try:
            return _show(finished, out, as_json=options.json)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise damaged(RunDirectory(out).record, "it is not what a run writes") from error
    from deltafl.fl.errors import DivergenceError
    from deltafl.protocol.errors import ProtocolError
    from deltafl.secagg.errors import SecAggError
    from deltafl.sim.run.experiment import run_experiment
    from deltafl.sim.run.progress import ProgressBars, Several
    from deltafl.sim.run.tensorboard import TensorBoard

    try:
        with contextlib.ExitStack() as stack:
            told = [ProgressBars(), *([TensorBoard(out)] if options.tensorboard else ())]
            for one in told:
                stack.enter_context(contextlib.closing(one))
            summary = run_experiment(
                config,
                out,
                resume=options.resume,
                progress=Several(told),
                warn=_warn,
                notes=_origin(options, out),
                plots=not options.no_plots,
            )
    except (RunError, DivergenceError, ProtocolError, SecAggError, OSError) as error:
        return _fail(1, f"the run failed: {error}; finished rounds are kept in {out}")
    return _show(summary, out, as_json=options.json)


def _origin(options: argparse.Namespace, out: Path) -> Sequence[str]:
    """Where settings come from that nobody has named, if there are any."""
    record = RunDirectory(out).record
    if record.exists() or not is_of_own_data(options):
        return ()
    return (
        "neither --preset nor CONFIG.toml is given: settings that are not given have their "
        f"defaults, with one seed and no baseline; `deltafl presets {out}` prints them",
    )


def _show(summary: Mapping[str, object], out: Path, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    print(visible(describe(summary)))
    plots = "plots/, " if (out / "plots").exists() else ""
    print(f"\nResults are in {out}: {plots}record.sqlite.")
    if summary.get("baseline"):
        print(f"To see what is more than chance: {called()} compare {shlex.quote(str(out))}")
    if summary.get("sums") == "masked":
        print(f"To see what the server saw: {called()} audit {shlex.quote(str(out))}")
    return 0


def called() -> str:
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
    if is_of_own_data(options):
        name = Path(source_of(options)).name
        return Path("runs") / (name.partition(".")[0] or "data")
    return Path("runs") / (options.preset or "quickstart")


def _config(options: argparse.Namespace, out: Path) -> RunConfig:
    is_new = options.preset is None and options.config is None
    if options.config is not None and _is_of_run(Path(options.config)):
        again, options.config = Path(options.config), None
        return with_digests(config_of(options, otherwise=(_table(again),), flags=RUN_FLAGS))
    otherwise = () if is_of_own_data(options) else (quickstart(),)
    if is_new and options.resume and RunDirectory(out).is_run:
        otherwise = (_table(out),)
    elif is_new and options.resume and not _names_settings(options):
        raise UserError(
            f"{out}: there is no run to continue: check --out; to start a new run, or continue "
            "it if it exists, also give its settings, as in --preset quickstart --resume"
        )
    return with_digests(config_of(options, otherwise=otherwise, flags=RUN_FLAGS))


def _is_of_run(path: Path) -> bool:
    """Whether settings are those of a run: of a directory, or the record in it."""
    return path.is_dir() or path.suffix == RunDirectory(path).record.suffix


def _table(path: Path) -> Table:
    return read_table(settings_in(path), f"the settings of {path}")


def _names_settings(options: argparse.Namespace) -> bool:
    """Whether any flag gives a setting."""
    flags = (getattr(options, flag) for flag in RUN_FLAGS)
    return bool(options.assignments) or any(value is not None for value in (options.data, *flags))


def _warn(sentence: str) -> None:
    print(f"deltafl: note: {visible(sentence)}", file=sys.stderr)


def _fail(code: int, sentence: str) -> int:
    print(f"deltafl: {visible(sentence)}", file=sys.stderr)
    return code
