"""What is audited: a transcript alone, or a run directory with what the run says about itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from deltafl.sim.errors import UserError, damaged
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.checkpoint import load_checkpoint, readable_checkpoints
from deltafl.sim.record.evaluations import evaluation_files
from deltafl.sim.record.events import Event, read_events
from deltafl.sim.record.labels import read_comparison
from deltafl.sim.record.rundir import RunDirectory, read_json
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import merge, read_config_file

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
        directory: The run directory; None for a bare transcript.
        arms: The settings of all runs of the experiment, this one's first.
        summary: What the run says that it found; None if it is not finished.
        truth_marks: How far its truth file goes by its checkpoints, by their rounds.
        damage: What is wrong with its events, so that they are not known; "" if nothing is.
    """

    given: Path
    transcript: Path
    config: RunConfig | None = None
    events: Mapping[int, Event] | None = None
    head: bytes | None = None
    num_records: int | None = None
    num_others: int = 0
    directory: RunDirectory | None = None
    arms: tuple[RunConfig, ...] = ()
    summary: Mapping[str, object] | None = None
    truth_marks: Mapping[int, Mark] = field(default_factory=dict)
    damage: str = ""

    @property
    def is_in_clear(self) -> bool:
        """Whether the run is of an algorithm that masks nothing."""
        return self.config is not None and not self.config.federation.is_private

    @property
    def is_ideal(self) -> bool:
        """Whether the run's sums were computed without cryptography, so that it has no messages."""
        return self.config is not None and self.config.privacy.sums == "ideal"


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
        if compared := read_comparison(path):
            raise UserError(
                f"{path} has {len(compared)} runs: audit one of them, "
                + " or ".join(str(path / run) for run in compared)
            )
        raise UserError(
            f"{path} is not a run directory (it has no config.toml): give one, or a transcript.bin"
        )
    config = merge([read_config_file(directory.config)])  # contradictions are findings
    for folder in directory.metrics_of(config.federation).values():
        evaluation_files(folder)  # those of an earlier version are no fault of the run
    checkpoint = load_checkpoint(directory.checkpoints)
    summary = read_json(directory.summary)
    events: dict[int, Event] | None = None
    damage = ""
    try:
        events = _events(directory, checkpoint.state.round if checkpoint else None)
    except UserError as error:  # the transcript, if there is one, can be audited all the same
        if not config.federation.is_private:
            raise
        damage = str(error)
    if config.privacy.sums == "ideal" and config.federation.is_private:
        events = {}  # there are no messages that they could disagree with
    arms = config.arms()
    source = Source(
        path,
        directory.transcript,
        arms[0],
        events,
        num_others=len(arms) - 1,
        directory=directory,
        arms=arms,
        summary=summary,
        truth_marks={
            one.state.round: one.truth for one in readable_checkpoints(directory.checkpoints)
        },
        damage=damage,
    )
    if not source.is_in_clear and not directory.transcript.exists():
        raise UserError(f"{path} has no transcript.bin: was the run begun, and by this release?")
    stated = _stated_head(directory, summary)
    if checkpoint is None:
        return replace(source, head=stated)
    mark = checkpoint.transcript
    return replace(source, head=stated or mark.digest, num_records=mark.num_frames)


def _stated_head(directory: RunDirectory, summary: Mapping[str, object] | None) -> bytes | None:
    """The digest of the transcript that the run's summary states; None if it states none."""
    if summary is None or not isinstance(stated := summary.get("transcript_sha256"), str):
        return None
    if not _DIGEST.fullmatch(stated):
        raise damaged(directory.summary, "its digest of the transcript is none")
    return bytes.fromhex(stated)


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
