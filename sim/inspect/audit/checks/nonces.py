"""Can anybody compute a device's secret key from its signatures?"""

from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.field_values import numbers_of
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.nonces import guessed, related
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.statements import Signed, advertised, of_commitments, of_lists
from deltafl.sim.inspect.audit.views import SessionView
from deltafl.sim.inspect.audit.visible import of_session

RULES: Final = Rules.read(
    """\
signatures.guessable-nonce critical device A7: the nonce of a signature can be guessed
    Anybody can compute the secret key of the device's identity, and sign in its name.
"""
)


class Nonces(Check):
    """Tries the nonces that careless software makes, for every signature of a device."""

    name = "nonces of signatures"
    rules = RULES
    _tried = 0

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the signatures of a round's sessions."""
        for session in over.view.sessions.values():
            by_device: dict[int, list[Signed]] = {}
            for one in _signed(session):
                by_device.setdefault(one.device, []).append(one)
            for device, signed in by_device.items():
                self._tried += len(signed)
                signed.sort(key=lambda one: one.place.record or 0)
                visible = (*of_session(session), *numbers_of(device), signed[0].identity)
                for one in signed:
                    if (how := guessed(one, visible)) is not None:
                        yield _found(one, how)
                for one, how in related(signed):
                    yield _found(one, how)

    def coverage(self, tally: Tally) -> Coverage:
        """Signatures are in whole messages only."""
        return Coverage(tally.whole, f"{self._tried} signatures", self._tried)


def _signed(session: SessionView) -> Iterator[Signed]:
    yield from advertised(session)
    for slot in session.slots.values():
        yield from of_lists(session, slot)
        yield from of_commitments(session, slot)


def _found(one: Signed, how: str) -> Finding:
    detail = f"device {one.device}'s signature of {one.what}: its nonce is {how}"
    return RULES.found("signatures.guessable-nonce", detail, [one.place])
