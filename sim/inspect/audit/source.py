"""What is audited: a transcript alone, or a run directory with what the run says about itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from deltafl.sim.errors import UserError, damaged
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.events import Event, read_events
from deltafl.sim.record.rundir import RunDirectory, read_json
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config, read_config_file

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where an audit finds everything that it reads.

    Attributes:
        given: What the person named.
        transcript: The transcript; it need not exist for a run in clear.
        config: The run's settings; None for a bare transcript.
        events: What the run recorded of its rounds, by round.
        head: The digest that the run states, 32 bytes; None if it states none.
        num_records: How many records that digest covers; None if it covers all.
        num_others: Further runs of the same experiment, in directories of their own.
    """

    given: Path
    transcript: Path
    config: RunConfig | None = None
    events: Mapping[int, Event] | None = None
    head: bytes | None = None
    num_records: int | None = None
    num_others: int = 0

    @property
    def is_in_clear(self) -> bool:
        """Whether the run is of an algorithm that masks nothing."""
        return self.config is not None and not self.config.federation.is_private


def find_source(path: Path) -> Source:
    """Find out what a path is.

    Raises:
        UserError: there is nothing to audit, or what the run says of itself is damaged.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give a run directory, or a transcript.bin")
    if not path.is_dir():
        return Source(path, path)
    directory = RunDirectory(path)
    if not directory.config.exists():
        raise UserError(
            f"{path} is not a run directory (it has no config.toml): give one, or a transcript.bin"
        )
    config = build_config([read_config_file(directory.config)])
    checkpoint = load_checkpoint(directory.checkpoints)
    summary = read_json(directory.summary)
    events = _events(directory, checkpoint.state.round if checkpoint else None)
    if config.privacy.sums == "ideal" and config.federation.is_private:
        events = {}  # there are no messages that they could disagree with
    first, *others = config.arms()
    source = Source(path, directory.transcript, first, events, num_others=len(others))
    if not source.is_in_clear and not directory.transcript.exists():
        raise UserError(f"{path} has no transcript.bin: was the run begun, and by this release?")
    if checkpoint is None:
        return source
    mark = checkpoint.transcript
    head = mark.digest
    if summary is not None and isinstance(stated := summary.get("transcript_sha256"), str):
        if not _DIGEST.fullmatch(stated):
            raise damaged(directory.summary, "its digest of the transcript is none")
        head = bytes.fromhex(stated)
    return replace(source, head=head, num_records=mark.num_frames)


def _events(directory: RunDirectory, last: int | None) -> dict[int, Event]:
    """The events by round, up to a last one if it is given."""
    events: dict[int, Event] = {}
    for event in read_events(directory.events):
        number = event.get("round")
        if type(number) is not int:
            raise damaged(directory.events, "a line is of no round")
        if last is None or number <= last:
            events[number] = event
    return events
