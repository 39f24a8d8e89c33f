"""Does it take the threshold's number of shares to rebuild a secret? From the shares that came."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.secagg.messages import UnmaskShares
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.randomness.polynomials import Words, alike, dealt, examine
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView, SessionView

RULES: Final = Rules.read(
    """\
shares.reveal critical device A2: fewer shares than the threshold reveal a secret
    A few devices that collude, or a single share, are enough to remove a device's masks.
shares.unfitting medium device A22: a share does not lie on the polynomial of the others
    A device dealt or returned a false share; the record cannot tell which. It may hold something
    else.
"""
)

_OF_SHARES: Final = "shares: "

_Place = tuple[bytes, int]
"""A session's tag and a slot."""


class Sharing(Check):
    """Interpolates the polynomials of every secret of which enough shares came."""

    name = "polynomials of shares"
    rules = RULES
    tests = MappingProxyType({_OF_SHARES: "shares.reveal"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._came: dict[_Place, dict[int, tuple[Evidence, UnmaskShares]]] = {}
        self._leading: list[Words] = []
        self._last = Evidence()
        self._secrets = 0

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[()]:
        """Keep shares until their round is over; of each device the first."""
        del round_
        message = seen.content.message
        if isinstance(message, UnmaskShares) and not seen.record.sent:
            of_slot = self._came.setdefault((seen.content.tag, message.slot), {})
            of_slot.setdefault(seen.record.peer, (seen.place, message))
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the shares of its slots."""
        for (tag, index), came in self._came.items():
            if tag in over.view.sessions:
                yield from self._look(over.view.sessions[tag], index, came)
        self._came.clear()

    def on_end(self) -> tuple[()]:
        """Compare the polynomials of all slots; the alarms come when all tests are made."""
        if self._leading:
            result = alike(np.concatenate(self._leading))
            self._premises.budget.add(result, self._last, _OF_SHARES)
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain shares."""
        return Coverage(tally.whole, f"the polynomials of {self._secrets} secrets", self._secrets)

    def _look(
        self, session: SessionView, index: int, came: dict[int, tuple[Evidence, UnmaskShares]]
    ) -> Iterator[Finding]:
        positions, ids = session.positions, session.ids.tolist()
        known = {
            device: (place, message)
            for device, (place, message) in came.items()
            if device in positions and (message.positions < len(ids)).all()
        }
        if not known:
            return
        place = next(iter(known.values()))[0]
        shares = [(positions[device], message) for device, (_, message) in known.items()]
        slot = dealt(shares, session.params.threshold)
        if not len(slot.owners):
            return
        self._secrets += len(slot.owners)
        results, wrong, leading = examine(slot)
        self._leading.append(leading)
        self._last = place
        for result in results:
            self._premises.budget.add(result, place, _OF_SHARES, f"slot {index}: ")
        for owner in wrong:
            detail = f"slot {index}: a share of device {ids[owner]}'s secret"
            yield RULES.found("shares.unfitting", detail, [place])
