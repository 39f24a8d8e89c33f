"""Turn settings from files and flags into a checked `RunConfig`, and write one to a file.

Layers are tables {section: {key: value}}, merged in this order, later ones winning: defaults,
preset, CONFIG.toml, `--set`, flags. A setting that is unknown, of the wrong type or out of range is
an error that names it. TOML is held to bounds: what its parser would choke on is refused before.
"""

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final, TypeAlias, cast, get_args, get_origin, get_type_hints

from deltafl.fl.nearest import nearest
from deltafl.fl.read.exact import exact_number, shortened
from deltafl.fl.read.regular import read_regular
from deltafl.fl.registry import OWN
from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import PRIVATE, RunConfig
from deltafl.sim.settings.constraints import Constraint, OneOf
from deltafl.sim.settings.idle import idle
from deltafl.sim.settings.rules import broken

Table: TypeAlias = Mapping[str, Mapping[str, object]]

_SECTIONS: Final = {name: hint for name, hint in get_type_hints(RunConfig).items()}
_GONE: Final[Mapping[str, tuple[object, str]]] = {
    "data.cache": (False, "`deltafl data convert` writes an .npz file to read, so leave it out"),
    "policy.max_passes": (1, "updates are summed once, so leave it out"),
    "privacy.signed": (True, "sessions always are, so leave it out"),
    "training.address": ("", "no backend has one, so leave it out"),
}
"""Settings of older files, each with the value at which it means nothing, and why it is refused at
others."""

_NAMED_OWN: Final = {
    "module": ("model", "name", OWN),
    "loss": ("training", "loss", OWN),
    "metric": ("training", "metric", OWN),
    "optimizer": ("training", "optimizer", OWN),
    "strategy": ("federation", "algorithm", PRIVATE + OWN),
}
"""Settings of [own], each with the section and the key of the name that goes with it."""

_PRESETS: Final = Path(__file__).with_name("presets")
_SHOWN: Final = 200  # characters of a value in a message
_LARGEST: Final = 1 << 53  # beyond that, floats skip whole numbers
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_TYPE_NAMES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Fraction: "a number or a fraction such as 1/3",
}


