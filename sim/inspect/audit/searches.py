"""What each search of a transcript gave away, in the terms of `deltafl.sim.inspect.leakage`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.facts import SearchFacts
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound
from deltafl.sim.inspect.audit.views import RoundView, SessionView
from deltafl.sim.inspect.leakage.consequences import ranks
from deltafl.sim.inspect.leakage.measure import (
    RECOVERED_NATS,
    LeakageFacts,
    fitted_prior,
    search_facts,
)
from deltafl.sim.inspect.leakage.observations import Answer, SearchView, Tail

ATTACKED: Final = 10
"""Devices of the largest cohort whose sums of `mm` are attacked."""

BY_THE_SUMS: Final = "by the sums alone"
"""Where losses follow for a server that knows nothing else."""

_SECONDS: Final = 1.0


def view_of(session: SessionView, totals: Mapping[tuple[bytes, int], Vector]) -> SearchView | None:
    """The search of a session as `deltafl.sim.inspect.leakage` takes it; None where there was none.

    Args:
        session: The session.
        totals: Sums that were replayed, by session's tag and slot.
    """
    config = session.config
    if config is None or config.noise is not None:
        return None  # noisy counts are no ranks; what they cost is a matter of accounting
    answers: list[Answer] = []
    devices = 0
    for index in sorted(session.slots):
        slot = session.slots[index]
        if not slot.sums or not isinstance(slot.question, Query):
            continue
        sums = slot.sums[0]
        words = totals.get((session.params.tag, slot.index), sums.words)
        try:
            decoded = config.search_layout.decode(words.astype("u8"))
        except EncodingError:
            continue
        if tuple(sums.contributors.tolist()) != _searched(session):
            continue
        named = {name: tuple(values.tolist()) for name, values in decoded.items()}
        answers.append(Answer(slot.question.pivots, named))
        devices = len(sums.contributors)
    if not answers:
        return None
    tail = _tail_of(session, config)
    return SearchView(config.method, config.search_config, devices, tuple(answers), None, tail)


@dataclass(frozen=True, slots=True)
class Attacked:
    """What a session's search gave away.

    Attributes:
        facts: The figures, of a server that does not know the devices' weights.
        found: With what knowledge all losses follow: "" if they do not.
        within: Within how many nats they then do.
        lacks_weights: Whether the weights might have helped, and are not known.
    """

    facts: SearchFacts
    found: str = ""
    within: float = 0.0
    lacks_weights: bool = False


def attack(
    round_: RoundView,
    session: SessionView,
    totals: Mapping[tuple[bytes, int], Vector],
    truth: TruthOfRound,
) -> Attacked | None:
    """Play the server against a session's search.

    The attack on the sums is made where the cohort is small enough for it to succeed: first without
    the devices' weights, as the server's messages do not have them, and then, if a truth file does,
    with them, as a server may know them from elsewhere. Where all weigh the same in the search, it
    knows their weights in any case.

    Args:
        round_: The session's round.
        session: The session.
        totals: Sums that were replayed, by session's tag and slot.
        truth: What the devices had to hide, where it is known.

    Returns:
        None where there was no search, or its sums contradict one another.
    """
    view = view_of(session, totals)
    if view is None:
        return None
    searched = _searched(session)
    known = [truth[device] for device in searched if device in truth]
    grid = view.config.search.grid
    ticks = [grid.tick(one.loss)[0] for one in known]
    is_known = bool(ticks) and len(ticks) == view.devices
    seconds = _SECONDS if view.method == "mm" and view.devices <= ATTACKED else 0.0
    try:
        prior = fitted_prior(view, ticks) if is_known else None
        facts = search_facts(
            view, truth_ticks=ticks if is_known else None, prior=prior, time_limit=seconds
        )
        found, within = (BY_THE_SUMS if _are_found(facts) else ""), facts.within
        weighed = _with_weights(view, [one.weight for one in known] if is_known else None)
        if seconds and weighed is not None and not found:
            again = search_facts(weighed[0], prior=prior, time_limit=seconds)
            found, within = (weighed[1] if _are_found(again) else ""), again.within
    except SearchError:
        return None
    told = asdict(facts)
    del told["exact"], told["within"]
    if len(set(ticks)) == 1 or not is_known:
        # A forecast is scored against the truth; where all losses are one, nothing was to forecast.
        told["bits"] = None
    shown = SearchFacts(round_.number, view.method, view.devices, **told)
    lacks_weights = bool(seconds) and weighed is None
    return Attacked(shown, found, within, lacks_weights)


def _with_weights(view: SearchView, own: Sequence[int] | None) -> tuple[SearchView, str] | None:
    """The view of a server that knows the weights, and from where; None where nothing says them.

    Args:
        view: What the server saw.
        own: Every device's own weight, if it is known.
    """
    if view.config.search.weighting is Weighting.EQUAL and ranks(view)[-1].weight == view.devices:
        # each counts 1; what it weighs in the update is not known, so the tail says nothing more
        return replace(view, weights=(1,) * view.devices, tail=None), BY_THE_SUMS
    if own is None:
        return None
    heaviest = view.config.max_weight
    return replace(view, weights=tuple(min(one, heaviest) for one in own)), "with the weights"


def _are_found(facts: LeakageFacts) -> bool:
    """Whether all losses follow, and are not all the same: those of an untrained model are."""
    return facts.buckets > 1 and (facts.exact or facts.within <= RECOVERED_NATS)


def _searched(session: SessionView) -> tuple[int, ...]:
    """The devices that a search was over."""
    for index in sorted(session.slots):
        for sums in session.slots[index].sums:
            return tuple(sums.contributors.tolist())
    return ()


def _tail_of(session: SessionView, config: RoundConfig) -> Tail | None:
    """What the update's sum says of those that passed: its last words, in the layout's order."""
    slot = session.slots.get(config.update_slot)
    if slot is None or not slot.sums or not isinstance(slot.question, Threshold):
        return None
    if config.update.noise is not None:
        return None
    if len(slot.sums[0].words) < len(config.update_layout.fields):
        return None
    if tuple(slot.sums[0].contributors.tolist()) != _searched(session):
        return None  # of other devices than the search: the view would contradict itself
    fields = {field.name: field for field in config.update_layout.fields}
    weight, loss, count = (int(word) for word in slot.sums[0].words[-4:-1])
    lowest = slot.question.eta_half_ticks - slot.question.half_width_half_ticks
    bits = fields["weighted_loss"].resolution_bits
    return Tail(max((lowest + 1) // 2, 0), weight, loss, bits, count)
