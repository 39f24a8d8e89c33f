"""What is wrong in a run, by whom, and what the auditor has to say about it."""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from staged_runs import Edit, Entry, Stage, StagedRun, played, write, write_truth

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.check import Check
from deltafl.sim.inspect.audit.options import Options

Laid = Callable[[StagedRun, list[Entry], Path], Path]
"""Puts what a record says of a run into a folder: what is to be audited."""


def as_transcript(_run: StagedRun, entries: list[Entry], folder: Path) -> Path:
    """A record by itself, whose chain is right."""
    write(entries, folder / "t.sqlite")
    return folder / "t.sqlite"


USUAL = {"min_cohort": 5, "limits": ("policy.max_mm_pivots_per_device=10",)}
"""What the staged runs need of the audit's limits, with their seven devices."""


@dataclass(frozen=True)
class InjectedLeak:
    """Something that is wrong in a run.

    Attributes:
        name: What.
        rules: Of these, one must be found.
        lie: Changes what the record says, or points at what is wrong in it (`Edit.touched`).
        stage: The run in which it is.
        twin: The run without it.
        common: The rules that are broken in the twin, too.
        options: Of the audit, in both.
        round: Where it is; None where it is in all rounds, or in none.
        with_truth: Whether it takes the truth file to see it.
        retold: Changes what the truth file says, which has the run's devices in `truths`.
        laid: How the record lies; of a leak in a file, this is where it is injected.
        twin_laid: How that of the twin lies.
    """

    name: str
    rules: tuple[str, ...]
    lie: Callable[[Edit], None]
    stage: type[Stage] = Stage
    twin: type[Stage] = Stage
    common: tuple[str, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    round: int | None = 1
    with_truth: bool = False
    retold: Callable[[StagedRun], StagedRun] = lambda run: run
    laid: Laid = as_transcript
    twin_laid: Laid = as_transcript

    def makes(self, check: type[Check]) -> bool:
        """Whether its audit makes a check."""
        asked = self.options.get("independent", False) or not check.needs_asking
        return asked and (self.with_truth or not check.needs_truth)

    def edited(self) -> Edit:
        """What the record says."""
        edit = Edit(played(self.stage))
        self.lie(edit)
        return edit

    def audit(self, folder: Path):
        """The report on the run with the leak."""
        edit = self.edited()
        path = self.laid(edit.run, edit.entries, folder)
        truth = _truth(self.retold(edit.run), path, folder) if self.with_truth else None
        return audit(path, Options(**{**USUAL, **self.options, "truth": truth}))

    def audit_of_twin(self, folder: Path):
        """The report on the run without it."""
        options = tuple(self.options.items())
        return _audit_of_twin(folder, self.twin, self.twin_laid, options, self.with_truth)


@functools.cache
def _audit_of_twin(folder, stage, laid, options, with_truth):
    """Twins are shared by many leaks."""
    run = played(stage)
    own = Path(tempfile.mkdtemp(dir=folder))
    path = laid(run, run.entries, own)
    truth = _truth(run, path, own) if with_truth else None
    return audit(path, Options(**{**USUAL, **dict(options), "truth": truth}))


def _truth(run: StagedRun, path: Path, folder: Path) -> Path:
    """That in the directory that is audited, else that of the run."""
    own = path / "truth.sqlite"
    return own if own.exists() else truth_of(run, folder)


def truth_of(run: StagedRun, folder: Path) -> Path:
    """The run's truth file, in a folder."""
    write_truth(run, folder / "truth.sqlite")
    return folder / "truth.sqlite"


LEAKS: list[InjectedLeak] = []


def leak(*rules: str, stage: type[Stage] = Stage, twin: type[Stage] | None = None, **more):
    """Put a lie on the list.

    Args:
        rules: See `InjectedLeak`.
        stage: See `InjectedLeak`; where it misbehaves by itself, the twin is what it derives from.
        twin: See `InjectedLeak`.
        more: See `InjectedLeak`.
    """
    if twin is None:
        twin = stage.honest()

    def put(lie):
        LEAKS.append(InjectedLeak(lie.__name__, rules, lie, stage, twin, **more))
        return lie

    return put
