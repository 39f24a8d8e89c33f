"""What a message of Flower's hands over to a device: all that it needs to take part in a round."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from deltafl.fl.read.strict_json import parse_json
from deltafl.secagg import ClientId
from deltafl.secagg.identity import SEED_SIZE
from deltafl.sim.net.flower.layout import Layout

RECORD: Final = "deltafl"
"""The name of the record in a message."""

_MAX_TEXT: Final = 1 << 22
_ADDRESS: Final = re.compile(r"wss?://[^/?#@\s]{1,300}")
_ID_LIMIT: Final = 2**32


class Record(Protocol):
    """A ConfigRecord, or anything else with names and values."""

    def __getitem__(self, name: str, /) -> object:
        """The value of a name."""


@dataclass(frozen=True, slots=True)
class Handover:
    """How a device joins a round.

    Attributes:
        url: of the server's transport; empty if the round's trips are messages of Flower's.
        authority: certificates (PEM) that vouch for it; empty without TLS.
        client: the device's id in the round.
        token: 32 secret bytes, for this device and round: the seed of the identity that it has in
            it. Empty where the device is to have its own identity, under the id `client`.
        layout: of the model.
    """

    url: str
    authority: str
    client: ClientId
    token: bytes = field(repr=False)
    layout: Layout

    def to_record(self) -> dict[str, str | int | bytes]:
        """The values of a ConfigRecord."""
        layout = [self.layout.names, self.layout.shapes, self.layout.types]
        return {
            "url": self.url,
            "authority": self.authority,
            "client": int(self.client),
            "token": self.token,
            "layout": json.dumps(layout),
        }

    @classmethod
    def of_record(cls, record: Record) -> "Handover":
        """Read a ConfigRecord.

        Raises:
            ValueError: it is no handover.
        """
        try:
            url, authority, client = record["url"], record["authority"], record["client"]
            token, layout = record["token"], record["layout"]
        except KeyError as error:
            raise ValueError(f"the record {RECORD!r} has no {error}") from None
        texts = (url, authority, layout)
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts):
            raise ValueError(f"the record {RECORD!r} lacks a text, or has a longer one than any")
        if not (isinstance(client, int) and 0 <= client < _ID_LIMIT):
            raise ValueError(f"the record {RECORD!r} has no id of a device")
        if url and not _ADDRESS.fullmatch(str(url)):  # no path: a node asks nothing of others
            raise ValueError(f"the record {RECORD!r} has no address of a server")
        if not (isinstance(token, bytes) and len(token) in (0, SEED_SIZE)):
            raise ValueError(f"the record {RECORD!r} has a token that is not {SEED_SIZE} bytes")
        return cls(str(url), str(authority), ClientId(client), token, _layout(str(layout)))


def _layout(text: str) -> Layout:
    try:
        names, shapes, types = cast("list[Any]", parse_json(text.encode()))
        if not all(isinstance(one, list) for one in (names, shapes, types, *shapes)):
            raise ValueError("it is not made of lists")
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            raise ValueError("a size is no whole number")
        if not all(isinstance(one, str) for one in (*names, *types)):
            raise ValueError("a name is no text")
        return Layout(tuple(names), tuple(map(tuple, shapes)), tuple(types))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"the record {RECORD!r} has no layout of a model: {error}") from None
