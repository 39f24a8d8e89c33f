"""The public names of deltafl.secagg, which the package hands on."""

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
