"""What `deltafl.secagg` promises to its users, as text.

    python tests/structure/public_names.py > tests/structure/secagg_names.txt

docs/secagg.md says what a change of this list means.
"""

import enum
import inspect
import re
from collections.abc import Iterator

import deltafl.secagg
import deltafl.secagg.identity

IDENTITIES = ("fingerprint", "generate", "identity", "verify")
"""Functions of `deltafl.secagg.identity` that are public too."""


def public_names() -> str:
    """Every public name with its arguments, members and attributes; a line each."""
    lines = []
    for name in deltafl.secagg.__all__:
        lines += describe(name, getattr(deltafl.secagg, name))
    for name in IDENTITIES:
        lines += describe(f"identity.{name}", getattr(deltafl.secagg.identity, name))
    return "".join(f"{line}\n" for line in lines)


def describe(name: str, value: object) -> Iterator[str]:
    """The lines of one name."""
    if not inspect.isclass(value):
        yield f"{name}{arguments(value) if inspect.isfunction(value) else ''}"
    elif issubclass(value, enum.Enum):
        yield name
        for member in value:
            yield f"{name}.{member.name} = {member.value}"
    else:
        bases = [base.__name__ for base in value.__mro__[1:] if is_told(base)]
        is_made = inspect.isfunction(value.__init__) and not getattr(value, "_is_protocol", False)
        made = arguments(value) if is_made else ""
        yield f"{name}{made}{': ' if bases else ''}{', '.join(bases)}"
        held = {one: vars(value)[one] for one in vars(value) if not one.startswith("_")}
        for attribute in sorted({*held, *documented(value)}):
            yield f"{name}.{attribute}{of_attribute(held.get(attribute))}"


def is_told(base: type) -> bool:
    """Whether somebody may rely on a class being derived from this one."""
    return base is ValueError or base.__module__.startswith("deltafl.")


def documented(value: type) -> list[str]:
    """Attributes that the docstring names; those of a machine are set when it is made."""
    _, _, section = inspect.getdoc(value).partition("\nAttributes:\n")
    return re.findall(r"^    (\w+): ", section.partition("\n\n")[0], re.MULTILINE)


def of_attribute(attribute: object) -> str:
    """The arguments of a method; nothing for a field or a property."""
    if isinstance(attribute, classmethod | staticmethod):
        attribute = attribute.__func__
    return arguments(attribute) if inspect.isfunction(attribute) else ""


def arguments(function: object) -> str:
    """The names of arguments, which of them are optional, and which are given by name only."""
    parts, keyword = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name.startswith("_") or parameter.name in ("self", "cls"):
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword:
            parts.append("*")
            keyword = True
        optional = "" if parameter.default is inspect.Parameter.empty else "=…"
        parts.append(f"{parameter.name}{optional}")
    return f"({', '.join(parts)})"


if __name__ == "__main__":
    print(public_names(), end="")
