"""Is the record whole, and does the run's own account agree with it?"""

import math
from collections.abc import Iterator, Mapping

from deltafl.protocol.round import RoundOutcome
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.record.events import Event

RULE_OF = {
    Damage.CUT: "record.cut",
    Damage.EDITED: "record.edited",
    Damage.MISSING: "record.missing",
    Damage.REORDERED: "record.reordered",
    Damage.MALFORMED: "record.malformed",
}


def damage(error: ChainError, round_number: int | None) -> Finding:
    """The finding for a chain that is broken.

    Args:
        error: What the reader says.
        round_number: The round in which it happened; None outside of any.
    """
    place = Evidence(round_number, error.frame, error.offset)
    return found(RULE_OF[error.damage], f"record {error.frame}: {error.problem}", [place])


def compare(round_: RoundView, event: Event, outcome: RoundOutcome | None) -> Iterator[Finding]:
    """Compare what the run says of a round with what its sums come to."""
    stated: dict[str, object] = {"secure_sums": len(round_.sums)}
    if round_.end is not None:
        stated["aborted"] = round_.end.aborted or None
    yield from _compare(round_, event, stated | _stated(event, outcome), "")


def compare_level(
    round_: RoundView, event: Event, level: str, outcome: RoundOutcome | None
) -> Iterator[Finding]:
    """Compare what the run says of one level of a round with what the level's sums come to.

    Args:
        round_: The round.
        event: What the run says of it.
        level: The level, as the run's events name it.
        outcome: What the sums come to; None where that is not known.
    """
    levels = event.get("levels")
    told = levels.get(level) if isinstance(levels, dict) else None
    if isinstance(told, dict):
        yield from _compare(round_, told, _stated(told, outcome), f" at θ = {level}")
    else:
        detail = f"the run's events do not tell of the level θ = {level}"
        place = place_of(round_.end) if round_.end else Evidence(round_.number)
        yield found("record.disagrees", detail, [place])


def _stated(event: Event, outcome: RoundOutcome | None) -> dict[str, object]:
    """What the events must say of a round of this outcome."""
    stated: dict[str, object] = {}
    if outcome is not None and outcome.aborted is None:
        search = outcome.search
        stated |= {
            "kept_devices": outcome.kept_devices,
            "kept_weight": outcome.kept_weight,
            "train_loss": outcome.train_loss,
            "clipped": outcome.clipped,
        }
        if search is not None:
            stated |= {"num_queries": search.num_queries, "certified": search.certified}
            if event.get("eta") is not None:  # rounds that search nothing record none
                stated |= {"eta": search.eta, "half_width": search.half_width}
    return stated


def _compare(
    round_: RoundView, event: Event, stated: Mapping[str, object], where: str
) -> Iterator[Finding]:
    for key, value in stated.items():
        if not _same(event.get(key), value):
            said = f"{key}{where} is {event.get(key)!r} in the run's events"
            detail = f"{said}, and {value!r} by its sums"
            place = place_of(round_.end) if round_.end else Evidence(round_.number)
            yield found("record.disagrees", detail, [place])


def check(round_: RoundView) -> Iterator[Finding]:
    """Find answers to questions that are not in the record."""
    for session in round_.sessions.values():
        for seen in session.unasked:
            kind = seen.content.kind.name if seen.content.kind is not None else "unknown"
            detail = f"a {kind} message of device {seen.record.peer}, to which nothing was sent"
            yield found("record.unasked", detail, [seen.place])


def without_end(round_: RoundView, number: int, offset: int) -> Finding:
    """The finding for a round that another record follows, although it has no end."""
    place = Evidence(round_.number, number, offset)
    return found("record.missing", f"round {round_.number} has no end", [place])


def missing_rounds(events: Mapping[int, Event], seen: set[int]) -> Iterator[Finding]:
    """Find rounds that the run says it played and the transcript does not have."""
    if missing := sorted(set(events) - seen):
        detail = f"rounds {', '.join(map(str, missing[:5]))} are in the run's events only"
        yield found("record.disagrees", detail, [Evidence(number) for number in missing])


def _same(first: object, second: object) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-9)
    return first == second
