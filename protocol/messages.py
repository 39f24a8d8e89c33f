"""The messages of a round, which wrap those of secure aggregation.

The server sends envelopes: a public part, and the message of the session that goes with it.
Devices answer with the session's messages alone, since all
that they have to say is masked.

Spec: §12.7.
"""

from dataclasses import dataclass, field

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold


@dataclass(frozen=True, slots=True)
class Announce:
    """The round begins: its configuration, and the model to measure the loss of.

    Attributes:
        config: The round.
        model: The model w, opaque bytes.
        session: The session's opening message.
    """

    config: RoundConfig
    model: bytes = field(repr=False)
    session: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AnnounceLevels:
    """Rounds at several levels begin: their configurations, and a model for each.

    Attributes:
        levels: The rounds, two or more.
        models: Their models, opaque bytes of one size, joined in the order of the levels.
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
    """A query of the search, or the threshold that ends it and asks for updates.

    Attributes:
        question: The question that the next sum answers.
        session: The message that opens the slot.
    """

    question: Query | Threshold
    session: bytes = field(repr=False)


Envelope = Announce | AnnounceLevels | Relay | Ask
