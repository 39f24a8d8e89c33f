"""Data sets that lie beside the repository and are not part of it."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def shared(name: str) -> Path:
    """A file or folder of data; skips the test where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} does not lie beside the repository")
    return path