def preset_names() -> tuple[str, ...]:
    """The presets that come with the package, in alphabetical order."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def preset_text(name: str) -> str:
    """The TOML text of a preset.

    Raises:
        ConfigError: there is no such preset.
    """
    if name not in preset_names():
        raise ConfigError(f"there is no preset {name!r}: {nearest(name, preset_names())}")
    return (_PRESETS / f"{name}.toml").read_text(encoding="utf-8")


def read_table(text: str, origin: str) -> Table:
    """Parse TOML text into a table of sections.

    Raises:
        ConfigError: the text is not TOML, or has a key outside of a section.
    """
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}") from error
    for name, section in document.items():
        if name not in _SECTIONS:
            raise ConfigError(
                f"{origin}: unknown section [{name[:_SHOWN]}]: {nearest(name, _SECTIONS)}"
            )
        if not isinstance(section, dict):
            raise ConfigError(f"{origin}: {name} = {show(section)}: must be a section, [{name}]")
    return cast("Table", document)


def read_config_file(path: Path) -> Table:
    """Read a TOML file into a table of sections.

    Raises:
        ConfigError: the file cannot be read, or is not a configuration.
    """
    try:
        # an editor may have put a byte order mark in front
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the configuration {path}: {reason}; "
            f"`deltafl presets` lists the ones that come with the package"
        ) from error
    return read_table(text, str(path))


def assignment(text: str) -> Table:
    """Parse one `section.key=value` of the command line; a bare word is a string.

    >>> assignment("federation.rounds=10")
    {'federation': {'rounds': 10}}
    >>> assignment("federation.theta=1/3")
    {'federation': {'theta': '1/3'}}

    Raises:
        ConfigError: the text does not have this form, or names an unknown section.
    """
    match = re.fullmatch(r"(\w+)\.(\w+)=(.*)", text, re.DOTALL)
    if match is None:
        raise ConfigError(f"--set {shortened(text)} must have the form section.key=value")
    section, key, value = match.groups()
    if section not in _SECTIONS:
        raise ConfigError(
            f"--set {shortened(text)}: unknown section: {nearest(section, _SECTIONS)}"
        )
    try:
        return {section: {key: _word(value)}}
    except ValueError as error:
        raise ConfigError(f"--set {shortened(text)}: {error}") from error


def build_config(layers: Iterable[Table]) -> RunConfig:
    """Merge the layers over the defaults, later ones winning, and check them.

    Raises:
        ConfigError: as `merge`, or two values contradict each other.
    """
    config = merge(layers)
    check_together(config)
    return config


def merge(layers: Iterable[Table]) -> RunConfig:
    """Merge the layers over the defaults, later ones winning, and check every value by itself.

    Raises:
        ConfigError: an unknown section or key, a wrong type, or a value out of range.
    """
    merged: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    for layer in layers:
        for name, values in layer.items():
            if name not in merged:
                raise ConfigError(f"unknown section {name!r:.60}: {nearest(name, _SECTIONS)}")
            merged[name].update(values)
    for own, (section, key, value) in _NAMED_OWN.items():
        # a strategy of one's own may be in clear, too
        if merged["own"].get(own) and merged[section].get(key) != OWN:
            merged[section][key] = value
    sections = {name: _section(name, values) for name, values in merged.items()}
    return RunConfig(**sections)  # type: ignore[arg-type]  # each was built by its own class


def check_together(config: RunConfig) -> None:
    """Check settings against all rules.

    Raises:
        ConfigError: they break one.
    """
    for rule, one in broken(config):
        raise ConfigError(rule.refusal(one, _shown))
    for unused in idle(config):
        raise ConfigError(
            f"{unused.setting} = {_shown(unused.value)} does nothing here: {unused.because}; "
            "leave it out"
        )
    training, rounds = config.training, config.federation.rounds
    if training.schedule.rate(rounds - 1) == 0:
        raise ConfigError(
            f"training.decay = {training.decay} every {training.decay_every} rounds reduces the "
            f"learning rate to zero before round {rounds}: raise one of the two"
        )


def flatten(config: RunConfig) -> dict[str, object]:
    """All settings as {"section.key": value}, in the order in which the classes declare them."""
    return {
        f"{section.name}.{key.name}": getattr(getattr(config, section.name), key.name)
        for section in fields(config)
        for key in fields(getattr(config, section.name))
    }


def to_toml(config: RunConfig) -> str:
    """Write a configuration as TOML; reading it gives the same configuration back."""
    lines: list[str] = []
    previous = ""
    for name, value in flatten(config).items():
        if value is None:  # it was left out
            continue
        section, key = name.split(".")
        if section != previous:
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
            previous = section
        lines.append(f"{key} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def first_difference(ours: RunConfig, theirs: RunConfig) -> tuple[str, object, object] | None:
    """The first setting in which two configurations differ: key, our value, their value."""
    other = flatten(theirs)
    return next(((k, v, other[k]) for k, v in flatten(ours).items() if v != other[k]), None)


def show(value: object) -> str:
    """A setting's value as a person would write it.

    >>> show(Fraction(1, 2)), show(Fraction(1, 3)), show("mm")
    ('0.5', '1/3', "'mm'")
    """
    return str(_plain(value)) if isinstance(value, Fraction) else shortened(value, _SHOWN)


def _shown(value: object) -> str:
    """A value in a refusal."""
    if isinstance(value, bool):
        return _toml_value(value)
    return show(list(value) if isinstance(value, tuple) else value)


def _word(text: str) -> object:
    """Parse a value of the command line: TOML, a number that TOML rejects such as .5, or a word.

    Raises:
        ValueError: it is longer or deeper than settings may be.
    """
    if "\n" not in text:  # a second line could set something else
        with contextlib.suppress(tomllib.TOMLDecodeError):
            return parse_toml(f"value = {text}")["value"]
    return parse_float(text) if _NUMBER.fullmatch(text) else text


def _section(name: str, values: Mapping[str, object]) -> object:
    section = _SECTIONS[name]
    hints = get_type_hints(section, include_extras=True)
    gone = {key: _GONE[f"{name}.{key}"] for key in values if f"{name}.{key}" in _GONE}
    values = {k: v for k, v in values.items() if k not in gone or gone[k][0] != v}
    for key in values:
        if key not in hints:
            told = gone[key][1] if key in gone else nearest(key, hints)
            raise ConfigError(f"unknown setting {name}.{key[:_SHOWN]}: {told}")
    checked = {key: _value(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
    return section(**checked)


def _value(name: str, value: object, hint: object) -> object:
    constraints: tuple[Constraint, ...] = ()
    if type(None) in get_args(hint):  # it may be left out
        hint = get_args(hint)[0]
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        constraints = tuple(extras)
    if getattr(value, "shape", None) == ():  # a number of NumPy or torch
        value = value.item()  # type: ignore[attr-defined]
    converted = _convert(name, value, hint)
    for constraint in constraints:
        if not constraint.holds(converted):
            meant = constraint.meant(converted) if isinstance(constraint, OneOf) else ""
            raise ConfigError(f"{name} = {show(value)}: must {constraint.requirement()}{meant}")
    return converted


def _convert(name: str, value: object, hint: object) -> object:
    if get_origin(hint) is tuple and (kind := get_args(hint)[0]) is not str:
        if isinstance(value, list | tuple):
            return tuple(_convert(name, one, kind) for one in value)
        raise ConfigError(f"{name} = {show(value)}: must be a list of numbers, [1, 2]")
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple) and all(
            isinstance(word, str) and _can_be_written(word) for word in value
        ):
            return tuple(value)
        raise ConfigError(f'{name} = {show(value)}: must be a list of texts, ["a", "b"]')
    if hint is Fraction and isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return exact_number(str(value))  # a float is the decimal that it prints as: 0.8 is 4/5
    if type(value) is int and abs(value) > _LARGEST:
        raise ConfigError(f"{name} = {show(value)}: must not be above 2^53 in size")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) + 0.0  # minus zero is zero
    if isinstance(value, str) and not _can_be_written(value):
        raise ConfigError(f"{name} = {value!a:.{_SHOWN}}: must be a text that UTF-8 can encode")
    if type(value) is not hint:
        expected = _TYPE_NAMES[hint] if isinstance(hint, type) else str(hint)
        raise ConfigError(f"{name} = {show(value)}: must be {expected}")
    return value


def _can_be_written(text: str) -> bool:
    """Whether it is made of characters; an argument that was not UTF-8 has halves of some."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: object) -> object:
    """Replace a fraction, which TOML lacks, by a decimal if that is exact, else by a string."""
    if isinstance(value, Fraction):
        decimal = float(value)
        return decimal if Fraction(str(decimal)) == value else str(value)
    return value


