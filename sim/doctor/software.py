"""What is installed: the package, Python, and what the package and its extras need."""

import platform
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from deltafl.sim.doctor.findings import Finding, State, good

EXTRAS: Final = {
    "sim": "training, audits, attacks and benchmarks: nearly all of the command",
    "net": "devices on machines of their own: deltafl serve, device, federation",
    "flower": "private Δ-FL inside Flower, and its SuperNodes' keys for deltafl enrol",
    "gpu": "masks on an NVIDIA GPU",
    "hub": "data sets of the Hugging Face hub",
    "ray": "deltafl run --backend ray",
    "bench": "the peers that deltafl bench measures",
    "tensorboard": "deltafl run --tensorboard",
}
"""What each extra of the distribution brings, the needed one first; those for developers are not
here."""

NEEDED: Final = "sim"
"""The extra without which the command can do little."""

_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,]*\])?([><=!~][^;]*)?(?:;(.*))?")
_EXTRA: Final = re.compile(r"extra == ['\"](\w+)['\"]")
_PLATFORM: Final = re.compile(r"sys_platform == ['\"](\w+)['\"]")
_BEFORE: Final = re.compile(r"python_version < ['\"]([\d.]+)['\"]")
_AT_LEAST: Final = re.compile(r"[>=]=\s*(\d+(?:\.\d+)*)")


def software() -> Iterator[Finding]:
    """The package, Python and all that is needed."""
    yield good("Python", f"{platform.python_version()}, {sys.executable}")
    where = Path(__file__).parents[2]
    try:
        version, lines = metadata.version("deltafl"), metadata.requires("deltafl") or []
    except metadata.PackageNotFoundError:
        text = f"in {where}, not installed: what it needs is not known"
        yield Finding("deltafl", State.WARNING, text, "pip install -e '.[sim]'")
        return
    yield good("deltafl", f"{version}, in {where}")
    yield _found("core", "secure sums", requirements(lines, ""), State.FAILED, "pip install .")
    for extra, brings in EXTRAS.items():
        without = State.FAILED if extra == NEEDED else State.ABSENT
        mend = f"pip install '.[{extra}]'"
        yield _found(f"extra {extra}", brings, requirements(lines, extra), without, mend)


def requirements(lines: Iterable[str], extra: str) -> dict[str, str]:
    """What an extra requires by the distribution's metadata, or the core (""): oldest versions.

    What is for other systems, or for older versions of Python, is left out.

    >>> requirements(["numpy>=2.0", 'torch>=2.4; extra == "sim"', 'ray; extra == "ray"'], "sim")
    {'torch': '2.4'}
    """
    found = {}
    for name, versions, marker in (
        match.groups("") for match in map(_REQUIREMENT.match, lines) if match
    ):
        system, before = _PLATFORM.search(marker), _BEFORE.search(marker)
        if system and system[1] != sys.platform:
            continue
        if before and sys.version_info >= _numbers(before[1]):
            continue
        least, needs = _AT_LEAST.search(versions), _EXTRA.search(marker)
        if name not in ("", "deltafl") and (needs[1] if needs else "") == extra:
            found[name] = least[1] if least else ""
    return found


def problem(name: str, least: str) -> str:
    """What is wrong with a distribution that is needed; "" if nothing is."""
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return f"{name} {found} is older than {least}" if _numbers(found) < _numbers(least) else ""


def _found(topic: str, brings: str, needed: dict[str, str], without: State, mend: str) -> Finding:
    if problems := "; ".join(filter(None, (problem(*one) for one in needed.items()))):
        return Finding(topic, without, f"{problems}; it brings {brings}", mend)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in needed)
    return good(topic, f"{brings} ({versions})")


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    >>> _numbers("2.13.0+cpu") < _numbers("2.4")
    False
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
