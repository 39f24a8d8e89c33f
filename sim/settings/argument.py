"""Numbers and addresses of the command line that are checked where they are read."""

import argparse
from collections.abc import Callable

from deltafl.sim.errors import UserError
from deltafl.sim.settings.constraints import Interval


def within(interval: str, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """A type for `argparse`: numbers of an interval, in mathematical notation.

    >>> within("[1, 9]")("7"), within("[0, 1)", float)("0.25")
    (7, 0.25)

    Args:
        interval: where they lie.
        kind: `int` for whole numbers, or `float`.
    """
    expected, what = Interval(interval), "a whole number" if kind is int else "a number"

    def convert(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not expected.holds(number):
            raise argparse.ArgumentTypeError(
                f"{text[:40]} must be {what}, and {expected.requirement()}"
            )
        return number

    return convert


def address(text: str, flag: str) -> tuple[str, int]:
    """A host and a port.

    Args:
        text: both, as in 127.0.0.1:8443 or [::1]:8443.
        flag: by which it was given.

    Raises:
        UserError: it is no host and port.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{flag} {text}: must be HOST:PORT, such as 127.0.0.1:8443")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """A host and a port, as in an address of the web.

    >>> joined("::1", 8443)
    '[::1]:8443'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
