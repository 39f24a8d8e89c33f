"""Do order or missing answers tell which devices passed the filter, or what their values are?

The order of the answers of every step is compared with losses, weights and who passed, and so is
who did not answer. Of the size of a message there is nothing to compare: all of a kind and slot
have one, and the strict readers refuse others.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.protocol.selection import Threshold
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.arrival import Orders
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import ANSWERS, Session
from deltafl.sim.inspect.audit.tails import Floats, PValue
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound, passes

_ORDER: Final = "order of answers and filter"
_ANSWERS: Final = "missing answers and filter"
_VALUES: Final = "order of answers and values"
_FAILS: Final = "failure to pass"

_Values = Mapping[str, Mapping[int, float]]
"""Values of a round's devices, by name and device."""


class Metadata(Check):
    """Compares order and presence of answers with the devices' values."""

    name = "metadata"
    table = """\
metadata.order medium device A16: the order of answers depends on which devices passed the filter
    A device that answers late has trained, and so has passed.
metadata.order-of-values medium device A16: answers come in the order of devices' losses or weights
    The server reads the order, and so much of what it should only learn as sums.
metadata.answers medium device A16: which devices answer depends on which devices passed the filter
    A missing answer tells whether the device passed.
"""
    needs_truth = True
    tests = MappingProxyType(
        {
            _ORDER: "metadata.order",
            _ANSWERS: "metadata.answers",
            _VALUES: "metadata.order-of-values",
        }
    )

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._orders: dict[tuple[str, str], tuple[Orders, Evidence]] = {}
        self._missing: dict[str, list[tuple[int, int, int, int, Evidence]]] = defaultdict(list)

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Collect what was asked, and answered, in a round."""
        truth = over.view.truth.devices
        for session in over.view.sessions.values() if truth else ():
            values = _values_of(session, truth)
            for (kind, slot), asked in session.by.items():
                if kind <= Kind.REQUEST:
                    answers = Kind(kind + ANSWERS)
                    what = answers.name.lower() + ("" if slot is None else f" of slot {slot}")
                    self._note(what, asked, session.of(answers, slot), values)
        return ()

    def _note(self, what: str, sent: Sequence[Seen], got: Sequence[Seen], values: _Values) -> None:
        """Collect the order of the answers of a step, and who did not give one."""
        known, place = values["loss"], sent[0].place
        asked, came = (
            list(dict.fromkeys(one.peer for one in some if one.peer in known))
            for some in (sent, got)
        )
        if not set(came) <= set(asked):
            return  # somebody answered who was not asked; see the order of messages
        missing = set(asked) - set(came)
        for name, of in values.items():
            orders, _ = self._orders.get((what, name), (Orders(), None))
            orders.add([of[d] for d in came], [of[d] for d in asked if d not in missing])
            self._orders[what, name] = orders, place
        if _FAILS in values:
            passed = {device for device, fails in values[_FAILS].items() if not fails}
            can, did = len(passed.intersection(asked)), len(passed & missing)
            self._missing[what].append((len(asked), can, len(missing), did, place))

    def on_end(self) -> tuple[Finding, ...]:
        """Test what was collected; the alarms come when all tests are made."""
        budget = self._premises.budget
        for (what, name), (orders, seen) in self._orders.items():
            detail = (
                f"{what}: of {orders.num_pairs} pairs of devices, the one with the larger "
                f"{name} answered first in {orders.num_reversed}, and was asked first in "
                f"{orders.num_reversed_if_asked}"
            )
            test = _ORDER if name == _FAILS else _VALUES
            budget.add(PValue(test, orders.p_value(), detail), seen)
        for what, rounds in self._missing.items():
            budget.add(_who_is_missing(what, rounds), rounds[-1][-1])
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that have messages."""
        return Coverage(tally.whole, "order and presence of answers")


def _values_of(session: Session, truth: TruthOfRound) -> _Values:
    """Losses, weights and, once there is a threshold, who fails to pass it."""
    losses = {d: one.loss if math.isfinite(one.loss) else math.inf for d, one in truth.items()}
    values = {"loss": losses, "weight": {d: float(one.weight) for d, one in truth.items()}}
    config = session.levels.common  # the truth is of rounds of one level
    threshold = session.question(config.update_slot)
    if isinstance(threshold, Threshold):
        values[_FAILS] = {d: float(not passes(one, config, threshold)) for d, one in truth.items()}
    return values


def _who_is_missing(what: str, rounds: Sequence[tuple[int, int, int, int, Evidence]]) -> PValue:
    """How likely it is that as many, or fewer, of the missing had passed by chance.

    Args:
        what: The step that they did not answer.
        rounds: How many were asked, how many of them had passed, how many were missing, and how
            many of these had passed.
    """
    chances = reduce(np.convolve, [hypergeometric(*one[:3]) for one in rounds])
    passed, counts = sum(one[3] for one in rounds), np.arange(len(chances))
    mean = float((counts * chances).sum())
    far = abs(counts - mean) >= abs(passed - mean) - 1e-9
    detail = f"{what}: {passed} of the missing devices had passed, {mean:.2f} expected"
    return PValue(_ANSWERS, min(float(chances[far].sum()), 1.0), detail)


def hypergeometric(total: int, marked: int, drawn: int) -> Floats:
    """The probabilities that 0 to `drawn` of `drawn` out of `total` are among the `marked` ones.

    >>> hypergeometric(4, 2, 2).tolist()
    [0.16666666666666666, 0.6666666666666666, 0.16666666666666666]
    """
    ways = [math.comb(marked, k) * math.comb(total - marked, drawn - k) for k in range(drawn + 1)]
    return np.array([count / math.comb(total, drawn) for count in ways])
