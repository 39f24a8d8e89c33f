"""Does the real engine, given what the record's rounds came to, write what the record says?"""

from collections.abc import Iterator
from typing import Final

from deltafl.protocol.errors import ProtocolError
from deltafl.secagg.errors import SecAggError
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.check import Check, Premises
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.files import unchecked_files
from deltafl.sim.inspect.audit.findings import Finding
from deltafl.sim.inspect.audit.run_replay import RunReplay, Unplayable
from deltafl.sim.record.record import SUMMARY
from deltafl.sim.record.record import Record as RunRecord
from deltafl.sim.record.transcript import Closing, Record, Resumed, RoundEnd

_UNFIT: Final = (UserError, SecAggError, ProtocolError, ValueError)
"""What is raised where settings, or what follows from them, contradict each other."""

_DAMAGED: Final = "the record is damaged"


class RunAgain(Check):
    """Plays the run again, once its rounds have been."""

    name = "the run played again"
    table = """\
record.disagrees high record A24: what the run says of itself does not fit together
    The run's results do not follow from what its server received, or from each other.
answers.vanished high server A24: a device is said to be silent, and by the settings it answers
    A server that loses devices at will chooses who is in which sum.
run.rounding low record A24: numbers differ in their last bits from those computed here
    Processors and versions of torch round differently. Nothing else is compared less strictly.
truth.absent low record A24: the record has digests of a truth file, which is not there
    What devices had to hide, and how they drew it, is not compared with anything.
run.unfinished medium record A24: the record is closed, and the run has no summary
    The run was stopped, is still going, or its summary was deleted: there are no results.
settings.impossible high record A24: no run can have these settings
    The settings were changed, and what follows from them cannot be compared.
model.first-differs high server A8: the first model is not the one that the settings lead to
    It may have been trained on other data, or made so that updates reveal more.
model.unfounded high server A8: a model does not follow from the round before
    The server made it up, unless it uses an optimiser that the audit was not told about.
"""
    needs_messages = False

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._is_closed = self._had_truth = False
        self._replay: RunReplay | None = None
        self._why_not = "a record alone has no settings"

    def on_record(self, record: Record, digest: bytes) -> None:
        """Note whether the run is over, and whether devices noted what they hid."""
        del digest
        self._had_truth |= isinstance(record, RoundEnd) and bool(record.truth)
        if isinstance(record, Closing | Resumed):
            self._is_closed = isinstance(record, Closing)

    def on_damage(self, error: object, round_number: int | None) -> None:
        """Nothing follows from a record that is damaged."""
        del error, round_number
        self._why_not = _DAMAGED

    def on_end(self) -> Iterator[Finding]:
        """Play the run, and compare."""
        source, kept = self._premises.source, self._premises.rounds.kept
        if source.directory is None or source.config is None or self._why_not == _DAMAGED:
            return
        self._replay = replay = RunReplay(source.config, kept, data=source.data)
        if self._had_truth and not source.directory.truth.exists():
            replay.depart("truth.absent", f"there is no {source.directory.truth.name}")
        with source.directory.read() as record:
            if self._is_closed and record.json(SUMMARY) is None:
                replay.depart("run.unfinished", "there is no summary")
            self._why_not = _play(replay, record)
        try:
            replay.compare_summary(source.directory, source.arms)
        except _UNFIT as error:
            replay.depart("record.disagrees", str(error))
        for rule, detail, place in replay.departures:
            yield self.rules.found(rule, detail, [place])

    def unchecked(self) -> Iterator[str]:
        """What of the run, and which files, were compared with nothing."""
        if self._replay is not None:
            yield from self._replay.passed_over
        directory = self._premises.source.directory
        if directory is not None:
            yield from unchecked_files(directory.path)

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that the engine has played."""
        rounds = 0 if self._replay is None else self._replay.rounds
        detail = f"{rounds} of {tally.rounds} rounds were played again" if rounds else self._why_not
        return Coverage(rounds, detail)


def _play(replay: RunReplay, record: RunRecord) -> str:
    """Compare a run with its record; why no round was played, if none was."""
    try:
        record.config()
    except UserError as error:
        replay.depart("settings.impossible", str(error))
        return "no run can have its settings"
    if not replay.config.federation.is_private:
        return "what devices sent in clear is not recorded; only results were compared"
    try:
        replay.compare(record)
    except Unplayable as error:
        return str(error)
    except _UNFIT as error:
        replay.depart("record.disagrees", str(error))
        return "what it says of itself does not fit together"
    return "no message is kept of any round"
