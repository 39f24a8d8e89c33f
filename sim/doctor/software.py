"""What is installed: the package, Python, what the package needs, and what it can use beside."""

import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "firefox")
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,]*\])?([><=!~][^;]*)?(?:;(.*))?")
_EXTRA: Final = re.compile(r"extra == ['\"](\w+)['\"]")
_PLATFORM: Final = re.compile(r"sys_platform == ['\"](\w+)['\"]")
_BEFORE: Final = re.compile(r"python_version < ['\"]([\d.]+)['\"]")
_AT_LEAST: Final = re.compile(r"[>=]=\s*([\d.]+)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A distribution that is needed.

    Attributes:
        name: of the distribution.
        least: the oldest version that will do, such as "2.4"; "" for any.
        extra: the extra that needs it; "" for the core.
    """

    name: str
    least: str
    extra: str

    def problem(self) -> str:
        """What is wrong with what is installed; "" if nothing is."""
        try:
            found = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return f"{self.name} is missing"
        if self.least and _numbers(found) < _numbers(self.least):
            return f"{self.name} {found} is older than {self.least}"
        return ""


def software() -> Iterator[Finding]:
    """The package, Python and all that is needed."""
    yield good("Python", f"{platform.python_version()}, {sys.executable}")
    where = Path(__file__).parents[2]
    try:
        version, lines = metadata.version("deltafl"), metadata.requires("deltafl") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "deltafl",
            State.WARNING,
            f"in {where}, not installed: what it needs is not known",
            "pip install -e '.[sim]'",
        )
        return
    yield good("deltafl", f"{version}, in {where}")
    needed = list(requirements(lines))
    yield _of_core([one for one in needed if not one.extra])
    for extra, brings in EXTRAS.items():
        yield _of_extra(extra, brings, [one for one in needed if one.extra == extra])


def programs() -> Iterator[Finding]:
    """Programs that some commands start, or that show what they write."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is not None:
        yield good("browser", f"{browser}, shows reports and status pages")
    else:
        yield Finding("browser", State.ABSENT, "none is found; reports are HTML files")
    flower = shutil.which("flwr") or shutil.which("flwr", path=str(Path(sys.executable).parent))
    if flower is not None:
        yield good("flwr", f"{flower}, runs Flower apps (docs/flower.md)")
    else:
        yield Finding("flwr", State.ABSENT, "needed only for Flower; extra flower brings it")


def requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    """Read what a distribution requires, as in its metadata; what is for others is left out.

    >>> list(requirements(["numpy>=2.0", 'torch>=2.4; extra == "sim"']))[1]
    Requirement(name='torch', least='2.4', extra='sim')
    """
    for line in lines:
        name, versions, marker = _parts(line)
        platforms, before = _PLATFORM.search(marker), _BEFORE.search(marker)
        if platforms and platforms[1] != sys.platform:
            continue
        if before and sys.version_info >= _numbers(before[1]):
            continue
        least, extra = _AT_LEAST.search(versions), _EXTRA.search(marker)
        if name != "deltafl":
            yield Requirement(
                name, least[1].rstrip(".") if least else "", extra[1] if extra else ""
            )


def _parts(line: str) -> tuple[str, str, str]:
    match = _REQUIREMENT.match(line)
    return (match[1], match[2] or "", match[3] or "") if match else ("", "", "")


def _of_core(needed: Iterable[Requirement]) -> Finding:
    problems = [problem for one in needed if (problem := one.problem())]
    if problems:
        return Finding("core", State.FAILED, "; ".join(problems), "pip install .")
    return good("core", f"secure sums ({_versions(needed)})")


def _of_extra(extra: str, brings: str, needed: list[Requirement]) -> Finding:
    topic, mend = f"extra {extra}", f"pip install '.[{extra}]'"
    problems = [problem for one in needed if (problem := one.problem())]
    if not problems:
        return good(topic, f"{brings} ({_versions(needed)})")
    if extra == NEEDED:
        return Finding(topic, State.FAILED, f"{'; '.join(problems)}; it brings {brings}", mend)
    return Finding(topic, State.ABSENT, f"{'; '.join(problems)}; it brings {brings}", mend)


def _versions(needed: Iterable[Requirement]) -> str:
    return ", ".join(f"{one.name} {metadata.version(one.name)}" for one in needed)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    >>> _numbers("2.13.0+cpu") < _numbers("2.4")
    False
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
