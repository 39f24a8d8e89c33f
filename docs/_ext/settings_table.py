"""The directives `settings`, a section as its class has it, and `rules`, what excludes what."""

import inspect
import json
import re
from dataclasses import MISSING, Field, fields
from enum import Enum
from fractions import Fraction
from typing import get_args, get_type_hints

from docstrings import plain
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from deltafl.sim.settings import config, rules

_ENTRY = re.compile(r"^    (\w+): ((?:.*\n?)(?:^        .*\n?)*)", re.MULTILINE)


def meanings(section: type) -> dict[str, str]:
    """What the docstring of a section says of each setting."""
    said = (inspect.getdoc(section) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in _ENTRY.findall(said)}


def default(setting: Field) -> str:
    """The default of a setting, as in a settings file."""
    value = setting.default_factory() if setting.default is MISSING else setting.default
    if isinstance(value, Enum):
        value = value.value
    return json.dumps(str(value) if isinstance(value, Fraction) else value, ensure_ascii=False)


def described(section: type) -> list[str]:
    """A section in reStructuredText: what it is, and each setting with its default and range.

    Raises:
        KeyError: the docstring of the class does not describe a setting.
    """
    said, hints = meanings(section), get_type_hints(section, include_extras=True)
    lines = [*(inspect.getdoc(section) or "").partition("\n\nAttributes:")[0].splitlines(), ""]
    for one in fields(section):
        hint = hints[one.name]
        if type(None) in get_args(hint):  # it may be left out
            hint = get_args(hint)[0]
        constraints = getattr(hint, "__metadata__", ())
        limits = [f"Must {constraint.requirement()}." for constraint in constraints]
        text = said[one.name]

        first = text.partition(" ")[0]
        text = text[0].upper() + text[1:] if first.isalpha() else text
        name = one.name if one.default is None else f"{one.name} = {default(one)}"
        lines += [f"``{name}``", f"   {' '.join([text, *limits])}", ""]
    return [plain(line) for line in lines]


class Settings(Directive):
    """`.. settings:: DataConfig`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The section, as a list of definitions."""
        holder = nodes.container(classes=["settings"])
        lines = described(getattr(config, self.arguments[0]))
        self.state.nested_parse(StringList(lines, "settings"), 0, holder)
        return [holder]


def rules_table() -> list[str]:
    """All rules in reStructuredText: a definition for each condition, with what it demands."""
    lines: list[str] = []
    for when, must, because in rules.RULES:
        heading = " and ".join(f"``{' '.join(one)}``" for one in when) or "Always"
        if heading not in lines:
            lines += ["", heading]
        lines += [f"   | ``{' '.join(must)}``: {because}"]
    return lines


class Rules(Directive):
    """`.. rules::`."""

    def run(self) -> list[nodes.Node]:
        """The table, as a list of definitions."""
        holder = nodes.container(classes=["settings"])
        self.state.nested_parse(StringList(rules_table(), "rules"), 0, holder)
        return [holder]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("settings", Settings)
    app.add_directive("rules", Rules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
