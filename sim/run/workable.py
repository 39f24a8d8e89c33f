"""With which other settings a run would have a session, by the code that the run itself uses."""

from dataclasses import replace
from typing import Final

from deltafl.protocol.errors import ProtocolError
from deltafl.secagg.errors import SecAggError
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.algorithms import policy_of, sessions_of
from deltafl.sim.run.arms import session_of
from deltafl.sim.settings.config import VERIFIED, RunConfig

REFUSALS: Final = (ConfigError, ProtocolError, SecAggError, ValueError)
"""What is raised where no session can be opened with some settings."""

_PARTS: Final = 100  # of rates: hundredths are tried
_CLOSELY: Final = 100  # cohorts that are tried one by one
_FACTOR: Final = 1.1  # between the others
_LARGE: Final = 2000  # beyond, a session takes long to find, and other settings are the cheaper way


def with_cohort(config: RunConfig, cohort_size: int) -> RunConfig:
    """The same settings with another cohort."""
    return replace(config, federation=replace(config.federation, cohort_size=cohort_size))


def with_dropout(config: RunConfig, rate: float) -> RunConfig:
    """The same settings with another `privacy.expected_dropout`."""
    return replace(config, privacy=replace(config.privacy, expected_dropout=rate))


def works(config: RunConfig, num_parameters: int) -> bool:
    """Whether there is a session, and the devices that are expected to stay are enough for it."""
    size = config.federation.cohort_size
    if size < config.privacy.min_cohort:
        return False
    try:
        _, params = session_of(config, num_parameters)
    except REFUSALS:
        return False
    return sessions_of(config).threat.num_surviving(size) >= params.min_cohort


def fewest_devices(config: RunConfig, num_parameters: int) -> int | None:
    """The smallest cohort that works with otherwise the same settings; None if none was found.

    The hundred smallest are tried one by one, then each a tenth larger, up to a few thousand.
    """
    size, last = config.privacy.min_cohort, config.privacy.min_cohort + _CLOSELY
    while size <= max(_LARGE, config.federation.cohort_size):
        if works(with_cohort(config, size), num_parameters):
            return size
        size = size + 1 if size < last else int(size * _FACTOR) + 1
    return None


def losable_rounds(config: RunConfig, fewest: int | None, num_devices: int) -> int:
    """How many rounds in a row may be lost, before too few devices are left for the next.

    A lost round leaves the model as it is. The next one asks devices that have not answered for it,
    or else those of the lost round, as often as these answer for a model.

    Args:
        config: the settings.
        fewest: the `fewest_devices` of a round; None if none work.
        num_devices: of whom they are drawn.
    """
    size = config.federation.cohort_size
    others = 0 if fewest is None else max(0, num_devices - fewest) // size
    is_dealt = config.dp.noise and num_devices > size  # a device's turns are counted
    is_once = is_dealt or config.quantile.search == VERIFIED
    return others + (0 if is_once else policy_of(config).rounds_per_model - 1)


def largest_dropout(config: RunConfig, num_parameters: int) -> float | None:
    """The largest expected rate of drop-outs that works, in hundredths; None if none does."""
    if config.federation.cohort_size > _LARGE:  # each takes long, and rounding matters little
        low, high = -1, _PARTS
        while high - low > 1:
            middle = (low + high) // 2
            fits = works(with_dropout(config, middle / _PARTS), num_parameters)
            low, high = (middle, high) if fits else (low, middle)
        return None if low < 0 else low / _PARTS
    for hundredths in range(_PARTS - 1, -1, -1):
        if works(with_dropout(config, rate := hundredths / _PARTS), num_parameters):
            return rate
    return None
