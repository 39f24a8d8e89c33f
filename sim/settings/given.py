"""Settings that are given on a command line: a preset, a file, single settings, a data set."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError
from deltafl.sim.parser import Parser
from deltafl.sim.settings.config import FORMATS, RunConfig
from deltafl.sim.settings.config_io import (
    Table,
    assignment,
    flatten,
    preset_text,
    read_config_file,
    read_table,
)

DIGITS: Final = "digits"
"""The data of the quickstart, which come with scikit-learn."""


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


def files_of(options: argparse.Namespace) -> list[Table]:
    """The preset and the file, if they are given; later ones win.

    Raises:
        ConfigError: there is no such preset, or the file is not in order.
    """
    layers: list[Table] = []
    if options.preset is not None:
        layers.append(read_table(preset_text(options.preset), f"preset {options.preset}"))
    if options.config is not None:
        layers.append(read_config_file(Path(options.config)))
    return layers


def single_settings_of(options: argparse.Namespace) -> list[Table]:
    """What `--set` gives.

    Raises:
        ConfigError: it is not of the form SECTION.KEY=VALUE.
    """
    return [assignment(text) for text in options.assignments]


def data_of(options: argparse.Namespace) -> list[Table]:
    """What `--data` gives: a path, or a name, or both as NAME=PATH.

    The path of a file is made absolute, so that config.toml reproduces the run from any directory.
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
    layers = [*single_settings_of(options), *data_of(options)]
    named = [layer["data"]["source"] for layer in layers if "source" in layer.get("data", {})]
    return str(named[-1]) if named else DIGITS


def is_of_own_data(options: argparse.Namespace) -> bool:
    """Whether only flags give settings, and name other data than the quickstart is tuned for."""
    return options.preset is None and options.config is None and source_of(options) != DIGITS
