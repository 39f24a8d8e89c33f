"""How large a benchmark may be: what is beyond would fill the memory, or never end.

That it may not be empty says the benchmark itself, in its own words.
"""

from typing import Final

from deltafl.secagg.params import MAX_SLOTS
from deltafl.sim.settings.argument import whole

CLIENTS: Final = whole("[0, 100000]")
SLOTS: Final = whole(f"[0, {MAX_SLOTS}]")
MANY: Final = whole("[0, 1000000]")
"""Rounds, vectors or masks."""
