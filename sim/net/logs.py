"""What a server and a device log: lines with a time, a level and, where there is one, a reason.

Lines go to stderr by the standard `logging`, under the name "deltafl". Each may have fields beside
its sentence (`reason`, `device`, `peer`); as JSON, these are keys of their own.

A server counts all that it refuses, and logs only some of it: strangers choose how often they come.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from threading import Lock
from typing import Final

from deltafl.sim.visible import on_one_line

_LOGGER: Final = logging.getLogger("deltafl")
_BELOW: Final = ("uvicorn", "asyncio")  # what they log too: errors, each in a line
_FIELDS: Final = "fields"
_BURST: Final = 5.0  # lines of one cause at once
_EVERY_S: Final = 30.0  # and then one


class Cause(StrEnum):
    """Why a server has refused somebody.

    Attributes:
        TLS: the handshake failed, as of a device that does not trust the server's certificate.
        CROWDED: too many were not admitted yet, and this one had waited longest.
        SILENT: it did not say in time who it is.
        MALFORMED: what it said is no message that somebody may send who is not admitted.
        VERSION: it speaks another version of this transport.
        UNLISTED: the list has no device of its number.
        KEY: the list has another key for this number.
        SIGNATURE: its signature is not for this connection and this server's certificate.
        TWICE: its identity is connected from another place.
        RULES: it was admitted, and broke the rules of the transport.
        LIST: it was admitted, though its copy of the list is another than the server's.
        DECLINED: it does not go on with a round.
        LATE: it did not answer in time, and is lost for the round.
    """

    TLS = "tls"
    CROWDED = "crowded"
    SILENT = "silent"
    MALFORMED = "malformed"
    VERSION = "version"
    UNLISTED = "unlisted"
    KEY = "key"
    SIGNATURE = "signature"
    TWICE = "twice"
    RULES = "rules"
    LIST = "list"
    DECLINED = "declined"
    LATE = "late"


REFUSED: Final = tuple(c for c in Cause if c not in (Cause.LIST, Cause.DECLINED, Cause.LATE))
"""The causes for which somebody is not served."""


class Refusals:
    """Counts refusals by their cause, and logs a few of each.

    Of one cause, five are logged at once, and then one in half a minute, which says how many were
    not. May be used by several threads.

    Args:
        clock: tells the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[Cause] = Counter()
        self._clock, self._lock = clock, Lock()
        self._left: dict[Cause, tuple[float, float]] = {}  # lines that are left, and when
        self._unsaid: Counter[Cause] = Counter()

    def note(self, cause: Cause, sentence: str, **about: object) -> None:
        """Somebody was refused.

        Args:
            cause: why.
            sentence: the same for people; what it quotes of others has to be short.
            about: fields of the line.
        """
        with self._lock:
            self.counts[cause] += 1
            now = self._clock()
            left, before = self._left.get(cause, (_BURST, now))
            left = min(_BURST, left + (now - before) / _EVERY_S)
            is_said = left >= 1
            self._left[cause] = left - is_said, now
            unsaid = self._unsaid.pop(cause, 0) if is_said else 0
            self._unsaid[cause] += not is_said
        if is_said:
            more = f" ({unsaid} more of this cause were not logged)" if unsaid else ""
            say(f"{sentence}{more}", logging.WARNING, reason=cause.value, **about)


def start(form: str) -> None:
    """Log to stderr from now on.

    Args:
        form: "text" or "json".
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    for logger in (_LOGGER, *map(logging.getLogger, _BELOW)):
        logger.handlers[:] = [handler]
    _LOGGER.setLevel(logging.INFO)


def say(sentence: str, level: int = logging.INFO, **about: object) -> None:
    """Log a sentence.

    Args:
        sentence: for people.
        level: one of `logging`.
        about: fields of the line; those that are None are left out.
    """
    known = {name: value for name, value in about.items() if value is not None}
    _LOGGER.log(level, "%s", sentence, extra={_FIELDS: known})


def warn(sentence: str) -> None:
    """Log a sentence that somebody should act upon."""
    say(sentence, logging.WARNING)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = on_one_line(f"{record.getMessage()}{fields}")
        return f"{_time(record)} {record.levelname} {line}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname, "message": record.getMessage()}
        return json.dumps({**head, **_fields(record)}, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    error = None if record.exc_info is None else record.exc_info[1]
    raised = {} if error is None else {"error": repr(error)}
    return {**getattr(record, _FIELDS, {}), **raised}


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
