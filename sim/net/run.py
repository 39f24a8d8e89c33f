"""A federation's run from the server's side: its directory, its rounds, what is left at the end.

The directory is that of a simulation (docs/data-and-results.md) but for evaluations of single
devices: nobody but a device sees what a model does on its data. In their place, the folder
`measured` has sums over the devices (`measuring`). `deltafl audit` reads the directory.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch

from deltafl.secagg import TrustedKeys
from deltafl.secagg.randomness import Randomness
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.net.remote import RemotePopulation
from deltafl.sim.net.trips import Site
from deltafl.sim.record.rundir import RunDirectory, read_json, write_json
from deltafl.sim.record.versions import check_versions, versions_now
from deltafl.sim.run.engine import Progress, play
from deltafl.sim.run.experiment import write_bundle
from deltafl.sim.run.summary import DataSize, Summary, summarise_experiment, summarise_run
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import build_config, read_config_file

DATA: Final = "data of the devices"
"""What the summary of a federation calls them."""

_NOWHERE: Final = {"backend": REMOTE, "workers": 0, "threads": 1}


def run_federation(
    config: RunConfig,
    path: Path,
    site: Site,
    shapes: ModelSpec,
    *,
    resume: bool,
    progress: Progress,
    warn: Callable[[str], None],
) -> Summary:
    """Play all rounds that are missing; if the run is finished, only read its summary.

    Args:
        config: all settings; its devices are remote. Where it has no nonce, the directory's is
            taken, or a new one is drawn.
        path: the run directory.
        site: where devices connect.
        shapes: of the devices' inputs, and the number of classes.
        resume: continue in an existing directory.
        progress: receives progress.
        warn: receives notes for the user that need no action, each a sentence.

    Returns:
        The summary, as in summary.json.

    Raises:
        UserError: the settings and the directory do not fit together; nothing was changed.
        RunError: the run cannot go on; its finished rounds are kept.
    """
    directory = RunDirectory(path)
    config = _with_nonce(config, directory, site.randomness)
    if finished := directory.finished(config, resume=resume):
        site.post.finish()
        return finished
    site = replace(site, records=directory.measured, journal=directory.round, note=warn)
    population = RemotePopulation(site, shapes)
    digest = _shapes_digest(population.spec(config))
    with directory.claim(config, resume=resume):
        recorded, now = read_json(directory.versions), versions_now(_CPU, _NOWHERE, digest)
        for sentence in () if recorded is None else check_versions(recorded, now):
            warn(sentence)
        write_json(directory.versions, now if recorded is None else recorded)
        play(config, directory, population, progress)
        data = DataSize(DATA, _number_of(site.devices), 0)
        summary = summarise_experiment([summarise_run(config, directory, data)])
        about = {"data": DATA, "data_sha256": digest}
        write_bundle(config, directory, population.spec(config), None, about)
        write_json(directory.summary, summary)
        directory.round.unlink(missing_ok=True)
    site.post.finish()
    return summary


_CPU: Final = torch.device("cpu")
_NONCE: Final = 16  # bytes


def _with_nonce(config: RunConfig, directory: RunDirectory, randomness: Randomness) -> RunConfig:
    """The same settings with the nonce of the directory's run."""
    if config.experiment.nonce:
        return config
    if directory.config.exists():
        nonce = build_config([read_config_file(directory.config)]).experiment.nonce
    else:
        nonce = randomness(_NONCE).hex()
    return replace(config, experiment=replace(config.experiment, nonce=nonce))


def _number_of(devices: TrustedKeys) -> int:
    return len(devices.keys)


def _shapes_digest(spec: ModelSpec) -> str:
    """All that the server knows of the data: a change of it is another run."""
    return sha256(f"{spec.input_shape} {spec.num_classes}".encode()).hexdigest()
