"""`deltafl presets`: list the presets, or show one, or the settings of a run."""

import argparse
import json
from pathlib import Path

from deltafl.sim.flags import add_json
from deltafl.sim.record.rundir import settings_in
from deltafl.sim.settings.config_io import preset_names, preset_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "List the presets: settings that come with the package. With a name, print that preset, "
        "which also says where to get its data; with a run directory, the settings of the run."
    )
    parser.epilog = "A preset is run with: deltafl run --preset NAME"
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="print this preset, or this run's settings"
    )
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """List or print; the exit code.

    Raises:
        ConfigError: there is no such preset.
    """
    if options.name is not None:
        is_run = Path(options.name).exists() and options.name not in preset_names()
        text = settings_in(Path(options.name)) if is_run else preset_text(options.name)
        print(json.dumps({"name": options.name, "toml": text}) if options.json else text, end="")
        return 0
    titles = {name: _title(name) for name in preset_names()}
    if options.json:
        print(json.dumps([{"name": n, "title": t} for n, t in titles.items()], indent=2))
        return 0
    width = max(map(len, titles))
    for name, title in titles.items():
        print(f"{name:<{width}}  {title}")
    return 0


def _title(name: str) -> str:
    """The first line of a preset, which says what it is."""
    return preset_text(name).partition("\n")[0].removeprefix("#").strip()
