"""What is refused of a run before it begins; `deltafl run` and `deltafl plan` both ask here.

Samples are not looked at, and torch is not loaded: this is what follows from the settings, from how
many parameters the model has and, where that is known, from how many devices train. With which
other settings a run would have a session is found by the code that the run itself uses.
"""

import math
import re
from bisect import bisect_left
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from deltafl.fl.registry import OWN
from deltafl.fl.strategies.base import Strategy, TrainingState
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.secagg import SessionParams
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.params import DIGEST_SIZE, MAX_LENGTH
from deltafl.sim.cohort.attackers import num_attackers
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.run.accounting import Account, account_of
from deltafl.sim.run.algorithms import levels_of, policy_of, sessions_of, strategy_of
from deltafl.sim.settings.attackers import AttackersConfig, Kind
from deltafl.sim.settings.config import REMOTE, RunConfig, Search
from deltafl.sim.settings.config_io import check_together, show
from deltafl.sim.settings.policy import PolicyConfig


@dataclass(frozen=True, slots=True)
class KnownData:
    """What settings are held against; None for what is not known yet, of which nothing is said.

    Attributes:
        name: of the data.
        num_devices: how many devices train.
        num_classes: of the labels; 0 if targets are numbers.
        input_shape: of one sample.
        is_tokens: whether samples are made of tokens.
        rule: by which devices were kept, in brackets after the name; or "".
        aside: how many others only test, that could train if samples were divided in their place.
    """

    name: str
    num_devices: int | None = None
    num_classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    is_tokens: bool | None = None
    rule: str = ""
    aside: int = 0


_SETTINGS: Final = {
    "bound": "quantile.loss_bound = ",
    "max_weight": "privacy.max_weight = ",
    "method": "quantile.method = ",
    "min_cohort": "privacy.min_cohort = ",
    "min_honest_tail": "privacy.min_honest_tail = ",
    "min_noise": "policy.min_noise (a device's own quantile.noise) = ",
    "min_update_noise": "policy.min_update_noise (a device's own dp.noise) = ",
    "radius": "strategy.clipped_radius = ",
    "resolution_bits": "quantile.resolution_bits = ",
    "theta": "federation.theta = ",
    "update_clip": "privacy.update_clip = ",
    "update_resolution_bits": "privacy.update_resolution_bits = ",
}
"""What the settings call numbers of the protocol."""

_LIMITS: Final = frozenset(limit.name for limit in fields(PolicyConfig))


def check_data(config: RunConfig, data: KnownData) -> None:
    """Find settings that do not fit the data, as far as these are known.

    Args:
        config: all settings.
        data: what is known of the data.

    Raises:
        ConfigError: the message says which setting does not fit, and what would.
    """
    size, available = config.federation.cohort_size, data.num_devices
    if available is not None and size > available:
        rule = data.rule and f" ({data.rule})"
        raise ConfigError(
            f"federation.cohort_size = {size} is more than the {available} training devices of "
            f"{data.name}{rule}: {_so_few(config, available, data.aside)}"
        )
    _check_attackers(config.attackers, data)


def _so_few(config: RunConfig, available: int, aside: int) -> str:
    """What to do where fewer devices train than a round is to have."""
    fewest = config.privacy.min_cohort if config.federation.is_private else 0
    number = available + (aside if available < fewest else 0)
    if number < min(fewest, 2):
        return "one device is never summed: give data of more devices"
    told = f"--set federation.cohort_size={min(config.federation.cohort_size, number)}"
    if number < fewest:
        told += f" --set privacy.min_cohort={number}"
    if number == available:
        return f"lower it ({told})"
    split = 'split="samples"' if config.data.format == OWN else "--set data.split=samples"
    return (
        f"the {aside} others only test; have all {number} train, each on a part of its samples "
        f"({split} {told})"
    )


