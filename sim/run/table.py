"""A summary as a short table for the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from deltafl.fl.registry import ERROR, OWN
from deltafl.sim.settings.config import WITH_LEVELS

if TYPE_CHECKING:
    from deltafl.sim.run.summary import Summary  # loads torch, which printing does not need


_WORDS: Final = {
    "lost_rounds": "rounds were lost and left the model unchanged",
    "empty_rounds": "rounds kept no device for training and left the model unchanged",
    "uncertified_rounds": "rounds used an estimated threshold, not a certified one",
    "clipped": "numbers were clipped to the encoding's bounds",
}


_CLAIMS: Final = ("loss", "weight")
_SHARES: Final = ("corrupted_share", "largest_corrupted_share", "backdoor_success")
_NOISY_WORDS: Final = {
    "clipped": "updates, by noisy counts, were longer than dp.clip and were scaled down"
}


def describe(summary: Mapping[str, object]) -> str:
    """Format the results as a short table for the terminal."""
    seeds = cast("dict[str, dict[str, Summary]]", summary["seeds"])
    algorithm = str(summary["algorithm"])
    baseline = cast("dict[str, Summary]", summary["baseline"])
    num_seeds, metric = len(seeds[algorithm]), str(summary.get("metric", ERROR))
    form = ".1%" if metric == ERROR else ".4g"
    metric = f"{OWN} metric" if metric == OWN else metric
    level = f"θ = {summary['theta']:g}, " if algorithm in WITH_LEVELS else ""
    lines = [
        f"{summary['data']}: {summary['train_devices']} train and {summary['test_devices']} test "
        f"devices; {summary['model']} model, {summary['model_parameters']:,} parameters; "
        f"{level}{summary['rounds']} rounds, "
        f"{num_seeds} seed{'s' if num_seeds > 1 else ''}",
        "",
        f"{f'test {metric} of devices':<26}{'mean':>9}{'90th percentile':>18}"
        f"{'spread over seeds':>20}",
    ]
    if summary["test_error"] is None:
        of_whom = "Result.open(…, model)" if summary["model"] == OWN else "`deltafl predict`"
        lines[-1] = f"Errors of single devices are known to them alone: {of_whom} has the model."
    for name in (algorithm, *baseline) if summary["test_error"] is not None else ():
        error = _numbers((summary if name == algorithm else baseline[name])["test_error"])
        spread = format(error["spread"], form) if num_seeds > 1 else "–"
        mean, tail = format(error["mean"], form), format(error["p90"], form)
        lines.append(f"  {name:<24}{mean:>9}{tail:>18}{spread:>20}")
    lines += ["", *_attacks(summary), *_costs(summary)]
    return "\n".join(lines)


def _attacks(summary: Mapping[str, object]) -> list[str]:
    """What the simulator knows of attackers, for each algorithm; nothing without any."""
    attack = cast("Mapping[str, object] | None", summary.get("attackers"))
    if attack is None:
        return []
    claims = [f"claims the {attack[name]} {name}" for name in _CLAIMS if attack[name] != "own"]
    lines = [
        f"Attackers: {attack['number']} of the {summary['train_devices']} train devices, "
        f"{', '.join([str(attack['kind']), *claims])}; all errors are of honest devices.",
        f"{'known to the simulator':<26}{'share of aggregate':>19}{'largest':>9}{'backdoor':>10}",
    ]
    for name, runs in cast("dict[str, dict[str, Summary]]", summary["seeds"]).items():
        found = [cast("Mapping[str, float | None]", one["attackers"]) for one in runs.values()]
        cells = [_mean_share([one[key] for one in found]) for key in _SHARES]
        lines.append(f"  {name:<24}{cells[0]:>19}{cells[1]:>9}{cells[2]:>10}")
    return [*lines, ""]


def _mean_share(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.1%}" if known else "–"


def spent_by_all(spent: Mapping[str, float], num_runs: int) -> str:
    """What the runs of all seeds reveal: they are over the same devices.

    Args:
        spent: "privacy" of a summary.
        num_runs: how many seeds there are.
    """
    from deltafl.sim.run.accounting import rounded_up

    epsilon, delta, times = spent["epsilon"], spent["delta"], spent["participations"]
    told = f"Privacy of a device against the server: ε = {rounded_up(epsilon)} at δ = {delta:g}"
    rounds = f"none was invited to more than {times} of the rounds"
    if num_runs == 1:
        return f"{told}; {rounds}."
    return (
        f"{told}: {num_runs} runs over the same devices add up. One run has "
        f"ε = {rounded_up(spent['epsilon_of_a_run'])}; {rounds} of a run."
    )


def _costs(summary: Mapping[str, object]) -> list[str]:
    lines = []
    if summary["secure_sums"]:
        up = summary["bytes_up_per_device_round"]
        traffic = (
            f", {up / 1000:,.0f} kB uploaded per device and round" if isinstance(up, float) else ""
        )
        lines.append(
            f"The first {summary['algorithm']} run needed {summary['secure_sums']} secure sums "
            f"({summary['sums']}){traffic}."
        )
    lines.append(
        f"CPU time of the first run: training {summary['train_cpu_s']:.1f} s, "
        f"protocol {summary['protocol_cpu_s']:.1f} s."
    )
    if "privacy" in summary:
        seeds = cast("dict[str, dict[str, Summary]]", summary["seeds"])
        num_runs = len(seeds[str(summary["algorithm"])])
        lines.append(spent_by_all(_numbers(summary["privacy"]), num_runs))
    if "peak_memory_mb" in summary:  # earlier versions did not record it
        lines.append(f"Peak memory: {summary['peak_memory_mb']:,.0f} MB.")
    noteworthy = cast("dict[str, dict[str, int]]", summary["noteworthy"])
    words = {**_WORDS, **(_NOISY_WORDS if "privacy" in summary else {})}
    for run, counts in noteworthy.items():
        lines += [f"Note ({run}): {count} {words[key]}." for key, count in counts.items()]
    return lines


def _numbers(value: object) -> dict[str, float]:
    return cast("dict[str, float]", value)
