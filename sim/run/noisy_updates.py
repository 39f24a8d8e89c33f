"""What the settings say of noise in the sums of updates, and what they must not say with it."""

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from deltafl.fl.registry import DELTA_FL
from deltafl.fl.strategies.private_delta_fl import exact_updates
from deltafl.protocol.quantile.registry import NOISY
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import PRIVATE, REMOTE, DPConfig, RunConfig
from deltafl.sim.settings.config_io import show

LEAST_NOISE: Final = Fraction(1, 100)
"""The smallest `dp.noise` above 0. With it a single round costs ε = 5,000 and more."""


def check_dp(config: RunConfig) -> None:
    """Check that with noise in the sums of updates, nothing of a run is without.

    Args:
        config: The settings of one run.

    Raises:
        ConfigError: something is, or the setting that asks for it has no effect.
    """
    dp, federation = config.dp, config.federation
    if not dp.noise:
        if dp.epsilon_budget:
            raise ConfigError(
                f"dp.epsilon_budget = {dp.epsilon_budget:g} with dp.noise = 0: sums without noise "
                "spend more than any budget; set dp.noise"
            )
        return
    noise = f"dp.noise = {show(dp.noise)}"
    if dp.noise < LEAST_NOISE:
        raise ConfigError(f"{noise}: must be 0 or at least {show(LEAST_NOISE)}; less hides nobody")
    if federation.algorithm != PRIVATE + DELTA_FL:
        raise ConfigError(
            f"{noise} with the algorithm {federation.algorithm!r}: only {PRIVATE + DELTA_FL!r} "
            "adds noise to updates (with theta = 1 it is FedAvg); list no other as a baseline"
        )
    if federation.levels:
        raise ConfigError(f"{noise}: must be 0 with federation.levels; train one theta")
    if federation.devices == REMOTE:
        raise ConfigError(
            f"{noise}: must be 0 with federation.devices = {REMOTE!r}, of which nobody can say how "
            "often each is invited"
        )
    if federation.theta < 1 and config.quantile.method != NOISY:
        raise ConfigError(
            f"{noise} with quantile.method = {config.quantile.method!r}: its sums have no noise; "
            f"set quantile.method = {NOISY!r}, quantile.weights = 'equal' and quantile.noise, or "
            "federation.theta = 1"
        )
    if federation.theta < 1 and config.quantile.noise < LEAST_NOISE:
        raise ConfigError(
            f"{noise} with quantile.noise = {show(config.quantile.noise)}: must be at least "
            f"{show(LEAST_NOISE)}, or the search hides nobody"
        )
    if config.privacy.max_weight != 1:
        raise ConfigError(
            f"{noise} with privacy.max_weight = {config.privacy.max_weight}: must be 1, because "
            "noise hides a device that weighs as much as any other"
        )
    if config.privacy.truth:
        raise ConfigError(
            f"{noise}: must be 0 with privacy.truth = true; truth.bin does not hold the devices' "
            "noise, so that an audit could not compare"
        )


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