def _check_attackers(settings: AttackersConfig, data: KnownData) -> None:
    """Find attackers that cannot do with these data what they are to do.

    Raises:
        ConfigError: the message says which setting does not fit, and what would.
    """
    if not settings.lie:
        return
    if (devices := data.num_devices) is not None:
        number = num_attackers(settings.share, devices)
        if not 0 < number < devices:
            raise ConfigError(
                f"attackers.share = {show(settings.share)}: that is {number} of the {devices} "
                f"training devices of {data.name}, rounded: must be at least 1 and leave an honest "
                "one"
            )
    if settings.kind in (Kind.FLIPPED_LABELS, Kind.BACKDOOR):
        _check_labels(settings, data)
    if settings.kind == Kind.BACKDOOR:
        _check_trigger(settings, data)


def _check_labels(settings: AttackersConfig, data: KnownData) -> None:
    classes, kind = data.num_classes, settings.kind
    if classes == 0:
        raise ConfigError(
            f"attackers.kind = {kind!r}: {data.name} has no classes, and this attack changes "
            "labels: take one that changes updates, such as 'sign-flipped'"
        )
    for name in ("from_class", "to_class") if classes is not None else ():
        if (value := getattr(settings, name)) >= classes:
            raise ConfigError(
                f"attackers.{name} = {value}: must be below {classes}, the classes of {data.name}"
            )


def _check_trigger(settings: AttackersConfig, data: KnownData) -> None:
    if data.is_tokens:
        raise ConfigError(
            f"attackers.kind = {settings.kind!r}: {data.name} has tokens, and the trigger is "
            "for images and tables: take another kind"
        )
    if (shape := data.input_shape) is None:
        return
    largest = min(shape[-2:]) if len(shape) > 1 else math.prod(shape)
    if settings.trigger_size > largest:
        raise ConfigError(
            f"attackers.trigger_size = {settings.trigger_size}: must be at most {largest}, for "
            f"inputs of shape {shape}"
        )


def check_arms(
    config: RunConfig, num_parameters: int, num_devices: int | None, own: Strategy | None = None
) -> None:
    """Find what would stop a run, or one of its baselines, later.

    Args:
        config: all settings.
        num_parameters: of the model of one conformity level.
        num_devices: how many train; None if nobody knows yet, so that nothing is said of a cohort
            that has to be all of them, nor of what a device spends that is in several rounds.
        own: the strategy, if it is one of the caller's own.

    Raises:
        ConfigError: the message says which settings do not fit, and what would.
    """
    for arm in config.arms()[:: config.experiment.num_seeds]:
        _check_arm(arm, num_parameters, num_devices, own)


def _check_arm(
    config: RunConfig, num_parameters: int, num_devices: int | None, own: Strategy | None
) -> None:
    federation = config.federation
    check_together(config)
    try:
        if federation.algorithm == "aaggff-s":
            _check_full_participation(config, num_devices)
        if federation.is_private:
            session_of(config, num_parameters, own)
        else:
            strategy_of(config, own)
        account = account_of(config, num_devices or federation.cohort_size, num_parameters, own)
        if account is not None:
            account.check(1 if num_devices is None else federation.rounds)
        if federation.is_private:  # elsewhere, devices count nothing
            _check_participations(config, account, is_known=num_devices is not None)
    except RunError as error:
        raise ConfigError(str(error)) from error
    except (ProtocolError, SecAggError) as error:
        raise _refused(config, error) from error


def _refused(config: RunConfig, error: Exception) -> ConfigError:
    """What the protocol refuses of a run, with its numbers under the names of the settings."""
    told = in_settings(str(error))
    return ConfigError(f"{config.federation.algorithm} cannot run with these settings: {told}")


def in_settings(told: str) -> str:
    """What the protocol says of a round, with its numbers under the names of the settings."""
    return re.sub(r"(device's )?\b(\w+)=", _in_settings, told)


def _in_settings(found: re.Match[str]) -> str:
    own, name = found.groups()
    limit = f"policy.{name} = " if name in _LIMITS else found[0]
    if own and name not in _LIMITS:
        return f"{own}{_SETTINGS.get(name, f'{name}=')}"
    return limit if own else _SETTINGS.get(name, limit)


