"""Domain separation of the round's digests. Spec: §1.5."""

from typing import Final

VERSION: Final = 3
_PREFIX: Final = b"deltafl/protocol/v%d/" % VERSION

ROUND: Final = _PREFIX + b"round context"
BINDING: Final = _PREFIX + b"slot binding"
MODEL: Final = _PREFIX + b"model that was answered for"
AGAIN: Final = _PREFIX + b"round over a model"
PARTICIPATION: Final = _PREFIX + b"participation"
ROUND_OF_DAY: Final = _PREFIX + b"round of a day"
ROTATION: Final = _PREFIX + b"rotation of updates"
BALLOT: Final = _PREFIX + b"answer and weight of a device"
WEIGHT_BLINDINGS: Final = _PREFIX + b"blindings of a weight"

QUANTILE_SLOT: Final = "quantile"
UPDATE_SLOT: Final = "update"
