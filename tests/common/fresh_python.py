"""Programs run by a Python that has loaded nothing yet."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments, seconds=120):
    """What came of a program, with its output as text; it runs at the root of the repository."""
    return subprocess.run(  # noqa: S603 our own interpreter, our own script
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def loaded_by(statement):
    """All modules that are loaded after a statement."""
    done = run_python("-c", f"{statement}\nimport sys\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
