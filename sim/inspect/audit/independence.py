"""Do masked vectors depend on their inputs? Needs the true inputs, or which devices passed.

With ideal masks, y is uniform whatever x is. So y − x and y + x are no smaller than other words, no
bit of y agrees with the same bit of x more often than by chance, and the devices that passed the
filter send the same kind of vectors as those that failed and contributed nothing.
"""

import numpy as np

from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.relations import leading_repeats
from deltafl.sim.inspect.audit.tails import (
    PValue,
    heads_before_tails,
    ones,
    smallest,
    two_histograms,
)
from deltafl.sim.inspect.audit.uniformity import BitCounts, half_are_ones, well_filled


class InputDependence:
    """The tests that masked words do not depend on their inputs, of one vector or many together.

    Args:
        bits: b, 1 to 64.

    Attributes:
        bits: b.
        num_words: Words compared.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.num_words = 0
        self._differing = BitCounts(bits)
        self._repeats_of_difference = 0
        self._repeats_of_sum = 0
        self._nonzero = 0
        self._signs_differ = 0

    def add(self, masked: Vector, inputs: Vector) -> None:
        """Compare words with their inputs.

        Args:
            masked: uint32 or uint64 of any shape, words of Z_2^b.
            inputs: The true inputs, the same shape and dtype; negative numbers as 2^b − |x|.
        """
        differing = masked ^ inputs
        self.num_words += masked.size
        self._differing.add(differing)
        self._repeats_of_difference += int(leading_repeats(masked - inputs, self.bits).sum())
        self._repeats_of_sum += int(leading_repeats(masked + inputs, self.bits).sum())
        nonzero = inputs != 0  # most inputs of the devices that fail the filter are zero
        self._nonzero += int(np.count_nonzero(nonzero))
        top = differing.dtype.type(self.bits - 1)
        self._signs_differ += int(np.count_nonzero((differing >> top)[nonzero]))

    def results(self) -> tuple[PValue, ...]:
        """The tests of what was compared; none if nothing was."""
        if not self.num_words:
            return ()
        same = self._nonzero - self._signs_differ
        return (
            self._small("masked less input", self._repeats_of_difference),
            self._small("masked plus input", self._repeats_of_sum),
            PValue(
                "signs of masked and input",
                float(ones(same, self._nonzero)),
                f"{same} of {self._nonzero} masked words have the sign of their input, where that "
                "is not zero",
            ),
            *half_are_ones(self._differing, "differences between masked and input"),
        )

    def _small(self, test: str, repeats: int) -> PValue:
        return PValue(
            test,
            float(heads_before_tails(repeats, self.num_words)),
            f"{self.num_words} words begin with {repeats / self.num_words:.2f} copies of their "
            "sign each; expected 1 at most",
        )


def compare_groups(passed: BitCounts, failed: BitCounts) -> tuple[PValue, ...]:
    """The tests that devices that passed the filter and those that failed send the same.

    Each group should also be tested by itself, which finds more where one of them is small.

    Ones of the first group and zeros of the second are together as many as heads of a fair coin, if
    all are uniform; so the counts of bits are tested exactly.

    Args:
        passed: Counts of the words of those that passed.
        failed: Counts of the words of those that failed, of the same b.

    Returns:
        The tests; none if a group sent nothing.
    """
    num_passed, num_failed = passed.num_words, failed.num_words
    if not num_passed or not num_failed:
        return ()
    ones_passed, ones_failed = passed.ones_by_bit(), failed.ones_by_bit()
    contrast = ones_passed + num_failed - ones_failed
    worst, value = smallest(ones(contrast, num_passed + num_failed))
    bits = passed.bits
    results = [
        PValue(
            "ones in all bits, passed against failed",
            float(ones(contrast.sum(), bits * (num_passed + num_failed))),
            f"{ones_passed.sum() / num_passed / bits:.4%} of bits are ones in what the devices "
            f"sent that passed, {ones_failed.sum() / num_failed / bits:.4%} in the others'",
        ),
        PValue(
            "ones by bit, passed against failed",
            value,
            f"bit {bits - 1 - worst} is one in {ones_passed[worst] / num_passed:.4%} of the words "
            "of devices that passed, and in "
            f"{ones_failed[worst] / num_failed:.4%} of the others'",
        ),
    ]
    cells = well_filled(passed.byte_values(), failed.byte_values())
    if cells is not None:
        first, second = cells
        results.append(
            PValue(
                "values of bytes, passed against failed",
                two_histograms(first, second),
                f"values below {len(first)}: {first.sum()} of devices that passed, {second.sum()} "
                "of the others",
            )
        )
    return tuple(results)
