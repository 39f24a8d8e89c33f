"""Could the server solve for a device's update from the sums of many rounds?"""

from collections.abc import Iterator
from typing import Final

from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts, ParticipationFacts
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.participation import Participation, ParticipationResult
from deltafl.sim.inspect.audit.rules import Rules

_SHOWN = 5

RULES: Final = Rules.read(
    """\
participation.solvable low settings A11: updates could be solved for over many rounds
    If a device's update stayed the same from round to round, the server could compute it from the
    sums.
"""
)


class ParticipationOverRounds(Check):
    """Collects which devices were in which sum of updates, and solves for updates at the end."""

    name = "participation over rounds"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._participation = Participation()
        self._result = self._participation.result()

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Note which devices were in a round's sums of updates; findings come at the end."""
        for session in over.view.sessions.values():
            for level in session.by_level():
                slot = None if level.config is None else level.slots.get(level.config.update_slot)
                if slot is not None and slot.question is not None:
                    for released in slot.sums:
                        self._participation.add(over.view.number, released.contributors.tolist())
        return ()

    def on_end(self) -> Iterator[Finding]:
        """Say whose updates could be solved for over all rounds."""
        self._result = self._participation.result()
        yield from _solvable(self._result)

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        number = self._result.sums
        return Coverage(tally.whole, f"{number} sums of updates", number)

    def facts(self) -> CheckFacts:
        """What the participation matrix says."""
        result = self._result
        return {
            "participation": ParticipationFacts(
                result.sums,
                result.devices,
                result.rank,
                result.num_solvable,
                result.smallest_difference,
            )
        }


def _solvable(result: ParticipationResult) -> Iterator[Finding]:
    """Say whose updates could be solved for over all rounds."""
    if not result.num_solvable:
        return
    device, used = next(iter(result.solvable.items()))
    detail = (
        f"{result.num_solvable} of {result.devices} devices, such as device {device} from rounds "
        f"{_listed(used)}"
    )
    rounds = sorted(set(result.first_round_by_device.values()))
    yield RULES.found("participation.solvable", detail, [Evidence(number) for number in rounds])


def _listed(rounds: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, rounds[:_SHOWN]))
    return shown if len(rounds) <= _SHOWN else f"{shown} and {len(rounds) - _SHOWN} more"
