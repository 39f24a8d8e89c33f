"""Does a second computation, which shares no code with server and devices, come to the same?"""

from collections.abc import Iterable, Iterator

import numpy as np

from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.second_opinion import Opinion, digest_of
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import Session
from deltafl.sim.inspect.audit.truth_rounds import input_of
from deltafl.sim.inspect.audit.views import RoundView, place_of


class Independent(Check):
    """Computes sums, lists and graphs once more, by the plain code of the test vectors."""

    name = "a second opinion"
    table = """\
independent.differs high server A17: a second computation comes to something else
    Either the record is not what happened, or server and devices share a fault, which playing them
    again repeats.
"""
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
            yield self.rules.found("independent.differs", detail, [place])

    def on_round(self, over: RoundOver) -> Iterable[Finding]:
        """Compute its sums, and what devices put into them."""
        self._sums += len(over.view.sums)
        for tag, session in over.view.sessions.items():
            opinion = self._opinions[tag]
            for detail, place in opinion.told():
                yield self.rules.found("independent.differs", detail, [place])
            for slot in session.slots:
                if (record := session.sum_of(slot)) is None:
                    continue
                total, place = opinion.total(slot), place_of(record)
                self._computed += total is not None
                if total is not None and digest_of(total) != record.sha256:
                    detail = f"the sum of slot {slot} is another one"
                    yield self.rules.found("independent.differs", detail, [place])
                for device, words in opinion.inputs(slot):
                    expected = _expected(over.view, session, slot, device)
                    self._inputs += expected is not None
                    if expected is not None and not np.array_equal(expected, words):
                        detail = f"device {device} masked something else in slot {slot}"
                        yield self.rules.found("independent.differs", detail, [place])
        self._opinions.clear()

    def coverage(self, tally: Tally) -> Coverage:
        """Sums that could be computed."""
        detail = f"{self._computed} of {self._sums} sums, and {self._inputs} masked vectors"
        rounds = tally.whole if self._computed == self._sums else min(self._computed, tally.whole)
        return Coverage(rounds, detail, self._sums)


def _expected(round_: RoundView, session: Session, slot: int, device: int) -> Vector | None:
    """What a device had to put into a slot; None where that is not known."""
    question = session.question(slot)
    for level in session.by_level():
        truth = round_.truth.inputs.get((device, level.index))
        if slot in level.slots and truth is not None and question is not None:
            return input_of(truth, level.config, question)
    return None
