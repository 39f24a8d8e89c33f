"""What the tuning chose, from the label of a method to its setting.

Made by `deltafl reproduce headline-tuning --data mnist-writers=FILE`; docs/results.md has the whole
grid. A test holds that each is a point of the method's grid.
"""

from collections.abc import Mapping
from typing import Final

from deltafl.sim.reproduce.declared import Setting

CHOSEN: Final[Mapping[str, Setting]] = {}
