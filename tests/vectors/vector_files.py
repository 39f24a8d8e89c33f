"""The files of vectors."""

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def load(name):
    """The cases of a file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["cases"]
