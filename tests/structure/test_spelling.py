"""Nothing is misspelt: codespell, and the words that pyproject.toml lets pass."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def misspelt(folder):
    command = [sys.executable, "-m", "codespell_lib", "."]
    done = subprocess.run(  # noqa: S603 a checker of ours
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_spelling():
    assert misspelt(ROOT) == []


@pytest.mark.slow
def test_a_misspelt_word_is_found(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "page.md").write_text("t" + "eh page", encoding="utf-8")
    assert misspelt(tmp_path) == ["./page.md:1: t" + "eh ==> the"]
