"""Are cohorts, tails and parameters as large as the policy wants them?"""

from collections.abc import Iterator

from deltafl.secagg import PeerError
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.views import RoundView, SessionView, place_of
from deltafl.sim.record.transcript import Sum


def check(round_: RoundView, expected: Expected) -> Iterator[Finding]:
    """Compare parameters with the policy, and every released sum with its floor."""
    for session in round_.sessions.values():
        try:
            expected.policy.check(session.params)
        except PeerError as error:
            yield found("parameters.below-policy", str(error), [session.announcements[0].place])
        for level in session.by_level():
            yield from _tails(level, expected)
    for released in round_.sums:
        count, floor = len(released.contributors), expected.policy.min_cohort
        if count < floor:
            detail = f"slot {released.slot}: a sum over {count} devices, and the floor is {floor}"
            yield found("cohort.below-floor", detail, [place_of(released)])


def _tails(session: SessionView, expected: Expected) -> Iterator[Finding]:
    config = session.config
    if config is None or config.update_slot not in session.slots:
        return
    for released in session.slots[config.update_slot].sums:
        count = tail_count(released)
        if count is not None and 0 < count < expected.min_tail:
            devices = "one device" if count == 1 else f"{count} devices"
            detail = f"{devices} of {len(released.contributors)} passed the filter"
            severity = Severity.CRITICAL if count == 1 else None
            yield found("sums.small-tail", detail, [place_of(released)], severity)


def tail_count(update: Sum) -> int | None:
    """How many devices passed, of the sum of a round's updates; None where it is not kept.

    The layout ends with weight, weighted loss, count and clipped, one word each (docs/spec.md
    §12.3).
    """
    return int(update.words[-2]) if len(update.words) >= 4 else None
