"""Are cohorts, tails and parameters as large as the policy requires?"""

from collections.abc import Iterator
from typing import Final

from deltafl.secagg import PeerError
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import A4, A19, Rule, Rules
from deltafl.sim.inspect.audit.views import SessionView, place_of
from deltafl.sim.record.transcript import Sum

RULES: Final = Rules(
    {
        "cohort.below-floor": Rule(
            Severity.HIGH,
            "a sum was released over fewer devices than the floor",
            "Each device hides only among the devices in the sum.",
            "Raise `privacy.min_cohort`, and invite more devices.",
            A4,
        ),
        "parameters.below-policy": Rule(
            Severity.HIGH,
            "the parameters of a session fall short of the policy",
            "Fewer colluding devices than assumed can rebuild a device's secrets.",
            "Compute the parameters from the threat model, as `SessionParams.for_threat` does.",
            A19,
        ),
        "search.unverified": Rule(
            Severity.HIGH,
            "a search is not verified although the server may be active",
            "Devices cannot check the sums. The server can announce any threshold, and single out "
            "the device with the largest loss.",
            "Search in a verified way, or say that unverified searches are accepted "
            "(`--unverified-if-active`).",
            A19,
        ),
        "sums.small-tail": Rule(
            Severity.HIGH,
            "few devices passed the filter",
            "The sum of updates covers only these few devices. If there is only one, the sum is "
            "its update.",
            "Raise θ or the cohort size, or announce a threshold that keeps more devices.",
            A19,
        ),
    }
)


class Floors(Check):
    """Compares parameters with the policy, and every released sum with its floor."""

    name = "floors and parameters"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions and sums."""
        expected = self._premises.expected
        for session in over.view.sessions.values():
            try:
                expected.policy.check(session.params)
            except PeerError as error:
                place = session.announcements[0].place
                yield RULES.found("parameters.below-policy", str(error), [place])
            yield from _unverified(session, expected)
            for level in session.by_level():
                yield from _tails(level, expected)
        floor = expected.policy.min_cohort
        for released in over.view.sums:
            count = len(released.contributors)
            if count < floor:
                detail = (
                    f"slot {released.slot}: a sum over {count} devices, but the floor is {floor}"
                )
                yield RULES.found("cohort.below-floor", detail, [place_of(released)])

    def coverage(self, tally: Tally) -> Coverage:
        """The first bytes of every message are enough."""
        expected = self._premises.expected
        floors = f"{expected.policy.min_cohort} in a cohort, {expected.min_tail} in a tail"
        return Coverage(tally.told, floors)


def _unverified(session: SessionView, expected: Expected) -> Iterator[Finding]:
    """A search that devices cannot check, of a server that may say anything."""
    levels = session.levels
    if expected.is_active and levels is not None and not levels.can_be_followed:
        place = session.announcements[0].place
        severity = Severity.LOW if expected.policy.unverified_if_active else None
        detail = "devices have to believe the threshold that they are told"
        yield RULES.found("search.unverified", detail, [place], severity)


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
            yield RULES.found("sums.small-tail", detail, [place_of(released)], severity)


def tail_count(update: Sum) -> int | None:
    """How many devices passed, of the sum of a round's updates; None where it is not kept.

    The layout ends with weight, weighted loss, count and clipped, one word each (docs/spec.md
    §12.3).
    """
    return int(update.words[-2]) if len(update.words) >= 4 else None