def _toml_value(value: object) -> str:
    value = _plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if not isinstance(value, str):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # as TOML has it


MAX_BYTES: Final = 1 << 18
"""The largest file of settings; those that the program writes have 3,000 bytes."""

_MAX_NESTING: Final = 8
_MAX_KEYS: Final = 8  # in a.b.c; each takes the parser as long as all before it together
_MAX_NUMBER: Final = 64
_LONG_NUMBER: Final = re.compile(rf"(?<![\w.+-])[+-]?[0-9][\w.+-]{{{_MAX_NUMBER},}}", re.ASCII)
_QUOTED: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*(?:"""|\Z)|'  # an unclosed text reaches to the end
    r"'''(?:[^']|'(?!''))*(?:'''|\Z)|"
    r'"(?:[^"\\\n]|\\.)*"?|'
    r"'[^'\n]*'?|"
    r"#[^\n]*",
    re.DOTALL,
)


def parse_toml(text: str) -> dict[str, object]:
    """Parse TOML text.

    Raises:
        ValueError: it is not TOML; or it is longer than `MAX_BYTES`, nested more than 8 deep, or
            has a number of more than 64 characters; in one sentence.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has {len(text):,} characters, more than {MAX_BYTES:,}")
    # texts and comments may hold anything, and cost the parser nothing; to it they are words here
    bare = _QUOTED.sub("_", text)
    if _depth(bare) > _MAX_NESTING or _most_keys(bare) > _MAX_KEYS:
        raise ValueError(f"it has more than {_MAX_NESTING} levels of arrays and tables")
    if long := _LONG_NUMBER.search(bare):
        raise ValueError(
            f"the number {long[0][:20]}… has {len(long[0])} characters, more than {_MAX_NUMBER}"
        )
    return tomllib.loads(text, parse_float=parse_float)


def parse_float(text: str) -> float:
    """Read a float; one that is written as a number is not taken for infinity, or for zero.

    Raises:
        ValueError: it is beyond the range of a double.
    """
    value = float(text)
    mantissa = text.lower().partition("e")[0]
    if (math.isinf(value) and "inf" not in text) or (not value and re.search("[1-9]", mantissa)):
        raise ValueError(f"the number {text[:20]} is beyond the range of a double")
    return value


def _depth(bare: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _most_keys(bare: str) -> int:
    return 1 + max(part.count(".") for part in re.split(r"[\n=,\[\]{}]", bare))
