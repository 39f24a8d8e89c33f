"""Does every question follow from the sums before it, and every model from the round before?

The server of Algorithm 3 decides nothing: which pivot it asks for next, which threshold it
announces and which model follows are functions of the sums. The auditor computes them again.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.strategies.server_optimizer import Moments, ServerOptimizer, Sgd, step_along
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import EncodingError
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import Round, RoundOutcome
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SlotSum
from deltafl.secagg.params import ClientId
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.views import (
    Question,
    RoundView,
    SessionView,
    SlotView,
    contributors,
    place_of,
)
from deltafl.sim.record.transcript import Sum

PLAIN_STEP: Final = Sgd(1.0)
"""The server takes the mean of the updates as it is."""

_MAX_STARTS: Final = 8  # a run ends long before so many rounds in a row are given up


@dataclass(slots=True)
class PastModel:
    """What the rounds so far have come to.

    Attributes:
        starts: At which thresholds the next search may start: at the last one announced, or, where
            a round was given up before that, at what its search may have come to.
        following: The model that must be announced next, float32 bytes; None where it is not known.
        moments: What the server's optimiser remembers; None where it is not known.
    """

    starts: tuple[Threshold, ...] = ()
    following: bytes | None = None
    moments: Moments | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A round played again from its released sums.

    Attributes:
        level: Which level of its session it is, counted from 0.
        theta: Its conformity level; None where the announcement is not kept.
        outcome: What it comes to; None where it could not be played to its end.
        has_known_model: Whether the round before says which model it must begin with.
        findings: Where it went another way.
    """

    level: int
    theta: Fraction | None
    outcome: RoundOutcome | None
    has_known_model: bool
    findings: tuple[Finding, ...] = ()


def check(
    round_: RoundView,
    past: MutableMapping[int, PastModel],
    totals: Mapping[tuple[bytes, int], Vector],
    optimizer: ServerOptimizer = PLAIN_STEP,
) -> tuple[Played, ...]:
    """Play the sessions of a round again, level by level, each from its sums.

    Args:
        round_: The round.
        past: What the rounds before have come to, by level; brought up to date.
        totals: Sums that were replayed from whole messages, by session's tag and slot.
        optimizer: How the server says that it steps along the mean of the updates.
    """
    played = []
    for tag, session in round_.sessions.items():
        levels = session.by_level()
        for view in levels:
            before = past.setdefault(view.level, PastModel())
            wanted = before.following if view.is_whole and view.announce is not None else None
            findings = list(_model(view, wanted))
            is_left = any(later.slots for later in levels[view.level + 1 :])
            outcome, more = _play(round_, tag, view, before, totals, optimizer, is_left=is_left)
            theta = None if view.config is None else view.config.theta
            played.append(
                Played(view.level, theta, outcome, wanted is not None, (*findings, *more))
            )
    return tuple(played)


def _model(session: SessionView, wanted: bytes | None) -> Iterator[Finding]:
    announce = session.announce
    if announce is not None and wanted is not None and announce.model != wanted:
        detail = "the announced model is not the last one with the last round's update"
        yield found("model.unfounded", detail, [session.announcements[0].place])


def _play(
    round_: RoundView,
    tag: bytes,
    session: SessionView,
    past: PastModel,
    totals: Mapping[tuple[bytes, int], Vector],
    optimizer: ServerOptimizer,
    *,
    is_left: bool,
) -> tuple[RoundOutcome | None, list[Finding]]:
    config, announce = session.config, session.announce
    moments = past.moments
    past.following, past.moments = None, None
    slots = [slot for _, slot in sorted(session.slots.items()) if slot.opened or slot.sums]
    if config is None or announce is None or not slots or slots[0].question is None:
        if announce is not None and session.is_whole:
            past.following, past.moments = announce.model, moments
        if is_left and announce is not None and not slots:
            place = session.announcements[0].place
            detail = f"the level θ = {announce.config.theta} was left out, and a later one played"
            return None, [found("question.unfounded", detail, [place])]
        return None, []
    round_again, findings = _begin(config, slots[0], past)
    is_exact = session.is_whole
    announced = [slot.question for slot in slots if isinstance(slot.question, Threshold)]
    if isinstance(slots[0].question, Query) and announced:
        past.starts = (announced[-1],)  # without a search, the one before is still the last
    for slot, following in zip(slots, [*slots[1:], None], strict=True):
        asked = slot.question
        if slot.members is not None:
            round_again.assemble(int(slot.members.sum()))
        if asked != round_again.question:
            detail = (
                f"slot {slot.index} asks {_shown(asked, config)}, and the sums before it lead to "
                f"{_shown(round_again.question, config)}"
            )
            place = slot.opened[0].place if slot.opened else place_of(slot.sums[0])
            return None, [*findings, found("question.unfounded", detail, [place])]
        if not slot.sums:
            if following is None:
                past.starts = (*past.starts, *_given_up(round_again, None))[-_MAX_STARTS:]
                break  # the session ended here
            round_again.lose()
            continue
        length = session.params.slots[slot.index].length
        if slot.sums[0].length != length:
            detail = f"slot {slot.index} is of {length} words, and the sum of {slot.sums[0].length}"
            place = place_of(slot.sums[0])
            return None, [*findings, found("sums.out-of-range", detail, [place])]
        replayed = totals.get((tag, slot.index))
        if isinstance(asked, Query) and replayed is None and not _is_kept(slot.sums[0]):
            return None, findings
        vector = _words(slot.sums[0], replayed)
        is_exact = is_exact and (replayed is not None or _is_kept(slot.sums[0]))
        findings += _range(config, slot, vector)
        total = _slot_sum(session, slot, following, vector)
        if following is None:
            past.starts = (*past.starts, *_given_up(round_again, total))[-_MAX_STARTS:]
        round_again.take(total)
    if is_left and round_again.question is not None:
        detail = f"the level θ = {config.theta} was left before its updates were summed"
        place = slots[-1].opened[0].place if slots[-1].opened else place_of(slots[-1].sums[0])
        findings.append(found("question.unfounded", detail, [place]))
    aborted = round_.end.aborted if round_.end and round_.end.aborted else None
    # a level that was over when the session ended early has come to its end all the same
    outcome = round_again.outcome({}, None if round_again.question is None else aborted)
    if is_exact:
        past.following, past.moments = _following(announce.model, outcome, optimizer, moments)
    return outcome, findings


