"""All checks, in the order of the report, and all rules, by their stable ids.

A new check is a file in `checks/` and a line here.
"""

from typing import Final

from deltafl.sim.inspect.audit.check import Check
from deltafl.sim.inspect.audit.checks.added_noise import AddedNoise
from deltafl.sim.inspect.audit.checks.clear import ValuesInClear
from deltafl.sim.inspect.audit.checks.devices import DevicesAgain
from deltafl.sim.inspect.audit.checks.differences import Differences
from deltafl.sim.inspect.audit.checks.fields import RandomFields
from deltafl.sim.inspect.audit.checks.floors import Floors
from deltafl.sim.inspect.audit.checks.given_away import GivenAway
from deltafl.sim.inspect.audit.checks.independent import Independent
from deltafl.sim.inspect.audit.checks.invariants import Invariants
from deltafl.sim.inspect.audit.checks.masks import MaskedBytes
from deltafl.sim.inspect.audit.checks.metadata import Metadata
from deltafl.sim.inspect.audit.checks.record import Integrity
from deltafl.sim.inspect.audit.checks.run import RunAgain
from deltafl.sim.inspect.audit.checks.server import ServerAgain
from deltafl.sim.inspect.audit.rules import Rules

CHECKS: Final[tuple[type[Check], ...]] = (
    Integrity,
    ServerAgain,
    DevicesAgain,
    RunAgain,
    Invariants,
    Independent,
    ValuesInClear,
    MaskedBytes,
    RandomFields,
    Floors,
    Differences,
    GivenAway,
    AddedNoise,
    Metadata,
)
"""Every check that an audit makes."""

RULES: Final = Rules({id_: rule for check in CHECKS for id_, rule in check.rules.items()})
"""Every rule by its id."""
