"""Domain separation of the round's digests. Spec: §1.5."""

from enum import Enum, unique
from typing import Final

VERSION: Final = 3
_PREFIX: Final = b"deltafl/protocol/v%d/" % VERSION


@unique
class Label(bytes, Enum):
    """What a digest or a key is for."""

    ROUND = _PREFIX + b"round context"
    BINDING = _PREFIX + b"slot binding"
    MODEL = _PREFIX + b"model that was answered for"
    AGAIN = _PREFIX + b"round over a model"
    PARTICIPATION = _PREFIX + b"participation"
    ROUND_OF_DAY = _PREFIX + b"round of a day"
    ROTATION = _PREFIX + b"rotation of updates"
    BALLOT = _PREFIX + b"answer and weight of a device"
    WEIGHT_BLINDINGS = _PREFIX + b"blindings of a weight"
