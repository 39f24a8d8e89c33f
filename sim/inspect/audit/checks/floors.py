"""Are cohorts, tails and parameters as large as the policy requires?"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary, PeerError
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.searches import tail_of, update_of
from deltafl.sim.inspect.audit.session_log import Level, Session
from deltafl.sim.inspect.audit.views import place_of


class Floors(Check):
    """Compares parameters with the policy, and every released sum with its floor."""

    name = "floors and parameters"
    table = """\
cohort.below-floor high settings A4: a sum was released over fewer devices than the floor
    Each device hides only among the devices in the sum.
parameters.below-policy high settings A19: the parameters of a session fall short of the policy
    Fewer colluding devices than assumed can rebuild a device's secrets.
round.below-policy high settings A14: a round asks more than devices accept
    Its sums can be about few: a fine grid, levels too near; or a server chooses what nobody checks.
policy.looser low settings A14: devices accept more than they usually do
    The settings of the run let its devices answer what devices elsewhere refuse.
sums.small-tail high settings A19: few devices passed the filter
    The sum of updates covers only these few devices. If there is only one, the sum is its update.
"""

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._looser = premises.expected.looser  # not said yet

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions and sums."""
        expected = self._premises.expected
        for session in over.view.sessions.values():
            if self._looser:
                detail = f"they accept {', '.join(self._looser)}"
                yield self.rules.found("policy.looser", detail, [session.place])
                self._looser = ()
            yield from _below_policy(session, expected.policy)
            for level in session.by_level():
                yield from _small_tail(level, expected.policy)
        floor = expected.policy.min_cohort
        for released in over.view.sums:
            count = len(released.contributors)
            if count < floor:
                detail = f"slot {released.slot}: a sum over {count} devices; the floor is {floor}"
                yield self.rules.found("cohort.below-floor", detail, [place_of(released)])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that have messages."""
        policy = self._premises.expected.policy
        cohort, honest = policy.min_cohort, policy.min_honest_tail
        return Coverage(tally.whole, f"{cohort} in a cohort, {honest} honest ones in a tail")


def _below_policy(session: Session, policy: RoundPolicy) -> Iterator[Finding]:
    """A session, or its rounds, that devices of this policy refuse; each reason once."""
    asked = session.levels, session.params
    lenient = replace(policy, adversary=Adversary.CURIOUS)
    found: dict[str, str] = {}
    for rule, refuse in (
        ("parameters.below-policy", partial(policy.check, session.params)),
        ("round.below-policy", partial(policy.check_round, *asked)),
        ("round.below-policy", partial(lenient.check_round, *asked)),
    ):
        try:
            refuse()
        except PeerError as error:
            found.setdefault(str(error), rule)
    for reason, rule in found.items():
        yield Floors.rules.found(rule, reason, [session.place])


def _small_tail(level: Level, policy: RoundPolicy) -> Iterator[Finding]:
    """A sum of updates over fewer devices than the policy allows."""
    update, tail = update_of(level), tail_of(level)
    fewest = policy.min_tail(level.session.params.num_invited)
    if update is not None and tail is not None and 0 < tail.count < fewest:
        detail = f"devices that passed the filter: {tail.count} of {len(update.contributors)}; the "
        detail += f"floor is {fewest}, those that may collude among them"
        severity = Severity.CRITICAL if tail.count == 1 else None
        yield Floors.rules.found("sums.small-tail", detail, [place_of(update)], severity)
