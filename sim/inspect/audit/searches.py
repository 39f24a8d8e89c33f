"""What each search of a transcript gave away, in the terms of `deltafl.sim.inspect.leakage`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.summing import SlotSum
from deltafl.sim.inspect.audit.given_away import Interval, possible
from deltafl.sim.inspect.audit.session_log import Level
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound
from deltafl.sim.inspect.leakage.consequences import ranks
from deltafl.sim.inspect.leakage.labels import device_intervals
from deltafl.sim.inspect.leakage.measure import (
    RECOVERED_NATS,
    SearchFacts,
    fitted_prior,
    search_facts,
)
from deltafl.sim.inspect.leakage.observations import Answer, Prior, SearchView, Tail
from deltafl.sim.record.transcript import Sum

ATTACKED: Final = 10
"""Devices of the largest cohort whose sums of `mm` are attacked."""

WEIGHED: Final = 20
"""Devices of the largest cohort of which it is worked out who can be where by all weights."""

BY_THE_SUMS: Final = "by the sums alone"
"""Where losses follow for a server that knows nothing else."""

Learnt = Mapping[tuple[bytes, int], SlotSum]
"""Sums that were learnt again, by session's tag and slot."""

_SECONDS: Final = 1.0


def searched(level: Level) -> tuple[int, ...]:
    """The devices that a search was over: those of the first sum; none without any."""
    every = (tuple(learnt.contributors.tolist()) for _, _, learnt in level.answered())
    return next(every, ())


def update_of(level: Level) -> Sum | None:
    """The sum of a level's updates; None where there is none."""
    is_asked = isinstance(level.session.question(level.update_slot), Threshold)
    return level.session.sum_of(level.update_slot) if is_asked else None


