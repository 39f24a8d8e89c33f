"""Does the truth file have what a simulation writes? Needs a truth file.

What other checks compare with the truth, they compare only where the file has it. So whoever leaves
a record out hides what the record would show. What must be there follows from the transcript: a
device that sent a masked vector had measured its loss, a device that was invited had a source of
secrets, and each key and each seed that it used was drawn from it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from deltafl.protocol.selection import Threshold
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.truth_rounds import (
    SeedsOfRound,
    TruthOfRound,
    TruthRead,
    passes,
)
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.record.transcript import Closing, Record, Resumed

RULES: Final = Rules.read(
    """\
truth.missing high record A24: the truth file lacks records that a simulation writes
    What these devices did is not compared with anything, and they may have done anything.
truth.disagrees high record A24: the truth file disagrees with the record or the checkpoint
    The truth file was changed, or is of another run. What was compared with it proves nothing.
"""
)

_SHOWN: Final = 5


class TruthFile(Check):
    """Compares the truth file with the devices of every round, and with the checkpoints."""

    name = "truth file"
    rules = RULES
    needs_truth = True

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._held: dict[int, list[Finding]] = {}  # until their round cannot be lost any more
        self._without_seeds: dict[int, list[Finding]] = {}
        self._devices, self._seeds = 0, 0
        self._compared, self._lost = set[int](), set[int]()
        self._is_closed = False

    def on_record(self, record: Record, digest: bytes) -> Iterable[Finding]:
        """A run that goes on has cut its truth file back to the state that it goes on from."""
        del digest
        if isinstance(record, Closing):
            self._is_closed = True
        if isinstance(record, Resumed):
            self._is_closed = False
            for held in (self._held, self._without_seeds):
                for number in [number for number in held if number > record.kept]:
                    del held[number]
            self._lost |= {number for number in self._compared if number > record.kept}
            self._compared -= self._lost
        return ()

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Compare a round with its records in the truth file."""
        round_, truth = over.view, over.truth or {}
        if round_.breaks_off:
            self._lost.add(round_.number)
            return ()
        if not round_.sessions:
            return ()
        self._compared.add(round_.number)
        self._devices += len(truth)
        self._seeds += len(over.seeds)
        end = round_.end
        place = [Evidence(round_.number) if end is None else place_of(end)]
        held = [RULES.found("truth.missing", detail, place) for detail in _untold(round_, truth)]
        odd = (*_odd(over, truth), *_otherwise(round_, truth))
        held += [RULES.found("truth.disagrees", detail, place) for detail in odd]
        self._held[round_.number] = held
        self._without_seeds[round_.number] = [
            RULES.found("truth.missing", detail, place) for detail in _seedless(round_, over.seeds)
        ]
        return ()

    def on_truth(self, truth: TruthRead) -> Iterator[Finding]:
        """Compare how far the file goes with what the run's checkpoints say of it."""
        marks = self._premises.source.truth_marks
        for number, mark in marks.items():
            if truth.marks.get(mark.num_frames) != mark:
                detail = (
                    f"the checkpoint of round {number} knows of {mark.num_frames} other records, "
                    f"and the file has {truth.num_records}"
                )
                yield RULES.found("truth.disagrees", detail, [Evidence(number)])
        last = marks[max(marks)] if marks else None
        is_finished = self._premises.source.summary is not None
        if last is not None and is_finished and truth.num_records > last.num_frames:
            detail = (
                f"the finished run vouches for {last.num_frames} records, and the file has "
                f"{truth.num_records}"
            )
            yield RULES.found("truth.disagrees", detail, [Evidence()])

    def on_end(self) -> Iterator[Finding]:
        """Say what is missing, now that no round can be lost any more."""
        for findings in self._held.values():
            yield from findings
        if self._seeds:  # a file without any is said to have none
            for findings in self._without_seeds.values():
                yield from findings

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that were lost need no records, and so are covered."""
        made = len(self._compared)
        covered = tally.rounds if made else 0
        detail = (
            f"{self._devices} records of devices and {self._seeds} of seeds, in {made} of "
            f"{tally.rounds} rounds"
        )
        return Coverage(covered, detail)

    def unchecked(self) -> Iterator[str]:
        """What an honest truth file can lack."""
        if self._without_seeds and not self._seeds:
            yield (
                f"seeds of devices: the truth file has none, and {len(self._without_seeds)} "
                "rounds are recorded whole; keys, boxes and masks were not computed again"
            )
        if self._lost:
            yield (
                f"truth file: {len(self._lost)} rounds were lost or have no end, of which it need "
                "not have anything"
            )
        if not self._premises.source.truth_marks:
            yield "truth file: there is no checkpoint that says how far it goes"


def _untold(round_: RoundView, truth: TruthOfRound) -> Iterator[str]:
    """Devices that sent a masked vector, and have no loss; or trained, and have no update."""
    sent = {
        seen.record.peer
        for session in round_.sessions.values()
        for slot in session.slots.values()
        for seen in slot.inputs
    }
    if missing := sorted(sent - {device for device, _ in round_.inputs}):
        yield f"it has no record of {_shown(missing)}, of {len(sent)} that sent a masked vector"
    without = sorted(one.device for one in truth.values() if one.passed and one.update is None)
    if without:
        yield f"it has no update of {_shown(without)}, though it says that they trained"


def _seedless(round_: RoundView, seeds: SeedsOfRound) -> Iterator[str]:
    """Devices whose seeds are not there."""
    for tag, session in round_.sessions.items():
        invited = {seen.record.peer for seen in session.announcements}
        if missing := sorted(invited - {device for of, device in seeds if of == tag}):
            yield f"it lacks the seeds of {_shown(missing)}, of {len(invited)} of a session"


def _odd(over: RoundOver, truth: TruthOfRound) -> Iterator[str]:
    """Records that no simulation of this round writes."""
    invited = {
        seen.record.peer
        for session in over.view.sessions.values()
        for seen in session.announcements
    }
    if others := sorted(truth.keys() - invited):
        yield f"it has records of {_shown(others)}, and the round was not announced to them"
    known = {*invited, *(over.view.cohort or ())}  # not all of whom are asked once more
    strange = sorted(
        device for tag, device in over.seeds if tag not in over.view.sessions or device not in known
    )
    if strange:
        yield f"it has seeds of {_shown(strange)} for sessions in which they were not"
    if over.repeated:
        yield f"it has two records of {_shown(sorted(over.repeated))} in one round"


def _otherwise(round_: RoundView, truth: TruthOfRound) -> Iterator[str]:
    """Devices that are said to have trained, or not, against the threshold that was released."""
    sessions = list(round_.sessions.values())
    config = sessions[0].config if len(sessions) == 1 else None
    if config is None:
        return
    slot = sessions[0].slots.get(config.update_slot)
    threshold = None if slot is None else slot.question
    if slot is None or not isinstance(threshold, Threshold):
        trained: set[int] = set()
        due: set[int] = set()
    else:
        sent = {seen.record.peer for seen in slot.inputs}
        trained = {d for d in sent & truth.keys() if passes(truth[d], config, threshold)}
        due = {device for device in trained if truth[device].weight}
    said = {one.device for one in truth.values() if one.passed}
    if wrong := sorted((said - trained) | (due - said)):
        yield (
            f"whether {_shown(wrong)} trained does not follow from their losses and the announced "
            "threshold"
        )


def _shown(devices: list[int]) -> str:
    """Devices, the first few by their ids."""
    some = ", ".join(map(str, devices[:_SHOWN])) + (", …" if len(devices) > _SHOWN else "")
    return f"{len(devices)} devices ({some})"
