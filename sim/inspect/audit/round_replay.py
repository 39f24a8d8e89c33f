"""Plays a round again from its released sums: which questions and which model follow from them.

The server of Algorithm 3 decides nothing: its next pivot, the announced threshold and the next
model are functions of the sums. This module computes them again. The checks judge a round that went
another way.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.strategies.base import Memory
from deltafl.fl.strategies.server_optimizer import ServerOptimizer
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch, Round, RoundOutcome
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SlotSum
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.layout import Layout
from deltafl.secagg.params import ClientId
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.server_step import PLAIN_STEP, following
from deltafl.sim.inspect.audit.views import (
    Question,
    RoundView,
    SessionView,
    SlotView,
    contributors,
    place_of,
)
from deltafl.sim.record.transcript import Sum


@dataclass(slots=True)
class PastModel:
    """The results of the rounds so far.

    Attributes:
        start: The tick at which the next search may start: of the last threshold of a round that
            was not lost.
        lost: What the last round has revealed, if it was lost, and the settings of that round.
        following: The model that must be announced next, float32 bytes; None where it is not known.
        moments: What the server's optimiser remembers; None where it is not known.
    """

    start: int | None = None
    lost: tuple[RoundConfig, LostSearch] | None = None
    following: bytes | None = None
    moments: Memory | None = field(default_factory=dict)


def copied(past: Mapping[int, PastModel]) -> dict[int, PastModel]:
    """What the rounds so far have come to, by level, to go back to later."""
    return {level: replace(one) for level, one in past.items()}


def keep_models(lost: RoundView, past: MutableMapping[int, PastModel]) -> None:
    """Note that the round after a lost one must begin with the same models.

    Args:
        lost: The first round that was lost.
        past: What the rounds before it have come to, by level; brought up to date.
    """
    for session in lost.sessions.values():
        for view in session.by_level():
            before = past.setdefault(view.level, PastModel())
            if view.is_whole and view.model is not None:
                before.following = view.model


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a round does not follow from its sums.

    Attributes:
        detail: What was seen, one sentence without the full stop.
        place: Where.
        severity: How bad, where it is not as bad as such a thing is in general.
    """

    detail: str
    place: Evidence
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """One level of a round, played again from its released sums.

    Attributes:
        level: Which level of its session it is, counted from 0.
        theta: Its conformity level; None where the announcement is not kept.
        outcome: What it comes to; None where it could not be played to its end.
        has_known_model: Whether the round before says which model it must begin with.
        other_model: Where another model than that was announced; None where it was not.
        unfounded: The questions that do not follow from the sums before them.
        out_of_range: The sums that vectors of the layout cannot add up to.
        is_exact: Whether all words of all its sums are known, and so the model after it.
        lost: What a lost round has revealed, with which it goes on among the devices of its search.
        following: The model that it leads to, float32 bytes; None where it is not known.
    """

    level: int
    theta: Fraction | None
    outcome: RoundOutcome | None
    has_known_model: bool
    other_model: Departure | None = None
    unfounded: tuple[Departure, ...] = ()
    out_of_range: tuple[Departure, ...] = ()
    is_exact: bool = True
    lost: LostSearch = field(default_factory=LostSearch)
    following: bytes | None = None


_MOST_UNSEEN: Final = 1 << 22
"""Words of a sum that is played with zeros for those that are not recorded: a transcript of a few
kilobytes can say that a sum has any number of them."""


