"""Whether a command shows progress: asked once, by `--quiet`, and known wherever a bar is drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_QUIET: Final = ContextVar("quiet", default=False)


def is_quiet() -> bool:
    """Whether no progress is to be shown."""
    return _QUIET.get()


@contextmanager
def quieted(quiet: bool) -> Iterator[None]:
    """Show no progress meanwhile, if `quiet`."""
    token = _QUIET.set(quiet or _QUIET.get())
    try:
        yield
    finally:
        _QUIET.reset(token)
