"""What a message of Flower's hands over to a device: all that it needs to take part in a round."""

import json
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from deltafl.fl.read.strict_json import parse_json
from deltafl.secagg import ClientId
from deltafl.secagg.identity import SEED_SIZE
from deltafl.sim.net.flower.layout import Layout

RECORD: Final = "deltafl"
"""The name of the record in a message."""

_MAX_TEXT: Final = 1 << 22
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
    token: bytes
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
        if not (isinstance(token, bytes) and len(token) in (0, SEED_SIZE)):
            raise ValueError(f"the record {RECORD!r} has a token that is not {SEED_SIZE} bytes")
        return cls(str(url), str(authority), ClientId(client), token, _layout(str(layout)))


def _layout(text: str) -> Layout:
    try:
        names, shapes, types = cast("list[Any]", parse_json(text.encode()))
        return Layout(
            tuple(map(str, names)),
            tuple(tuple(int(size) for size in shape) for shape in shapes),
            tuple(map(str, types)),
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the record {RECORD!r} has no layout of a model: {error}") from None
