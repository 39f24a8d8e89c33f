"""Progress on stderr: a bar in a terminal, and elsewhere (a file, CI) a line now and then."""

import sys
from time import monotonic
from typing import Any, Final, TextIO

from tqdm import tqdm

from deltafl.sim.flags import is_quiet

EVERY_S: Final = 10.0
"""Seconds between two lines where there is no terminal."""

# What matters most comes first: a terminal that is too narrow cuts off the end.
_BAR: Final = "{desc}: {n_fmt}/{total_fmt}|{bar}| {remaining} left{postfix}, {rate_fmt}"
_LINE: Final = "{desc}: {n_fmt}/{total_fmt}, {remaining} left{postfix}"


class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A `tqdm` that writes lines, without carriage returns, where stderr is no terminal.

    Args:
        iterable: as of `tqdm`.
        quiet: show nothing, as with `--quiet`.
        leave: whether the end stays on the screen; elsewhere, whether the first and the last line
            are always written. Otherwise there are none if it takes less than `EVERY_S`.
        arguments: the others of `tqdm`.
    """

    def __init__(
        self,
        iterable: Any = None,  # noqa: ANN401 (so are tqdm's)
        *,
        quiet: bool = False,
        leave: bool = False,
        **arguments: Any,  # noqa: ANN401
    ) -> None:
        shown = sys.stderr is not None and not (quiet or is_quiet())
        self._lines: _Lines | None = None
        if not (shown and sys.stderr.isatty()):
            self._lines = _Lines(sys.stderr, at_once=leave)
        super().__init__(
            iterable,
            file=self._lines or sys.stderr,
            disable=not shown,
            leave=leave,
            dynamic_ncols=self._lines is None,
            mininterval=0.2 if self._lines is None else EVERY_S,
            bar_format=_BAR if self._lines is None else _LINE,
            **arguments,
        )

    def set_description(self, desc: str | None = None, refresh: bool = True) -> None:
        """Say what is being done; tqdm would add a colon, which is in the format already."""
        self.set_description_str(desc, refresh)

    def close(self) -> None:
        """End it; with `leave`, where it has come to is shown."""
        if self._lines is not None:
            self._lines.is_last = True
        super().close()


class _Lines:
    """A stream for `tqdm`: what it draws over and over becomes a line, if the last is long ago."""

    def __init__(self, stream: TextIO, *, at_once: bool) -> None:
        self._stream = stream
        self._written = -EVERY_S if at_once else monotonic()
        self.encoding = getattr(stream, "encoding", "ascii")
        self.is_last = False

    def write(self, text: str) -> None:
        line, now = text.replace("\r", "").rstrip(), monotonic()
        if line and (self.is_last or now - self._written >= EVERY_S):
            self._written = now
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def flush(self) -> None:
        pass
