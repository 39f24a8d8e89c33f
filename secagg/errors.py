"""What can go wrong, and whose fault it is.

    SecAggError
    ├── UsageError        our own caller's mistake: nothing has changed, the session goes on
    │   └── LedgerError   on a device: its ledger cannot be used, so it takes no part yet
    ├── DecodeError       the bytes are not exactly one canonical message
    ├── EncodingError     a value that a layout cannot carry, or a sum that no devices give who
    │                     follow it
    ├── PeerError         on a device: the server broke the protocol or asked for less safety
    │                     than the device accepts; the device has ended its session for good
    └── SessionAborted    on the server: too few devices are left to reveal the sum and nothing else

A device's mistake never raises an exception on the server. The server drops the device with a
`Fault`, and the others go on.

Spec: §11.1.
"""

from enum import StrEnum
from operator import index
from typing import TypeVar

T = TypeVar("T")


class SecAggError(Exception):
    """Base class of every error that this package raises on purpose."""


class UsageError(SecAggError, ValueError):
    """A caller used the package wrongly; the object it called is unchanged."""


class LedgerError(UsageError):
    """A device's ledger is unusable: not one, damaged, read-only or full, or the disk is."""


class DecodeError(SecAggError, ValueError):
    """Bytes from the wire are not exactly one canonical message of this version."""


class EncodingError(SecAggError):
    """A value does not fit its declared field, or a ring vector does not fit its layout."""


class Refusal(StrEnum):
    """Why a device ended its session: what the server did (stable names). Spec: §11.2."""

    MALFORMED = "malformed"
    OUT_OF_ORDER = "out of order"
    POLICY = "below the device's policy"
    NOT_IN_ROSTER = "roster without the device"
    NAMED_AS_ITS_OWN_PEER = "device named as its own peer"
    UNKNOWN_NEIGHBOUR = "unknown neighbour"
    MISSING_NEIGHBOUR = "missing neighbour"
    BAD_KEY = "bad key"
    COHORT_TOO_SMALL = "cohort too small"
    TOO_FEW_NEIGHBOURS = "too few neighbours"
    COHORT_GREW = "cohort grew"
    DEVICE_LEFT_OUT = "device left out"
    SLOT_REUSED = "slot reused"
    BOTH_SHARE_KINDS = "both share kinds asked for"
    UNKNOWN_IDENTITY = "unknown identity"
    BAD_SIGNATURE = "bad signature"
    INCONSISTENT_SURVIVORS = "two lists of survivors"
    TOO_FEW_SIGNATURES = "too few signatures"
    SESSION_REPEATED = "a second session of one context"
    NOT_AGREED = "a whole slot over devices that were not agreed on"
    BAD_OPENING = "a sum that its commitments do not open to"
    UNPROVED = "a question before the last sum was proved"
    NOT_FOLLOWING = "a question that does not follow from the sums"
    TAIL_TOO_SMALL = "too few devices in the tail"
    MODEL_REPEATED = "a second round over one model"


class PeerError(SecAggError):
    """The server's message was refused, and the device's session is over.

    Attributes:
        reason: The refusal, a stable name.
    """

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class SessionAborted(SecAggError):
    """The session ended without a further sum; the sums it revealed earlier remain valid."""


class Fault(StrEnum):
    """Why the server dropped a device (stable names); the first fault is kept. Spec: §11.3."""

    TIMED_OUT = "timed out"
    MALFORMED = "malformed"
    UNEXPECTED = "unexpected message"
    EQUIVOCATED = "two different messages in one round"
    BAD_KEY = "bad key"
    UNKNOWN_IDENTITY = "unknown identity"
    BAD_SIGNATURE = "bad signature"
    BAD_SHARE = "bad share"
    BAD_COMMITMENT = "bad commitment"
    BAD_PROOF = "bad proof"
    ISOLATED = "too few neighbours left"


def whole_number(name: str, value: object) -> int:
    """A caller's whole number as a Python integer, which cannot overflow as one of NumPy's can.

    Raises:
        UsageError: it is no whole number; the message has the name.
    """
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name}={value!r} is not a whole number") from None


def check_message(data: object) -> None:
    """Check that what a caller hands over as a message is bytes.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(data, bytes | bytearray):
        raise UsageError(f"a message is bytes, not a {type(data).__name__}")


def present(value: T | None) -> T:
    """The value, which the session's state guarantees is not None.

    Raises:
        UsageError: it is None, because the session has not come that far.
    """
    if value is None:
        raise UsageError("the session has not come so far")
    return value
