"""Does it take the threshold's number of shares to rebuild a secret? From the shares that came."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from deltafl.secagg.messages import UnmaskShares
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.sharing_tests import OF_SHARES, SharingTests, dealt
from deltafl.sim.inspect.audit.views import RoundView, SessionView

RULES: Final = Rules.read(
    """\
shares.reveal critical device A2: fewer shares than the threshold reveal a secret
    A few devices that collude, or a single share, are enough to remove a device's masks.
shares.unfitting medium device A22: a share does not lie on the polynomial of the others
    A device dealt or returned a false share. It may hold something else.
"""
)

_Place = tuple[bytes, int]
"""A session's tag and a slot."""


class Sharing(Check):
    """Interpolates the polynomials of every secret of which enough shares came."""

    name = "polynomials of shares"
    rules = RULES
    tests = MappingProxyType({OF_SHARES: "shares.reveal"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._tests = SharingTests(premises.budget)
        self._came: dict[_Place, dict[int, tuple[Seen, UnmaskShares]]] = {}

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[Finding, ...]:
        """Keep shares until their slot is over."""
        del round_
        message = seen.content.message
        if isinstance(message, UnmaskShares) and not seen.record.sent:
            of_slot = self._came.setdefault((seen.content.tag, message.slot), {})
            of_slot.setdefault(seen.record.peer, (seen, message))
        return ()

    def on_sum(self, released: ReleasedSum) -> Iterator[Finding]:
        """Look at the shares of the slot."""
        if released.slot is not None:
            session, slot = released.slot
            yield from self._look(session, slot.index)

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the shares of slots that have no sum."""
        for tag, index in tuple(self._came):
            if tag in over.view.sessions:
                yield from self._look(over.view.sessions[tag], index)
        self._came.clear()

    def on_end(self) -> tuple[Finding, ...]:
        """Make the last tests; the alarms come when all tests are made."""
        self._tests.finish()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain shares."""
        number = self._tests.num_secrets
        return Coverage(tally.whole, f"the polynomials of {number} secrets", number)

    def _look(self, session: SessionView, index: int) -> Iterator[Finding]:
        positions, ids = session.positions, session.ids.tolist()
        came = self._came.pop((session.params.tag, index), {})
        known = [
            (positions[device], seen, message)
            for device, (seen, message) in came.items()
            if device in positions and (message.positions < len(ids)).all()
        ]
        if not known:
            return
        place = known[0][1].place
        slot = dealt([(at, message) for at, _, message in known], session.params.threshold)
        for owner in self._tests.add(slot, f"slot {index}", place):
            detail = f"slot {index}: a share of device {ids[owner]}'s secret"
            yield RULES.found("shares.unfitting", detail, [place])
