"""Lets the attacks be played on the hand-driven sessions and rounds of the neighbouring folders."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("secagg", "protocol")]
