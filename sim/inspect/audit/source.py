"""What is audited: a transcript alone, or a run directory with what the run says about itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltafl.sim.errors import UserError, damaged
from deltafl.sim.record.record import SUMMARY
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import RunConfig

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where an audit finds everything that it reads.

    Attributes:
        given: What the person named.
        transcript: The transcript; it need not exist for a run in clear.
        config: The run's settings; None for a bare transcript.
        head: The digest that the run states, 32 bytes; None if it states none.
        directory: The run directory; None for a bare transcript.
        arms: The settings of all runs of the experiment, this one's first.
        summary: What the run says that it found; None if it is not finished.
        data: Where its data are, if the auditor says so.
    """

    given: Path
    transcript: Path
    config: RunConfig | None = None
    head: bytes | None = None
    directory: RunDirectory | None = None
    arms: tuple[RunConfig, ...] = ()
    summary: Mapping[str, object] | None = None
    data: Path | None = None

    @property
    def is_in_clear(self) -> bool:
        """Whether the run is of an algorithm that masks nothing."""
        return self.config is not None and not self.config.federation.is_private


def find_source(path: Path, data: Path | None = None) -> Source:
    """Find out what a path is.

    Args:
        path: What is audited.
        data: Where the run's data are; None to open no file that a record names.

    Raises:
        UserError: there is nothing to audit, or what the run says of itself is damaged.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give a run directory, or a record")
    if not path.is_dir():
        return Source(path, path)
    directory = RunDirectory(path)
    if not directory.is_run:
        raise UserError(
            f"{path} is not a run directory (it has no record.sqlite): give one, or a record"
        )
    with directory.read() as record:
        config = record.config(checked=False)  # contradictions are findings
        summary = record.json(SUMMARY)
    head, arms = _stated_head(directory, summary), config.arms()
    return Source(path, directory.record, arms[0], head, directory, arms, summary, data)


def _stated_head(directory: RunDirectory, summary: Mapping[str, object] | None) -> bytes | None:
    """The digest of the transcript that the run's summary states; None if it states none."""
    if summary is None or not isinstance(stated := summary.get("record_sha256"), str):
        return None
    if not _DIGEST.fullmatch(stated):
        raise damaged(directory.record, "its digest of the record is none")
    return bytes.fromhex(stated)
