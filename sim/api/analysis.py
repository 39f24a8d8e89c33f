"""`analyse`: a statistic of what devices have, from secure sums alone."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.exact import exact_number
from deltafl.secagg import ThreatModel
from deltafl.sim.analyse.analysis import Guard, analyse_tables
from deltafl.sim.analyse.question import SAMPLES, Question
from deltafl.sim.errors import UserError

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
    out: str | Path | None = None,
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
        out: a folder for the record of what the server sees, which `deltafl audit` reads; devices
            are numbered in the order of `values`. None keeps no record.

    Returns:
        The statistic, and everything else that was revealed for it.

    Raises:
        UserError: an argument is out of range, there are too few devices, sums do not fit, or the
            folder has a record already.
        ValueError: a value is not a finite number, or masked.
    """
    tables = {}
    for index, (device, given) in enumerate(values.items()):
        tables[index] = _numbers(device, given)
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
    guard = Guard(min_cohort, threat or ThreatModel())
    return analyse_tables(tables, question, guard, out=None if out is None else Path(out))


def _numbers(device: object, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A device's values.

    Raises:
        ValueError: one is no finite number, or masked.
    """
    if np.ma.is_masked(given):
        raise ValueError(f"device {device!r:.40} has masked values: leave them out (`compressed`)")
    values = np.asarray(given).ravel()
    if values.size and values.dtype.kind not in "biuf":
        raise ValueError(
            f"device {device!r:.40} has values of {values.dtype}, which are no numbers"
        )
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused
        numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"device {device!r:.40} has a value that is not a finite number")
    return numbers


def _exact(number: float | str) -> Fraction:
    """A float as the decimal that it prints as: 0.9 is 9/10.

    Raises:
        UserError: it is no number.
    """
    try:
        return exact_number(str(number))
    except ValueError as error:
        raise UserError(f"{number!r:.40}: must be a number such as 0.5 or '1/3'") from error
