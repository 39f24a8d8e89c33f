"""Has any device answered for more models than its own limit allows?"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.rules import Rules

RULES: Final = Rules.read(
    """\
participation.above-limit high server A11: a device answered for more models than its limit
    What sums reveal of a device adds up over its rounds, so more is known of it than its limit
    was to allow.
"""
)

_SHOWN: Final = 3


class Limits(Check):
    """Counts for how many models each device has sent an answer."""

    name = "limits on participation"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._answered = Counter[int]()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Count a round's answers."""
        most = self._premises.expected.policy.max_participations
        for session in over.view.sessions.values():
            for level in session.by_level():
                came = {
                    seen.record.peer: seen for slot in level.slots.values() for seen in slot.inputs
                }
                self._answered.update(came.keys())
                above = sorted(device for device in came if self._answered[device] > most)
                if most and above:
                    shown = ", ".join(map(str, above[:_SHOWN]))
                    more = f" and {len(above) - _SHOWN} more" if len(above) > _SHOWN else ""
                    times = max(self._answered[device] for device in above)
                    yield RULES.found(
                        "participation.above-limit",
                        f"devices {shown}{more} answered for up to {times} models, and "
                        f"max_participations={most}",
                        [came[device].place for device in above],
                    )

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        most = self._premises.expected.policy.max_participations
        times = max(self._answered.values(), default=0)
        return Coverage(tally.whole, f"a device in up to {times} rounds, of {most or 'any number'}")
