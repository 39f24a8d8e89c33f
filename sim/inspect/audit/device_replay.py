"""A round's devices played again: the real ones, given what the record says that they were sent.

A simulation writes the seed of all that a device draws, its losses, its weight and its update to
the file of truth. With them the real device must send what the record says that it sent. What it
sends otherwise is a departure, of a rule that follows from what is different.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import ClientId, Credentials, DecodeError, Directory, Ledger, SessionParams
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError, LedgerError, PeerError, UsageError
from deltafl.secagg.identity import IdentityKey, identity
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    ShareKeys,
    ShareReceipt,
    UnmaskShares,
)
from deltafl.secagg.messages import Message as SessionMessage
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.server_replay import Departure
from deltafl.sim.inspect.audit.truth_rounds import InputsOfRound
from deltafl.sim.record.truth import DeviceSeed, DeviceTruth, sources_of

LENIENT: Final = RoundPolicy(
    min_cohort=2,
    min_threshold=2,
    min_threshold_share=0.0,
    colluding_rate=0.0,
    dropout_rate=0.999,
    min_honest_tail=0,
    max_levels=16,
    min_search_cohort=0,
    max_query_pivots=1 << 16,
    max_pivots=1 << 32,
    max_pivots_if_equal=1 << 32,
    max_mm_pivots_per_device=Fraction(1 << 32),
    max_loss_resolution_bits=64,
    max_loss_bound=1 << 32,
    max_weight=1 << 53,
    min_update_resolution_bits=0,
    min_update_clip=2.0**-1000,
    max_update_clip=2.0**1000,
    min_noise=Fraction(0),
    min_update_noise=Fraction(0),
    max_update_norm=2.0**1000,
)
"""Of devices whose policy is not known: of what they refuse, other checks judge."""

_Found: TypeAlias = Iterator[tuple[str, str]]  # rule and detail


class AnyKey(Directory):
    """Accepts every identity: who was listed, the record does not say."""

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Always."""
        del client, key
        return True


@dataclass(slots=True, eq=False)
class _Device:
    """A device, and what it has made of what it was sent.

    Once its answers cannot be known, the first that comes is found to be `untrue`: rule and detail.
    """

    client: RoundClient
    inputs: Mapping[int, DeviceTruth]
    due: list[bytes] = field(default_factory=list)
    refused: str = ""
    lost_track: bool = False
    untrue: list[tuple[str, str]] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        """Answer what the device was sent; it is due from now on."""
        if self.lost_track or self.refused or self.untrue:
            return
        try:
            reply = self.client.receive(data)
            if isinstance(reply, LocalWork):
                self.untrue = list(self._untrue(reply))
                reply = None if self.untrue else self._work(reply)
        except (PeerError, LedgerError, UsageError) as error:
            self.refused = str(error)
            return
        except EncodingError as error:
            self.untrue = [("truth.disagrees", f"cannot have the values of the truth: {error}")]
            return
        if reply is not None:
            self.due.append(reply)

    def _untrue(self, task: LocalWork) -> _Found:
        """What the truth lacks, or says otherwise than the device decides."""
        inputs, client = self.inputs, self.client
        if task is LocalWork.MEASURE_LOSS:
            if inputs.keys() != set(range(len(client.models))):
                yield "truth.missing", "was asked for its loss, and the truth has none"
            return
        one = inputs[client.level]
        if one.passed != (task is LocalWork.TRAIN):
            trains = "trains" if task is LocalWork.TRAIN else "does not train"
            yield "truth.disagrees", f"{trains} by its loss, and otherwise by the truth"
        elif one.passed and one.update is None:
            yield "truth.missing", "trains by its loss, and the truth has no update of it"

    def _work(self, task: LocalWork) -> bytes | None:
        inputs, client = self.inputs, self.client
        if task is LocalWork.MEASURE_LOSS:
            losses = [inputs[level].loss for level in sorted(inputs)]
            return client.supply_losses(losses, inputs[0].weight)
        update = inputs[client.level].update
        if task is LocalWork.WAIT or update is None:
            return client.supply_zeros()
        return client.supply_update(update)


