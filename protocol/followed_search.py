"""A search as a device follows it: from sums that it has checked to what must be asked next.

In a verified search, a device knows every sum, because the server has to prove it. Questions and
threshold follow from the sums and from public parameters, so the device works them out by itself.
It refuses any others. The server is left with one choice: when somebody has dropped out, the search
must end, and nobody can tell whether that device is really gone.

Spec: §12.12.
"""

from dataclasses import dataclass, replace

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.search import Query, Search
from deltafl.protocol.selection import Threshold
from deltafl.secagg import PeerError, Refusal
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.ring import Vector


@dataclass(frozen=True, slots=True)
class Followed:
    """What a device knows of a verified search: an immutable value.

    Attributes:
        config: The round.
        search: The search after the sums that were proved.
        num_searched: Devices in these sums; 0 before the first.
        contradicted: Whether a sum was one that no honest cohort gives, which ends the search.
    """

    config: RoundConfig
    search: Search
    num_searched: int = 0
    contradicted: bool = False

    @classmethod
    def begin(cls, config: RoundConfig) -> "Followed":
        """The search before its first query."""
        return cls(config, config.start_search())

    def after(self, total: Vector, num_devices: int) -> "Followed":
        """The search after the answer to its query.

        Args:
            total: The proved sum, a ring vector of the search layout.
            num_devices: Devices in the sum.
        """
        try:
            search = self.search.update(self.config.search_layout.decode(total))
        except (EncodingError, SearchError):
            return replace(self, num_searched=num_devices, contradicted=True)
        return replace(self, search=search, num_searched=num_devices)

    def check_query(self, query: Query) -> None:
        """Check that a query is the next one.

        Raises:
            PeerError: it is not, or the search is over.
        """
        expected = None if self.contradicted else self.search.query
        if query != expected:
            raise PeerError(Refusal.NOT_FOLLOWING, f"{query}, where the sums give {expected}")

    def check_threshold(
        self, threshold: Threshold, num_devices: int, *, shrank: bool
    ) -> Tail | None:
        """Check that a threshold ends the search as it must.

        Args:
            threshold: What was announced.
            num_devices: Devices that are asked for their updates.
            shrank: Whether they are fewer than the device's cohort was until then.

        Returns:
            The tail, if nobody of those searched over is gone; None if nothing was asked, so that
            all devices are kept.

        Raises:
            PeerError: the threshold is another one, or the search must go on.
        """
        if not self.num_searched and num_devices < self.config.search.min_cohort:
            expected, tail = Threshold(0, 0), None
        elif self.search.query is None or self.contradicted or shrank:
            lost = max(self.num_searched - num_devices, 0)
            found = self.search.result(shrank=shrank, num_lost=lost)
            expected, tail = found.threshold, found.tail
        else:
            raise PeerError(Refusal.NOT_FOLLOWING, f"{threshold}, although the search is to go on")
        if threshold != expected:
            raise PeerError(Refusal.NOT_FOLLOWING, f"{threshold}, where the sums give {expected}")
        return tail
