"""`deltafl completion`: a script that makes a shell complete commands, flags, names and files.

The script is static: it knows all arguments of all commands, and starts no Python when a key is
pressed. Nothing of this is loaded by other commands.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import shtab

from deltafl.sim.cli import TOOLS, commands

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")

_EPILOG: Final = """\
examples:
  deltafl completion bash > ~/.local/share/bash-completion/completions/deltafl
      for every new bash, where the package bash-completion is installed
  deltafl completion zsh > ~/.zfunc/_deltafl
      for zsh, with fpath+=~/.zfunc before compinit in ~/.zshrc
  deltafl completion fish > ~/.config/fish/completions/deltafl.fish
      for every new fish
  source <(deltafl completion bash)
      for this shell only

Make it again after an update: it knows the commands and flags of this version.
"""

_FILES: Final = {"FILE", "PATH", "NAME=PATH", "CONFIG.toml", "RUN_OR_TRANSCRIPT", "BUNDLE"}
_FOLDERS: Final = {"DIR", "FOLDER"}
_WORDS: Final = re.compile(r"[a-z]+(?:\|[a-z]+)+")  # such as masked|ideal
_ALSO_FILES: Final = {"bash": "_shtab_deltafl_audit_pos_0_COMPGEN=_shtab_compgen_files"}
"""`deltafl audit` is followed by a run, or by a word; shtab offers only words there."""

_ALSO_FILES_OF_FISH: Final = (
    "complete -c deltafl "
    "-n '_shtab_deltafl_using audit; and test $_shtab_deltafl_npos -eq 0' "
    "-ka '(__fish_complete_path (commandline -ct))' -d 'a run directory or record.sqlite'\n"
)
"""The same for fish, behind the script, which begins by forgetting everything."""

_ZSH_WORD: Final = "  _describe 'deltafl audit commands' _commands\n"
_ZSH_AFTER: Final = "        leakage) _arguments -C -s $_shtab_deltafl_audit_leakage_options ;;\n"
_ALSO_FILES_OF_ZSH: Final = {
    _ZSH_WORD: f"{_ZSH_WORD}  _files\n",
    # what follows a run are the options of `audit` itself; its words are no options
    _ZSH_AFTER: f"{_ZSH_AFTER}        *) _arguments -C -s "
    "${_shtab_deltafl_audit_options:#(:|\\*:::)*} ;;\n",
}
"""The same for zsh, as lines in place of others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Print a script for a shell, with which the Tab key completes commands, flags, names and "
        "files."
    )
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def main(options: argparse.Namespace) -> int:
    """Print the script; the exit code."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The script for a shell, one of `SHELLS`."""
    parser = commands(whole=True)
    names = _names()
    for words, one in _parsers(parser, ()):
        for action in one._actions:
            _complete(action, names.get((*words, action.dest), lambda: ()))
    if shell in ("zsh", "fish"):
        _drop_beside_words(parser)
    text = str(shtab.complete(parser, shell, preamble=_ALSO_FILES.get(shell, "")))
    for line, instead in _ALSO_FILES_OF_ZSH.items() if shell == "zsh" else ():
        text = text.replace(line, instead)
    return text + _ALSO_FILES_OF_FISH if shell == "fish" else text


def _drop_beside_words(parser: argparse.ArgumentParser) -> None:
    """Leave out arguments beside words that may follow: these shells would expect them first."""
    for _, one in list(_parsers(parser, ())):
        if any(isinstance(action, argparse._SubParsersAction) for action in one._actions):
            one._actions[:] = [
                action
                for action in one._actions
                if action.option_strings or isinstance(action, argparse._SubParsersAction)
            ]


def _parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """A command's parser and those of the words that may follow, each with the words before it."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, nested in action.choices.items():
                yield from _parsers(nested, (*words, name))


def _complete(action: argparse.Action, names: Callable[[], Iterable[str]]) -> None:
    """Tell shtab what an argument may be."""
    given: Any = action  # shtab looks for `complete`, which argparse does not know
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        return
    if known := list(names()):
        action.choices = known
    elif metavar in _FILES:
        given.complete = shtab.FILE
    elif metavar in _FOLDERS:
        given.complete = shtab.DIRECTORY
    elif _WORDS.fullmatch(metavar):
        action.choices = metavar.split("|")


def _names() -> Mapping[tuple[str, ...], Callable[[], Iterable[str]]]:
    """What is known by name, by command and argument; loaded for the script alone."""
    from deltafl.fl.data.registry import FORMATS
    from deltafl.sim.inspect.attacks.catalogue import ATTACKS
    from deltafl.sim.reproduce.catalogue import NAMED
    from deltafl.sim.settings.config import BACKENDS, Search
    from deltafl.sim.settings.config_io import preset_names

    known: dict[tuple[str, ...], Callable[[], Iterable[str]]] = {
        (*words, "preset"): preset_names for words in TOOLS
    }
    fetched = [name for name, kind in FORMATS.items() if kind.downloads]
    return known | {
        ("run", "backend"): lambda: BACKENDS,
        ("run", "search"): lambda: tuple(Search),
        ("run", "transcript"): lambda: ("full", "headers", "every="),
        ("presets", "name"): preset_names,
        ("attack", "target"): lambda: ("list", "all", *(attack.name for attack in ATTACKS)),
        ("reproduce", "target"): lambda: ("list", "all", *NAMED),
        ("data", "describe", "name"): lambda: FORMATS,
        ("data", "convert", "name"): lambda: FORMATS,
        ("data", "fetch", "name"): lambda: (*fetched, "glove"),
    }
