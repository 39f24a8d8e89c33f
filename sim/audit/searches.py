"""What each search of a transcript gave away, in the terms of `sim.leakage`."""

from collections.abc import Mapping

from protocol.configuration import RoundConfig
from protocol.errors import EncodingError
from protocol.quantile.search import Query
from protocol.selection import Threshold
from secagg.ring import Vector
from sim.audit.report import SearchFacts
from sim.audit.truth_rounds import TruthOfRound
from sim.audit.views import RoundView, SessionView
from sim.leakage.observations import Answer, SearchView, Tail


def view_of(session: SessionView, totals: Mapping[tuple[bytes, int], Vector]) -> SearchView | None:
    """The search of a session as `sim.leakage` takes it; None where there was none.

    Args:
        session: The session.
        totals: Sums that were replayed, by session's tag and slot.
    """
    config = session.config
    if config is None:
        return None
    answers: list[Answer] = []
    devices = 0
    for index in sorted(session.slots):
        slot = session.slots[index]
        if not slot.sums or not isinstance(slot.question, Query):
            continue
        sums = slot.sums[0]
        words = totals.get((session.params.tag, index), sums.words)
        try:
            decoded = config.search_layout.decode(words.astype("u8"))
        except EncodingError:
            continue
        named = {name: tuple(values.tolist()) for name, values in decoded.items()}
        answers.append(Answer(slot.question.cuts, named))
        devices = len(sums.contributors)
    if not answers:
        return None
    tail = _tail_of(session, config)
    return SearchView(config.method, config.search(None), devices, tuple(answers), None, tail)


def facts_of(
    round_: RoundView,
    session: SessionView,
    totals: Mapping[tuple[bytes, int], Vector],
    truth: TruthOfRound,
) -> SearchFacts | None:
    """What a session's search gave away; None where there was none, or it contradicts itself."""
    del round_, session, totals, truth
    return None


def _tail_of(session: SessionView, config: RoundConfig) -> Tail | None:
    """What the update's sum says of those that passed: its last words, in the layout's order."""
    slot = session.slots.get(config.update_slot)
    if slot is None or not slot.sums or not isinstance(slot.question, Threshold):
        return None
    fields = {field.name: field for field in config.update_layout.fields}
    weight, loss, count = (int(word) for word in slot.sums[0].words[-4:-1])
    lowest = slot.question.eta_half_ticks - slot.question.half_width_half_ticks
    bits = fields["weighted_loss"].resolution_bits
    return Tail(max((lowest + 1) // 2, 0), weight, loss, bits, count)
