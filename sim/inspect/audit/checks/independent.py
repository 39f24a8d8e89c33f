"""Does a second computation, which shares no code with server and devices, come to the same?"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.second_opinion import Opinion, digest_of
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.truth_rounds import input_of
from deltafl.sim.inspect.audit.views import RoundView, place_of

RULES: Final = Rules.read(
    """\
independent.differs high server A17: a second computation comes to something else
    Either the record is not what happened, or server and devices share a fault, which playing them
    again repeats.
"""
)


class Independent(Check):
    """Computes sums, lists and graphs once more, by the plain code of the test vectors."""

    name = "a second opinion"
    rules = RULES
    needs_asking = True

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._opinions: dict[bytes, Opinion] = {}
        self._sums = self._computed = self._inputs = 0

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Hand a message to the opinion on its session."""
        tag = seen.content.tag
        session = round_.sessions.get(tag)
        if session is None:
            return
        if tag not in self._opinions:
            seeds = round_.truth.seeds.values()
            own = {one.device: one.seed for one in seeds if one.tag == tag}
            self._opinions[tag] = Opinion(session.params, own)
        for detail, place in self._opinions[tag].take(seen):
            yield RULES.found("independent.differs", detail, [place])

    def on_sum(self, released: ReleasedSum) -> Iterable[Finding]:
        """Compute the sum, and what devices put into it."""
        record = released.record
        self._sums += 1
        if released.slot is None:
            return
        session, slot = released.slot
        opinion = self._opinions[session.params.tag]
        total, place = opinion.total(record.slot), place_of(record)
        self._computed += total is not None
        if total is not None and digest_of(total) != record.sha256:
            detail = f"the sum of slot {record.slot} is another one"
            yield RULES.found("independent.differs", detail, [place])
        at = (one for one in session.by_level() if slot in one.slots.values())
        level = next(at, session)
        for device, words in opinion.inputs(record.slot):
            truth = released.round.truth.inputs.get((device, level.level))
            if truth is None or level.config is None or slot.question is None:
                continue
            expected = input_of(truth, level.config, slot.question)
            self._inputs += expected is not None
            if expected is not None and not np.array_equal(expected, words):
                detail = f"device {device} masked something else in slot {record.slot}"
                yield RULES.found("independent.differs", detail, [place])
        opinion.forget(record.slot)

    def on_round(self, over: RoundOver) -> None:
        """Forget its sessions."""
        del over
        self._opinions.clear()

    def coverage(self, tally: Tally) -> Coverage:
        """Sums that could be computed."""
        detail = f"{self._computed} of {self._sums} sums, and {self._inputs} masked vectors"
        rounds = tally.whole if self._computed == self._sums else min(self._computed, tally.whole)
        return Coverage(rounds, detail, self._sums)
