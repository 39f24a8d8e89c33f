"""A plan as a table of at most 80 columns."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Final

from deltafl.secagg.threat import CORRECTNESS_BITS, PROFILES, Adversary
from deltafl.sim.plan.plan import Plan, RoundCost, SessionPlan
from deltafl.sim.run.accounting import rounded_up
from deltafl.sim.writing import size

WIDTH: Final = 80
_NAMES: Final = 20


def as_text(plan: Plan) -> str:
    """The plan for people, a row for each fact."""
    thetas = ", ".join(plan.thetas)
    title = (
        f"{plan.algorithm}, θ = {thetas}: {plan.rounds:,} rounds of {plan.cohort:,} devices, "
        f"{plan.parameters:,} parameters"
    )
    lines = [*textwrap.wrap(title, WIDTH), ""]
    for name, text in _rows(plan):
        first, *others = textwrap.wrap(text, WIDTH - _NAMES)
        lines += [f"{name:<{_NAMES}}{first}", *(" " * _NAMES + line for line in others)]
    return "\n".join(lines)


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    session, costs = plan.session, plan.costs
    signed = "signed" if session.signed else "not signed"
    yield "devices expect", _expected(plan)
    yield (
        "session",
        f"{session.graph} graph, {signed}; each device has {session.neighbours} neighbours",
    )
    yield "threshold", f"{session.threshold} devices together rebuild a secret of another"
    yield "quorum", f"a sum is over at least {session.quorum:,} devices"
    yield "drop-outs", _survival(session)
    if session.losable_rounds is not None:
        yield "lost rounds", _losable(session.losable_rounds)
    yield "search", _search(plan)
    yield "rings", _rings(plan)
    if plan.looser:
        yield "devices accept", f"{', '.join(plan.looser)}; others would refuse"
    yield "", "a round / at most"
    yield "secure sums", _both(plan, lambda cost: f"{cost.secure_sums}")
    yield "trips", _both(plan, lambda cost: f"{cost.trips}")
    if plan.masked:
        yield "a device sends", _both(plan, lambda cost: size(cost.bytes_up))
        yield "a device receives", _both(plan, lambda cost: size(cost.bytes_down))
        yield "the server sends", _both(plan, lambda cost: size(cost.bytes_down * plan.cohort))
        yield "the server receives", _both(plan, lambda cost: size(cost.bytes_up * plan.cohort))
        yield (
            "server's memory",
            f"{size(costs.server_memory)} for shares, a sum and the model; "
            f"{size(costs.vectors_at_once)} more if all vectors arrive at once",
        )
    else:
        yield "bytes", "none: privacy.sums = 'ideal' sends no messages; 'masked' does"
    yield "the run reveals", _revealed(plan)
    yield "privacy", _privacy(plan)
    yield "would also work", _reachable(plan)


def _expected(plan: Plan) -> str:
    profile = PROFILES[Adversary(plan.adversary)]
    told = {
        "devices that collude": profile.counts_colluding,
        "sparse graphs": profile.takes_sparse,
        "searches that they cannot check": profile.takes_unverified,
        "lost rounds repeated": profile.repeats_rounds,
    }
    names = ", ".join(name for name, holds in told.items() if holds)
    return f"a server that is {plan.adversary}: with {names}"


def _losable(rounds: int) -> str:
    if not rounds:
        return (
            "none may be lost: a device answers for a model once, and too few would be left for "
            "the next round"
        )
    return f"{rounds:,} in a row leave enough devices that may answer for the model"


def _survival(session: SessionPlan) -> str:
    is_sparse = session.graph == "sparse"
    sparse = f" (by the graph, with 2^-{CORRECTNESS_BITS} more)" if is_sparse else ""
    return (
        f"a round survives {session.survives:,}; at the expected rate of "
        f"{session.expected_dropout:g}, it is lost with probability {session.loss:.1g}{sparse}"
    )


def _search(plan: Plan) -> str:
    search = plan.search
    if search is None:
        return "none: all devices are kept"
    tails = ", ".join(map(str, search.expected_tails))
    text = (
        f"by {search.method!r}, over at least {search.fewest:,} devices; θ keeps about {tails} of "
        f"{plan.cohort:,}"
    )
    if not search.min_tail:
        return text
    kept = search.expected_tails[-1]
    return (
        f"{text}. A tail has at least {search.min_tail}, of which {search.num_colluding} may "
        f"collude; a smaller one is widened. Where {kept:,} are kept, a round is lost if more than "
        f"{max(kept - search.min_tail, 0):,} devices drop out after the search"
    )


def _rings(plan: Plan) -> str:
    costs, search = plan.costs, plan.search
    update = f"{costs.ring_bits} bits for each of {costs.numbers:,} of an update"
    if search is None:
        return update
    return f"{search.ring_bits} bits for each of {search.numbers} of a query, {update}"


def _both(plan: Plan, show: Callable[[RoundCost], str]) -> str:
    costs = plan.costs
    few, many, most = show(costs.few), show(costs.many), show(costs.most)
    usual = few if few == many else f"{few} to {many}"
    return usual if few == many == most else f"{usual} / {most}"


def _revealed(plan: Plan) -> str:
    costs = plan.costs
    few, many, most = (one.secure_sums * plan.rounds for one in (costs.few, costs.many, costs.most))
    many = min(most, many + max(0, costs.first.secure_sums - costs.many.secure_sums))
    usual = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    limit = "" if few == many == most else f", {most:,} at most"
    return f"{usual} secure sums{limit}, each over {plan.session.quorum:,} devices or more"


def _privacy(plan: Plan) -> str:
    if plan.privacy is None:
        return "sums are exact: this is not differential privacy"
    what = "searches and updates" if plan.privacy.updates else "searches"
    rest = "" if plan.privacy.updates else "; sums of updates are not part of it"
    once, whole = rounded_up(plan.privacy.epsilon_once), rounded_up(plan.privacy.epsilon)
    return (
        f"{what}: ε = {once} at δ = {plan.privacy.delta:g} for a device that is in one round, and "
        f"{whole} for one that is in all{rest}"
    )


def _reachable(plan: Plan) -> str:
    ways = []
    if plan.fewest_devices is not None:
        ways.append(f"federation.cohort_size = {plan.fewest_devices:,} at the least")
    if plan.largest_dropout is not None:
        ways.append(f"privacy.expected_dropout = {plan.largest_dropout:g} at the most")
    if not ways:
        return "nothing: the devices that are expected to stay are fewer than the quorum"
    return ", or ".join(ways) + "; each with the other settings as they are"