def play_again(
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
    for session in round_.sessions.values():
        levels = session.by_level()
        for view in levels:
            before = past.setdefault(view.level, PastModel())
            wanted = before.following if view.is_whole and view.announce is not None else None
            peers = frozenset(seen.record.peer for seen in session.announcements)
            way = _Way(view, totals, _goes_on_with(view, before, peers))
            is_left = any(later.slots for later in levels[view.level + 1 :])
            outcome = _play(way, round_, before, optimizer, is_left=is_left)
            played.append(
                Played(
                    view.level,
                    None if view.config is None else view.config.theta,
                    outcome,
                    wanted is not None,
                    _other_model(view, wanted),
                    tuple(way.unfounded),
                    tuple(way.out_of_range),
                    way.is_exact,
                    way.lost,
                    before.following,
                )
            )
    return tuple(played)


def _other_model(session: SessionView, wanted: bytes | None) -> Departure | None:
    if session.model is not None and wanted is not None and session.model != wanted:
        detail = "the announced model is not the last one with the last round's update"
        return Departure(detail, session.announcements[0].place)
    return None


@dataclass(slots=True, eq=False)
class _Way:
    """The way that a level goes through its sums.

    Attributes:
        session: The level's view.
        totals: Sums that were replayed, by session's tag and slot.
        lost: What a lost round has revealed, with which it goes on.
        is_exact: Whether all words of all its sums are known.
        unfounded: As of `Played`.
        out_of_range: As of `Played`.
    """

    session: SessionView
    totals: Mapping[tuple[bytes, int], Vector]
    lost: LostSearch
    is_exact: bool = True
    unfounded: list[Departure] = field(default_factory=list)
    out_of_range: list[Departure] = field(default_factory=list)

    def follow(self, round_again: Round, slots: Sequence[SlotView], config: RoundConfig) -> bool:
        """Hand a round the sums of its slots; whether it could be played to its end."""
        for slot, later in zip(slots, [*slots[1:], None], strict=True):
            if slot.members is not None:
                round_again.assemble(int(slot.members.sum()))
            if slot.question != round_again.question:
                detail = (
                    f"slot {slot.index} asks {_shown(slot.question, config)}, and the sums before "
                    f"it lead to {_shown(round_again.question, config)}"
                )
                self.unfounded.append(Departure(detail, _begin_of(slot)))
                return False
            if slot.members is not None:
                round_again.ask(contributors(self.session, slot.members))
            total: SlotSum | None = None
            if slot.sums:
                total = self._total(slot, later, config)
                if total is None:
                    return False
            if total is not None:
                round_again.take(total)
            elif later is not None:
                round_again.lose()  # else the session ended here
        return True

    def _total(self, slot: SlotView, later: SlotView | None, config: RoundConfig) -> SlotSum | None:
        """The sum of a slot, as its round takes it; None where it cannot be gone on with."""
        params = self.session.params
        length = params.slots[slot.index].length
        if slot.sums[0].length != length:
            detail = f"slot {slot.index} is of {length} words, and the sum of {slot.sums[0].length}"
            self.out_of_range.append(Departure(detail, place_of(slot.sums[0])))
            return None
        replayed = self.totals.get((params.tag, slot.index))
        is_known = replayed is not None or _is_kept(slot.sums[0])
        if not is_known and (isinstance(slot.question, Query) or length > _MOST_UNSEEN):
            return None
        vector = words_of(slot.sums[0], replayed)
        self.is_exact = self.is_exact and is_known
        problem = _out_of_range(config, slot, vector)
        if problem is not None:
            self.out_of_range.append(problem)
        return _slot_sum(self.session, slot, later, vector)


def _play(
    way: _Way,
    round_: RoundView,
    past: PastModel,
    optimizer: ServerOptimizer,
    *,
    is_left: bool,
) -> RoundOutcome | None:
    """Play a level again; what it comes to, or None where it could not be played to its end.

    Args:
        way: Of the level; takes what is wrong with it.
        round_: The level's round.
        past: What the rounds before have come to at this level; brought up to date.
        optimizer: As of `play_again`.
        is_left: Whether a later level of the session was played.
    """
    session = way.session
    config, model = session.config, session.model
    moments = past.moments
    past.following, past.moments = None, None
    if config is None or model is None:
        return None
    slots = [slot for _, slot in sorted(session.slots.items()) if slot.opened or slot.sums]
    if not slots or slots[0].question is None:
        if session.is_whole:
            past.following, past.moments = model, moments
        if is_left and not slots:
            detail = f"the level θ = {config.theta} was left out, and a later one played"
            way.unfounded.append(Departure(detail, session.announcements[0].place))
        return None
    if isinstance(slots[0].question, Query) and config.warm_start not in (None, past.start):
        detail = "the search starts neither afresh nor at the last threshold"
        way.unfounded.append(Departure(detail, session.announcements[0].place, Severity.INFO))
    round_again = Round(config, way.lost)
    given_up = (
        slot
        for slot in session.slots.values()
        if slot.checks and not slot.opened and session.is_whole_slot(slot)
    )
    if (unopened := next(given_up, None)) is not None:
        lists = [seen.content.members for seen in unopened.checks]
        for members in [one for one in lists if one is not None][:1]:
            round_again.ask(contributors(session, members))
        round_again.lose()  # a device was gone before the first slot, a whole one, was opened
    if not way.follow(round_again, slots, config):
        return None
    if is_left and round_again.question is not None:
        detail = f"the level θ = {config.theta} was left before its updates were summed"
        way.unfounded.append(Departure(detail, _begin_of(slots[-1])))
    aborted = round_.end.aborted if round_.end and round_.end.aborted else None
    # a level that was over when the session ended early has come to its end all the same
    outcome = round_again.outcome({}, None if round_again.question is None else aborted)
    found = outcome.search if outcome.aborted is None else None
    if found is not None and found.tail is not None and found.eta:  # as a strategy has it
        past.start = min(round(found.eta_half_ticks / 2), config.search.grid.max_tick)
    is_unmasked = any(slot.requests for slot in slots if isinstance(slot.question, Threshold))
    past.lost = None if outcome.lost is None or is_unmasked else (config, outcome.lost)
    if session.is_whole and way.is_exact:
        past.following, past.moments = following(model, outcome, optimizer, moments)
    return outcome


def _goes_on_with(session: SessionView, past: PastModel, peers: frozenset[int]) -> LostSearch:
    """What a lost round over the model has revealed, if a session is among its devices.

    Args:
        session: A level's view.
        past: What the rounds before have come to at this level.
        peers: Those to whom it was announced.
    """
    if past.lost is None or session.config is None or session.model != past.following:
        return LostSearch()
    settings, lost = past.lost
    is_same = replace(settings, round_index=session.config.round_index) == session.config
    return lost if is_same and peers <= set(lost.devices) else LostSearch()


def _begin_of(slot: SlotView) -> Evidence:
    """Where a slot was opened; where it never was, its sum."""
    return slot.opened[0].place if slot.opened else place_of(slot.sums[0])


def _out_of_range(config: RoundConfig, slot: SlotView, vector: Vector) -> Departure | None:
    """Why a sum is not one of vectors that all follow the layout; None where it is."""
    try:
        layout_of(config, slot.question).decode(vector.astype(np.uint64))
    except EncodingError as error:
        return Departure(f"slot {slot.index}: {error}", place_of(slot.sums[0]))
    return None


def layout_of(config: RoundConfig, question: Question | None) -> Layout:
    """The layout of the answers to a question."""
    return config.search_layout if isinstance(question, Query) else config.update_layout


def _slot_sum(
    session: SessionView, slot: SlotView, later: SlotView | None, vector: Vector
) -> SlotSum:
    released = slot.sums[0]
    summed = tuple(ClientId(device) for device in released.contributors.tolist())
    remaining = summed
    if later is not None and later.members is not None:
        remaining = contributors(session, later.members)
    return SlotSum(slot.index, vector, summed, remaining)


def _is_kept(released: Sum) -> bool:
    return len(released.words) == released.length


def words_of(released: Sum, replayed: Vector | None) -> Vector:
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


def _shown(question: Question | None, config: RoundConfig) -> str:
    if question is None:
        return "nothing more"
    if isinstance(question, Threshold):
        low = question.eta_half_ticks - question.half_width_half_ticks
        return f"for updates from F ≥ {config.search.grid.value(low / 2):.6g}"
    pivots = question.pivots
    shown = ", ".join(f"{config.search.grid.value(pivot - 0.5):.6g}" for pivot in pivots[:3])
    return f"for the rank at {shown}" + (f" and {len(pivots) - 3} more" if len(pivots) > 3 else "")
