"""Is every public key of a secret that nobody can guess?"""

from collections import ChainMap
from collections.abc import Iterator
from typing import Final

from deltafl.secagg import keys
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.over_sessions import public_keys
from deltafl.sim.inspect.audit.public_keys import of_edwards, of_few_seeds, of_visible
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView
from deltafl.sim.inspect.audit.visible import visible_in

RULES: Final = Rules.read(
    """\
keys.guessable critical device A7: a public key is of a secret that anybody can guess
    Anybody can compute the masks, and open the boxes, of this key, or sign by it.
"""
)


class GuessableKeys(Check):
    """Compares keys with those of secrets that anybody would try."""

    name = "secrets of keys"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at the keys of a round's sessions."""
        for session in over.view.sessions.values():
            yield from _guessable(session)

    def coverage(self, tally: Tally) -> Coverage:
        """Keys are in whole messages only."""
        return Coverage(tally.whole, f"{tally.whole} of {tally.rounds} rounds are recorded whole")


def _guessable(session: SessionView) -> Iterator[Finding]:
    known = ChainMap(of_visible(set(visible_in(session))), of_few_seeds())
    for device, message, seen in session.advertised():
        for role, public in public_keys(message):
            if (how := known.get(keys.canonical(public))) is not None:
                detail = f"the {role} of device {device} has the secret {how}"
                yield RULES.found("keys.guessable", detail, [seen.place])
        if message.credential is None:
            continue
        identity = bytes(message.credential.identity)
        how = known.get(identity) or known.get(of_edwards(identity))
        if how is not None:
            detail = f"the identity of device {device} has the secret {how}"
            yield RULES.found("keys.guessable", detail, [seen.place])