def session_of(
    config: RunConfig, num_parameters: int, own: Strategy | None = None
) -> tuple[Levels, SessionParams]:
    """What the first round announces, and the parameters of its session.

    Args:
        config: settings of one private run.
        num_parameters: of the model of one level.
        own: the strategy, if it is one of the caller's own.

    Raises:
        ConfigError: the settings contradict each other, or the algorithm is not private; a sum
            would not fit the ring, or a setting is out of its range; no session withstands the
            threat with so few devices, or it falls short of the devices' policy.
    """
    if not 1 <= num_parameters <= MAX_LENGTH:
        raise ConfigError(
            f"{num_parameters} parameters: must be from 1 to {MAX_LENGTH}, which fit a sum"
        )
    # zeros that are never touched take no memory; nothing but the digest depends on the model
    model = np.zeros(num_parameters * len(config.federation.thetas), dtype=np.float32)
    try:
        strategy = strategy_of(config, own)
        levels = levels_of(strategy, TrainingState(model), config.federation.cohort_size)
        if levels is None:
            raise ConfigError(
                f"federation.algorithm = {config.federation.algorithm!r} runs in clear: the server "
                "sees what each device sends, and there are no sums to plan"
            )
        return levels, sessions_of(config).params_of_levels(levels, b"", bytes(DIGEST_SIZE))
    except (ProtocolError, SecAggError) as error:
        raise _refused(config, error) from error


def _check_full_participation(config: RunConfig, num_devices: int | None) -> None:
    name, size = config.federation.algorithm, config.federation.cohort_size
    if num_devices is not None and size != num_devices:
        raise ConfigError(
            f"federation.cohort_size = {size}: must be {num_devices}, the number of training "
            f"devices, with the algorithm {name!r}; 'aaggff-d' works with smaller cohorts"
        )


def _check_participations(config: RunConfig, account: Account | None, *, is_known: bool) -> None:
    """Refuse a run that its own devices would leave.

    Without an account, cohorts are drawn, and a device may be in all of them. With one they are
    dealt, and how often a device is invited depends on how many there are.
    """
    most, rounds = config.policy.max_participations, config.federation.rounds
    if account is not None and not is_known:
        return
    times = rounds if account is None else account.after(rounds).participations
    if most and times > most:
        raise ConfigError(
            f"policy.max_participations = {most}: in {rounds} rounds, a device is invited up to "
            f"{times} times; lower federation.rounds or federation.cohort_size, or raise the limit"
        )


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


def works(config: RunConfig, num_parameters: int, own: Strategy | None = None) -> bool:
    """Whether there is a session, and the devices that are expected to stay are enough for it."""
    size = config.federation.cohort_size
    if size < config.privacy.min_cohort:
        return False
    try:
        _, params = session_of(config, num_parameters, own)
    except REFUSALS:
        return False
    return sessions_of(config).threat.num_surviving(size) >= params.min_cohort


def fewest_devices(
    config: RunConfig, num_parameters: int, own: Strategy | None = None
) -> int | None:
    """The smallest cohort that works with otherwise the same settings; None if none was found.

    The hundred smallest are tried one by one, then each a tenth larger, up to a few thousand.
    """
    size, last = config.privacy.min_cohort, config.privacy.min_cohort + _CLOSELY
    while size <= max(_LARGE, config.federation.cohort_size):
        if works(with_cohort(config, size), num_parameters, own):
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
    is_remote = config.federation.devices == REMOTE
    is_dealt = config.dp.noise and num_devices > size and not is_remote  # turns are counted
    is_once = is_dealt or config.quantile.search == Search.VERIFIED
    return others + (0 if is_once else policy_of(config).rounds_per_model - 1)


def largest_dropout(config: RunConfig, num_parameters: int) -> float | None:
    """The largest expected rate of drop-outs that works, in hundredths; None if none does."""

    def fits(part: int) -> bool:
        return works(with_dropout(config, part / _PARTS), num_parameters)

    if config.federation.cohort_size > _LARGE:  # each takes long, and rounding matters little
        fitting = bisect_left(range(_PARTS), True, key=lambda part: not fits(part))
        return (fitting - 1) / _PARTS if fitting else None
    return next((part / _PARTS for part in reversed(range(_PARTS)) if fits(part)), None)
