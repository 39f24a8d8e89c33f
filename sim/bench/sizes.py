"""How large a benchmark may be: what is beyond would fill the memory, or never end."""

from typing import Final

from deltafl.secagg.params import MAX_SLOTS
from deltafl.sim.settings.argument import whole

CLIENTS: Final = whole("[1, 100000]")
DIM: Final = whole("[1, 1000000000]")
SLOTS: Final = whole(f"[1, {MAX_SLOTS}]")
MANY: Final = whole("[1, 1000000]")
"""Rounds, vectors or masks."""
