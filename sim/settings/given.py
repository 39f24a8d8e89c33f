"""Settings that are given on a command line: a preset, a file, single settings, a data set."""

import argparse
from pathlib import Path

from deltafl.sim.settings.config_io import (
    Table,
    assignment,
    preset_names,
    preset_text,
    read_config_file,
    read_table,
)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that give settings."""
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="settings in TOML")
    parser.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(preset_names())}")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="assignments",
        help="change one setting; may be repeated",
    )
    parser.add_argument(
        "--data", metavar="PATH", help="an .npz file, a folder of LEAF JSON files, or 'digits'"
    )


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
    """What `--data` gives.

    The path of a file is made absolute, so that config.toml reproduces the run from any directory.
    Anything else is the name of a synthetic data set or of a data set on the hub.
    """
    if options.data is None:
        return []
    path = Path(options.data)
    is_file = options.data != "digits" and path.exists()
    return [{"data": {"source": str(path.resolve()) if is_file else options.data}}]
