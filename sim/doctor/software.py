"""What is installed: the package, Python, and what the package and its extras need."""

import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from deltafl.sim.doctor.findings import Finding, State, good

EXTRAS: Final = {
    "sim": "training, audits, attacks and benchmarks: nearly all of the command",
    "net": "devices on machines of their own: deltafl serve, device, federation",
    "flower": "private Δ-FL inside Flower, and its SuperNodes' keys for deltafl enrol",
    "hub": "data sets of the Hugging Face hub",
    "bench": "the peers that deltafl bench measures",
    "tensorboard": "deltafl run --tensorboard",
}
"""What each extra of the distribution brings, the needed one first; those for developers are not
here."""

NEEDED: Final = "sim"
"""The extra without which the command can do little."""


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


def requirements(lines: Iterable[str], extra: str) -> list[Requirement]:
    """What an extra requires by the distribution's metadata, or the core ("").

    What is for other systems, or for older versions of Python, is left out.

    >>> list(map(str, requirements(["numpy>=2.0", 'torch>=2.4; extra == "sim"'], "")))
    ['numpy>=2.0']
    """
    own = [one for one in map(Requirement, lines) if one.name != "deltafl"]
    core = [one for one in own if _applies(one, "")]
    return [one for one in own if _applies(one, extra) and one not in core] if extra else core


def problem(needed: Requirement) -> str:
    """What is wrong with a distribution that is needed; "" if nothing is."""
    try:
        found = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        return f"{needed.name} is missing"
    fits = needed.specifier.contains(found, prereleases=True)
    return "" if fits else f"{needed.name} {found} is not {needed.specifier}"


def _applies(needed: Requirement, extra: str) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def _found(
    topic: str, brings: str, needed: list[Requirement], without: State, mend: str
) -> Finding:
    if problems := "; ".join(filter(None, map(problem, needed))):
        return Finding(topic, without, f"{problems}; it brings {brings}", mend)
    versions = ", ".join(f"{one.name} {metadata.version(one.name)}" for one in needed)
    return good(topic, f"{brings} ({versions})")
