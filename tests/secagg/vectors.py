"""Published test vectors; `tests/vectors/outside` says where they are from."""

import json
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "vectors" / "outside"


def outside(name: str):
    """The cases of a file."""
    cases = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    assert cases
    return cases
