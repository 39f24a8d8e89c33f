"""All checks of an analysis, in the order of the report.

Those of its session are the same as of a run's; those of rounds, models and searches are left out.
"""

from typing import Final

from deltafl.sim.inspect.audit.analyses.answers import Answers
from deltafl.sim.inspect.audit.analyses.cohorts import AnalysisCohorts
from deltafl.sim.inspect.audit.analyses.noise import AnalysisNoise
from deltafl.sim.inspect.audit.analyses.terms import Terms
from deltafl.sim.inspect.audit.check import Check
from deltafl.sim.inspect.audit.checks.clear import ValuesInClear
from deltafl.sim.inspect.audit.checks.fields import RandomFields
from deltafl.sim.inspect.audit.checks.floors import Floors
from deltafl.sim.inspect.audit.checks.key_roles import KeyRoles
from deltafl.sim.inspect.audit.checks.keys import Keys
from deltafl.sim.inspect.audit.checks.left_over import SharedMasks
from deltafl.sim.inspect.audit.checks.lists import ToldTheSame
from deltafl.sim.inspect.audit.checks.masks import MaskedBytes
from deltafl.sim.inspect.audit.checks.membership import Membership
from deltafl.sim.inspect.audit.checks.metadata import Metadata
from deltafl.sim.inspect.audit.checks.nonces import Nonces
from deltafl.sim.inspect.audit.checks.record import Integrity
from deltafl.sim.inspect.audit.checks.repeats import Repeats
from deltafl.sim.inspect.audit.checks.shares import Shares
from deltafl.sim.inspect.audit.checks.sharing import Sharing
from deltafl.sim.inspect.audit.checks.shown_signatures import ShownSignatures
from deltafl.sim.inspect.audit.checks.sums import Sums
from deltafl.sim.inspect.audit.checks.turns import Turns
from deltafl.sim.inspect.audit.checks.whole import WholeSlots

OWN_CHECKS: Final[tuple[type[Check], ...]] = (Terms, Answers, AnalysisNoise, AnalysisCohorts)
"""The checks that only an analysis has."""

ANALYSIS_CHECKS: Final[tuple[type[Check], ...]] = (
    Integrity,
    ValuesInClear,
    ToldTheSame,
    Turns,
    Repeats,
    Membership,
    Terms,
    Keys,
    KeyRoles,
    Nonces,
    ShownSignatures,
    Shares,
    Sharing,
    WholeSlots,
    Sums,
    Answers,
    MaskedBytes,
    SharedMasks,
    RandomFields,
    Floors,
    AnalysisCohorts,
    AnalysisNoise,
    Metadata,
)
"""Every check that the audit of an analysis makes."""
