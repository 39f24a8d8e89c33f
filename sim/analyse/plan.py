"""What a question comes to: its sums, their ranges and noise, and the session that they take.

All of it follows from the question, the guard and the number of devices. So devices, server and
auditor each make their own plan, and compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.bracketed import Bracketed
from deltafl.protocol.quantile.search import Query, SearchConfig, SearchParams
from deltafl.protocol.sessions import preferred_graph
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DevicePolicy, GraphKind, SessionParams, SlotSpec, ThreatModel
from deltafl.secagg.labels import digest
from deltafl.secagg.layout import Field, Layout
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.sim.analyse.privacy import noise_of, rho_of_sums
from deltafl.sim.analyse.question import HOLDERS, Question, Sum, check_whole, notes_of, sums_of
from deltafl.sim.run.accounting import DELTA, epsilon_of

What: TypeAlias = Sequence[Sum] | Query
"""What one secure sum is asked for: numbers of a device, or the answers to a query of a search."""

LABEL: Final = b"deltafl analyse"
FIRST_QUERY: Final = 2
"""The slot of a search's first query: before it come the devices with rows, and the sums."""

_SLOT: Final = "analyse"
_MOST_DEVICES: Final = 1 << 31
_NONE: Final = bytes(DIGEST_SIZE)


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may be summed, and what a session must withstand.

    Attributes:
        min_cohort: fewest devices to sum over, and fewest that have a row that counts; at least 2.
        threat: shares of colluding and vanishing devices, and the adversary.
        graph: who shares masks with whom; None chooses by the number of devices.

    Raises:
        UserError: min_cohort is not a whole number of at least 2.
    """

    min_cohort: int = 10
    threat: ThreatModel = field(default_factory=ThreatModel)
    graph: GraphKind | None = None

    def __post_init__(self) -> None:
        check_whole("min_cohort", self.min_cohort, 2, _MOST_DEVICES)


class Plan:
    """The sums of a question, and their session.

    Args:
        question: what is asked.
        guard: the fewest devices, and the threat.
        num_devices: how many are invited.

    Attributes:
        question: what is asked.
        guard: the fewest devices, and the threat.
        num_devices: how many are invited.
        sums: of the second slot; the first counts the devices with rows.
        search: the search for a quantile without noise; None if there is none.
        num_noisy: devices whose noise is certain to be in a sum, and unknown to the server.
        layouts: of the slots, in order.
        slots: the session's; those of a search are whole.

    Raises:
        SecAggError: no session with so many devices withstands the threat, or a sum does not fit.
        ConfigurationError: the noise is out of range.
    """

    def __init__(self, question: Question, guard: Guard, num_devices: int) -> None:
        self.question, self.guard, self.num_devices = question, guard, num_devices
        searches = question.statistic == "quantile" and not question.noise
        self.search = self._search_config() if searches else None
        self.sums = tuple(notes_of(question)) if searches else sums_of(question)
        shaped = self._params((SlotSpec(_SLOT, 1, 1),), _NONE, _NONE)
        self.num_noisy = shaped.min_cohort - guard.threat.num_colluding(num_devices)
        self.layouts = [self._layout((HOLDERS,)), self._layout(self.sums)]
        if self.search is not None:
            ranks = Bracketed().layout(self.search)
            self.layouts += [ranks] * self.search.search.max_queries
        self.slots = tuple(
            SlotSpec(_SLOT, layout.length, layout.ring_bits, whole=index >= FIRST_QUERY)
            for index, layout in enumerate(self.layouts)
        )

    def params(self, graph_seed: bytes, context: bytes) -> SessionParams:
        """The parameters of the session.

        Args:
            graph_seed: 32 public bytes, unique to the session.
            context: 32 bytes, the digest of what is asked.
        """
        return self._params(self.slots, graph_seed, context)

    @property
    def policy(self) -> DevicePolicy:
        """What devices insist on."""
        threat = self.guard.threat
        return DevicePolicy(
            threat.adversary,
            threat.colluding_rate,
            threat.dropout_rate,
            min_cohort=self.guard.min_cohort,
            min_threshold=2,
            max_slots=len(self.slots),
        )

    @property
    def is_noisy(self) -> bool:
        """Whether sums have noise."""
        return bool(self.question.noise)

    def noise(self, one: Sum) -> Noise | None:
        """The noise of each number of a sum; None without."""
        sigma = self.question.noise
        return noise_of(one, sigma, self.num_noisy) if sigma else None

    def bound(self, noise: Noise, one: Sum) -> int:
        """Where a device's share of the noise is clipped, in steps."""
        return noise.bound(one.size * self.num_devices)

    def rho(self, *sums: Sum) -> float:
        """ρ of these sums, which have noise."""
        return rho_of_sums(sums, self.question.noise, self.num_noisy)

    def epsilon(self, *sums: Sum) -> float:
        """ε of these sums, which have noise, at `DELTA`."""
        return epsilon_of(self.rho(*sums), DELTA)

    def _params(
        self, slots: tuple[SlotSpec, ...], graph_seed: bytes, context: bytes
    ) -> SessionParams:
        num, guard = self.num_devices, self.guard
        return SessionParams.for_threat(
            num,
            slots,
            threat=guard.threat,
            graph=guard.graph or preferred_graph(num, guard.threat),
            min_cohort=guard.min_cohort,
            graph_seed=graph_seed,
            context=context,
        )

    def _layout(self, sums: Sequence[Sum]) -> Layout:
        fields = []
        for one in sums:
            noise = self.noise(one)
            if noise is None:
                fields.append(Field(one.name, one.size, 0, one.most, 0))
                continue
            most = self.bound(noise, one) / (1 << noise.resolution_bits)
            fields.append(Field(one.name, one.size, -most, one.most + most, noise.resolution_bits))
        return Layout(tuple(fields), self.num_devices)

    def _search_config(self) -> SearchConfig:
        """The private search, in which every value is a device of weight 1."""
        question = self.question
        params = SearchParams(
            max_queries=Bracketed().default_max_queries,
            grid=LossGrid(0, question.num_steps),
            weighting=Weighting.EQUAL,
        )
        theta, num_values = 1 - question.level, self.num_devices * question.cap
        return SearchConfig(theta, params, max_weight=1, cohort_size=num_values)


def told(what: What) -> bytes:
    """What devices are told of a sum: the names of its numbers, or the query.

    >>> told((HOLDERS,))
    b'holders'
    """
    if isinstance(what, Query):
        return b"ranks " + what.canonical()
    return ",".join(one.name for one in what).encode()


def binding_of(asked: bytes) -> bytes:
    """What the masks of a slot are bound to: a digest of what devices were told.

    The session's context binds them to the question.
    """
    return digest(LABEL, asked)
