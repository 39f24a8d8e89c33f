"""What a run found, computed from its record alone.

Of a run of several conformity levels the numbers on top are those of the largest; those of each
are in `levels`.

`test_error` gives every test device one vote; `percentiles` are over devices, in percent of them.
Where a module of somebody's own has another loss or measure, `loss` and `metric` name them, and
`test_error` is of that measure.
For several seeds each number of `test_error` is the mean over the seeds, and `spread` says how far
apart the seeds lie (largest minus smallest 90th percentile).

Of a run with attackers, all errors and losses are of honest devices, and `attackers` says what the
simulator alone knows of the others (`deltafl.sim.record.attacked`).

An experiment adds `peak_memory_mb`, of the command that finished it: the most resident memory of
its process, and of each worker, added up, though they share pages and peak at different times
(`deltafl.sim.record.memory`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Final, TypeAlias, cast

from deltafl.fl.metrics import PERCENTILES, summarise_test_error, summarise_train_loss
from deltafl.fl.metrics import Summary as Errors
from deltafl.fl.registry import CROSS_ENTROPY, ERROR
from deltafl.fl.strategies.levels import split_models
from deltafl.fl.vectors import Vector, vector_sha256
from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.evaluations import Evaluation, read_last_evaluation
from deltafl.sim.record.events import Event, dropped, read_events, values_of
from deltafl.sim.record.record import Record
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.accounting import account_of, epsilon_of, privacy_of
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import show

Summary: TypeAlias = dict[str, object]

NOTEWORTHY: Final = ("lost_rounds", "empty_rounds", "uncertified_rounds", "clipped")
"""Counts that a reader of the result should know about if they are not zero."""

_OF_A_SEED: Final = ("test_error", "train_loss", "final_model_sha256", *NOTEWORTHY)


@dataclass(frozen=True, slots=True)
class DataSize:
    """What a summary says of the data.

    Attributes:
        name: what to call the data set.
        train_devices: devices that cohorts are drawn from.
        test_devices: devices that only evaluate.
    """

    name: str
    train_devices: int
    test_devices: int


def summarise_run(config: RunConfig, record: Record, data: DataSize) -> Summary:
    """Summarise one finished run.

    Raises:
        RunDirectoryError: it has no checkpoint, or no evaluation.
    """
    checkpoint = load_checkpoint(record)
    federation = config.federation
    evaluations = {theta: read_last_evaluation(record, theta) for theta in federation.thetas}
    is_measured = federation.devices != REMOTE
    if checkpoint is None or (is_measured and None in evaluations.values()):
        raise RunDirectoryError(
            f"{record.path} has no checkpoint or no evaluation: it was damaged, start again in "
            f"another --out"
        )
    events = read_events(record)
    private = federation.is_private
    models = split_models(checkpoint.state.model, len(evaluations))
    levels = {
        theta: _level(evaluation, model)
        for (theta, evaluation), model in zip(evaluations.items(), models, strict=True)
    }
    return {
        "algorithm": config.federation.algorithm,
        "sums": config.privacy.sums if private else "clear",
        "quantile_method": config.quantile.method if private else None,
        "theta": float(federation.thetas[0]),
        "rounds": checkpoint.state.round,
        "seed": config.experiment.seed,
        "data": data.name,
        "train_devices": data.train_devices,
        "test_devices": data.test_devices,
        "cohort_size": config.federation.cohort_size,
        "model": config.model.name,
        "model_parameters": models[0].size,
        **_measured(config),
        **levels[federation.thetas[0]],
        **_all_levels(levels, events),
        "secure_sums": sum(values_of(events, "secure_sums")) if private else 0,
        "protocol_cpu_s": sum(values_of(events, "protocol_cpu_s")),
        "train_cpu_s": sum(values_of(events, "train_cpu_s")),
        "bytes_up_per_device_round": _mean(values_of(events, "bytes_up_per_device")),
        "dropped_by_stage": dict(sorted(dropped(events).items())),
        "empty_rounds": sum(bool(event.get("empty")) for event in events),
        "lost_rounds": sum(bool(event.get("aborted")) for event in events),
        "interrupted_rounds": sum(event.get("aborted") == INTERRUPTED for event in events),
        "uncertified_rounds": sum(event.get("certified") is False for event in events),
        "clipped": sum(values_of(events, "clipped")),
        "search_privacy": search_privacy(config, checkpoint.state.round),
        **_run_privacy(config, checkpoint.state.round, data, models[0].size),
        "record_sha256": record.chain.mark.digest.hex(),
        **_of_attack(config, record),
    }


def summarise_experiment(arms: Sequence[Summary]) -> Summary:
    """Summarise an experiment: its first run, and all of them by algorithm and seed."""
    seeds: dict[str, dict[str, Summary]] = {}
    for arm in arms:
        one: Summary = {key: arm[key] for key in (*_OF_A_SEED, "attackers") if key in arm}
        seeds.setdefault(str(arm["algorithm"]), {})[str(arm["seed"])] = one
    first = arms[0]
    algorithm = str(first["algorithm"])
    groups = {
        name: {"test_error": _over_seeds([one["test_error"] for one in runs.values()])}
        for name, runs in seeds.items()
    }
    return {
        **first,
        **_privacy_of_all([one for one in arms if "privacy" in one]),
        **groups[algorithm],
        "noteworthy": {
            f"{arm['algorithm']}, seed {arm['seed']}": counts
            for arm in arms
            if (counts := {key: arm[key] for key in NOTEWORTHY if arm[key]})
        },
        "seeds": seeds,
        "records": {
            f"{arm['algorithm']}, seed {arm['seed']}": arm["record_sha256"] for arm in arms
        },
        "baseline": {name: group for name, group in groups.items() if name != algorithm},
    }


def _level(evaluation: Evaluation | None, model: Vector) -> Summary:
    """What one model came to; of remote devices, nobody knows but they."""
    known: Summary = {"final_model_sha256": vector_sha256(model).hex()}
    if evaluation is None:
        return {**known, "test_error": None, "train_loss": None}
    return {
        **known,
        "test_error": _distribution(summarise_test_error(evaluation.test)),
        "train_loss": _distribution(summarise_train_loss(evaluation.train)),
    }


def _measured(config: RunConfig) -> Summary:
    """What the losses are, and `test_error`, where they are not the usual ones."""
    training = config.training
    if (training.loss, training.metric) == (CROSS_ENTROPY, ERROR):
        return {}
    return {"loss": training.loss, "metric": training.metric}


def _all_levels(levels: Mapping[Fraction, Summary], events: Sequence[Event]) -> Summary:
    """The key `levels`, where there are several."""
    if len(levels) == 1:
        return {}
    told: Summary = {}
    for theta, found in levels.items():
        name = show(theta)
        rounds = [cast("dict[str, Event]", event["levels"])[name] for event in events]
        told[name] = {
            **found,
            "empty_rounds": sum(bool(one.get("empty")) for one in rounds),
            "uncertified_rounds": sum(one.get("certified") is False for one in rounds),
        }
    return {"levels": told}


def search_privacy(config: RunConfig, rounds: int) -> Summary | None:
    """What the searches of a run cost, if they are noisy; each level has a search of its own.

    Args:
        config: the settings of one run.
        rounds: those that it has played; ones that were lost count as well.
    """
    searched = [theta for theta in config.federation.thetas if theta < 1]
    if not searched:
        return None
    one = replace(config, federation=replace(config.federation, theta=searched[0], levels=()))
    privacy = privacy_of(one, rounds * len(searched))
    if privacy is None:
        return None
    return asdict(replace(privacy, rho=privacy.rho * len(searched)))


def _run_privacy(config: RunConfig, rounds: int, data: DataSize, update_length: int) -> Summary:
    """What the whole run cost, where the sums of updates have noise."""
    account = account_of(config, data.train_devices, update_length)
    if account is None:
        return {}
    return {"privacy": {"noise": float(config.dp.noise), **asdict(account.after(rounds))}}


def _privacy_of_all(arms: Sequence[Summary]) -> Summary:
    """What all runs together cost a device: they are over the same ones, so they add up."""
    if not arms:
        return {}
    told = [_numbers(arm["privacy"]) for arm in arms]
    rho = sum(one["participations"] * (one["rho_search"] + one["rho_update"]) for one in told)
    each, delta = told[0]["epsilon"], told[0]["delta"]
    total = each if len(told) == 1 else epsilon_of(rho, delta)
    return {"privacy": {**told[0], "epsilon": total, "epsilon_of_a_run": each}}


def _distribution(of: Errors) -> Summary:
    percentiles = {str(tau): of.percentiles[tau] for tau in PERCENTILES}
    return {"mean": of.mean, "p90": of.percentiles[90], "percentiles": percentiles}


def _over_seeds(found: Sequence[object]) -> Summary | None:
    if None in found:
        return None  # remote devices
    errors = [_numbers(error) for error in found]
    tails = [error["p90"] for error in errors]
    percentiles = [cast("dict[str, float]", error["percentiles"]) for error in errors]
    return {
        "mean": _mean([error["mean"] for error in errors]),
        "p90": _mean(tails),
        "percentiles": {
            str(tau): _mean([one[str(tau)] for one in percentiles]) for tau in PERCENTILES
        },
        "spread": max(tails) - min(tails),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _numbers(value: object) -> dict[str, float]:
    return cast("dict[str, float]", value)


def _of_attack(config: RunConfig, record: Record) -> Summary:
    """The key `attackers` of a summary, of a run that has any.

    `corrupted_share` is the mean over rounds of the attackers' share of the aggregate, by claimed
    numbers of samples, and `largest_corrupted_share` the largest; None where no round kept anybody.

    Raises:
        RunDirectoryError: what the run has noted is damaged, or not there.
    """
    if not config.attackers.lie:
        return {}
    found = read_attacked(record)
    told: Summary = {
        "kind": config.attackers.kind,
        "loss": config.attackers.loss,
        "weight": config.attackers.weight,
        "number": len(found.population.attackers),
        "corrupted_share": found.mean_share,
        "largest_corrupted_share": found.largest_share,
        "backdoor_success": found.last_success,
    }
    return {"attackers": told}
