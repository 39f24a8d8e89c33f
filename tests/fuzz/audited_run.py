"""A run of two rounds, of which one file is replaced before it is audited.

The first byte of an input names the file, by its place in `FILES`; the rest is what the file holds.
The chains of a transcript and of a truth file are mended, so that what reads their records is
reached.
"""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from doubles import run
from frames import chained

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.chain import DIGEST_BYTES, Format
from deltafl.sim.record.transcript import TRANSCRIPT
from deltafl.sim.record.truth import TRUTH
from deltafl.sim.settings.config_io import build_config

FILES = (
    "transcript.bin",
    "truth.bin",
    "checkpoints/round-000002.npz",
    "events.jsonl",
    "bundle.npz",
    "metrics/round-000001.csv",
    "summary.json",
    "versions.json",
    "config.toml",
)
_CHAINED = {"transcript.bin": TRANSCRIPT, "truth.bin": TRUTH}
_SETTINGS = {
    "data": {"num_devices": 60},
    "federation": {
        "algorithm": "private-delta-fl",
        "rounds": 2,
        "cohort_size": 5,
        "evaluate_every": 1,
    },
    "training": {"batch_size": 64, "device": "cpu"},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "privacy": {"min_cohort": 5, "transcript": "full", "truth": True},
}
_PREFIX = 4


def inputs() -> Sequence[bytes]:
    """Every file of the run as it is."""
    return [bytes([number]) + data for number, data in enumerate(_files().values())]


def audit_with(data: bytes, folder: Path) -> None:
    """Audit the run in which one file is this one.

    Args:
        data: Which file, and what it holds.
        folder: An empty one, for the run.
    """
    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    content = data[1:]
    if name in _CHAINED:
        content = mended(content, _CHAINED[name])
    for place, kept in {**_files(), name: content}.items():
        path = folder / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(kept)
    audit(folder, Options(truth=folder / "truth.bin"))


def mended(data: bytes, form: Format) -> bytes:
    """A file of the frames of another as far as their lengths lead, whatever its chain says."""
    at, frames = len(form.magic), []
    while at + _PREFIX <= len(data):
        start = at + _PREFIX
        at = start + int.from_bytes(data[start - _PREFIX : start], "big")
        if at > len(data):
            break
        frames.append(data[start:at])
        at += DIGEST_BYTES
    return chained(frames, form)


@cache
def _files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltafl.sim.charts.files.write_figures", lambda *_: None)
        path = Path(folder) / "run"
        run(build_config([_SETTINGS]), path)
        return {name: (path / name).read_bytes() for name in FILES}