def tail_of(level: Level) -> Tail | None:
    """What the sum of updates says of those that passed; None where noise hides it.

    The layout ends with weight, weighted loss, count and clipped, one word each (docs/spec.md
    §12.3).
    """
    update, fields = update_of(level), level.config.update_layout.fields
    if update is None or level.config.noisy_updates is not None:
        return None
    question = level.session.question(level.update_slot)
    if len(update.words) < len(fields) or not isinstance(question, Threshold):
        return None
    weight, loss, count = (int(word) for word in update.words[-4:-1])
    lowest = question.eta_half_ticks - question.half_width_half_ticks
    (bits,) = (field.resolution_bits for field in fields if field.name == "weighted_loss")
    return Tail(max((lowest + 1) // 2, 0), weight, loss, bits, count)


def view_of(level: Level, again: Learnt) -> SearchView | None:
    """The search of a level as `deltafl.sim.inspect.leakage` takes it; None where there was none.

    Noisy counts are no ranks: what they cost is a matter of accounting.
    """
    config, devices = level.config, searched(level)
    answers: list[Answer] = []
    for slot, question, released in level.answered() if config.noise is None else ():
        if not isinstance(question, Query) or tuple(released.contributors.tolist()) != devices:
            continue
        learnt = again.get((level.session.params.tag, slot))
        words = released.words if learnt is None else learnt.vector
        with suppress(EncodingError):
            decoded = config.search_layout.decode(words.astype("u8"))
            named = {name: tuple(values.tolist()) for name, values in decoded.items()}
            answers.append(Answer(question.pivots, named))
    if not (devices and answers):
        return None
    update = update_of(level)
    is_of_all = update is not None and tuple(update.contributors.tolist()) == devices
    tail = tail_of(level) if is_of_all else None  # else the view would contradict itself
    return SearchView(config.method, config.search_config, len(devices), tuple(answers), None, tail)


class Located(NamedTuple):
    """Where the losses of a round and level can be.

    Attributes:
        losses: Of each device, the interval of ticks [low, high) that its loss is in.
        pivot: The lowest tick that passes; None where it is not known how many did.
        tick: The length of a tick, in nats.
    """

    losses: Mapping[int, Interval]
    pivot: int | None
    tick: float


def located(view: SearchView, level: Level) -> Located | None:
    """Where losses are, for a server that knows no weights; None where sums contradict each other.

    Devices that were in the same sums are alike.
    """
    devices, update, tail = searched(level), update_of(level), tail_of(level)
    tick = 2.0**-view.config.search.grid.resolution_bits
    try:
        rows = ranks(view)
    except SearchError:
        return None
    updated = frozenset(() if update is None else update.contributors.tolist())
    if tail is None or tail.pivot > rows[-1].pivot or not updated <= set(devices):
        return Located(possible(rows, devices), None, tick)
    return Located(possible(rows, devices, updated, tail.pivot, tail.count), tail.pivot, tick)


def located_by_weights(known: Located, view: SearchView, truth: TruthOfRound) -> Located | None:
    """The same for a server that knows all weights, too; None where that takes too long.

    Args:
        known: Where they are without.
        view: The search.
        truth: What its devices had to hide.
    """
    weights = _weights(view, [truth[one].weight for one in known.losses])
    if view.devices > WEIGHED or len(weights) != view.devices:
        return None
    try:
        by_weights = device_intervals(replace(view, weights=weights))
    except SearchError:
        return None
    both = zip(known.losses.items(), by_weights, strict=True)
    narrowed = {one: (max(a, low), min(b, high)) for (one, (a, b)), (low, high) in both}
    return known._replace(losses=narrowed)


class Attacked(NamedTuple):
    """What a session's search gave away.

    Attributes:
        facts: The figures, of a server that does not know the devices' weights.
        found: How closely all losses follow, and with what knowledge: "" if they do not.
        lacks_weights: Whether the weights might have helped, and are not known.
    """

    facts: SearchFacts
    found: str
    lacks_weights: bool


def attack(
    round_number: int, view: SearchView, devices: Sequence[int], truth: TruthOfRound
) -> Attacked | None:
    """Play the server against a search.

    The attack on the sums is made where the cohort is small enough for it to succeed: first without
    the devices' weights, as the server's messages do not have them, and then, if a truth file does,
    with them, as a server may know them from elsewhere. Where all weigh the same in the search, it
    knows their weights in any case.

    Args:
        round_number: The search's round.
        view: The search.
        devices: The devices of the search.
        truth: What the devices had to hide, where it is known.

    Returns:
        None where the sums contradict one another.
    """
    known = [truth[device] for device in devices] if truth.keys() >= set(devices) else []
    ticks = [view.config.search.grid.tick(one.loss)[0] for one in known]
    seconds = _SECONDS if view.method == "mm" and view.devices <= ATTACKED else 0.0
    try:
        prior = fitted_prior(view, ticks) if ticks else None
        facts = search_facts(view, truth_ticks=ticks, prior=prior, time_limit=seconds)
        found = _found(facts, BY_THE_SUMS)
        weighed = _with_weights(view, [one.weight for one in known])
        if seconds and weighed is not None and not found:
            found = _found(search_facts(weighed[0], prior=prior, time_limit=seconds), weighed[1])
    except SearchError:
        return None
    return Attacked(replace(facts, round=round_number), found, bool(seconds) and weighed is None)


def _with_weights(view: SearchView, own: Sequence[int]) -> tuple[SearchView, str] | None:
    """The view of a server that knows the weights, and from where; None where nothing says them.

    Args:
        view: What the server saw.
        own: Every device's own weight; empty if they are not known.
    """
    if view.config.search.weighting is Weighting.EQUAL and ranks(view)[-1].weight == view.devices:
        # each counts 1; what it weighs in the update is not known, so the tail says nothing more
        return replace(view, weights=(1,) * view.devices, tail=None), BY_THE_SUMS
    weights = _weights(view, own)
    return (replace(view, weights=weights), "with the weights") if weights else None


def _weights(view: SearchView, own: Sequence[int]) -> tuple[int, ...]:
    """The weights that devices claim who have these; none where one is too large to work with."""
    weights = tuple(min(one, view.config.max_weight) for one in own)
    return weights if max(weights, default=0) <= Prior.HEAVIEST else ()


def _found(facts: SearchFacts, knowledge: str) -> str:
    """How all losses follow; "" if they do not, or are all the same, as of an untrained model."""
    within = facts.within
    if facts.buckets <= 1 or within is None or within > RECOVERED_NATS:
        return ""
    how = "to the tick" if within < 2**-30 else f"to within {within:.1g} nats"
    return f"{how}, {knowledge}"
