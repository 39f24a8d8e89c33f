"""What follows from the released sums together: over whom, how often, and of which inputs."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from deltafl.protocol.quantile.search import Query
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.differencing import Difference, DifferenceKind, Differencing
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.participation import Participation, ParticipationResult
from deltafl.sim.inspect.audit.views import RoundView, SessionView, place_of

_SHOWN = 5


@dataclass(slots=True)
class PastSums:
    """The sums released so far.

    Attributes:
        differencing: Finds cohorts of the same inputs that differ by few.
        participation: Who was in which sum of updates.
        models: Where each model was announced first, and whether its round changed it.
    """

    differencing: Differencing
    participation: Participation = field(default_factory=Participation)
    models: dict[bytes, tuple[Evidence, bool]] = field(default_factory=dict)


def check(round_: RoundView, past: PastSums, *, changed: Collection[int]) -> Iterator[Finding]:
    """Compare a round's released sums with one another and with those before.

    Args:
        round_: The round.
        past: The sums before; brought up to date.
        changed: The levels at which the round's sums lead to another model, counted from 0.
    """
    levels = [level for session in round_.sessions.values() for level in session.by_level()]
    for session in levels:
        model = _model_key(session)
        if model is not None:
            is_changed = session.level in changed
            yield from _announced_again(session, past, model, changed=is_changed)
        for index, slot in sorted(session.slots.items()):
            question = slot.question
            for released in slot.sums:
                if question is None or model is None:
                    continue
                kind = type(question).__name__.encode()
                ids = released.contributors.tolist()
                for difference in past.differencing.add(
                    kind + question.canonical(), model, ids, place_of(released)
                ):
                    yield _difference(difference, is_query=isinstance(question, Query))
                if session.config is not None and index == session.config.update_slot:
                    past.participation.add(round_.number, ids)
    if round_.end is not None and round_.end.aborted and round_.sums:
        detail = f"{len(round_.sums)} sums were released, then: {round_.end.aborted}"
        yield found("retry.aborted", detail, [place_of(round_.end)])


def solvable(result: ParticipationResult) -> Iterator[Finding]:
    """Say whose updates could be solved for over all rounds."""
    if not result.num_solvable:
        return
    device, used = next(iter(result.solvable.items()))
    detail = (
        f"{result.num_solvable} of {result.devices} devices, such as device {device} from rounds "
        f"{_listed(used)}"
    )
    rounds = sorted(set(result.first_round_by_device.values()))
    yield found("participation.solvable", detail, [Evidence(number) for number in rounds])


def _announced_again(
    session: SessionView, past: PastSums, model: bytes, *, changed: bool
) -> Iterator[Finding]:
    place = session.announcements[0].place
    if model not in past.models:
        past.models[model] = place, changed
        return
    before, had_changed = past.models[model]
    if had_changed:
        detail = f"the model of round {before.round}, whose sums led to another"
        yield found("retry.same-model", detail, [place, before])
    else:
        detail = f"the model of round {before.round}, which did not change it"
        yield found("retry.same-model", detail, [place, before], Severity.INFO)


def _difference(difference: Difference, *, is_query: bool) -> Finding:
    devices = ", ".join(map(str, difference.devices[:_SHOWN]))
    places = [difference.second, difference.first]
    if difference.kind is DifferenceKind.SAME_QUESTION or is_query:
        detail = f"{difference.kind.value}; they differ by {difference.size}: devices {devices}"
        return found("sums.differ-by-few", detail, places)
    return found("sums.search-and-update", f"without devices {devices}", places)


def _model_key(session: SessionView) -> bytes | None:
    """What stands for the model: its digest, or that of the announcement where it is not kept."""
    if session.announce is None:
        return None
    if session.is_whole:
        return sha256(session.announce.model).digest()
    return session.model_sha256


def _listed(rounds: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, rounds[:_SHOWN]))
    return shown if len(rounds) <= _SHOWN else f"{shown} and {len(rounds) - _SHOWN} more"
