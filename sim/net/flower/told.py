"""What a node is told of a round by Flower's messages, beside the frames of the transport.

The app's own functions may depend on all of it: a server that told one node another learning rate
than the others would have that node's update. So a digest of it is in the round's task
(`deltafl.sim.net.frames.Task.beside`), on which the parties of a session agree, and the app is
handed nothing else of a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import msgpack

from deltafl.sim.errors import ConfigError
from deltafl.sim.net.flower.layout import Layout

_LABEL: Final = b"deltafl/net/v1/what nodes are told"


@dataclass(frozen=True, slots=True)
class Told:
    """What the app is handed beside the model.

    Attributes:
        layout: of the model.
        kind: of the message.
        group: of the message.
        config: the message's configuration.
        run: the run's configuration, where nodes have identities of their own; else nothing, for
            then the server can make up the other nodes anyway.
    """

    layout: Layout
    kind: str
    group: str
    config: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> bytes:
        """32 bytes; another digest for anything else that is told.

        Raises:
            ConfigError: a value is none of a configuration.
        """
        layout = [self.layout.names, self.layout.shapes, self.layout.types]
        tables = [sorted(table.items()) for table in (self.config, self.run)]
        try:
            # of equal numbers of different types, each has an encoding of its own
            packed = msgpack.packb([layout, self.kind, self.group, tables])
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the configuration of the round has no digest: {error}") from None
        return sha256(_LABEL + packed).digest()
