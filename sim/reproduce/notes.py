"""What a reader of a result has to know: stand-ins, and every setting that is not the paper's."""

from collections.abc import Sequence

from sim.config import RunConfig
from sim.config_io import build_config, flatten, show
from sim.reproduce.experiment import Request
from sim.reproduce.grid import config_of, num_seeds
from sim.reproduce.methods import FEDAVG, Method
from sim.reproduce.tasks import Chosen

_COMPARED = ("training.", "federation.", "model.", "faults.")
_OF_A_METHOD = ("federation.algorithm", "federation.theta")


def notes_of(
    request: Request, chosen: Sequence[Chosen], methods: Sequence[Method]
) -> tuple[str, ...]:
    """Say what differs from the papers in the runs of some tasks and methods."""
    notes = [note for one in chosen for note in _of_task(request, one)]
    overrides = [
        f"{section}.{key} = {value}"
        for section, values in request.overrides.items()
        for key, value in values.items()
    ]
    if overrides:
        notes.append(f"Set by hand for every run: {', '.join(overrides)}.")
    if any(one.task.settings.get("training", {}).get("l2") for one in chosen):
        notes.append(
            "λ of the linear models is that of the published scripts; the paper does not print it."
        )
    notes += [f"{method.label}: {method.constants}." for method in methods if method.constants]
    backend = request.overrides.get("privacy", {}).get("backend")
    private = any("private" in str(method.layer["federation"]["algorithm"]) for method in methods)
    if private and backend == "ideal":
        notes.append(
            "Private runs use ideal sums, the integers that the masks of secure aggregation cancel "
            "to, and not the protocol itself."
        )
    if request.settings == "script":
        notes.append("Hyper-parameters are those of the published scripts where these differ.")
    return tuple(notes)


def _of_task(request: Request, one: Chosen) -> list[str]:
    notes = []
    name = one.task.name
    if one.data.is_stand_in:
        notes.append(
            f"{name} ran on {one.data.name} ({one.data.title}), a stand-in: the published numbers "
            f"are of other data, so compare the order of the methods and not the numbers."
        )
    if one.data.remark:
        notes.append(one.data.remark)
    if changed := _changes(request, one):
        notes.append(f"{name} differs from the paper's settings in {', '.join(changed)}.")
    if num_seeds(request, one) != one.task.seeds:
        seeds = num_seeds(request, one)
        notes.append(
            f"{name} ran with {seeds} seed{'s'[: seeds > 1]}, the paper's {one.task.seeds}."
        )
    return notes


def _changes(request: Request, one: Chosen) -> list[str]:
    ours, theirs = flatten(config_of(request, one, FEDAVG, 1)), flatten(_paper(request, one))
    return [
        f"{key} = {show(value)} (paper: {show(theirs[key])})"
        for key, value in ours.items()
        if key.startswith(_COMPARED) and key not in _OF_A_METHOD and value != theirs[key]
    ]


def _paper(request: Request, one: Chosen) -> RunConfig:
    script = one.task.script if request.settings == "script" else {}
    return build_config([one.task.settings, script, FEDAVG.layer])
