"""Domain separation of the round's digests. Spec: §1.5."""

from typing import Final

VERSION: Final = 1
_PREFIX: Final = b"deltafl/protocol/v%d/" % VERSION

ROUND: Final = _PREFIX + b"round context"
BINDING: Final = _PREFIX + b"slot binding"
LEVELS: Final = _PREFIX + b"levels context"

QUANTILE_SLOT: Final = "quantile"
UPDATE_SLOT: Final = "update"
