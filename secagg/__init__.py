"""Pairwise-masking secure aggregation: one session, a fixed cohort, a few secure sums.

    session     a whole session on one page: read this first
    client      a device's machine           server     the server's machine
    states      what is legal when           messages   what is said; wire: its bytes
    params      what a session is about      threat     degree and threshold from the threat model
    policy      what a device insists on     ideal      what a session computes, in clear
    identity    who signs; directory: who is who; signing: what is signed
    ledger      what a device does only once, in memory or in a file
    layout      real numbers as integers whose sums cannot overflow
    one_process `secure_sum`: all parties in one process, in one line

The machines do no input or output. They take bytes and return bytes; the caller owns time,
transport and randomness, and says where a device's ledger is. The package needs numpy,
cryptography, pynacl and msgpack. They are loaded when a name is first taken from here, so importing
the package alone costs nothing.

"Spec: §x.y" refers to docs/spec.md, which is complete enough to write another implementation from.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the same names as below, for type checkers
    from deltafl.secagg.client import Client as Client
    from deltafl.secagg.directory import Credentials as Credentials
    from deltafl.secagg.directory import (
        Directory as Directory,
    )
    from deltafl.secagg.directory import Enrolment as Enrolment
    from deltafl.secagg.directory import (
        FirstUse as FirstUse,
    )
    from deltafl.secagg.directory import (
        TrustedKeys as TrustedKeys,
    )
    from deltafl.secagg.errors import (
        DecodeError as DecodeError,
    )
    from deltafl.secagg.errors import (
        EncodingError as EncodingError,
    )
    from deltafl.secagg.errors import (
        Fault as Fault,
    )
    from deltafl.secagg.errors import (
        LedgerError as LedgerError,
    )
    from deltafl.secagg.errors import (
        PeerError as PeerError,
    )
    from deltafl.secagg.errors import (
        Refusal as Refusal,
    )
    from deltafl.secagg.errors import (
        SecAggError as SecAggError,
    )
    from deltafl.secagg.errors import (
        SessionAborted as SessionAborted,
    )
    from deltafl.secagg.errors import (
        UsageError as UsageError,
    )
    from deltafl.secagg.ideal import IdealSession as IdealSession
    from deltafl.secagg.identity import Identity as Identity
    from deltafl.secagg.layout import (
        Field as Field,
    )
    from deltafl.secagg.layout import (
        Layout as Layout,
    )
    from deltafl.secagg.layout import (
        Multiple as Multiple,
    )
    from deltafl.secagg.ledger import (
        Ledger as Ledger,
    )
    from deltafl.secagg.ledger import (
        MemoryLedger as MemoryLedger,
    )
    from deltafl.secagg.ledger import SqliteLedger as SqliteLedger
    from deltafl.secagg.one_process import SecureSum as SecureSum
    from deltafl.secagg.one_process import secure_sum as secure_sum
    from deltafl.secagg.params import (
        ClientId as ClientId,
    )
    from deltafl.secagg.params import (
        GraphKind as GraphKind,
    )
    from deltafl.secagg.params import (
        SessionParams as SessionParams,
    )
    from deltafl.secagg.params import (
        SlotSpec as SlotSpec,
    )
    from deltafl.secagg.policy import DevicePolicy as DevicePolicy
    from deltafl.secagg.server import Server as Server
    from deltafl.secagg.session import run_session as run_session
    from deltafl.secagg.states import ClientState as ClientState
    from deltafl.secagg.states import Dispute as Dispute
    from deltafl.secagg.states import Drop as Drop
    from deltafl.secagg.states import ServerState as ServerState
    from deltafl.secagg.states import Stage as Stage
    from deltafl.secagg.states import Step as Step
    from deltafl.secagg.states import Vanish as Vanish
    from deltafl.secagg.summing import SlotSum as SlotSum
    from deltafl.secagg.threat import Adversary as Adversary
    from deltafl.secagg.threat import ThreatModel as ThreatModel
    from deltafl.secagg.wire import max_bytes as max_bytes

_NAMES: Final = {
    "client": "Client",
    "directory": "Credentials Directory Enrolment FirstUse TrustedKeys",
    "errors": "DecodeError EncodingError Fault LedgerError PeerError Refusal SecAggError"
    " SessionAborted UsageError",
    "ideal": "IdealSession",
    "identity": "Identity",
    "layout": "Field Layout Multiple",
    "ledger": "Ledger MemoryLedger SqliteLedger",
    "one_process": "SecureSum secure_sum",
    "params": "ClientId GraphKind SessionParams SlotSpec",
    "policy": "DevicePolicy",
    "server": "Server",
    "session": "run_session",
    "summing": "SlotSum",
    "states": "ClientState Dispute Drop ServerState Stage Step Vanish",
    "threat": "Adversary ThreatModel",
    "wire": "max_bytes",
}
"""The public names, by the modules that hold them."""

_HOMES: Final = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the module that holds a public name, and return the name's value (PEP 562).

        Python also asks here for modules of this package, before it imports them. These requests
        are refused, because importing anything to answer them would be circular.
        """
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
