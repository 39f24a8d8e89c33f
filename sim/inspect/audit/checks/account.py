"""Does the run's own account of itself agree with its messages?

A run directory says what was to be run (settings), what came of each round (events), and what came
of the run (checkpoints, evaluations, bundle, summary). All of it must follow from the settings and
the sums. A transcript alone says only how many rounds it has.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from deltafl.fl.read.exact import shortened
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.announced import departures
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.draws import Draws
from deltafl.sim.inspect.audit.events import disagreements, strange_values, unknown_keys
from deltafl.sim.inspect.audit.files import unchecked_files
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.results import (
    Followed,
    bundle_differs,
    checkpoint_differs,
    evaluations_differ,
    read_checkpoints,
    summary_differs,
    unknown_of_summary,
    unknown_of_versions,
    versions_differ,
)
from deltafl.sim.inspect.audit.retrace import Progress, Retrace, Retraced
from deltafl.sim.inspect.audit.rewritten import not_rewritten, with_other_bytes
from deltafl.sim.inspect.audit.rules import A24, Rule, Rules
from deltafl.sim.inspect.audit.saved_states import SavedStates
from deltafl.sim.inspect.audit.spent import spends_otherwise, split
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.checkpoint import Checkpoint
from deltafl.sim.record.evaluations import read_evaluations
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import INTERRUPTED, Closing, Message, Record, Resumed
from deltafl.sim.settings.config import RunConfig

RULES: Final = Rules(
    {
        "record.disagrees": Rule(
            Severity.HIGH,
            "what the run says of itself does not fit together",
            "The run's results do not follow from what its server received, or from each other.",
            "Find out which of the two was changed. Until then, trust neither.",
            A24,
        ),
        "run.unfinished": Rule(
            Severity.MEDIUM,
            "the record is closed, and the run has no summary",
            "The run was stopped before it wrote its summary, is still going, or the summary was "
            "deleted. There are no results that could be compared.",
            "Finish the run (`--resume`).",
            A24,
        ),
        "settings.impossible": Rule(
            Severity.HIGH,
            "no run can have these settings",
            "The settings were changed, and what follows from them cannot be compared.",
            "Get the settings from where the run wrote them.",
            A24,
        ),
    }
)

SETTINGS_UNKNOWN: Final = (
    "settings unknown: a transcript alone does not say what was to be run, so announcements were "
    "only compared with each other; give the run directory"
)


NOT_WHOLE: Final = "the sums are not recorded whole that lead"


class Account(Check):
    """Runs the strategy of the settings again over the sums, and compares what the run says."""

    name = "the run's own account"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        source = premises.source
        has_messages = source.config is not None and not source.is_ideal
        self._retrace = Retrace(source.config) if source.config and has_messages else None
        self._draws: Draws | None = None
        self._checkpoints: dict[int, Checkpoint] = {}
        self._problems: list[str] = []
        if source.directory is not None and source.config is not None and has_messages:
            self._checkpoints, self._problems = read_checkpoints(source.directory)
            self._draws = Draws(source.config, _num_devices(source.directory, source.config))
        self._followed = Followed()
        self._rounds: set[int] = set()
        self._num_followed = 0
        self._bytes_up: dict[int, int] = {}
        self._saved = SavedStates[Progress](Progress())
        self._round = 0  # the last one
        self._given_up: set[int] = set()  # by the run's events, though their records have an end
        self._is_closed = False
        self._is_damaged = False
        self._is_whole = True  # as far as the record goes

    def on_record(self, record: Record, digest: bytes) -> Iterator[Finding]:
        """Note what devices sent."""
        del digest
        if isinstance(record, Message) and not record.sent:
            sent = self._bytes_up.get(record.round, 0)
            self._bytes_up = {record.round: sent + record.size}
        if isinstance(record, Closing):
            self._is_closed = True
            yield from self._closed(record)
        if isinstance(record, Resumed):
            self._is_closed = False
            yield from self._resumed(record)

    def on_damage(self, error: object, round_number: int | None) -> Iterable[Finding]:
        """Nothing can be said of the end of a record that is damaged."""
        del error, round_number
        self._is_damaged = True
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Compare a round with the settings and with the run's events."""
        round_, source = over.view, self._premises.source
        self._rounds.add(round_.number)
        self._round = round_.number
        self._followed.rounds = max(self._followed.rounds, round_.number)
        place = place_of(round_.end) if round_.end else Evidence(round_.number)
        retraced = Retraced()
        if self._retrace is not None:
            retraced = self._retrace.follow(over, self._bytes_up.get(round_.number, 0))
        if source.config is not None and not source.is_ideal:
            for session in round_.sessions.values():
                begins = session.announcements[0].place if session.announcements else place
                for detail in departures(source.config, round_.number, session, retraced.wanted):
                    yield RULES.found("record.disagrees", detail, [begins])
        if self._draws is not None:
            for detail in self._draws.departures(over):
                yield RULES.found("record.disagrees", detail, [place])
        yield from _others(round_)
        yield from self._finished(over)
        event = (source.events or {}).get(round_.number)
        is_over = not round_.breaks_off
        if event is not None and is_over and event.get("aborted") == INTERRUPTED:
            self._given_up.add(round_.number)  # a later record has to say so too
        elif event is not None:
            spent, event = split(event, source.config)
            for detail in strange_values(event):
                yield RULES.found("record.disagrees", detail, [place])
            population = None if self._draws is None else self._draws.population
            for detail in spends_otherwise(over, spent, source.config, population):
                yield RULES.found("record.disagrees", detail, [place])
            if strange := unknown_keys(event, retraced.report):
                detail = f"the run's events have {shortened(', '.join(strange))}, and no report has"
                yield RULES.found("record.disagrees", detail, [place])
            for detail in disagreements(over, event, source.config, retraced.report):
                yield RULES.found("record.disagrees", detail, [place])
        yield from self._contexts(over)
        self._remember(over)
        if is_over:
            progress = Progress() if self._retrace is None else self._retrace.progress
            self._saved.save(round_.number, progress)

    def on_end(self) -> Iterator[Finding]:
        """Compare the rounds, and what the run left behind, with the transcript."""
        source = self._premises.source
        if self._is_damaged:
            return
        if self._is_closed and source.directory is not None and source.summary is None:
            yield RULES.found("run.unfinished", "there is no summary", [Evidence()])
        if self._retrace is not None and self._retrace.impossible:
            yield RULES.found("settings.impossible", self._retrace.impossible, [Evidence()])
        if self._retrace is not None and self._retrace.contradiction:
            yield RULES.found("record.disagrees", self._retrace.contradiction, [Evidence()])
        if source.damage:
            yield RULES.found("record.disagrees", source.damage, [Evidence()])
        for detail, rounds in self._missing():
            places = [Evidence(number) for number in rounds]
            yield RULES.found("record.disagrees", detail, places)
        for detail in self._results():
            yield RULES.found("record.disagrees", detail, [Evidence()])
        for number in sorted(self._given_up):
            detail = f"round {number} is lost by the run's events, and has ended by its records"
            yield RULES.found("record.disagrees", detail, [Evidence(number)])

    def coverage(self, tally: Tally) -> Coverage:
        """Only a run directory has one."""
        if self._premises.source.config is None:
            return Coverage(0, "a transcript alone has none")
        detail = f"{self._num_followed} of {tally.rounds} rounds follow from settings and sums"
        return Coverage(self._num_followed, detail)

    def unchecked(self) -> Iterator[str]:
        """What of the run directory was compared with nothing."""
        source = self._premises.source
        if source.directory is None or source.config is None:
            yield SETTINGS_UNKNOWN
            return
        yield from unchecked_files(source.directory.path)
        yield from not_rewritten(source.directory)
        if self._retrace is not None and self._retrace.problem:
            yield f"the run was not followed to its end: {self._retrace.problem}"
        if self._followed.model_after(self._followed.rounds) is None:
            why = "the record does not lead" if self._is_whole else NOT_WHOLE
            compared = "it was only compared between checkpoint, bundle and summary"
            yield f"final model: {why} to it, so {compared}"
        if self._draws is not None and self._draws.population is None:
            yield "cohorts: without an evaluation, nobody knows which devices could be drawn"

    def _remember(self, over: RoundOver) -> None:
        """Keep the server's state where a checkpoint can be compared with it, and at the end."""
        self._remember_models(over)
        if self._retrace is None or self._retrace.known is None:
            return
        self._num_followed += 1
        states, number = self._followed.states, over.view.number
        for old in [old for old in states if old not in self._checkpoints]:
            del states[old]
        states[number] = self._retrace.known
        if self._retrace.started is not None and over.is_first:
            states[number - 1] = self._retrace.started

    def _remember_models(self, over: RoundOver) -> None:
        """Keep the models that sums alone lead to, for settings that lead nowhere."""
        models, number = self._followed.models, over.view.number
        before = models.get(number - 1)
        for old in [old for old in models if old not in self._checkpoints and old < number - 2]:
            del models[old]
        self._is_whole = self._is_whole and over.view.keeps_whole
        parts = [one.following for one in over.played]
        if parts and not over.view.breaks_off and len(over.view.sessions) == 1:
            joined = b"".join(part for part in parts if part is not None)
            if None not in parts and not len(joined) % 4:  # a record may hold a part of a number
                models[number] = np.frombuffer(joined, "<f4").astype(np.float32)
        elif before is not None and (over.view.breaks_off or not over.view.is_opaque):
            models[number] = before

    def _contexts(self, over: RoundOver) -> Iterator[Finding]:
        """The model of a checkpoint is the one of which the next announcement gave a digest."""
        before = self._checkpoints.get(over.view.number - 1)
        for session in over.view.sessions.values():
            if before is None or session.levels is None or not session.announcements:
                continue
            data = before.state.model.astype("<f4").tobytes()
            if session.levels.context(data) != session.params.context:
                detail = (
                    f"the checkpoint of round {over.view.number - 1} has another model than the "
                    f"one to which the session of round {over.view.number} is bound"
                )
                yield RULES.found("record.disagrees", detail, [session.announcements[0].place])

    def _finished(self, over: RoundOver) -> Iterator[Finding]:
        """A round that was given up although all its sums are there."""
        end, outcomes = over.view.end, [one.outcome for one in over.played]
        if end is None or len(over.view.sessions) != 1 or end.aborted in {"", INTERRUPTED}:
            return
        if all(outcome is not None and outcome.aborted is None for outcome in outcomes):
            detail = f"it was given up ({end.aborted}), but it has all its sums"
            yield RULES.found("record.disagrees", detail, [place_of(end)])

    def _resumed(self, record: Resumed) -> Iterator[Finding]:
        """An interruption costs the round under way, and one more where a file is damaged."""
        self._given_up = {number for number in self._given_up if number <= record.kept}
        place = Evidence(None, record.number)
        before = self._saved.numbers
        progress = self._saved.go_back(record.kept, self._round)
        if progress is None:
            detail = (
                f"the run goes on from its state after round {record.kept}, and can only have kept "
                f"those after rounds {', '.join(map(str, before))}"
            )
            yield RULES.found("record.disagrees", detail, [place])
        elif self._retrace is not None:
            self._retrace.go_back(progress, self._round)
            self._keep_state(record.kept, self._round)
        self._keep_models(record.kept, self._round)
        if self._draws is not None:
            self._draws.go_back(record.kept)
        for number in range(record.kept + 1, self._round):  # the last one ends with this record
            event = (self._premises.source.events or {}).get(number)
            if event is not None and event.get("aborted") != INTERRUPTED:
                detail = f"round {number} is lost by this record, and not by the run's events"
                yield RULES.found("record.disagrees", detail, [place])

    def _keep_state(self, kept: int, last: int) -> None:
        """Put the state that a run goes on from in the place of those that it lost."""
        states = self._followed.states
        for number in [number for number in states if number > kept]:
            del states[number]
        if self._retrace is not None and self._retrace.known is not None:
            states[last] = self._retrace.known

    def _keep_models(self, kept: int, last: int) -> None:
        """The same for the models that sums alone lead to."""
        models = self._followed.models
        before = models.get(kept)
        for number in [number for number in models if number > kept]:
            del models[number]
        if before is not None:
            models[last] = before

    def _closed(self, closing: Closing) -> Iterator[Finding]:
        """The closing record says how many rounds there are."""
        if closing.rounds != len(self._rounds):
            played = len(self._rounds)
            detail = f"it says that {closing.rounds} rounds were played, but has {played}"
            place = Evidence(None, closing.number)
            yield RULES.found("record.disagrees", detail, [place])

    def _missing(self) -> Iterator[tuple[str, list[int]]]:
        """Rounds that the run says it played and the transcript does not have, or the reverse."""
        source = self._premises.source
        if source.events is not None and not source.is_ideal:
            for number in sorted(self._due() - set(source.events)):
                yield f"round {number} is not in the run's events", [number]
        if missing := sorted(set(source.events or {}) - self._rounds):
            shown = ", ".join(map(str, missing[:5]))
            yield f"rounds {shown} are in the run's events only", missing

    def _due(self) -> set[int]:
        """The rounds whose events must be there.

        A run writes its events before the checkpoint of their round. One that is not finished may
        have begun, or even closed its record, and not come to that.
        """
        last = max(self._checkpoints, default=None)
        if self._premises.source.summary is not None or last is None:
            return self._rounds if self._is_closed else set()
        return {number for number in self._rounds if number <= last}

    def _results(self) -> Iterator[str]:
        """What the run left behind and does not follow from the transcript."""
        source, followed = self._premises.source, self._followed
        if source.directory is None or source.config is None or source.is_ideal:
            return
        directory, is_finished = source.directory, source.summary is not None
        yield from self._problems
        yield from with_other_bytes(directory, source.config)
        yield from unknown_of_versions(directory)
        if strange := unknown_of_summary(source):
            yield f"the summary has {', '.join(strange)}, which no run writes"
        for number, checkpoint in self._checkpoints.items():
            yield from checkpoint_differs(number, checkpoint, followed, directory)
        last = max(self._checkpoints, default=None)
        if last is not None:
            yield from versions_differ(directory)
        if is_finished and last != followed.rounds:
            yield f"the last checkpoint of the finished run is that of round {last}"
        final = None if last is None else self._checkpoints[last]
        if is_finished or directory.bundle.exists():
            yield from bundle_differs(source.config, directory, followed, final)
        rounds = followed.rounds if is_finished else last
        if rounds is not None:
            yield from evaluations_differ(source.config, directory, rounds, is_finished=is_finished)
        yield from summary_differs(source, followed.rounds)


def _others(round_: RoundView) -> Iterator[Finding]:
    """Announcements to devices that the record of the round's begin does not name."""
    named = set(round_.cohort or ())
    for session in round_.sessions.values():
        others = [seen for seen in session.announcements if seen.record.peer not in named]
        if round_.cohort is not None and others:
            such = f"{len(others)} devices that it began without, such as {others[0].record.peer}"
            detail = f"round {round_.number} was announced to {such}"
            yield RULES.found("record.disagrees", detail, [seen.place for seen in others])


def _num_devices(directory: RunDirectory, config: RunConfig) -> int | None:
    """How many devices cohorts are drawn from, by an evaluation; None if there is none to read.

    Evaluations of a run with attackers are over honest devices; it says elsewhere how many there
    are.
    """
    if config.attackers.lie:
        try:
            with directory.read() as record:
                return read_attacked(record).population.devices
        except UserError:
            return None  # `summary_differs` says so
    try:
        with directory.read() as record:
            first = next(read_evaluations(record), None)
    except UserError:
        return None  # `evaluations_differ` says so
    return None if first is None else len(first.train)
