"""Do order or missing answers tell which devices passed the filter, or what their values are?

The order of the answers of every step is compared with losses, weights and who passed, and so is
who did not answer. Of the size of a message there is nothing to compare: all of a kind and slot
have one, and the strict readers refuse others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.selection import Threshold
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.arrival import Orders
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.tails import Floats, PValue
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound, passes
from deltafl.sim.inspect.audit.views import RoundView, SessionView

_ORDER: Final = "order of answers and filter"
_ANSWERS: Final = "missing answers and filter"
_VALUES: Final = "order of answers and values"
_FAILS: Final = "failure to pass"

RULES: Final = Rules.read(
    """\
metadata.order medium device A16: the order of answers depends on which devices passed the filter
    A device that answers late has trained, and so has passed.
metadata.order-of-values medium device A16: answers come in the order of devices' losses or weights
    The server reads the order, and so much of what it should only learn as sums.
metadata.answers medium device A16: which devices answer depends on which devices passed the filter
    A missing answer tells whether the device passed.
"""
)


_ANSWERS_TO: Final = Kind.ADVERTISE - Kind.OPEN
"""An answer's kind is that of what it answers, plus this."""

_Peers = list[tuple[int, Evidence]]
"""To whom, or from whom, messages were, and where they are recorded."""

_Values = Mapping[str, Mapping[int, float]]
"""Values of a round's devices, by name and device."""


@dataclass(slots=True)
class _Missing:
    """Who did not answer a step, over rounds.

    Attributes:
        passed: How many of them had passed.
        chances: Of each number, if it does not matter who passed.
        seen: Where, last.
    """

    passed: int = 0
    chances: Floats = field(default_factory=lambda: np.ones(1))
    seen: Evidence = field(default_factory=Evidence)

    def add(self, asked: set[int], missing: set[int], passed: set[int], seen: Evidence) -> None:
        """Take in a round."""
        self.passed += len(missing & passed)
        chances = hypergeometric(len(asked), len(asked & passed), len(missing))
        self.chances, self.seen = np.convolve(self.chances, chances), seen

    def test(self, what: str) -> PValue:
        """How likely it is that as many, or fewer, of the missing had passed by chance."""
        counts = np.arange(len(self.chances))
        mean = float((counts * self.chances).sum())
        far = abs(counts - mean) >= abs(self.passed - mean) - 1e-9
        value = min(float(self.chances[far].sum()), 1.0)
        detail = f"{what}: {self.passed} of the missing devices had passed, {mean:.2f} expected"
        return PValue(_ANSWERS, value, detail)


class Metadata(Check):
    """Compares order and presence of answers with the devices' values."""

    name = "metadata"
    rules = RULES
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
        self._passed: dict[tuple[bytes, int, int | None], _Peers] = {}  # in a round
        self._orders: dict[tuple[str, str], tuple[Orders, Evidence]] = {}
        self._missing: dict[str, _Missing] = {}

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[Finding, ...]:
        """Note who was asked what, and who answered."""
        del round_
        content = seen.content
        if content.kind is not None and not content.problem:
            key = content.tag, content.kind, content.slot
            self._passed.setdefault(key, []).append((seen.record.peer, seen.place))
        return ()

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Collect what was asked, and answered, in a round."""
        passed, self._passed, truth = self._passed, {}, over.view.truth.devices
        for (tag, kind, slot), asked in passed.items():
            session = over.view.sessions.get(tag)
            if kind > Kind.REQUEST or not truth or session is None or session.config is None:
                continue
            values = _values_of(session, session.config, truth)
            answers = Kind(kind + _ANSWERS_TO)
            what = answers.name.lower() + ("" if slot is None else f" of slot {slot}")
            self._note(what, asked, passed.get((tag, answers, slot), []), values)
        return ()

    def _note(self, what: str, sent: _Peers, got: _Peers, values: _Values) -> None:
        """Collect the order of the answers of a step, and who did not give one."""
        known, (_, place) = values["loss"], sent[0]
        asked, came = (
            list(dict.fromkeys(peer for peer, _ in some if peer in known)) for some in (sent, got)
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
            self._missing.setdefault(what, _Missing()).add(set(asked), missing, passed, place)

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
        for what, missing in self._missing.items():
            budget.add(missing.test(what), missing.seen)
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that have messages."""
        return Coverage(tally.whole, "order and presence of answers")


def _values_of(session: SessionView, config: RoundConfig, truth: TruthOfRound) -> _Values:
    """Losses, weights and, once there is a threshold, who fails to pass it."""
    losses = {d: one.loss if math.isfinite(one.loss) else math.inf for d, one in truth.items()}
    values = {"loss": losses, "weight": {d: float(one.weight) for d, one in truth.items()}}
    update = session.slots.get(config.update_slot)
    threshold = update.question if update is not None else None
    if isinstance(threshold, Threshold):
        values[_FAILS] = {d: float(not passes(one, config, threshold)) for d, one in truth.items()}
    return values


def hypergeometric(total: int, marked: int, drawn: int) -> Floats:
    """The probabilities that 0 to `drawn` of `drawn` out of `total` are among the `marked` ones.

    >>> hypergeometric(4, 2, 2).tolist()
    [0.16666666666666666, 0.6666666666666666, 0.16666666666666666]
    """
    ways = [math.comb(marked, k) * math.comb(total - marked, drawn - k) for k in range(drawn + 1)]
    return np.array([count / math.comb(total, drawn) for count in ways])
