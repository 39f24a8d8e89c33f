"""The messages of a round, which wrap those of secure aggregation.

The server sends envelopes: a public part, and the message of the session that goes with it.
Devices answer with the session's messages alone, since all
that they have to say is masked.

Spec: §12.7.
"""

from dataclasses import dataclass, field

from deltafl.protocol.levels import Levels
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold


@dataclass(frozen=True, slots=True)
class Announce:
    """A round begins, or rounds at several levels: their configurations and models.

    Attributes:
        levels: The rounds.
        models: Their models w, opaque bytes of one size, joined in the order of the levels.
        session: The session's opening message.
    """

    levels: Levels
    models: bytes = field(repr=False)
    session: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Relay:
    """A message of the session and nothing else."""

    session: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """A query of the search, or the threshold that asks for updates.

    Attributes:
        question: The question that the next sum answers.
        session: The message that opens the slot.
        opening: In a verified search, the message that proves the sum of the query before; empty if
            there is none.
    """

    question: Query | Threshold
    session: bytes = field(repr=False)
    opening: bytes = field(default=b"", repr=False)


Envelope = Announce | Relay | Ask
