"""The record of an analysis: what its server sees, and what it makes of it.

The format is in docs/transcript.md, section 5.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from deltafl.secagg import ClientId, SlotSum
from deltafl.secagg.session import NoObserver, Observer
from deltafl.secagg.stages import Step
from deltafl.sim.analyse.asking import Asking, json_line, read_asking
from deltafl.sim.analyse.deduction import Answer
from deltafl.sim.errors import UserError
from deltafl.sim.record.atomic import make_folder
from deltafl.sim.record.transcript import ANALYSIS, TranscriptWriter

FILE: Final = "analysis.bin"
"""Name of the record in its folder."""

ROUND: Final = 1
"""An analysis is recorded as one round."""


class NoRecording:
    """Keeps no record.

    Args:
        observer: watches the session.

    Attributes:
        observer: of the session.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer: Observer = observer or NoObserver()

    def begin(self, devices: Iterable[ClientId]) -> None:
        """Note who is asked, before any message leaves."""

    def asked(self, slot: int, asked: bytes) -> None:
        """Note what devices are told of a slot, before it opens."""

    def answered(self, answer: Answer) -> None:
        """Note the answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del kind, error, traceback


class Recording(NoRecording):
    """Keeps the record in a file of a folder.

    Args:
        folder: created where it is missing.
        asking: the question.
        observer: watches the session too.

    Raises:
        UserError: the folder has a record already, or cannot be written to; or the question is too
            long for a record, or has a number of too many digits.
    """

    def __init__(self, folder: Path, asking: Asking, observer: Observer | None = None) -> None:
        path, question = folder / FILE, asking.to_bytes()
        try:
            read_asking(question)
        except ValueError as error:
            raise UserError(f"this question cannot be recorded: {error}") from error
        if path.exists() or path.is_symlink():
            raise UserError(f"{path} exists: a record is never replaced, so name another folder")
        try:
            make_folder(folder)
            self._writer = TranscriptWriter(path, "full", ANALYSIS.start, question=question)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}: name a folder to write to") from error
        super().__init__(self._writer if observer is None else _Both(self._writer, observer))

    def begin(self, devices: Iterable[ClientId]) -> None:
        """Bring to the disk who is asked, before any message leaves."""
        self._writer.begin_round(ROUND, devices)

    def asked(self, slot: int, asked: bytes) -> None:
        """Append what devices are told of a slot."""
        self._writer.asked(slot, asked)

    def answered(self, answer: Answer) -> None:
        """Append the answer."""
        self._writer.answered(json_line(asdict(answer)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the record, with why there is no answer; an interrupted one stays open."""
        del kind, traceback
        if error is None or isinstance(error, Exception):
            self._writer.end_round(None if error is None else str(error))
            self._writer.finish(ROUND)
            self._writer.flush()
        self._writer.close()


class _Both(NoObserver):
    """Two observers of one session."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._both = (first, second)

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        for one in self._both:
            one.message(sent=sent, peer=peer, data=data)

    def revealed(self, total: SlotSum) -> None:
        for one in self._both:
            one.revealed(total)

    def working(self, party: ClientId | None, step: Step) -> AbstractContextManager[None]:
        stack = ExitStack()
        for one in self._both:
            stack.enter_context(one.working(party, step))
        return _Closing(stack)


class _Closing(AbstractContextManager[None]):
    """Leaves what was entered."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
