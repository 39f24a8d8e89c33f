"""What a run found, computed from the files of its directory alone.

`test_error` gives every test device one vote; `percentiles` are over devices, in percent of them.
For several seeds each number of `test_error` is the mean over the seeds, and `spread` says how far
apart the seeds lie (largest minus smallest 90th percentile).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias, cast

from fl.metrics import PERCENTILES, summarise_test_error, summarise_train_loss
from fl.vectors import vector_sha256
from sim.accounting import privacy_of
from sim.checkpoint import load_checkpoint
from sim.config import RunConfig
from sim.errors import RunDirectoryError
from sim.evaluations import read_last_evaluation
from sim.events import Event, read_events
from sim.rundir import RunDirectory

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


def summarise_run(config: RunConfig, directory: RunDirectory, data: DataSize) -> Summary:
    """Summarise one finished run.

    Raises:
        RunDirectoryError: its files are not there.
    """
    checkpoint = load_checkpoint(directory.checkpoints)
    evaluation = read_last_evaluation(directory.metrics)
    if checkpoint is None or evaluation is None:
        raise RunDirectoryError(
            f"{directory.path} has no checkpoint or no evaluation: it was damaged, start again in "
            f"another --out"
        )
    events = read_events(directory.events)
    private = config.federation.is_private
    test_error = summarise_test_error(evaluation.test)
    train_loss = summarise_train_loss(evaluation.train)
    return {
        "algorithm": config.federation.algorithm,
        "backend": config.privacy.backend if private else "clear",
        "quantile_method": config.quantile.method if private else None,
        "theta": float(config.federation.theta),
        "rounds": checkpoint.state.round,
        "seed": config.experiment.seed,
        "data": data.name,
        "train_devices": data.train_devices,
        "test_devices": data.test_devices,
        "cohort_size": config.federation.cohort_size,
        "model": config.model.name,
        "model_parameters": checkpoint.state.model.size,
        "final_model_sha256": vector_sha256(checkpoint.state.model).hex(),
        "test_error": _distribution(test_error.mean, test_error.percentiles),
        "train_loss": _distribution(train_loss.mean, train_loss.percentiles),
        "secure_sums": _total(events, "secure_sums") if private else 0,
        "protocol_cpu_s": _total(events, "protocol_cpu_s"),
        "train_cpu_s": _total(events, "train_cpu_s"),
        "bytes_up_per_device_round": _mean(events, "bytes_up_per_device"),
        "dropped_by_stage": _dropped(events),
        "empty_rounds": sum(bool(event.get("empty")) for event in events),
        "lost_rounds": sum(bool(event.get("aborted")) for event in events),
        "uncertified_rounds": sum(event.get("certified") is False for event in events),
        "clipped": _total(events, "clipped"),
        "search_privacy": _search_privacy(config, checkpoint.state.round),
        "transcript_sha256": checkpoint.transcript.digest.hex() if private else None,
    }


def summarise_experiment(arms: Sequence[Summary]) -> Summary:
    """Summarise an experiment: its first run, and all of them by algorithm and seed."""
    seeds: dict[str, dict[str, Summary]] = {}
    for arm in arms:
        one = {key: arm[key] for key in _OF_A_SEED}
        seeds.setdefault(str(arm["algorithm"]), {})[str(arm["seed"])] = one
    first = arms[0]
    algorithm = str(first["algorithm"])
    groups = {
        name: {"test_error": _over_seeds([_numbers(one["test_error"]) for one in runs.values()])}
        for name, runs in seeds.items()
    }
    return {
        **first,
        **groups[algorithm],
        "noteworthy": {
            f"{arm['algorithm']}, seed {arm['seed']}": counts
            for arm in arms
            if (counts := {key: arm[key] for key in NOTEWORTHY if arm[key]})
        },
        "seeds": seeds,
        "baseline": {name: group for name, group in groups.items() if name != algorithm},
    }


def _search_privacy(config: RunConfig, rounds: int) -> Summary | None:
    """What the searches cost, if they were noisy; rounds that were lost are counted as well."""
    privacy = privacy_of(config, rounds)
    return None if privacy is None else asdict(privacy)


def _distribution(mean: float, percentiles: Mapping[int, float]) -> Summary:
    return {
        "mean": mean,
        "p90": percentiles[90],
        "percentiles": {str(tau): percentiles[tau] for tau in PERCENTILES},
    }


def _over_seeds(errors: Sequence[Mapping[str, object]]) -> Summary:
    def mean(values: Sequence[object]) -> float:
        return sum(cast("Sequence[float]", values)) / len(values)

    tails = [cast("float", error["p90"]) for error in errors]
    percentiles = [cast("dict[str, float]", error["percentiles"]) for error in errors]
    return {
        "mean": mean([error["mean"] for error in errors]),
        "p90": mean(tails),
        "percentiles": {
            str(tau): mean([one[str(tau)] for one in percentiles]) for tau in PERCENTILES
        },
        "spread": max(tails) - min(tails),
    }


def _numbers(value: object) -> dict[str, float]:
    return cast("dict[str, float]", value)


def _total(events: Sequence[Event], key: str) -> float:
    return sum(cast("float", event.get(key) or 0) for event in events)


def _mean(events: Sequence[Event], key: str) -> float | None:
    values = [cast("float", event[key]) for event in events if event.get(key) is not None]
    return sum(values) / len(values) if values else None


def _dropped(events: Sequence[Event]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for event in events:
        total.update(cast("dict[str, int]", event.get("dropped_by_stage") or {}))
    return dict(sorted(total.items()))
