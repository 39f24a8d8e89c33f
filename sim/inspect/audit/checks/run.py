"""Does the real engine, given what the record's rounds came to, write what the record says?"""

from collections.abc import Iterator
from typing import Final

from deltafl.protocol.errors import ProtocolError
from deltafl.secagg.errors import SecAggError
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.check import Check, Premises
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.files import unchecked_files
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.run_replay import RunReplay, Unplayable, summary_differs
from deltafl.sim.record.record import SUMMARY
from deltafl.sim.record.record import Record as RunRecord
from deltafl.sim.record.transcript import Closing, Record, Resumed, RoundEnd
from deltafl.sim.settings.config import RunConfig

_UNFIT: Final = (UserError, SecAggError, ProtocolError, ValueError)
"""What is raised where settings, or what follows from them, contradict each other."""

_DAMAGED: Final = "the record is damaged"

RULES = Rules.read(
    """\
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
)


class RunAgain(Check):
    """Plays the run again, once its rounds have been."""

    name = "the run played again"
    rules = RULES
    needs_messages = False

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._is_closed = self._had_truth = False
        self._replay: RunReplay | None = None
        self._why_not = "a record alone has no settings"

    def on_record(self, record: Record, digest: bytes) -> tuple[Finding, ...]:
        """Note whether the run is over, and whether devices noted what they hid."""
        del digest
        self._had_truth |= isinstance(record, RoundEnd) and bool(record.truth)
        if isinstance(record, Closing | Resumed):
            self._is_closed = isinstance(record, Closing)
        return ()

    def on_damage(self, error: object, round_number: int | None) -> tuple[Finding, ...]:
        """Nothing follows from a record that is damaged."""
        del error, round_number
        self._why_not = _DAMAGED
        return ()

    def on_end(self) -> Iterator[Finding]:
        """Play the run, and compare."""
        source = self._premises.source
        if source.directory is None or source.config is None or self._why_not == _DAMAGED:
            return
        if self._had_truth and not source.directory.truth.exists():
            detail = f"there is no {source.directory.truth.name}"
            yield RULES.found("truth.absent", detail, [Evidence()])
        with source.directory.read() as record:
            if self._is_closed and record.json(SUMMARY) is None:
                yield RULES.found("run.unfinished", "there is no summary", [Evidence()])
            yield from self._played(source.config, record)
        try:
            for detail in summary_differs(source.directory, source.arms):
                yield RULES.found("record.disagrees", detail, [Evidence()])
        except _UNFIT as error:
            yield RULES.found("record.disagrees", str(error), [Evidence()])

    def unchecked(self) -> Iterator[str]:
        """What of the run, and which files, were compared with nothing."""
        if self._replay is not None:
            yield from self._replay.passed_over
        directory = self._premises.source.directory
        if directory is not None:
            yield from unchecked_files(directory.path)

    def _played(self, config: RunConfig, record: RunRecord) -> Iterator[Finding]:
        try:
            record.config()
        except UserError as error:
            self._why_not = "no run can have its settings"
            yield RULES.found("settings.impossible", str(error), [Evidence()])
            return
        if not config.federation.is_private:
            self._why_not = "what devices sent in clear is not recorded; only results were compared"
            return
        kept, data = self._premises.rounds.kept, self._premises.source.data
        self._replay = replay = RunReplay(config, kept, data=data)
        try:
            replay.compare(record)
            self._why_not = "no message is kept of any round"
        except Unplayable as error:
            self._why_not = str(error)
        except _UNFIT as error:
            yield RULES.found("record.disagrees", str(error), [Evidence()])
        for rule, detail, place in replay.departures:
            yield RULES.found(rule, detail, [place])

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that the engine has played."""
        rounds = 0 if self._replay is None else self._replay.rounds
        detail = f"{rounds} of {tally.rounds} rounds were played again" if rounds else self._why_not
        return Coverage(rounds, detail)