def _begin(config: RoundConfig, first: SlotView, past: PastModel) -> tuple[Round, list[Finding]]:
    """The round before its first sum. Where a search starts is the server's to choose."""
    fresh = Round(config, None)
    if fresh.question == first.question or not first.opened:
        return fresh, []
    for start in past.starts:
        tick = min(round(start.eta_half_ticks / 2), config.search.grid.max_tick)
        warm = Round(config, tick)
        if warm.question == first.question:
            return warm, []
    pivots = getattr(first.question, "pivots", ())
    for pivot in pivots:
        if 0 <= pivot <= config.search.grid.max_tick:
            elsewhere = Round(config, pivot)
            if elsewhere.question == first.question:
                detail = "the search starts neither afresh nor at the last threshold"
                place = [first.opened[0].place]
                return elsewhere, [found("question.unfounded", detail, place, Severity.INFO)]
    return fresh, []


def _given_up(round_again: Round, last: SlotSum | None) -> tuple[Threshold, ...]:
    """What a search may have come to where no threshold was announced any more.

    Whether devices had vanished since its last sum, which ends it early, is not in the record.
    """
    if not isinstance(round_again.question, Query):
        return ()
    shrank, went_on = copy(round_again), copy(round_again)
    if last is None:
        shrank.lose()
    else:
        shrank.take(replace(last, remaining=()))
        went_on.take(last)
    ended = (shrank.question, went_on.question)
    return tuple(question for question in ended if isinstance(question, Threshold))


def _range(config: RoundConfig, slot: SlotView, vector: Vector) -> Iterator[Finding]:
    """Whether a sum is one of vectors that all follow the layout."""
    is_query = isinstance(slot.question, Query)
    layout = config.search_layout if is_query else config.update_layout
    try:
        layout.decode(vector.astype(np.uint64))
    except EncodingError as error:
        yield found("sums.out-of-range", f"slot {slot.index}: {error}", [place_of(slot.sums[0])])


def _slot_sum(
    session: SessionView, slot: SlotView, following: SlotView | None, vector: Vector
) -> SlotSum:
    released = slot.sums[0]
    summed = tuple(ClientId(device) for device in released.contributors.tolist())
    remaining = summed
    if following is not None and following.members is not None:
        remaining = tuple(ClientId(d) for d in contributors(session, following.members))
    return SlotSum(slot.index, vector, summed, remaining)


def _is_kept(released: Sum) -> bool:
    return len(released.words) == released.length


def _words(released: Sum, replayed: Vector | None) -> Vector:
    """All words of a sum: as recorded where they all are, else as replayed.

    Where there is neither, those that are not recorded are zeros. Of a sum of updates, only the
    update is made of them.
    """
    if _is_kept(released):
        return released.words
    if replayed is not None:
        return replayed.astype(np.uint64)
    words = np.zeros(released.length, dtype=np.uint64)
    words[-len(released.words) :] = released.words
    return words


def _following(
    model: bytes, outcome: RoundOutcome, optimizer: ServerOptimizer, moments: Moments | None
) -> tuple[bytes | None, Moments | None]:
    """The model that a round leads to, computed as the strategy does, and the moments after it.

    Where the moments are not known, no more is the model, unless the optimiser has none.
    """
    if outcome.update is None or len(model) != 4 * len(outcome.update):
        return model, moments
    if isinstance(optimizer, Sgd):
        moments = {}
    if moments is None:
        return None, None
    before = np.frombuffer(model, dtype="<f4").astype(np.float32)
    with np.errstate(all="ignore"):  # a model of the server's own making may hold anything
        proposed = (before + outcome.update).astype(np.float32)
        after, moments = step_along(optimizer, before, proposed, moments)
    return after.astype("<f4").tobytes(), moments


def _shown(question: Question | None, config: RoundConfig) -> str:
    if question is None:
        return "nothing more"
    if isinstance(question, Threshold):
        low = question.eta_half_ticks - question.half_width_half_ticks
        return f"for updates from F ≥ {config.search.grid.value(low / 2):.6g}"
    pivots = question.pivots
    shown = ", ".join(f"{config.search.grid.value(pivot - 0.5):.6g}" for pivot in pivots[:3])
    return f"for the rank at {shown}" + (f" and {len(pivots) - 3} more" if len(pivots) > 3 else "")
