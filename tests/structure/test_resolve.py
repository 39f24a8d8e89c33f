"""The script that asks pip what the README's commands would install; here a script plays pip."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# `-c` prints a version, `-m venv … FOLDER` copies the program there, `-m pip` does as it is told
PYTHON = """
import json, os, pathlib, shutil, sys
program, *arguments = sys.argv[1:]
told = pathlib.Path(os.environ["TOLD"]).read_text()
if arguments[0] == "-c":
    print("3.12")
elif arguments[:2] == ["-m", "venv"]:
    folder = pathlib.Path(arguments[-1]) / "bin"
    folder.mkdir(parents=True)
    shutil.copy(program, folder / "python")
elif "download" in arguments:
    sys.exit(told == "unreachable")
elif told in ("conflict", "unreachable"):
    sys.exit("ERROR: ResolutionImpossible")
else:
    leaked = [n for n in os.environ if n.startswith(("PIP_", "PYTHON")) and "CERT" not in n]
    assert leaked == ["PIP_CONFIG_FILE"] and os.environ["PIP_CONFIG_FILE"] == os.devnull, leaked
    assert "--dry-run" in arguments and "--isolated" in arguments
    assert pathlib.Path("constraints.txt").is_file()
    report = arguments[arguments.index("--report") + 1]
    found = [{"metadata": {"name": "Torch", "version": "2.13.0"}}]
    pathlib.Path(report).write_text(json.dumps({"install": found}))
    if told == "lost extra":
        print("WARNING: deltafl 0.2.0 does not provide the extra 'dev'", file=sys.stderr)
"""


@pytest.fixture
def resolve(tmp_path, monkeypatch):
    python, told, script = (tmp_path / name for name in ("python3.12", "told", "script.py"))
    script.write_text(PYTHON)
    interpreter = shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\nexec {interpreter} {shlex.quote(str(script))} "$0" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", "another/place")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pip", "code", "line"),
    [
        ("solution", 0, "Python 3.12, .[dev]: 1 packages, torch 2.13.0\n"),
        ("conflict", 1, "Python 3.12, .[dev]: no solution\nERROR: ResolutionImpossible\n"),
        ("unreachable", 75, "Python 3.12, .[dev]: no package index in reach\nERROR: Resol"),
        ("lost extra", 1, "Python 3.12, .[dev]: no solution\nWARNING: deltafl 0.2.0 does not"),
    ],
)
def test_the_verdict_is_that_of_pip_without_this_machines_configuration(resolve, pip, code, line):
    done = resolve(pip)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(line)


def test_what_is_no_python_is_named():
    done = subprocess.run(
        [sys.executable, "tests/install/resolve.py", "--python", "/nowhere/python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (75, "/nowhere/python: no Python that runs\n")
