"""Does what the README installs resolve on a plain package index, for every Python that is here?

Asks pip, in a fresh environment of each Python from 3.11 to 3.13 that can be found, what it would
install under constraints.txt; nothing is installed. pip reads no configuration and no variables of
this machine but PIP_CERT, so that an index which lies beside the plain one here does not hide what
a stranger meets.

Exit codes: 0 all that are here resolve, 1 one does not, 75 one could not be asked, or none is here
(no Python of these versions, or no package index in reach).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
VERSIONS: Final = ("3.11", "3.12", "3.13")
REQUIREMENTS: Final = (".[dev]", ".[bench,hub]")
SHOWN: Final = ("torch", "triton", "numpy")
RESOLVES, DOES_NOT, NOT_ASKED = 0, 1, 75  # 75: "try again", of sysexits.h


def candidates(version: str) -> Iterator[str]:
    """Programs that may be a Python of this version: the current one, on the path, pyenv's."""
    yield sys.executable
    yield from filter(None, [shutil.which(f"python{version}")])
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))


def version_of(program: str) -> str:
    """The version of a Python as in "3.12", or nothing if the program is none."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(  # noqa: S603 an interpreter of this machine
            [program, "-c", script], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_pythons() -> list[str]:
    """One program for each version that is here."""
    found = []
    for version in VERSIONS:
        fits = [program for program in candidates(version) if version_of(program) == version]
        if not fits:
            print(f"Python {version}: not found", flush=True)
        found += fits[:1]
    return found


def plain_environment() -> dict[str, str]:
    """The environment without anything that tells pip of an index, or Python of packages."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "PYTHON")) or name == "PIP_CERT"
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull}


def run_pip(python: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an environment's pip, which reads no configuration, in a folder."""
    command = [python, "-m", "pip", "--isolated", *arguments, "--disable-pip-version-check"]
    if certificates := os.environ.get("PIP_CERT"):
        command += ["--cert", certificates]
    return subprocess.run(  # noqa: S603 pip of a fresh environment
        command, cwd=folder, env=plain_environment(), capture_output=True, text=True, check=False
    )


def reaches_index(python: str, folder: Path) -> bool:
    """Whether pip gets a small package from the index."""
    asked = ("download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", str(folder), "wheel")
    return run_pip(python, *asked, folder=folder).returncode == 0


def resolve(python: str, requirement: str, folder: Path) -> tuple[dict[str, str], str]:
    """What pip would install, {name: version}, or nothing; and what it says of it."""
    report, tree = folder / "report.json", folder / "tree"
    ignored = shutil.ignore_patterns(".venv", ".git", ".*_cache", "runs", "build", "*.egg-info")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)  # two may build at once
    done = run_pip(
        python,
        *("install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)),
        "--use-feature=fast-deps",  # reads what a wheel needs without fetching it whole
        *("--constraint", "constraints.txt", requirement),
        folder=tree,
    )
    # pip only warns of an extra that is not there
    if done.returncode or "does not provide the extra" in done.stderr:
        return {}, done.stderr.strip()
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in found}, ""


def judge(program: str, requirement: str) -> int:
    """Print a line for a Python and a requirement, and say which exit code it stands for."""
    title = f"Python {version_of(program)}, {requirement}"
    with tempfile.TemporaryDirectory(prefix="resolve-") as name:
        folder, environment = Path(name), Path(name) / "environment"
        fresh = subprocess.run(  # noqa: S603 an interpreter of this machine
            [program, "-m", "venv", "--upgrade-deps", environment],  # with the newest pip
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if fresh.returncode:
            print(f"{title}: no environment can be made\n{fresh.stderr.strip()}", flush=True)
            return NOT_ASKED
        python = str(environment / "bin" / "python")
        found, complaint = resolve(python, requirement, folder)
        if not found and not reaches_index(python, folder):
            print(f"{title}: no package index in reach\n{complaint}", flush=True)
            return NOT_ASKED
    if not found:
        print(f"{title}: no solution\n{complaint}", flush=True)
        return DOES_NOT
    shown = ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)
    print(f"{title}: {len(found)} packages, {shown}", flush=True)
    return RESOLVES


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every Python and requirement, two at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "requirements",
        nargs="*",
        default=REQUIREMENTS,
        metavar="REQUIREMENT",
        help=f"what to install (default: {' and '.join(REQUIREMENTS)})",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="PROGRAM",
        help="take this interpreter instead of looking for them; may be repeated",
    )
    options = parser.parse_args(arguments)
    pythons = options.python or find_pythons()
    for program in pythons:
        if not version_of(program):
            print(f"{program}: no Python that runs", flush=True)
            return NOT_ASKED
    pairs = [(python, one) for one in options.requirements for python in pythons]
    with ThreadPoolExecutor(2) as pool:
        verdicts = set(pool.map(lambda pair: judge(*pair), pairs))
    if DOES_NOT in verdicts:
        return DOES_NOT
    return NOT_ASKED if NOT_ASKED in verdicts or not pairs else RESOLVES


if __name__ == "__main__":
    sys.exit(main())
