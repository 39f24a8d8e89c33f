"""Do masked vectors look like ideal ones: uniform, unrelated, independent of what they hide?

Statistical tests can only find faults: bytes that pass may still come from a generator that
somebody can run. The audit states the probability that all tests together raise a false alarm.
"""

from types import MappingProxyType
from typing import Final

from deltafl.protocol.selection import Threshold
from deltafl.sim.inspect.audit.check import Check, MaskedVector, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts, StatisticsFacts
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.mask_tests import BIASED, DEPENDS, REUSED, WEAK, MaskTests
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.truth_rounds import input_of, passes
from deltafl.sim.inspect.audit.views import place_of

RULES: Final = Rules.read(
    """\
masks.biased high device A7: masked bytes are not uniform
    The masks do not hide all of the inputs.
masks.reused critical device A6: masks were used twice
    The difference of two masked vectors is the difference of their inputs.
masks.weak-seed critical device A7: secrets were drawn from too few values
    Anybody can try all values and remove the masks.
masks.depend critical device A7: masked vectors depend on what they hide
    The vectors reveal something about the inputs without any share.
"""
)


class MaskedBytes(Check):
    """Hands masked vectors and rebuilt secrets to the tests; the budget decides what is found."""

    name = "masked bytes"
    rules = RULES
    tests = MappingProxyType(
        {
            REUSED: "masks.reused",
            WEAK: "masks.weak-seed",
            DEPENDS: "masks.depend",
            BIASED: "masks.biased",
        }
    )

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._tests = MaskTests(premises.budget)

    def on_vector(self, vector: MaskedVector) -> None:
        """Take in a vector and, if known, the input that it hides."""
        session, slot, words = vector.session, vector.slot, vector.words
        spec, config, asked = session.params.slots[slot.index], session.config, slot.question
        device = vector.seen.record.peer
        self._tests.add(device, slot.index, spec, words, vector.seen.place)
        true = vector.truth.get(device)
        if true is None or config is None or asked is None:
            return
        hidden = input_of(true, config, asked)
        passed = passes(true, config, asked) if isinstance(asked, Threshold) else None
        if hidden is not None:
            self._tests.add_input(spec, words[: spec.length], hidden, passed=passed)

    def on_sum(self, released: ReleasedSum) -> tuple[Finding, ...]:
        """Take in the self-mask seeds that were rebuilt for it."""
        if released.replayed is not None:
            self._tests.add_secrets(released.replayed.secrets, place_of(released.record))
        return ()

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Test the vectors that came in the round."""
        del over
        self._tests.end_round()
        return ()

    def on_end(self) -> tuple[Finding, ...]:
        """Make the last tests; the alarms come when all tests are made."""
        self._tests.finish()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages contain vectors."""
        num_tests, size = self._premises.budget.num_tests, self._tests.bytes_tested
        return Coverage(tally.whole, f"{num_tests} tests of {size} bytes")

    def facts(self) -> CheckFacts:
        """How many tests all checks made together, and how many bytes they tested."""
        budget = self._premises.budget
        return {
            "statistics": StatisticsFacts(
                budget.num_tests, budget.smallest, budget.rate, self._tests.bytes_tested
            )
        }
