"""Pairwise-masking secure aggregation: one session, a fixed cohort, a few secure sums.

    session     a whole session on one page: read this first
    client      a device's machine           server     the server's machine
    states      what is legal when           messages   what is said; wire: its bytes
    params      what a session is about      threat     degree and threshold from the threat model
    policy      what a device insists on     ideal      what a session computes, in clear
    identity    who signs; directory: who is who; signing: what is signed

The machines do no input or output: bytes in, bytes out, the caller owns time, transport and
randomness. Needs numpy, cryptography, pynacl and msgpack.

"Spec: §x.y" is a section of docs/spec.md, which another implementation could be written from.
"""

from deltafl.secagg.client import Client
from deltafl.secagg.directory import Directory, FirstUse, TrustedKeys
from deltafl.secagg.enrolment import Enrolment
from deltafl.secagg.errors import (
    DecodeError,
    Fault,
    PeerError,
    Refusal,
    SecAggError,
    SessionAborted,
    UsageError,
)
from deltafl.secagg.ideal import IdealSession
from deltafl.secagg.identity import Identity
from deltafl.secagg.ledger import Ledger
from deltafl.secagg.params import ClientId, GraphKind, SessionParams, SlotSpec
from deltafl.secagg.policy import DevicePolicy
from deltafl.secagg.server import Server, SlotSum
from deltafl.secagg.session import run_session
from deltafl.secagg.signing import Credentials
from deltafl.secagg.stages import Dispute, Drop, Stage, Step, Vanish
from deltafl.secagg.threat import Adversary, ThreatModel

__all__ = [
    "Adversary",
    "Client",
    "ClientId",
    "Credentials",
    "DecodeError",
    "DevicePolicy",
    "Directory",
    "Dispute",
    "Drop",
    "Enrolment",
    "Fault",
    "FirstUse",
    "GraphKind",
    "IdealSession",
    "Identity",
    "Ledger",
    "PeerError",
    "Refusal",
    "SecAggError",
    "Server",
    "SessionAborted",
    "SessionParams",
    "SlotSpec",
    "SlotSum",
    "Stage",
    "Step",
    "ThreatModel",
    "TrustedKeys",
    "UsageError",
    "Vanish",
    "run_session",
]
