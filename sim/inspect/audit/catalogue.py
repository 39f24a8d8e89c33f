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
from deltafl.sim.inspect.audit.checks.key_roles import KeyRoles
from deltafl.sim.inspect.audit.checks.keys import Keys
from deltafl.sim.inspect.audit.checks.left_over import SharedMasks
from deltafl.sim.inspect.audit.checks.limits import Limits
from deltafl.sim.inspect.audit.checks.masks import MaskedBytes
from deltafl.sim.inspect.audit.checks.metadata import Metadata
from deltafl.sim.inspect.audit.checks.nonces import Nonces
from deltafl.sim.inspect.audit.checks.parameters import Parameters
from deltafl.sim.inspect.audit.checks.participation import ParticipationOverRounds
from deltafl.sim.inspect.audit.checks.record import Integrity
from deltafl.sim.inspect.audit.checks.run import RunAgain
from deltafl.sim.inspect.audit.checks.searches import Searches
from deltafl.sim.inspect.audit.checks.server import ServerAgain
from deltafl.sim.inspect.audit.checks.shares import Shares
from deltafl.sim.inspect.audit.checks.sharing import Sharing
from deltafl.sim.inspect.audit.rules import Rules

CHECKS: Final[tuple[type[Check], ...]] = (
    Integrity,
    ServerAgain,
    DevicesAgain,
    RunAgain,
    ValuesInClear,
    Parameters,
    Keys,
    KeyRoles,
    Nonces,
    Shares,
    Sharing,
    MaskedBytes,
    SharedMasks,
    RandomFields,
    Floors,
    Differences,
    ParticipationOverRounds,
    Limits,
    AddedNoise,
    Metadata,
    Searches,
)
"""Every check that an audit makes."""

RULES: Final = Rules({id_: rule for check in CHECKS for id_, rule in check.rules.items()})
"""Every rule by its id."""

CHECK_OF: Final = {rule: check.name for check in CHECKS for rule in check.rules}
"""The name of the check that a rule belongs to."""
