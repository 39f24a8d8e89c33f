"""The outside test vectors, which lie beside the repository and are not part of it."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2].parent / "shared" / "vectors"


def vector_file(name: str) -> Path:
    """A file of vectors; skips the test where it is absent."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no outside test vectors: {path} is absent")
    return path


def wycheproof(name: str):
    """The cases of a Wycheproof file, each with its group."""
    content = json.loads(vector_file(name).read_text())
    cases = [(group, case) for group in content["testGroups"] for case in group["tests"]]
    assert cases
    return cases
