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

from secagg.client import Client
from secagg.directory import Directory, FirstUse, TrustedKeys
from secagg.enrolment import Enrolment
from secagg.errors import (
    DecodeError,
    Fault,
    PeerError,
    Refusal,
    SecAggError,
    SessionAborted,
    UsageError,
)
from secagg.ideal import IdealSession
from secagg.identity import Identity
from secagg.ledger import Ledger
from secagg.params import ClientId, GraphKind, SessionParams, SlotSpec
from secagg.policy import DevicePolicy
from secagg.server import Server, SlotSum
from secagg.session import run_session
from secagg.signing import Credentials
from secagg.stages import Dispute, Drop, Stage, Step, Vanish
from secagg.threat import Adversary, ThreatModel

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
