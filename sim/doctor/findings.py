"""A finding of the doctor: what was looked at, how it is, and the mend if it is not well."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How something is."""

    GOOD = "ok"
    """As it should be."""
    ABSENT = "absent"
    """Not there, and not needed."""
    WARNING = "warning"
    """Something will be slower, or may go wrong."""
    FAILED = "FAILED"
    """The command does not work as it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found.

    Attributes:
        topic: what was looked at, in a word or two.
        state: how it is.
        text: what was found.
        mend: what to do about it; "" if nothing has to be done.
    """

    topic: str
    state: State
    text: str
    mend: str = ""


def good(topic: str, text: str) -> Finding:
    """A finding of what is as it should be."""
    return Finding(topic, State.GOOD, text)
