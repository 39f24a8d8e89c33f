"""The parser of every command: errors of one sentence that say what was probably meant."""

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, overload

from deltafl.fl.nearest import alike, meant, nearest
from deltafl.sim.visible import say, visible

_EXPLAINED: Final = "      "  # in front of what an example does
_ITEM: Final = re.compile(r"[a-zA-Z][a-z ]{0,20}: ")  # such as the exit codes
_SHOWN: Final = 100  # characters of an argument in a message

_Options = TypeVar("_Options")


class Parser(argparse.ArgumentParser):
    """Reads the arguments of a command.

    A usage error is one sentence, with exit code 2, and no usage in front of it. An unknown flag or
    choice is answered with the one that was probably meant. Of a flag that is given twice the last
    counts, as everywhere, and a note says so. Flags are not abbreviated.

    Attributes:
        elsewhere: gives the flags that this command lacks and what does the same, for the error.
    """

    elsewhere: Callable[[], Mapping[str, str]]

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 (argparse's)
        arguments.setdefault("allow_abbrev", False)
        arguments.setdefault("formatter_class", _Help)
        super().__init__(**arguments)
        self.register("action", None, _Store)
        self.elsewhere = dict

    def error(self, message: str) -> NoReturn:
        """Say in a sentence what is wrong, and exit with 2."""
        end = " See" if message.endswith("?") else "; see"
        self.exit(2, f"{self.prog}: {visible(message)}{end} {self.prog} --help\n")

    @overload  # type: ignore[override]
    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> tuple[argparse.Namespace, list[str]]: ...
    @overload
    def parse_known_args(
        self, args: Sequence[str] | None, namespace: _Options
    ) -> tuple[_Options, list[str]]: ...
    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; here and not at the end, so that of nested parsers the one that is asked answers.

        Returns:
            The options, and an empty list: whatever is unknown is an error.
        """
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._about(unknown[0]))
        return options, unknown

    def _about(self, unknown: str) -> str:
        if not unknown.startswith("-"):
            return f"unexpected argument {unknown[:_SHOWN]!r}"
        flag = unknown.partition("=")[0][:_SHOWN]
        actions = self._option_string_actions.items()
        known = [name for name, action in actions if action.help != argparse.SUPPRESS]
        instead = self.elsewhere()
        if near := alike(flag, [*known, *instead]):
            hint = f"did you mean {near[0]}?" if near[0] in known else f"use {instead[near[0]]}"
            return f"there is no flag {flag}; {hint}"
        return f"there is no flag {flag}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        if action.choices is None or value in action.choices:
            return
        known = list(map(str, action.choices))
        shown = str(value)[:_SHOWN]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no {action.metavar} {shown!r}: {nearest(shown, known)}")
        what = f"{shown!r} is none of {', '.join(known)}{meant(shown, known)}"
        raise argparse.ArgumentError(action, what)


class _Store(argparse.Action):
    """Keeps the last of the values that are given, as argparse does; says so if they differ."""

    _given: object = None

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401
        option_string: str | None = None,
    ) -> None:
        if option_string is not None:
            if self._given is not None and self._given != values:
                told = f"{option_string} is given twice: {values} counts, and not {self._given}"
                say(f"deltafl: note: {told}")
            self._given = values
        setattr(namespace, self.dest, values)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps texts as they are written, unless the terminal is narrower.

    Then prose is filled anew: what is not indented, and the explanations of examples. Commands and
    tables stay as they are.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for chunk in _chunks(text.strip("\n").splitlines()):
            lead = chunk[0][: len(chunk[0]) - len(chunk[0].lstrip())]
            if max(map(len, chunk)) <= width or lead not in ("", _EXPLAINED):
                lines += chunk
            else:
                words = " ".join(line.strip() for line in chunk)
                lines += textwrap.wrap(
                    words,
                    width,
                    initial_indent=lead,
                    subsequent_indent=lead,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        return "\n".join(indent + line for line in lines)


def _chunks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Lines that may be filled together: of one paragraph, one indentation, one item."""
    chunk: list[str] = []
    for line in lines:
        before = chunk[-1] if chunk else ""
        lead = len(line) - len(line.lstrip())
        same = bool(before.strip() and line.strip()) and len(before) - len(before.lstrip()) == lead
        if chunk and not (same and not _ITEM.match(line)):
            yield chunk
            chunk = []
        chunk.append(line)
    if chunk:
        yield chunk
