"""The script that asks pip what the README's commands would install; here a script plays pip."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# `-c` prints a version, `-m venv … FOLDER` copies itself there, `-m pip` is told by its name
PYTHON = f"""#!{sys.executable}
import json, os, pathlib, shutil, sys
program, *arguments = sys.argv
told = pathlib.Path(os.environ["TOLD"]).read_text()
if arguments[0] == "-c":
    print("3.12")
elif arguments[:2] == ["-m", "venv"]:
    if told == "unreachable":
        sys.exit("no network")
    folder = pathlib.Path(arguments[-1]) / "bin"
    folder.mkdir(parents=True)
    shutil.copy(program, folder / "python")
elif told == "conflict":
    sys.exit("ERROR: ResolutionImpossible")
else:
    secrets = [name for name in os.environ if name.startswith("PIP_") and "INDEX" in name]
    assert not secrets and os.environ["PIP_CONFIG_FILE"] == os.devnull
    assert "--dry-run" in arguments and "--isolated" in arguments
    report = arguments[arguments.index("--report") + 1]
    found = [{{"metadata": {{"name": "Torch", "version": "2.13.0"}}}}]
    pathlib.Path(report).write_text(json.dumps({{"install": found}}))
"""


@pytest.fixture
def resolve(tmp_path, monkeypatch):
    python, told = tmp_path / "python3.12", tmp_path / "told"
    python.write_text(PYTHON)
    python.chmod(0o755)
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///another/index")

    def call(what):
        told.write_text(what)
        return subprocess.run(  # noqa: S603 our own interpreter, our own script
            [sys.executable, "tests/install/resolve.py", "--python", python, ".[dev]"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.mark.parametrize(
    ("pip", "code", "line"),
    [
        ("solution", 0, "Python 3.12, .[dev]: 1 packages, torch 2.13.0\n"),
        ("conflict", 1, "Python 3.12, .[dev]: no solution\nERROR: ResolutionImpossible\n"),
        ("unreachable", 2, "Python 3.12, .[dev]: no package index in reach\nno network\n"),
    ],
)
def test_the_verdict_is_that_of_pip_without_this_machines_configuration(resolve, pip, code, line):
    done = resolve(pip)
    assert (done.returncode, done.stdout, done.stderr) == (code, line, "")
