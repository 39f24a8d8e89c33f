"""The server's outgoing messages, one per recipient, each written only when it is read.

Deliveries to a thousand devices of a complete graph take more than a hundred megabytes in total. A
server that sends them one by one needs to hold only one at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from deltafl.secagg.params import ClientId

Outgoing = Mapping[ClientId, bytes]


class Letters(Outgoing):
    """Messages by recipient, each made by a function that returns the same bytes every time.

    Args:
        recipients: The devices that get a message, in order.
        write: Makes a recipient's message from what was known when this object was created.
    """

    def __init__(self, recipients: Sequence[ClientId], write: Callable[[ClientId], bytes]) -> None:
        self._recipients = dict.fromkeys(recipients)
        self._write = write

    def __getitem__(self, recipient: ClientId) -> bytes:
        if recipient not in self._recipients:
            raise KeyError(recipient)
        return self._write(recipient)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._recipients)

    def __len__(self) -> int:
        return len(self._recipients)
