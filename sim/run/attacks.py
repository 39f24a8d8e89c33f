"""Attackers of a run: whether they fit the data, and what became of them, for the summary."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from deltafl.sim.cohort.attackers import num_attackers
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.known import KnownData
from deltafl.sim.settings.attackers import AttackersConfig, Kind
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import show

if TYPE_CHECKING:
    from deltafl.sim.run.summary import Summary


def check_attackers(settings: AttackersConfig, data: KnownData) -> None:
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


def summary_of_attack(config: RunConfig, directory: RunDirectory) -> "Summary":
    """The key `attackers` of a summary, of a run that has any.

    `corrupted_share` is the mean over rounds of the attackers' share of the aggregate, by claimed
    numbers of samples, and `largest_corrupted_share` the largest; None where no round kept anybody.

    Raises:
        RunDirectoryError: what the run has noted is damaged, or not there.
    """
    if not config.attackers.lie:
        return {}
    found = read_attacked(directory.attacked)
    shares = list(found.shares.values())
    told: Summary = {
        "kind": config.attackers.kind,
        "loss": config.attackers.loss,
        "weight": config.attackers.weight,
        "number": len(found.population.attackers),
        "corrupted_share": math.fsum(shares) / len(shares) if shares else None,
        "largest_corrupted_share": max(shares, default=None),
        "backdoor_success": _last(found.backdoor),
    }
    return {"attackers": told}


def _last(by_round: Mapping[int, float]) -> float | None:
    return by_round[max(by_round)] if by_round else None
