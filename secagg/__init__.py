"""Pairwise-masking secure aggregation: one session, a fixed cohort, a few secure sums.

    session     a whole session on one page: read this first
    client      a device's machine           server     the server's machine
    states      what is legal when           messages   what is said; wire: its bytes
    params      what a session is about      threat     degree and threshold from the threat model
    policy      what a device insists on     ideal      what a session computes, in clear
    identity    who signs; directory: who is who; signing: what is signed

The machines do no input or output: bytes in, bytes out, the caller owns time, transport and
randomness. Needs numpy, cryptography, pynacl and msgpack, which are loaded with the first name
that is taken from here (`api` lists the names): importing the package alone costs nothing.

"Spec: §x.y" is a section of docs/spec.md, which another implementation could be written from.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltafl.secagg.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """One of the names of `api`, which is imported now (PEP 562)."""
        value = globals()[name] = getattr(import_module("deltafl.secagg.api"), name)
        return value

    def __dir__() -> list[str]:
        return sorted(globals() | dict.fromkeys(__getattr__("__all__")))