@dataclass(slots=True, eq=False)
class DeviceReplay:
    """The devices of a session, played again as far as their seeds are known.

    Attributes:
        params: The session's.
        policy: What devices insist on.
        seeds: Theirs.
        inputs: Their values, by device and conformity level.
        ledgers: What each remembers over all rounds.
    """

    params: SessionParams
    policy: RoundPolicy
    seeds: Mapping[int, DeviceSeed]
    inputs: InputsOfRound
    ledgers: Mapping[int, Ledger]
    _devices: dict[int, _Device] = field(default_factory=dict)
    _seedless: set[int] = field(default_factory=set)

    @property
    def refused(self) -> frozenset[int]:
        """The devices that refused to go on."""
        return frozenset(peer for peer, one in self._devices.items() if one.refused)

    @property
    def played(self) -> int:
        """How many devices were played again to where the record leads them."""
        return sum(not one.lost_track for one in self._devices.values())

    def sent(self, peer: int, data: bytes, place: Evidence) -> Iterator[Departure]:
        """The record says that the server sent this to a device."""
        if peer not in self._devices and peer in self.seeds:
            self._devices[peer] = _Device(self._client(peer), self._inputs_of(peer))
        elif peer not in self._devices and peer not in self._seedless:
            self._seedless.add(peer)
            yield Departure("truth.missing", f"the truth has no seed of device {peer}", place)
        if peer in self._devices:
            self._devices[peer].take(data)

    def received(self, peer: int, data: bytes, place: Evidence) -> Iterator[Departure]:
        """The record says that a device sent this."""
        device = self._devices.get(peer)
        if device is None or device.lost_track:
            return
        if not device.due:
            device.lost_track = True
            if device.untrue:
                for rule, detail in device.untrue:
                    yield Departure(rule, f"device {peer} {detail}", place)
            elif device.refused:
                detail = f"device {peer} answered what it refuses: {device.refused}"
                yield Departure("policy.ignored", detail, place)
            else:
                detail = f"device {peer} sent what nobody had asked it for"
                yield Departure("messages.unasked", detail, place)
            return
        expected = device.due.pop(0)
        if expected != data:
            device.lost_track = True
            for rule, detail in _differences(expected, data, self.params):
                yield Departure(rule, f"device {peer} {detail}", place)

    def _inputs_of(self, device: int) -> Mapping[int, DeviceTruth]:
        return {level: one for (of, level), one in self.inputs.items() if of == device}

    def _client(self, device: int) -> RoundClient:
        seed = self.seeds[device]
        secrets, noise = sources_of(seed.seed)
        credentials = Credentials(identity(seed.identity), AnyKey()) if seed.identity else None
        return RoundClient(
            ClientId(device),
            self.policy,
            secrets,
            credentials,
            noise,
            ledger=self.ledgers[device],
        )


def _differences(expected: bytes, data: bytes, params: SessionParams) -> _Found:
    """What is different in a device's message: rules and details."""
    try:
        due, said = session_wire.decode(expected, params), session_wire.decode(data, params)
    except DecodeError:  # the check of what is no message says so
        return
    if type(due) is not type(said):
        names = type(said).__name__, type(due).__name__
        yield "messages.unasked", f"sent {names[0]} where {names[1]} was due"
        return
    otherwise = "messages.unasked", "sent what an honest device writes otherwise"
    yield from list(_in_messages(due, said)) or [otherwise]


_PARTS: Final[Mapping[type, Sequence[tuple[str, str, str]]]] = {
    AdvertiseKeys: (
        ("sealing_key", "secrets.other", "has another key than that of the secret that it drew"),
        ("mask_keys", "secrets.other", "has other keys than those of the secrets that it drew"),
        ("credential", "keys.unsworn", "signed its keys otherwise than its identity does"),
    ),
    ShareKeys: (
        ("commitments", "commitments.other", "committed to other seeds than it drew"),
        ("boxes", "boxes.other", "sealed other boxes than those of its shares"),
    ),
    ShareReceipt: (("", "boxes.refused", "complained of other boxes than those that do not open"),),
    MaskedInput: (
        ("packed", "masks.other", "sent another vector than its contribution under its masks"),
        ("committed", "commitments.other", "committed to another answer than its own"),
        ("proof", "proof.predictable", "proved its answer by other numbers than it drew"),
    ),
    ConsistencySignature: (
        ("", "keys.unsworn", "signed the list otherwise than its identity does"),
    ),
    UnmaskShares: (
        ("", "shares.other", "gave other shares than it was asked for, or had been sent"),
    ),
}
"""What an honest device makes of a field, or of all of a message: rule and detail."""


def _in_messages(due: SessionMessage, said: SessionMessage) -> _Found:
    for name, rule, detail in _PARTS.get(type(due), ()):
        if not name or getattr(due, name) != getattr(said, name):
            yield rule, detail
