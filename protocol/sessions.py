"""Sets up the sessions of rounds, from a threat model and the policy that devices insist on."""

from dataclasses import dataclass, field
from typing import Final

from deltafl.protocol.anonymity import least_tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import (
    GraphKind,
    SessionParams,
    ThreatModel,
    UsageError,
)
from deltafl.secagg.threat import PROFILES, sparse_parameters

# In smaller cohorts the complete graph is cheap, and fractions of the cohort mean little.
_LARGE_COHORT: Final = 40


@dataclass(frozen=True, slots=True)
class Sessions:
    """How the sessions of the rounds are set up.

    Attributes:
        policy: What every device insists on.
        threat: What a session must withstand.
        graph: Complete or sparse; None chooses the sparse one if it saves work.
        min_cohort: Smallest cohort to sum over.
        signed: Whether devices have identities and agree on survivors; against an active adversary
            they always do.
    """

    policy: RoundPolicy = field(default_factory=RoundPolicy)
    threat: ThreatModel = field(default_factory=ThreatModel)
    graph: GraphKind | None = None
    min_cohort: int = 10
    signed: bool = False

    def params(self, config: RoundConfig, model: bytes, graph_seed: bytes) -> SessionParams:
        """The parameters of one round's session; see `params_of_levels`."""
        return self.params_of_levels(Levels((config,)), model, graph_seed)

    def params_of_levels(self, levels: Levels, models: bytes, graph_seed: bytes) -> SessionParams:
        """The parameters of the session of one or more levels.

        Args:
            levels: Their rounds.
            models: Their models, joined in order.
            graph_seed: 32 public bytes, unique to the session.

        Raises:
            UsageError: with so small a cohort, no parameters withstand the threat.
            PeerError: the rounds or the parameters fall short of the devices' policy.
        """
        config = levels.common
        params = SessionParams.for_threat(
            config.cohort_size,
            levels.slots(),
            threat=self.threat,
            graph=self.graph or preferred_graph(config.cohort_size, self.threat),
            min_cohort=self.min_cohort,
            signed=self.signed,
            graph_seed=graph_seed,
            context=levels.context(models),
        )
        self.policy.check_round(levels, params)
        return params

    def num_noisy(self, cohort_size: int, min_search_cohort: int) -> int:
        """The fewest devices that add noise to a search: h of `deltafl.protocol.noise`.

        It is the number of devices in every sum, less those that may collude. It is less than 1 if
        that leaves none.

        Args:
            cohort_size: Devices invited.
            min_search_cohort: Fewest devices to search over.
        """
        return max(self.min_cohort, min_search_cohort) - self._num_colluding(cohort_size)

    def min_tail(self, cohort_size: int) -> int:
        """The fewest devices of a tail of a cohort, those that may collude among them."""
        return least_tail(self._num_colluding(cohort_size), self.policy.min_honest_tail)

    def _num_colluding(self, cohort_size: int) -> int:
        return max(one.num_colluding(cohort_size) for one in (self.threat, self.policy))


def preferred_graph(cohort_size: int, threat: ThreatModel) -> GraphKind:
    """The sparse graph, if the cohort is large and a device then has at most half the neighbours.

    Never against an active adversary, which might choose the roster to suit the graph.
    """
    if cohort_size < _LARGE_COHORT or not PROFILES[threat.adversary].takes_sparse:
        return GraphKind.COMPLETE
    try:
        degree, _ = sparse_parameters(cohort_size, threat)
    except UsageError:
        return GraphKind.COMPLETE
    return GraphKind.SPARSE if 2 * degree <= cohort_size else GraphKind.COMPLETE
