"""What a run would use here, and one small secure sum with it."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.secagg import (
    Adversary,
    ClientId,
    DevicePolicy,
    GraphKind,
    SessionParams,
    SlotSpec,
    Stage,
    ThreatModel,
    run_session,
)
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.states import Step, Vanish
from deltafl.sim.cohort.backends.choice import choose
from deltafl.sim.cohort.hardware import choose_device
from deltafl.sim.cohort.masks import LEAST_CUT, Masks, masks_of_this_machine
from deltafl.sim.cohort.shared import simulated
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.doctor.findings import Finding, State, good
from deltafl.sim.run.experiment import samples_trained_on
from deltafl.sim.settings.config_io import build_config, preset_text, read_table

PRESET: Final = "quickstart"
_DEVICES: Final = 8
_LENGTH: Final = LEAST_CUT // 4 + 1  # long enough for several threads
_BITS: Final = 32
_MEND: Final = "reinstall numpy, cryptography and deltafl; with a GPU, try --device cpu"


def used() -> Iterator[Finding]:
    """What the quickstart would use."""
    config = build_config([read_table(preset_text(PRESET), PRESET)])
    dataset = build_dataset(config.data)
    choice = choose(config.training, config.model.name, samples_trained_on(config, dataset))
    device = choose_device(config.training.device)
    workers = f", {choice.workers} workers" if choice.workers else ""
    threaded = f", {choice.threads} thread{'s' if choice.threads > 1 else ''} of torch"
    yield good("backend", f"{choice.backend} on {device}{workers}{threaded}")
    yield good("masks", f"by {masks_of_this_machine().made_by}")


def secure_sum(masks: Masks | None = None) -> Iterator[Finding]:
    """Sum vectors of a few devices with real keys and masks, one of which drops out.

    Args:
        masks: what makes the masks; by default what this machine is best at.
    """
    masks = masks or masks_of_this_machine()
    params = SessionParams.for_threat(
        _DEVICES,
        (SlotSpec("trial", _LENGTH, _BITS),),
        threat=ThreatModel(0.0, 0.25, Adversary.CURIOUS),
        graph=GraphKind.COMPLETE,
        graph_seed=bytes(32),
        context=bytes(32),
    )
    generator = np.random.default_rng(1)
    vectors = [generator.integers(0, 1 << _BITS, _LENGTH, dtype=np.uint32) for _ in range(_DEVICES)]
    inputs = {ClientId(number): [vector] for number, vector in enumerate(vectors)}
    gone = {ClientId(_DEVICES - 1): Vanish(Step(Stage.MASK))}
    try:
        sums = run_session(
            params,
            inputs,
            [b"doctor"],
            vanishing=gone,
            policy=DevicePolicy(),
            primitives=simulated(masks.add, masks.share_up_to),
        )
    except SecAggError as error:
        yield Finding("secure sum", State.FAILED, f"there is none: {error}", _MEND)
        return
    expected = np.sum(vectors[:-1], axis=0, dtype=np.uint32)
    if len(sums) != 1 or not np.array_equal(sums[0].vector, expected):
        yield Finding("secure sum", State.FAILED, "it is wrong: masks do not cancel", _MEND)
        return
    yield good(
        "secure sum",
        f"right: {_LENGTH:,} numbers of {_DEVICES} devices under masks, one of which dropped out",
    )
