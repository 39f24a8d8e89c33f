"""`analyse`: a statistic of what devices have, from secure sums alone."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.exact import exact_number
from deltafl.secagg import ThreatModel
from deltafl.sim.analyse.analysis import Guard, analyse_tables
from deltafl.sim.analyse.question import SAMPLES, Question

if TYPE_CHECKING:
    from deltafl.sim.analyse.analysis import Answer


def analyse(
    values: Mapping[object, npt.ArrayLike],
    statistic: str,
    low: float,
    high: float,
    *,
    of: str = SAMPLES,
    cap: int = 100,
    bins: int = 10,
    level: float | str = 0.5,
    noise: float | str = 0,
    min_cohort: int = 10,
    threat: ThreatModel | None = None,
) -> "Answer":
    """Find a statistic of what devices have, by a session of secure sums in this process.

    Args:
        values: for each device its numbers, finite; none for a device that has nothing.
        statistic: "count", "mean", "variance", "histogram" or "quantile".
        low: values below count as this one.
        high: values above count as this one.
        of: whose distribution it is: of "samples", or of "devices", of which each has one value,
            its mean.
        cap: most values of a device that count, the first ones.
        bins: of a histogram, and of a quantile with noise.
        level: of the quantile, in (0, 1).
        noise: σ of the noise of every sum, in units of what one device can change in it; 0 for
            exact sums.
        min_cohort: fewest devices to sum over, and fewest that have a value.
        threat: what the session must withstand; by default, a tenth of the devices colluding, and a
            tenth vanishing.

    Returns:
        The statistic, and everything else that was revealed for it.

    Raises:
        UserError: an argument is out of range, there are too few devices, or sums do not fit.
        ValueError: a value is not a finite number.
    """
    tables = {}
    for index, (device, given) in enumerate(values.items()):
        numbers = np.asarray(given, dtype=np.float64).ravel()
        if not np.isfinite(numbers).all():
            raise ValueError(f"device {device!r:.40} has a value that is not a finite number")
        tables[index] = numbers
    question = Question(
        statistic,
        low,
        high,
        of=of,
        cap=cap,
        bins=bins,
        level=_exact(level),
        noise=_exact(noise),
    )
    return analyse_tables(tables, question, Guard(min_cohort, threat or ThreatModel()))


def _exact(number: float | str) -> Fraction:
    """A float as the decimal that it prints as: 0.9 is 9/10."""
    return exact_number(str(number))
