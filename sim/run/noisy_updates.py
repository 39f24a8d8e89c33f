"""What the settings say of noise in the sums of updates."""

from collections.abc import Callable

from deltafl.fl.strategies.private_delta_fl import exact_updates
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.sim.settings.config import DPConfig


def note_on_delta(dp: DPConfig, num_devices: int) -> str | None:
    """What to say of a δ that promises next to nothing; None if it does not, or nothing is noisy.

    Args:
        dp: the settings.
        num_devices: how many train, or that many at least.

    Returns:
        A sentence that names a δ below which there is nothing to say.
    """
    if not dp.noise or dp.delta * num_devices < 1:
        return None
    return (
        f"dp.delta = {dp.delta:g}: should be far below 1/{num_devices} ({1 / num_devices:.1g}), "
        "one over the number of training devices; a run that shows each device's data with "
        "probability δ would keep the same promise"
    )


def update_noise_of(dp: DPConfig, sessions: Sessions) -> Callable[[int, int], UpdateNoise | None]:
    """From the cohort size and the number of parameters to the noise of a sum of updates."""
    if not dp.noise:
        return exact_updates

    def noise(cohort_size: int, update_length: int) -> UpdateNoise:
        # A sum of updates may be over fewer devices than the search was.
        num_devices = sessions.num_noisy(cohort_size, 0)
        sizes = Sizes.of(update_length, cohort_size)
        return UpdateNoise.at_least(dp.noise, dp.clip, num_devices, sizes)

    return noise
