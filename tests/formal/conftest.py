"""Lets these tests import `parties`, the hand-driven session of tests/secagg."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "secagg"))
