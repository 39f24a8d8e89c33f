"""Settings that are given on a command line: a preset, a file, single settings, a data set."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.parser import Parser
from deltafl.sim.settings.config import BACKENDS, FORMATS, RunConfig, Search, Sums
from deltafl.sim.settings.config_io import (
    Table,
    assignment,
    build_config,
    flatten,
    preset_text,
    read_config_file,
    read_table,
)
from deltafl.sim.settings.constraints import Interval

DIGITS: Final = "digits"
"""The data of the quickstart, which come with scikit-learn."""


_TRAINING: Final = {
    "rounds": ("federation.rounds", "N", "number of rounds"),
    "seed": ("experiment.seed", "S", "first seed"),
    "dropout": ("faults.dropout", "P", "probability that a device drops out in a round"),
    "backend": ("training.backend", "NAME", f"one of {', '.join(BACKENDS)}"),
    "workers": ("training.workers", "N", "of processes (default: one per core)"),
    "device": ("training.device", "auto|cpu|cuda", "where to train"),
}
_PRIVACY: Final = {
    "sums": (
        "privacy.sums",
        "|".join(Sums),
        "secure sums with cryptography, or without (faster)",
    ),
    "search": (
        "quantile.search",
        "KIND",
        f"whether devices check the search: {', '.join(Search)}",
    ),
    "transcript": (
        "privacy.transcript",
        "KIND",
        "messages that are recorded: full, sums, auto",
    ),
}
RUN_FLAGS: Final = {
    **{flag: setting for flag, (setting, *_) in (_TRAINING | _PRIVACY).items()},
    "truth": "privacy.truth",
}
"""The flags of `deltafl run` and `deltafl plan` that give a setting, and which."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that give settings."""
    if isinstance(parser, Parser):
        parser.elsewhere = settings_by_flag
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="settings in TOML")
    parser.add_argument(
        "--preset", metavar="NAME", help="settings of this name (list them: deltafl presets)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="assignments",
        help="change one setting; may be repeated",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="a file, a folder or 'digits' (formats: deltafl data list); NAME=PATH names the "
        "format",
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Declare `RUN_FLAGS`."""
    training = parser.add_argument_group("training")
    privacy = parser.add_argument_group("privacy")
    for group, rows in ((training, _TRAINING), (privacy, _PRIVACY)):
        add_flags(
            group, {f"--{flag}": (metavar, told, str) for flag, (_, metavar, told) in rows.items()}
        )
    privacy.add_argument(
        "--truth",
        action="store_const",
        const="true",
        help="also write devices' private values, for audits",
    )


def settings_by_flag() -> Mapping[str, str]:
    """The flags that somebody could take for those of settings, and what sets them.

    >>> settings_by_flag()["--theta"], settings_by_flag()["--federation.theta"]
    ('--set federation.theta=…', '--set federation.theta=…')
    """
    known: dict[str, str] = {}
    for setting in flatten(RunConfig()):
        key, assigned = setting.partition(".")[2], f"--set {setting}=…"
        known[f"--{setting}"] = assigned
        for flag in {f"--{key}", f"--{key.replace('_', '-')}"}:
            known[flag] = f"{known[flag]} or {assigned}" if flag in known else assigned
    return known


def add_flags(
    parser: argparse._ActionsContainer, rows: Mapping[str, tuple[str, str, object]]
) -> None:
    """Declare flags that take a value.

    Args:
        parser: of the command.
        rows: by the flag, how its value is called in help, what it is, and its default; in place of
            a default, the type of a value that need not be given.
    """
    for flag, (metavar, told, usual) in rows.items():
        if isinstance(usual, type):
            parser.add_argument(flag, metavar=metavar, type=usual, help=told)
            continue
        shown = f"{usual:g}" if isinstance(usual, float) else usual
        kind, told = type(usual), f"{told} ({shown})"
        parser.add_argument(flag, metavar=metavar, type=kind, default=usual, help=told)


def quickstart() -> Table:
    """The settings of the quickstart."""
    return read_table(preset_text("quickstart"), "preset quickstart")


def config_of(
    options: argparse.Namespace,
    *,
    usual: Sequence[Table] = (),
    otherwise: Sequence[Table] = (),
    flags: Mapping[str, str] = MappingProxyType({}),
    always: Sequence[Table] = (),
) -> RunConfig:
    """The settings that are given: preset, file, `--set`, flags and `--data`, later ones winning.

    Args:
        options: of the command line.
        usual: what settings are by default, over which all that is given wins.
        otherwise: settings to begin with where there is neither preset nor file.
        flags: the setting that an option of this name gives.
        always: settings that win over all.

    Raises:
        ConfigError: there is no such preset or data set, or something is not in order.
    """
    layers: list[Table] = []
    if options.preset is not None:
        layers.append(read_table(preset_text(options.preset), f"preset {options.preset}"))
    if options.config is not None:
        layers.append(read_config_file(Path(options.config)))
    given = {key: getattr(options, flag) for flag, key in flags.items()}
    return build_config(
        [
            *usual,
            *(layers or otherwise),
            *map(assignment, options.assignments),
            *(assignment(f"{key}={value}") for key, value in given.items() if value is not None),
            *_data_of(options),
            *always,
        ]
    )


def _data_of(options: argparse.Namespace) -> list[Table]:
    """What `--data` gives: a path, or a name, or both as NAME=PATH.

    The path of a file is made absolute, so that its settings reproduce a run from any directory.
    Anything else is the name of a synthetic data set or of a data set on the hub.

    Raises:
        ConfigError: there is no data set NAME.
    """
    if options.data is None:
        return []
    name, equals, rest = options.data.partition("=")
    if equals and not Path(options.data).exists():
        if name not in FORMATS:
            raise ConfigError(
                f"--data {options.data}: there is no data set {name!r}: {nearest(name, FORMATS)}"
            )
        if not rest:
            raise ConfigError(f"--data {options.data}: must have the form {name}=PATH")
        return [{"data": {"format": name, "source": str(Path(rest).resolve())}}]
    path = Path(options.data)
    is_file = options.data != "digits" and path.exists()
    return [{"data": {"source": str(path.resolve()) if is_file else options.data}}]


def source_of(options: argparse.Namespace) -> str:
    """Which data a flag names; those of the quickstart if none does."""
    layers = [*map(assignment, options.assignments), *_data_of(options)]
    named = [layer["data"]["source"] for layer in layers if "source" in layer.get("data", {})]
    return str(named[-1]) if named else DIGITS


def is_of_own_data(options: argparse.Namespace) -> bool:
    """Whether only flags give settings, and name other data than the quickstart is tuned for."""
    return options.preset is None and options.config is None and source_of(options) != DIGITS


def with_digests(config: RunConfig) -> RunConfig:
    """The same, with the digests of the code that it names.

    Raises:
        ConfigError: it is not installed.
    """
    return replace(config, own=replace(config.own, digests=config.own.found()))


def within(interval: str, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """A type for `argparse`: numbers of an interval, in mathematical notation.

    >>> within("[1, 9]")("7"), within("[0, 1)", float)("0.25")
    (7, 0.25)

    Args:
        interval: where they lie.
        kind: `int` for whole numbers, or `float`.
    """
    expected, what = Interval(interval), "a whole number" if kind is int else "a number"

    def convert(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not expected.holds(number):
            raise argparse.ArgumentTypeError(
                f"{text[:40]} must be {what}, and {expected.requirement()}"
            )
        return number

    return convert


def address(text: str, flag: str) -> tuple[str, int]:
    """A host and a port.

    Args:
        text: both, as in 127.0.0.1:8443 or [::1]:8443.
        flag: by which it was given.

    Raises:
        UserError: it is no host and port.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{flag} {text}: must be HOST:PORT, such as 127.0.0.1:8443")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """A host and a port, as in an address of the web.

    >>> joined("::1", 8443)
    '[::1]:8443'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
