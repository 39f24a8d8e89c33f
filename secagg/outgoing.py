"""What a server has to send: a message for each of some devices, written when it is read.

Deliveries to a thousand devices of a complete graph take more than a hundred megabytes together; a
server that sends them one by one need hold only one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from deltafl.secagg.params import ClientId

Outgoing = Mapping[ClientId, bytes]


class Letters(Outgoing):
    """Messages by recipient, each made by a function, the same every time.

    Args:
        recipients: Who gets one, in order.
        write: Makes a recipient's message from what was known when the letters were made.
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
